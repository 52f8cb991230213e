"""Plans, layouts and sequences: what kernels and launches must agree on."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from arfloor.core import plans
from arfloor.core.plans import Plan, decode_error, extent, flaw, layout, next_sequence, parse, reached
from arfloor.core.tuning import (
    Facts,
    Tuned,
    candidates,
    distinct,
    families,
    ranked,
    refined,
    repaced,
    rule_of_thumb,
    typical,
)

EXAMPLES = [
    Plan(protocol="line", line=512, blocks=66, threads=256, pace=27, lag=150, window=2),
    Plan(protocol="line", line=64, tag_bits=32, shot=2, lookahead=1),
    Plan(protocol="line", shot=4),
    Plan(protocol="line", staged=True),
    Plan(protocol="ll", shot=2, blocks=1, threads=32),
    Plan(protocol="flag", pull=True),
]


@pytest.mark.parametrize("plan", EXAMPLES, ids=lambda plan: plan.name)
def test_a_name_says_everything(plan: Plan) -> None:
    assert parse(plan.name) == plan


@pytest.mark.parametrize(
    "name", ["line128", "ll-three-1x32", "line128t64-one-8x48", "line48t32-one-8x64", ""]
)
def test_other_names_are_refused_with_a_reason(name: str) -> None:
    with pytest.raises(ValueError, match=r"expected a plan|multiple of 32|lines have"):
        parse(name)


def test_flaws_of_worlds_and_paths() -> None:
    assert "64-bit tags" in flaw(Plan(protocol="line", tag_bits=32), 2, "host")
    assert flaw(Plan(protocol="line", line=64, tag_bits=32), 2, "host") == ""
    assert "even world" in flaw(Plan(protocol="line", shot=4), 5, "peer")
    assert "staging" in flaw(Plan(protocol="line", staged=True), 4, "host")
    assert "pulling" in flaw(Plan(protocol="flag", pull=True), 4, "host")
    assert "at most 512" in flaw(Plan(protocol="line", shot=2, threads=1024), 8, "peer")


def places(plan: Plan, world: int, path: str, nbytes: int) -> list[tuple[int, int]]:
    """Every (first byte, end) in a rank's region that a phase may use, as the kernels compute them."""
    made = layout(plan, world, path, nbytes)  # type: ignore[arg-type]
    holds = path == "host" or plan.pull
    unit, cap = plan.packet, made.capacity

    def area(base: int, parts: int, each: int) -> list[tuple[int, int]]:
        return [
            (base + (parity * parts + part) * each * unit, base + (parity * parts + part + 1) * each * unit)
            for parity in (0, 1)
            for part in range(parts)
        ]

    shared = 1 if holds else world
    found = {
        1: area(0, shared, cap),
        2: area(0, world, cap) + area(made.phase2, shared, cap),
        4: area(0, world, cap) + area(made.phase2, world, 2 * cap) + area(made.phase3, shared, cap),
    }[plan.shot]
    if plan.protocol == "flag":
        flags = 2 * world * plan.blocks
        found += [(made.phase3 + 64 * i, made.phase3 + 64 * i + 64) for i in range(flags)]
    assert all(end <= made.nbytes for _, end in found)
    return found


@given(
    front=st.sampled_from(
        [
            Plan(protocol="line"),
            Plan(protocol="line", line=16, tag_bits=32),
            Plan(protocol="ll"),
            Plan(protocol="flag", blocks=3),
        ]
    ),
    shot=st.sampled_from([1, 2, 4]),
    world=st.integers(2, 8),
    path=st.sampled_from(["peer", "host"]),
    nbytes=st.integers(1, 5000),
)
def test_no_two_places_of_a_region_meet(front: Plan, shot: int, world: int, path: str, nbytes: int) -> None:
    """Parities, phases, sources and flags have places of their own: the rule that keeps protocols apart."""
    from dataclasses import replace

    plan = replace(front, shot=shot)
    if flaw(plan, world, path):  # type: ignore[arg-type]
        return
    ordered = sorted(places(plan, world, path, nbytes))
    assert all(a[1] <= b[0] for a, b in itertools.pairwise(ordered))


