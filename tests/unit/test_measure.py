"""One block measured by threads as ranks: what is recorded, and that all ranks act alike."""

import time
from functools import partial

import numpy as np
import pytest

from arfloor.core.plan import Offer, make_plan
from arfloor.core.recipe import Recipe
from arfloor.primitives import cpu
from arfloor.runtime import stopping
from arfloor.runtime.measure import Bench, measure_block
from arfloor.runtime.progress import Progress, Tail
from arfloor.runtime.timing import StartLine
from tests.unit.test_plan import machine
from tests.unit.threads import QueueLink, Summing, on_all_ranks

WORLD = 3


def make_row(backends, mode="eager", offered=("eager", "graph")):
    offers = [Offer(backend=name, variant="default", path="cpu", modes=offered) for name in backends]
    recipe = Recipe(sizes=(1024,), launches=1, modes=(mode,))
    plan = make_plan(recipe, machine(world=WORLD), offers, lambda case: None)
    return plan.launches[0].blocks[0]


def make_bench(group, path, backends):
    return Bench(
        group=group,
        rank=group.rank,
        device=f"cpu:{group.rank}",
        work=path,
        start=StartLine(path / "start", group),
        progress=Progress(path / f"progress-{group.rank}"),
        backends=backends,
        launch=0,
        seed=0,
        timed_s=0.02,
        interval=0.01,
        timeout_s=5.0,
    )


def measure(path, row, make_backends):
    """[(record, samples)] of each rank."""

    def action(group):
        return measure_block(make_bench(group, path, make_backends(group)), row, schema=1)

    return on_all_ranks(WORLD, action)


def stop_after(monkeypatch, rounds):
    """Every case takes so many rounds, however busy the machine that times it."""
    monkeypatch.setattr(
        stopping, "decide", lambda taken, **_: ("budget", 0) if len(taken) >= rounds else (None, 1)
    )


def status(found):
    return {r.case.backend: (r.status, r.reason) for r in found[0][0].results}


def test_a_block_is_measured_in_rounds_and_recorded_alike(tmp_path):
    row = make_row(["one", "two"])
    found = measure(tmp_path, row, lambda group: {"one": Summing(group), "two": Summing(group)})
    assert status(found) == {"one": ("ok", None), "two": ("ok", None)}
    record = found[0][0]
    assert tuple(r.case.id for r in record.results) == row.block.case_ids
    for result in record.results:
        assert result.check.wrong == 0
        assert result.check.bitwise_equal
        assert result.stop in ("interval", "budget")
        assert result.latency.value > 0
        assert result.ran.link == "threads"
        assert result.block_id == row.block.id
    shapes = [[(s.case_id, s.round, len(s.us)) for s in samples] for _, samples in found]
    assert shapes[0] == shapes[1] == shapes[2]
    assert {s.rank for s in found[2][1]} == {2}
    assert {s.chains_us for _, samples in found for s in samples} == {()}  # the clock read the samples
    kinds = [line["kind"] for line in Tail(tmp_path / "progress-0").read()]
    assert kinds.index("timing") > kinds.index("case")


def test_cases_take_turns_in_an_order_that_changes(tmp_path, monkeypatch):
    stop_after(monkeypatch, 4)
    row = make_row(["one", "two", "three"])
    measure(tmp_path, row, lambda group: {n: Summing(group) for n in ("one", "two", "three")})
    lines = list(Tail(tmp_path / "progress-0").read())
    timed = [line["case"] for line in lines if line["kind"] == "case" and line["phase"] == "time"]
    rounds = [timed[i : i + 3] for i in range(0, 12, 3)]
    assert all(len(set(r)) == 3 for r in rounds)
    assert len({tuple(r) for r in rounds}) > 1


@pytest.mark.parametrize("rank", [0, 2])
def test_a_wrong_rank_makes_the_case_wrong_on_all(tmp_path, rank):
    def fault(op, slot):
        if op.group.rank == rank:
            op.values[slot][0] += 1  # its own contribution: every rank's sum is wrong

    found = measure(
        tmp_path, make_row(["good", "bad"]), lambda g: {"good": Summing(g), "bad": Summing(g, fault)}
    )
    assert status(found) == {"good": ("ok", None), "bad": ("wrong", "wrong_result")}
    bad = found[0][0].results[1]
    assert bad.latency is None
    assert bad.check.wrong > 0
    assert not any(s.case_id == bad.case.id for _, samples in found for s in samples)


