"""The check finds what it must: wrong elements, stale slots, disagreement of ranks, too much rounding."""

import numpy as np
import pytest

from arfloor.core.cases import Case
from arfloor.runtime import verify

SLOTS = 4


def make_case(dtype="float32", numel=512, world=2, groups=()):
    return Case(
        backend="t",
        path="cpu",
        devices=tuple(f"cpu:{r}" for r in range(world)),
        groups=groups,
        numel=numel,
        dtype=dtype,
        mode="eager",
    )


class Op:
    """All ranks in one process: sums every rank's payload of the slot, then spoils it as told."""

    def __init__(self, case, rank, spoil=None, order=1):
        self.case, self.rank, self.slots, self.spoil, self.order = case, rank, SLOTS, spoil, order
        self.out = [np.full(case.numel, np.nan) for _ in range(SLOTS)]
        self.kind = ""

    def write(self, slot, values):
        mine = {k: verify.payload(k, self.case, slot, self.rank, SLOTS) for k in verify.KINDS}
        self.kind = next(k for k, v in mine.items() if np.array_equal(v, values))

    def poison(self, slot):
        self.out[slot][:] = np.nan

    def run(self, slot):
        total = np.zeros(self.case.numel)
        for rank in list(verify.members(self.case, self.rank))[:: self.order]:
            total = verify.round_to(
                total + verify.payload(self.kind, self.case, slot, rank, SLOTS), self.case.dtype
            )
        self.out[slot][:] = total
        if self.spoil is not None:
            self.spoil(self, slot)

    def read(self, slot):
        return self.out[slot]


def check(case, spoil=None, rank=0):
    return verify.check_rank(Op(case, rank, spoil), case, rank)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("world", [2, 3, 8])
def test_a_right_sum_passes_whatever_its_order(dtype, world):
    case = make_case(dtype, world=world)
    for order in (1, -1):
        found = verify.check_rank(Op(case, 0, order=order), case, 0)
        assert found.wrong == 0
        assert found.max_error <= 1


def test_the_bound_is_near_enough_to_find_one_lost_rounding_step():
    case = make_case("float32", world=8)

    def coarse(op, slot):  # as if accumulated in bfloat16
        op.out[slot][:] = verify.round_to(op.out[slot], "bfloat16")

    found = check(case, coarse)
    assert found.wrong > case.numel
    assert found.max_error > 100


def one_element(op, slot):
    if slot == 2:
        op.out[slot][17] += 1


def stale_slot(op, slot):
    if slot:
        op.out[slot][:] = op.out[slot - 1]


def torn_line(op, slot):
    if slot == 1:
        op.out[slot][32:48] = op.out[0][32:48]


def not_written(op, slot):
    if slot == 3:
        op.out[slot][-1] = np.nan


def infinite(op, slot):
    op.out[slot][0] = np.inf


def left_out(op, slot):
    op.out[slot] -= verify.payload(op.kind, op.case, slot, 1, SLOTS)


@pytest.mark.parametrize("spoil", [one_element, stale_slot, torn_line, not_written, infinite, left_out])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_every_kind_of_wrong_result_is_found(spoil, dtype):
    found = check(make_case(dtype), spoil)
    assert found.wrong > 0
    assert np.isfinite(found.max_error)


def test_ranks_that_differ_in_one_bit_are_not_bitwise_equal():
    case = make_case()

    def last_bit(op, slot):
        if op.kind == "random" and slot == 0:
            op.out[slot][5] = np.nextafter(np.float32(op.out[slot][5]), np.float32(9))

    clean, off = check(case), check(case, last_bit)
    assert off.wrong == 0  # within the rounding bound: right, yet not equal
    assert verify.merge(case, [clean, clean]).bitwise_equal
    assert not verify.merge(case, [clean, off]).bitwise_equal


def test_groups_sum_over_their_own_members_and_need_not_agree_with_others():
    case = make_case(world=4, groups=((0, 1), (2, 3)))
    checks = [check(case, rank=rank) for rank in range(4)]
    merged = verify.merge(case, checks)
    assert merged.wrong == 0
    assert merged.bitwise_equal
    assert checks[0].digests != checks[2].digests


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_payloads_fit_the_dtype_and_differ_by_slot_and_rank(dtype):
    case = make_case(dtype, world=8)
    seen = set()
    for kind in verify.KINDS:
        for slot in range(SLOTS):
            for rank in range(8):
                values = verify.payload(kind, case, slot, rank, SLOTS)
                assert np.array_equal(values, verify.round_to(values, dtype))
                seen.add(values.tobytes())
    assert len(seen) == 2 * SLOTS * 8


def test_integer_sums_are_exact_in_every_order():
    for dtype in ("float16", "bfloat16"):
        case = make_case(dtype, world=8)
        terms = [verify.payload("integers", case, 0, r, SLOTS) for r in range(8)]
        partial = np.cumsum(np.abs(terms), axis=0)
        assert np.array_equal(partial, verify.round_to(partial, dtype))


def test_rounding_to_bfloat16_is_to_nearest_even():
    eps = 2.0**-7
    values = np.array([1 + eps / 2, 1 + 1.5 * eps, 1 + 0.51 * eps, -(1 + 1.5 * eps)])
    assert verify.round_to(values, "bfloat16").tolist() == [1.0, 1 + 2 * eps, 1 + eps, -(1 + 2 * eps)]


def test_large_messages_take_one_pass_over_all_slots_with_both_kinds():
    small = verify.passes(make_case(numel=1024), 4)
    assert [len(row) for row in small] == [4, 4]
    (large,) = verify.passes(make_case(numel=1 << 20), 4)
    assert [slot for slot, _ in large] == [0, 1, 2, 3]
    assert {kind for _, kind in large} == set(verify.KINDS)