@given(plan=st.sampled_from(EXAMPLES), world=st.integers(2, 8), nbytes=st.integers(1, 1 << 22))
def test_chunks_and_tiles_cover_the_message_exactly(plan: Plan, world: int, nbytes: int) -> None:
    units, chunk, tiles = extent(plan, world, nbytes)
    owners = {1: 1, 2: world, 4: world // 2}[plan.shot]
    assert (units - 1) * plan.payload < nbytes <= units * plan.payload
    assert chunk * owners >= units > (chunk - 1) * owners
    assert tiles * (512 // plan.packet) >= chunk > (tiles - 1) * (512 // plan.packet)


def test_parity_alternates_and_zero_is_skipped_through_two_to_the_32nd() -> None:
    sequence = 0xFFFFFFFF - 3
    for _ in range(8):
        following = next_sequence(sequence)
        assert following != 0
        assert following % 2 != sequence % 2
        assert reached(following, sequence)
        assert not reached(sequence, following)
        sequence = following
    assert not reached(0, 0xFFFFFFFF)
    assert not reached(0, 1)


def test_error_words_are_taken_apart() -> None:
    assert decode_error(0) is None
    error = decode_error(1 | 3 << 8 | 17 << 16 | 0xFFFFFFFE << 32)
    assert error is not None
    assert (error.kind, error.waited_for, error.block, error.sequence) == (1, 3, 17, 0xFFFFFFFE)
    assert "rank 0, block 17: rank 3 did not arrive within 2.0 s" in error.sentence(0, 2.0)


@given(
    path=st.sampled_from(["peer", "host"]),
    world=st.integers(2, 8),
    nbytes=st.integers(2, 1 << 26),
    multiprocessors=st.sampled_from([46, 84, 132, 188]),
)
def test_candidates_exist_fit_the_gpu_and_can_be_built(
    path: str, world: int, nbytes: int, multiprocessors: int
) -> None:
    facts = Facts(path=path, world=world, multiprocessors=multiprocessors)  # type: ignore[arg-type]
    found = candidates(facts, nbytes)
    assert 2 <= len(found) <= 30  # a grid that fills the GPU is the same for several shapes
    assert rule_of_thumb(facts, nbytes) in found
    assert found == candidates(facts, nbytes)
    names = [p.name for p in found]
    around = [*repaced(names, facts), *refined(names[::-1], facts)]
    assert not {p.name for p in around} & set(names)
    again = candidates(facts, nbytes, parse("line512t64-one-66x256-pace27-lag150-window2"))
    assert len(again) <= len(found)
    for plan in (*found, *around, *again):
        assert flaw(plan, world, path) == ""  # type: ignore[arg-type]
        assert plan.blocks * plan.threads <= multiprocessors * plans.max_threads(plan, world)
        if plan.pace:  # a pace is a schedule of single tiles: every warp has at most one
            assert extent(plan, world, nbytes)[2] <= plan.warps
    assert all(parse(plan.name) == plan for plan in found)
    assert families(facts)


@pytest.mark.parametrize("world", [3, 4])
def test_many_ranks_try_sending_ahead_over_the_host(world: int) -> None:
    facts = Facts(path="host", world=world, multiprocessors=132)
    for nbytes in (8192, 262144, 1 << 20):
        found = candidates(facts, nbytes)
        assert len(found) <= 24  # a tuning of many ranks takes a few seconds a size, no more
        assert {p.shot for p in found} >= {1, 2}
        assert any(p.lookahead for p in found if p.shot == 2)
    ahead = [p for p in candidates(facts, 262144) if p.shot == 1 and p.lookahead]
    assert len({(p.blocks, p.threads) for p in ahead}) >= 3


def test_a_plan_that_sometimes_collapses_or_minds_late_ranks_is_not_preferred() -> None:
    together = {
        "steady": [10.0] * 8,
        "moody": [9.0] * 3 + [80.0] * 5,
        "touchy": [9.0] * 8,
        "slow": [20.0] * 8,
    }
    apart = {"steady": [12.0] * 8, "moody": [11.0] * 8, "touchy": [40.0] * 8, "slow": [22.0] * 8}
    assert ranked(together, apart) == ["steady", "slow", "touchy", "moody"]


def test_what_is_typical_sees_a_collapse_of_one_in_twenty_and_no_single_stall() -> None:
    assert typical([10.0] * 99 + [5000.0]) == pytest.approx(10.0)
    assert typical([10.0] * 95 + [30.0] * 5) > 10.4
    assert typical([7.0]) == 7.0


def test_a_pace_known_from_another_size_narrows_the_search() -> None:
    facts = Facts(path="host", world=2, multiprocessors=132)
    known = parse("line512t64-one-66x256-pace40-lag150-window2")
    paces = {p.pace for p in candidates(facts, 1 << 18, known) if p.pace}
    assert paces == {34, 40, 46}
    assert len(candidates(facts, 1 << 18, known)) < len(candidates(facts, 1 << 18))


@pytest.mark.parametrize("nbytes", [1 << 19, 1 << 20, 3 << 20])
def test_large_messages_over_the_host_clock_themselves(nbytes: int) -> None:
    facts = Facts(path="host", world=2, multiprocessors=132)
    known = parse("line512t64-one-66x256-pace27-lag150-window2")
    plans = candidates(facts, nbytes, known)
    assert plans == candidates(facts, nbytes)
    assert all(p.lookahead and not p.pace for p in plans)
    assert len(plans) >= 6


def test_plans_of_different_grids_are_refined_not_the_same_twice() -> None:
    names = ["line512t64-one-66x256-pace27", "line512t64-one-66x256-pace30", "line512t64-one-131x128-pace27"]
    assert [p.name for p in distinct(names, 2)] == [names[0], names[2]]


def test_a_tuned_table_answers_for_sizes_between() -> None:
    table = Tuned(path="host", world=2, dtype="bfloat16", plans=((1024, "a"), (4096, "b")))
    assert [table.pick(n) for n in (1, 1024, 1025, 9999)] == ["a", "a", "b", "b"]
    assert Tuned(path="host", world=2, dtype="bfloat16", plans=()).pick(1) is None