def test_an_error_on_one_rank_before_the_operation_is_one_failure_for_all(tmp_path):
    found = measure(
        tmp_path,
        make_row(["good", "bad"]),
        lambda g: {"good": Summing(g), "bad": Summing(g, refuse=g.rank == 1)},
    )
    assert status(found) == {"good": ("ok", None), "bad": ("failed", "prepare_failed")}
    assert found[0][0].results[1].detail == "rank 1: RuntimeError: no"


def test_an_error_while_timing_leaves_no_samples(tmp_path, monkeypatch):
    stop_after(monkeypatch, 30)

    def fault(op, slot):
        if op.runs > 24:
            raise ValueError("enough")

    found = measure(
        tmp_path, make_row(["good", "bad"]), lambda g: {"good": Summing(g), "bad": Summing(g, fault)}
    )
    assert status(found) == {"good": ("ok", None), "bad": ("failed", "raised")}
    assert [s for s in found[0][1] if s.case_id == found[0][0].results[1].case.id] == []


def test_a_mode_without_a_timer_is_unsupported(tmp_path):
    found = measure(tmp_path, make_row(["one"], mode="graph"), lambda g: {"one": Summing(g)})
    assert status(found) == {"one": ("unsupported", "mode")}


def test_a_block_whose_cases_are_all_decided_is_still_recorded(tmp_path):
    row = make_row(["one"], mode="isolated")
    assert not row.cases
    found = measure(tmp_path, row, lambda g: {})
    assert status(found) == {"one": ("unsupported", "mode")}


def test_repeated_operations_in_place_stay_finite(tmp_path):
    seen = []

    def fault(op, slot):
        seen.append(float(np.max(np.abs(op.values[slot]))))

    measure(tmp_path, make_row(["one"]), lambda g: {"one": Summing(g, fault)})
    assert np.isfinite(seen).all()
    assert max(seen) < np.finfo(np.float32).max


def test_instants_to_start_at_move_forward(tmp_path):
    def action(group):
        line = StartLine(tmp_path / "start", group)
        return [line.wait() for _ in range(20)]

    starts = np.array(on_all_ranks(2, action))
    assert (np.diff(starts, axis=1) > 0).all()
    # no rank starts an operation before the other has finished starting the one before
    assert (starts[:, 1:].min(axis=0) > starts[:, :-1].max(axis=0)).all()


class FakeBench:
    """What probes use of a worker."""

    def __init__(self, group):
        self.group, self.rank, self.start = group, group.rank, self

    def wait(self):
        self.group.barrier()


@pytest.mark.parametrize("world", [2, 3])
def test_links_are_probed_between_rank_0_and_each_other(world, monkeypatch):
    monkeypatch.setattr(cpu, "STREAM_SIZES", (64, 256))
    monkeypatch.setattr(cpu, "REDUCE_SIZES", (4096,))
    monkeypatch.setattr(cpu, "link_of", QueueLink)
    monkeypatch.setattr(cpu, "PATIENCE", 1e3)  # this test is not about giving up on a busy machine
    found = on_all_ranks(world, lambda group: cpu.measure(FakeBench(group), budget_s=0.05))[0]
    seen = {(p.kind, p.active) for p in found}
    assert {("pingpong", "one_way"), ("stream", "both_ways"), ("stream", "one_way")} <= seen
    assert {("pingpong", "best"), ("stream", "best"), ("reduce", "best"), ("reduce", "all")} <= seen
    assert (("stream", "all") in seen) == (world > 2)
    pairs = {(p.src, p.dst) for p in found if p.active == "both_ways"}
    assert pairs == {("cpu:0", f"cpu:{r}") for r in range(1, world)}
    for p in found:
        assert 0 < p.estimate.lo <= p.estimate.value <= p.estimate.hi
    best = next(p for p in found if (p.kind, p.active) == ("pingpong", "best"))
    assert all(best.estimate.value <= p.estimate.value for p in found if p.kind == "pingpong")


def test_probing_ends_in_time_with_what_a_floor_needs_most():
    def slow(number):
        time.sleep(0.02)
        return [number]

    todo = [partial(slow, n) for n in range(50)]
    found = on_all_ranks(2, lambda group: cpu._until(group, todo, 0.1))
    assert found[0] == found[1]
    assert 1 <= len(found[0]) < 50
    assert cpu._outside_in([1, 2, 3, 4, 5]) == [5, 1, 4, 2, 3]
