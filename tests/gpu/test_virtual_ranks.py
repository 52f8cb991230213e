"""The kernels with 2, 4 and 8 virtual ranks on one GPU: exact results, faults, and every safeguard removed.

A safeguard's test runs the same scenario twice: as built it must pass, without the safeguard it must fail.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

pytest.importorskip("cuda.bindings", reason="needs cuda-core: pip install 'arfloor[cuda]'")
torch = pytest.importorskip("torch")

import numpy as np  # noqa: E402 - after the checks for what they import
from virtual import Operation, virtual  # noqa: E402

from arfloor.backends.ours import OursError, _from_device  # noqa: E402
from arfloor.backends.virtual import VirtualRanks  # noqa: E402
from arfloor.core.tags import is_whole  # noqa: E402

pytestmark = pytest.mark.gpu

PLANS = [
    "line16t32-one-6x64",
    "line32t32-one-6x64",
    "line64t32-one-6x64-ahead1",
    "line64t64-two-6x64",
    "line128t64-one-6x64-lag50",
    "line128t64-one-6x64-ahead2",
    "line128t64-two-6x64-ahead1",
    "line128t64-one-staged-6x64",
    "line128t64-two-staged-6x64-ahead1",
    "line128t64-islands-6x64",
    "line256t64-one-6x64-pace40-window1",
    "line512t64-one-6x64-ahead1-pace20-lag100-window1",
    "line512t64-two-6x64",
    "line512t64-islands-6x64",
    "ll-one-6x64",
    "ll-two-6x64-ahead1",
    "ll-one-staged-6x64",
    "ll-islands-6x64",
    "flag-one-6x64",
    "flag-two-6x64",
    "flag-one-pull-6x64",
    "flag-two-pull-6x64",
]
# numel, offset, in place: single elements, tails, misaligned buffers, less than a chunk a rank, many rounds
SHAPES = [
    (1, 0, False),
    (5, 0, True),
    (61, 1, False),
    (333, 3, True),
    (4096, 0, True),
    (30001, 0, False),
    (49999, 1, True),
    (2, 0, False),
    (60000, 0, False),
]


@pytest.fixture
def closing() -> Iterator[Callable[..., VirtualRanks]]:
    made: list[VirtualRanks] = []

    def make(*args: Any, **options: Any) -> VirtualRanks:
        made.append(virtual(*args, **options))
        return made[-1]

    yield make
    for ranks in made:
        ranks.close()


def sizes_fit(plan: str, world: int, path: str) -> bool:
    return not (
        (world in (2, 3) and "islands" in plan) or (path == "host" and ("staged" in plan or "pull" in plan))
    )


@pytest.mark.parametrize("path", ["peer", "host"])
@pytest.mark.parametrize("world", [2, 3, 4, 8])
@pytest.mark.parametrize("plan", PLANS)
def test_every_element_of_every_rank_is_right(closing: Any, plan: str, world: int, path: str) -> None:
    if not sizes_fit(plan, world, path):
        pytest.skip("no such shape")
    ranks = closing(plan, world, path=path)
    for seed, (numel, offset, inplace) in enumerate(SHAPES):
        operation = Operation(ranks, numel, seed, inplace=inplace, offset=offset)
        operation.launch()
        assert operation.wrong() == 0, (numel, offset, inplace, ranks.errors())
    assert ranks.errors() == [None] * world


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("plan", PLANS[5::3])
def test_other_dtypes(closing: Any, plan: str, dtype: str) -> None:
    ranks = closing(plan, 4, dtype=dtype)
    for seed, (numel, offset, inplace) in enumerate(SHAPES):
        operation = Operation(ranks, numel, seed, inplace=inplace, offset=offset)
        operation.launch()
        assert operation.wrong() == 0, (numel, offset, inplace)


def run_many(ranks: VirtualRanks, count: int, *, grids: tuple[int | None, ...] = (None,)) -> int:
    """`count` operations of mixed sizes enqueued at once, so that ranks run apart; wrong elements."""
    sizes = (60000, 7, 20000, 1, 511, 33000)
    operations = [
        Operation(ranks, sizes[i % len(sizes)], i, inplace=i % 3 == 0, blocks=grids[i % len(grids)])
        for i in range(count)
    ]
    for operation in operations:
        operation.launch()
    return sum(operation.wrong() for operation in operations)


@pytest.mark.parametrize("world", [2, 4, 8])
@pytest.mark.parametrize("plan", PLANS)
def test_sequences_pass_two_to_the_32nd(closing: Any, plan: str, world: int) -> None:
    if not sizes_fit(plan, world, "peer"):
        pytest.skip("no such shape")
    ranks = closing(plan, world)
    ranks.set_sequence(0xFFFFFFFF - 7)
    assert run_many(ranks, 18) == 0
    assert ranks.errors() == [None] * world


@pytest.mark.parametrize("path", ["peer", "host"])
@pytest.mark.parametrize("world", [2, 4])
@pytest.mark.parametrize("plan", PLANS[::2])
def test_random_stalls_change_nothing(closing: Any, plan: str, world: int, path: str) -> None:
    if not sizes_fit(plan, world, path):
        pytest.skip("no such shape")
    ranks = closing(plan, world, path=path, extra={"ARF_STALL": 1}, spin_s=3.0)
    ranks.set_stall(20_000)
    assert run_many(ranks, 36) == 0
    assert ranks.errors() == [None] * world


@pytest.mark.parametrize(
    "plan", ["line128t64-one-6x64", "ll-two-6x64", "flag-two-6x64", "line128t64-islands-6x64"]
)
def test_a_rank_that_never_arrives_poisons_and_is_named(closing: Any, plan: str) -> None:
    spin_s = 0.2
    ranks = closing(plan, 4, spin_s=spin_s)
    assert run_many(ranks, 3) == 0
    begun = time.monotonic()
    lost = Operation(ranks, 20000, 5)
    lost.launch(ranks=[0, 1, 3])
    torch.cuda.synchronize()
    assert time.monotonic() - begun < 15 * spin_s
    errors = ranks.errors()
    assert all(errors[r] is not None and errors[r].sequence == 4 for r in (0, 1, 3))
    assert any(errors[r].waited_for == 2 for r in (0, 1, 3))
    assert all(lost.output(r).isnan().any() for r in (0, 1, 3))

    # the error is sticky: the next operation is poisoned whole, at once, even when everyone comes
    after = Operation(ranks, 20000, 6)
    begun = time.monotonic()
    after.launch(ranks=[0, 1, 3])
    assert all(after.output(r).isnan().all() for r in (0, 1, 3))
    assert time.monotonic() - begun < spin_s  # it waits for nobody

    # once they have met again, in a new epoch, all is well
    ranks.new_epoch()
    assert run_many(ranks, 6) == 0


def test_a_late_packet_of_an_old_epoch_is_not_taken(closing: Any) -> None:
    """After an abort the first operation has the same sequence as before: only the epoch tells them apart."""
    ranks = closing("line128t64-one-6x64", 2, spin_s=0.3)
    lost = Operation(ranks, 4096, 1)
    lost.launch(ranks=[0])
    torch.cuda.synchronize()
    ranks.new_epoch()
    stale = Operation(ranks, 4096, 2)
    ranks.ends[1].epoch -= 1
    old = Operation(ranks, 4096, 3)
    ranks.ends[1].epoch += 1
    ranks.set_sequence(0)
    old.launch(ranks=[1])  # a straggler of the old epoch writes into the cleared slab
    time.sleep(0.05)
    stale.launch(ranks=[0])
    torch.cuda.synchronize()
    assert stale.output(0).isnan().any()
    assert ranks.errors()[0] is not None


# ------------------------------------------------------------------------------- safeguards removed


def late_rank(ranks: VirtualRanks, numel: int, seed: int, *, blocks: int | None = None) -> int:
    """Wrong elements of an operation that rank 1 enters 20 ms after the others."""
    operation = Operation(ranks, numel, seed, blocks=blocks)
    world = len(ranks.ends)
    operation.launch(ranks=[r for r in range(world) if r != 1])
    time.sleep(0.02)
    operation.launch(ranks=[1])
    return operation.wrong()


@pytest.mark.parametrize("safe", [True, False])
@pytest.mark.parametrize("plan", ["line128t64-one-6x64", "line64t32-two-6x64", "line512t64-one-6x64"])
def test_without_the_hash_a_torn_line_is_taken(closing: Any, plan: str, safe: bool) -> None:
    """Lines are written in two halves, the tag first, with a pause between."""
    extra = {"ARF_TEAR": 1} | ({} if safe else {"ARF_UNSAFE_HASH": 1})
    ranks = closing(plan, 2, extra=extra)
    ranks.set_stall(20_000)
    wrong = run_many(ranks, 24)
    assert (wrong == 0) is safe
    assert ranks.errors() == [None] * 2


@pytest.mark.parametrize("safe", [True, False])
@pytest.mark.parametrize("plan", ["line128t64-one-6x64", "ll-one-6x64", "flag-one-6x64"])
def test_without_parity_a_fast_peer_overwrites_what_is_unread(closing: Any, plan: str, safe: bool) -> None:
    """Stalls between write and read leave a rank with unread data while its peer goes on to the next."""
    extra = {"ARF_STALL": 1} | ({} if safe else {"ARF_UNSAFE_PARITY": 1})
    ranks = closing(plan, 2, extra=extra, spin_s=0.3)
    ranks.set_stall(300_000)
    wrong = run_many(ranks, 60)
    failed = any(error is not None for error in ranks.errors())
    assert (wrong == 0 and not failed) is safe


@pytest.mark.parametrize("safe", [True, False])
@pytest.mark.parametrize("plan", ["ll-two-6x64", "line128t64-two-6x64", "flag-two-6x64"])
def test_without_regions_one_phase_is_taken_for_another(closing: Any, plan: str, safe: bool) -> None:
    extra = {"ARF_STALL": 1} | ({} if safe else {"ARF_UNSAFE_REGIONS": 1})
    ranks = closing(plan, 4, extra=extra, spin_s=0.3)
    ranks.set_stall(200_000)
    wrong = sum(late_rank(ranks, 20000, seed) for seed in range(4))
    failed = any(error is not None for error in ranks.errors())
    assert (wrong == 0 and not failed) is safe


@pytest.mark.parametrize("safe", [True, False])
@pytest.mark.parametrize("plan", ["flag-one-6x64", "flag-two-6x64"])
def test_without_signed_comparison_an_old_flag_passes_for_new(closing: Any, plan: str, safe: bool) -> None:
    ranks = closing(plan, 2, extra={} if safe else {"ARF_UNSAFE_SIGNED": 1})
    ranks.set_sequence(0xFFFFFFFF - 3)
    wrong = sum(late_rank(ranks, 20000, seed) for seed in range(8))
    assert (wrong == 0) is safe


@pytest.mark.parametrize("safe", [True, False])
@pytest.mark.parametrize("plan", ["line128t64-one-8x64", "ll-one-8x64"])
def test_a_grid_that_varies_with_size_lets_counters_drift(closing: Any, plan: str, safe: bool) -> None:
    ranks = closing(plan, 2, spin_s=0.3)
    grids = (None, None, None) if safe else (1, 8, 2)
    wrong = sum(late_rank(ranks, 4096, seed, blocks=grids[seed % 3]) for seed in range(9))
    failed = any(error is not None for error in ranks.errors())
    assert (wrong == 0 and not failed) is safe


@pytest.mark.parametrize("plan", ["line16t32-one-6x64", "line64t32-one-6x64", "line512t64-one-6x64"])
def test_tags_are_what_their_mirror_in_python_says(closing: Any, plan: str) -> None:
    """The lines that rank 0 left in rank 1's slab, sequence 1, so the second of the two buffers."""
    ranks = closing(plan, 2)
    operation = Operation(ranks, 5000, 0)
    operation.launch()
    assert operation.wrong() == 0
    made, capacity = ranks.ends[0].plan, ranks.ends[0].layout.capacity
    count = -(-5000 * 2 // made.payload)
    begin = ranks.slabs[1] + 2 * capacity * made.packet
    found = _from_device(begin, count * made.packet).view(np.uint32).reshape(count, -1, 4)
    assert is_whole(found, 1, 0, made.tag_bits).all()
    found[:, 0, 0] ^= np.uint32(1 << 31)
    assert not is_whole(found, 1, 0, made.tag_bits).any()


# --------------------------------------------------------------------------------------- clear errors


def test_a_message_larger_than_the_slab(closing: Any) -> None:
    ranks = closing("line128t64-one-6x64", 2, max_nbytes=1024)
    with pytest.raises(OursError, match="message of 1026 bytes, but the slab holds 1024"):
        Operation(ranks, 513, 0)


def test_blocks_that_cannot_all_be_resident() -> None:
    with pytest.raises(OursError, match="must be resident at once"):
        virtual("line128t64-one-5000x512", 8)


def test_torn_lines_are_counted(closing: Any) -> None:
    ranks = closing("line128t64-one-6x64", 2, extra={"ARF_TEAR": 1, "ARF_COUNT_TEARS": 1})
    ranks.set_stall(50_000)
    operations = [Operation(ranks, 20000, i) for i in range(12)]
    for operation in operations:
        operation.launch()
    assert sum(operation.wrong() for operation in operations) == 0
    assert sum(end.torn_lines() for end in ranks.ends) > 0
