"""Probe launches: what runs is seen before anything is timed, and a failing probe costs no measurement."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from arfloor import rundir
from arfloor.core.cases import Case, Machine, Ran
from arfloor.core.plan import PROBE_LAUNCH, Offer, RunPlan, describe, make_plan, without_done
from arfloor.core.recipe import Recipe
from arfloor.runtime import supervisor as sup
from arfloor.runtime.probe import see_what_runs

OFF = (("NCCL_P2P_DISABLE", "1"),)
MACHINE = Machine(world=2, device_kind="cuda", device_name="GPU", facts={"p2p": True})


def plan(launches: int = 2) -> RunPlan:
    offers = [
        Offer(backend="nccl", variant="default", path="peer", default=True, probes=True),
        Offer(backend="nccl", variant="default", path="host", settings=OFF, probes=True),
        Offer(backend="ours", variant="default", path="host"),
    ]
    recipe = Recipe(sizes=(1024, 4096), launches=launches, extra_modes=("isolated",), extra_sizes=(4096,))
    return make_plan(recipe, MACHINE, offers, lambda case: None)


def test_probes_come_first_one_a_settings_tuple_with_the_cases_of_backends_that_can_tell() -> None:
    made = plan()
    assert [launch.probe for launch in made.launches] == [True, True, False, False, False, False]
    assert [launch.settings for launch in made.launches if launch.probe] == [(), OFF]
    assert {launch.launch for launch in made.launches if launch.probe} == {PROBE_LAUNCH}
    for launch in made.launches[:2]:
        assert {c.backend for row in launch.blocks for c in row.cases} == {"nccl"}
    assert [launch.index for launch in made.launches] == list(range(6))
    # progress counts what is timed; the text names both
    assert made.blocks == sum(len(launch.blocks) for launch in made.launches[2:])
    assert "see what runs in 3 cases" in describe(made)[0]


def test_a_resumed_run_probes_only_what_it_still_times() -> None:
    made = plan()
    of_peer = [b.block.id for launch in made.launches if not launch.probe for b in launch.blocks]
    done = frozenset((name, launch) for name in of_peer for launch in (0, 1))
    assert without_done(made, done).launches == ()
    off = {b.block.id for launch in made.launches if launch.settings == OFF for b in launch.blocks}
    left = without_done(made, frozenset((name, k) for name in of_peer if name not in off for k in (0, 1)))
    assert [(launch.probe, launch.settings) for launch in left.launches] == [
        (True, OFF),
        (False, OFF),
        (False, OFF),
    ]


def test_a_probe_that_dies_is_noted_and_everything_is_still_timed() -> None:
    made = plan(launches=1)
    state = sup.State(rank=0, world=2, launches=made.launches)
    state, _ = sup.step(state, sup.Begin(now=0.0))
    state, _ = sup.step(state, sup.Exited(now=1.0, code=-9))
    other = sup.Outcome(rank=1, kind="peer")
    state, actions = sup.step(state, sup.Heard(now=1.1, outcome=other))
    assert any(isinstance(a, sup.Note) and "probe of what runs" in a.text for a in actions)
    assert [launch.index for launch in state.launches] == [1, 2, 3]
    timed = [c for launch in state.launches if not launch.probe for row in launch.blocks for c in row.cases]
    before = [c for launch in made.launches if not launch.probe for row in launch.blocks for c in row.cases]
    assert timed == before


class OneRank:
    """A group of one, and the parts of a bench that probing needs."""

    rank, world = 0, 1
    timeout_s = 1.0

    def __init__(self, backend: Any) -> None:
        self.group = self
        self.progress = self
        self.backends = {"fake": backend}

        self.deadlines = 0

    def line(self, kind: str, **_: Any) -> None:
        self.deadlines += kind == "phase"

    def all_gather(self, value: Any) -> list[Any]:
        return [value]


class Fake:
    """Tells what ran, but cannot be set up at 4096 bytes."""

    def probe_environment(self, log: Path) -> dict[str, str]:
        return {"ARFLOOR_TEST_LOG": str(log)}

    def probe(self, case: Case, group: Any) -> Ran | None:
        assert os.environ["ARFLOOR_TEST_LOG"].endswith(".log")
        if case.nbytes == 4096:
            raise RuntimeError("no")
        return Ran(algorithm="RING", source="log", predicted_us=3.0)


def test_what_was_seen_is_kept_for_every_mode_of_a_case(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("ARFLOOR_TEST_LOG", "")
    offers = [Offer(backend="fake", variant="default", path="peer", probes=True)]
    recipe = Recipe(sizes=(1024, 4096), extra_modes=("isolated",), extra_sizes=(1024,))
    launch = make_plan(recipe, MACHINE, offers, lambda case: None).launches[0]
    see_what_runs(OneRank(Fake()), rundir.Writer(tmp_path), launch.blocks, tmp_path / "probe")
    seen = rundir.ran_by_case(tmp_path)
    expected = {c.id for row in launch.blocks for c in row.cases if c.nbytes == 1024}
    assert set(seen) == expected
    assert len(expected) == 2
    assert {r.predicted_us for r in seen.values()} == {3.0}


class Hangs(Fake):
    """Never comes back from its third variant."""

    def probe(self, case: Case, group: Any) -> Ran | None:
        if case.variant == "third":
            raise KeyboardInterrupt
        return Ran(algorithm=case.variant, source="log")


def test_every_variant_has_a_deadline_of_its_own_and_what_was_seen_before_a_hang_is_kept(
    tmp_path: Path,
) -> None:
    variants = ("first", "second", "third")
    offers = [Offer(backend="fake", variant=name, path="peer", probes=True) for name in variants]
    launch = make_plan(Recipe(sizes=(1024,)), MACHINE, offers, lambda case: None).launches[0]
    bench = OneRank(Hangs())
    with pytest.raises(KeyboardInterrupt):
        see_what_runs(bench, rundir.Writer(tmp_path), launch.blocks, tmp_path / "probe")
    assert bench.deadlines == 3
    assert [r.algorithm for r in rundir.ran_by_case(tmp_path).values()] == ["first", "second"]
