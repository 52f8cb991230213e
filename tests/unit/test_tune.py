"""Tuning without a GPU: ranks as threads, plans whose times are known."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest
from threads import ThreadGroup, together

pytest.importorskip("torch")

from arfloor.backends import own_backend, tune
from arfloor.backends.ours import OursError
from arfloor.core.cases import Path
from arfloor.core.plans import Plan
from arfloor.core.tuning import SETUPS, Facts, candidates, setups
from arfloor.runtime.barrier import BarrierTimeout

FACTS = Facts(path="host", world=2, multiprocessors=132)
NBYTES = 1 << 18


class World:
    """Times and correctness by plan; what was set up and not closed."""

    def __init__(self) -> None:
        self.open = 0
        self.counts: dict[int, int] = {}  # set-ups so far, by rank
        self.luck_us: dict[int, float] = {}  # what the n-th set-up takes more
        self.wrong_on_rank_1: set[str] = set()
        self.wrong_at_the_end: set[str] = set()

    def us(self, plan: Plan, apart: bool, rank: int) -> float:
        base = 20.0
        if plan.pace:  # the link carries a tile in 27 cycles; faster ones win together and lose apart
            base = 10.0 + 0.2 * abs(plan.pace - 27) - 0.1 * (plan.window > 0)
            if plan.pace < 27:
                base = 9.0 if not apart else 30.0
            if rank >= 2:  # a second group, whose link wants no pace
                base = 40.0
        return base + 0.3 * rank


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    made = World()
    lock = threading.Lock()

    class Reducer:
        def __init__(self, *, plan: Plan, group: ThreadGroup, spin_s: float, **_: Any) -> None:
            self.plan, self.rank = plan, getattr(group, "whole", group).rank
            self.end = SimpleNamespace(spin_s=spin_s)
            with lock:
                made.open += 1
                self.number = made.counts[self.rank] = made.counts.get(self.rank, -1) + 1

        def close(self) -> None:
            with lock:
                made.open -= 1

    class Slots:
        slots = tune.SLOTS

        def __init__(self, reducer: Reducer, *_: Any) -> None:
            self.reducer, self.asked = reducer, 0

        def right(self) -> bool:
            self.asked += 1
            name = self.reducer.plan.name
            if name in made.wrong_on_rank_1 and self.reducer.rank == 1:
                return False
            return not (name in made.wrong_at_the_end and self.asked > 1)

    class Chain:
        def __init__(self, op: Any, count: int, *_: Any, **__: Any) -> None:
            apart = isinstance(op, tune._Apart)
            slots = op._slots if apart else op
            reducer = slots.reducer
            luck_us = made.luck_us.get(reducer.number, 0.0)
            self._us = 30.0 + count * (made.us(reducer.plan, apart, reducer.rank) + luck_us)

        def replay_us(self) -> float:
            return self._us

        def close(self) -> None:
            pass

    monkeypatch.setattr(tune, "Reducer", Reducer)
    monkeypatch.setattr(tune, "_Slots", Slots)
    monkeypatch.setattr(tune, "Chain", Chain)
    monkeypatch.setattr(tune, "facts_of", lambda *_, **__: FACTS)
    monkeypatch.setattr(tune, "DeviceBarrier", lambda *_, **__: Barrier())
    return made


class Barrier:
    def check(self) -> None:
        pass

    def close(self) -> None:
        pass


def both_ranks(**more: Any) -> list[Any]:
    return together(
        2,
        lambda group: tune.choose(
            group,
            path="host",
            device=group.rank,
            dtype="bfloat16",
            barrier=Barrier(),
            **({"nbytes": NBYTES} | more),
        ),
    )


def test_ranks_choose_the_same_plan_which_is_fast_together_and_apart(world: World) -> None:
    first, second = both_ranks()
    assert first == second
    assert first.plan.pace == 27
    assert first.plan.window > 0
    assert first.times_us[first.plan.name] == (pytest.approx(10.2), pytest.approx(10.2))
    assert world.open == 0


def test_a_plan_that_is_wrong_on_one_rank_is_left_out_on_all(world: World) -> None:
    world.wrong_on_rank_1 = {p.name for p in candidates(FACTS, NBYTES) if p.pace}
    first, second = both_ranks()
    assert first == second
    assert not first.plan.pace
    assert world.open == 0


def test_a_plan_that_is_wrong_after_all_that_timing_is_passed_over(world: World) -> None:
    best = both_ranks()[0].plan
    world.wrong_at_the_end = {best.name}
    first, second = both_ranks()
    assert first == second
    assert first.plan != best


def test_a_brief_search_times_less_and_finds_a_plan_as_fast_from_a_known_one(world: World) -> None:
    full = both_ranks()[0]
    timed: list[str] = []
    replay = tune.Chain.replay_us
    tune.Chain.replay_us = lambda chain: timed.append("") or replay(chain)  # type: ignore[method-assign]
    both_ranks()
    of_full = len(timed)
    first, second = both_ranks(known=full.plan, brief=True)
    assert first == second
    assert len(timed) - of_full < of_full / 2
    assert min(first.times_us.values())[0] == pytest.approx(min(full.times_us.values())[0])
    assert world.open == 0


def settled(path: Path = "host", nbytes: int = 8192, keep: int = 1) -> list[Any]:
    """What every rank keeps."""
    return together(
        2,
        lambda group: tune.settle(
            group,
            plan=Plan(protocol="line", line=128),
            path=path,
            device=group.rank,
            dtype="bfloat16",
            nbytes=nbytes,
            spin_s=300.0,
            keep=keep,
        ),
    )


def test_of_several_set_ups_of_a_plan_all_ranks_keep_the_fastest(world: World) -> None:
    world.luck_us = {number: 0.5 - 0.1 * (number == 2) for number in range(SETUPS)}
    for [reducer] in settled():
        assert (reducer.number, reducer.end.spin_s) == (2, 300.0)
    assert world.counts == {0: SETUPS - 1, 1: SETUPS - 1}
    assert world.open == 2  # one a rank


def test_the_fastest_few_of_several_set_ups_are_kept_in_order(world: World) -> None:
    world.luck_us = dict(enumerate((0.3, 0.0, 0.5, 0.2, 0.4, 0.1)))
    for kept in settled(keep=4):
        assert [reducer.number for reducer in kept] == [1, 5, 3, 0]
        assert {reducer.end.spin_s for reducer in kept} == {300.0}
    assert world.open == 2 * 4


@pytest.mark.parametrize("when", ["wrong_on_rank_1", "wrong_at_the_end"])
def test_set_ups_that_are_all_wrong_are_closed_and_every_rank_says_so(world: World, when: str) -> None:
    setattr(world, when, {Plan(protocol="line", line=128).name})
    for answer in settled():
        assert isinstance(answer, OursError)
        assert "did not reduce 8192 bytes of bfloat16 over host correctly on all ranks" in str(answer)
    assert world.open == 0


def test_set_ups_are_timed_for_less_than_a_brief_search_takes(world: World) -> None:
    timed: list[str] = []
    replay = tune.Chain.replay_us
    tune.Chain.replay_us = lambda chain: timed.append("") or replay(chain)  # type: ignore[method-assign]
    settled()
    of_luck = len(timed)
    assert 0 < of_luck < 2 * SETUPS * 4 * (tune.QUICK + 2) * tune.SETTLE_CAPTURES
    both_ranks(nbytes=8192, brief=True)
    assert of_luck < len(timed) - of_luck


@pytest.mark.parametrize(("nbytes", "counts"), [(1 << 19, {8, 40}), (1 << 20, {4, 16})])
def test_long_operations_are_timed_in_short_chains(
    world: World, monkeypatch: pytest.MonkeyPatch, nbytes: int, counts: set[int]
) -> None:
    seen = set()
    make = tune.Chain
    monkeypatch.setattr(
        tune, "Chain", lambda op, count, *rest, **more: seen.add(count) or make(op, count, *rest, **more)
    )
    both_ranks(nbytes=nbytes)
    assert seen == counts


@pytest.mark.parametrize(("path", "nbytes"), [("peer", 8192), ("host", (64 << 10) + 2)])
def test_only_small_messages_over_the_host_are_set_up_several_times(
    world: World, path: Path, nbytes: int
) -> None:
    assert setups("host", 64 << 10) == SETUPS > 1
    assert [reducer.end.spin_s for [reducer] in settled(path, nbytes, keep=4)] == [300.0, 300.0]
    assert world.counts == {0: 0, 1: 0}


def test_a_size_within_half_as_much_again_of_a_searched_one_is_searched_briefly(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sizes = [1024, 1536, 2048, 3072, 4096, 12288, 16384, 98304]
    monkeypatch.setattr(own_backend, "_SEARCHED", set())
    for nbytes in sizes:
        key = ("host", 2, "bfloat16", nbytes)
        if not own_backend._between(key):
            own_backend._SEARCHED.add(key)
    full = sorted(key[3] for key in own_backend._SEARCHED)
    assert full == [1024, 2048, 4096, 12288, 98304]
    assert not own_backend._between(("peer", 2, "bfloat16", 1536))


def test_a_pace_is_known_from_the_nearest_size_of_the_same_path_world_and_dtype(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def paced(pace: int) -> Plan:
        return Plan(protocol="line", line=512, pace=pace)

    chosen = {
        ("host", 2, "bfloat16", 4096): Plan(protocol="ll"),
        ("host", 2, "bfloat16", 65536): paced(27),
        ("host", 2, "bfloat16", 1 << 20): paced(29),
        ("host", 2, "float32", 8192): paced(40),
        ("host", 4, "bfloat16", 8192): paced(50),
        ("peer", 2, "bfloat16", 8192): paced(60),
    }
    monkeypatch.setattr(own_backend, "_CHOSEN", chosen)
    assert own_backend._nearest_paced(("host", 2, "bfloat16", 8192)) == paced(27)
    assert own_backend._nearest_paced(("host", 2, "bfloat16", 1 << 19)) == paced(29)
    assert own_backend._nearest_paced(("host", 2, "float16", 8192)) is None


def test_groups_that_reduce_at_the_same_time_choose_one_plan_together(world: World) -> None:
    def choose(whole: ThreadGroup) -> tune.Choice:
        mine = own_backend.SubGroup(whole, (0, 1) if whole.rank < 2 else (2, 3))
        return tune.choose(
            mine,
            path="host",
            device=0,
            dtype="bfloat16",
            nbytes=NBYTES,
            barrier=Barrier(),
        )

    answers = together(4, choose)
    assert answers == 4 * answers[:1]
    assert not answers[0].plan.pace  # ranks 0 and 1 alone would take a pace of 27
    assert world.open == 0


def test_a_rank_whose_check_raises_is_heard_of_by_all(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    right = tune._Slots.right

    def fails(slots: Any) -> bool:
        if slots.reducer.rank == 1:
            raise RuntimeError("illegal address")
        return right(slots)

    monkeypatch.setattr(tune._Slots, "right", fails)
    for answer in both_ranks():
        assert isinstance(answer, OursError)
        assert "rank 1: RuntimeError: illegal address" in str(answer)
    assert world.open == 0


@pytest.mark.parametrize("where", ["graphs", "times"])
def test_a_rank_that_raises_alone_is_heard_of_by_all(
    world: World, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    failing = {"graphs": "_chains", "times": "_replayed"}[where]
    as_it_was = getattr(tune._Bench, failing)

    def fails(bench: Any, *arguments: Any) -> Any:
        if bench._group.rank == 1:
            raise BarrierTimeout("a rank did not come")
        return as_it_was(bench, *arguments)

    monkeypatch.setattr(tune._Bench, failing, fails)
    for answer in both_ranks():
        assert isinstance(answer, OursError)
        assert f"{where} of plans" in str(answer)
        assert "rank 1: BarrierTimeout" in str(answer)
    assert world.open == 0


def test_when_nothing_is_right_every_rank_says_so(world: World) -> None:
    world.wrong_on_rank_1 = {p.name for p in candidates(FACTS, NBYTES)}
    for answer in both_ranks():
        assert isinstance(answer, OursError)
        assert "no plan reduced 262144 bytes of bfloat16 over host correctly" in str(answer)
    assert world.open == 0
