"""The GPU timers on virtual GPUs: threads as ranks, and chains whose times are known by construction."""

from __future__ import annotations

import statistics
import threading
import time
from types import SimpleNamespace

import pytest
import torch

from arfloor.core.slopes import chain_us
from arfloor.runtime import measure, stopping, timing_gpu
from arfloor.runtime.health import Reading
from arfloor.runtime.measure import measure_block
from tests.unit.test_measure import WORLD, make_bench, make_row, stop_after
from tests.unit.threads import Summing, on_all_ranks

EACH_US = 10.0  # one operation, in every chain of every rank


CAPTURE_S, REPLAY_S = 2.0, 1.0


class Clock(threading.local):
    """A rank's host clock, which captures and replays alone move."""

    now_s = 0.0


class Gpus:
    """Virtual GPUs. A chain of n operations takes 20 us + n EACH_US, on rank r n r `late_us` more."""

    def __init__(self, monkeypatch, late_us=0.0):
        self.late_us, self.captures, self.replays = late_us, [], []
        self.clock = Clock()
        gpus = self

        class Chain:
            def __init__(self, op, count, barrier, *, graph, least_nodes=None):
                self.rank, self.count = op.group.rank if op is not None else 0, count
                gpus.captures.append((self.rank, count))
                gpus.clock.now_s += CAPTURE_S

            def replay_us(self):
                gpus.replays.append((self.rank, self.count))
                gpus.clock.now_s += REPLAY_S
                return 20 + self.count * (EACH_US + self.rank * gpus.late_us)

            def close(self):
                pass

        class Barrier:
            def check(self):
                pass

        monkeypatch.setattr(timing_gpu, "Chain", Chain)
        monkeypatch.setattr(timing_gpu, "barrier_for", lambda bench, path: Barrier())
        monkeypatch.setattr(timing_gpu.health, "read", lambda ordinal: Reading())
        monkeypatch.setattr(torch.cuda, "synchronize", lambda *device: None)


def measured(tmp_path, mode):
    """[(record, samples)] of each rank, of one case on virtual GPUs."""

    def action(group):
        bench = make_bench(group, tmp_path, {"one": Summing(group)})
        bench.device = f"cuda:{group.rank}"
        return measure_block(bench, make_row(["one"], mode=mode, offered=(mode,)), schema=1)

    return on_all_ranks(WORLD, action)


def warm_timer(tmp_path, group):
    """A timer of graphs of one case on the group's virtual GPU, warmed up."""
    bench = make_bench(group, tmp_path, {})
    bench.device = f"cuda:{group.rank}"
    case = make_row(["one"], mode="graph").cases[0]
    timer = timing_gpu.Graph(Summing(group).prepare(case, group, 4), case, bench)
    timer.warm_up()
    return timer


def test_the_slowest_rank_decides_and_every_ranks_readings_are_kept(tmp_path, monkeypatch):
    Gpus(monkeypatch, late_us=0.8)
    found = measured(tmp_path, "graph")
    result = found[0][0].results[0]
    assert result.status == "ok"
    own = [statistics.median(us for s in samples for us in s.us) for _, samples in found]
    assert own == [pytest.approx(EACH_US + rank * 0.8, rel=0.001) for rank in range(WORLD)]
    assert result.latency.value == pytest.approx(own[-1], rel=0.001)
    for rank, (_, samples) in enumerate(found):
        for s in samples:  # what the clock read is kept too
            each = EACH_US + rank * 0.8
            expected = len(s.us) * [20 + 40 * each] + len(s.us) * [20 + 8 * each]
            assert s.chains_us == pytest.approx(expected)


def test_chains_are_as_long_as_on_the_slowest_rank():
    assert chain_us([[1.0, 5.0, 3.0], [2.0, 4.0, 3.0]]) == (2.0, 5.0, 3.0)


def test_every_replay_of_the_long_chain_has_a_graph_of_its_own_and_every_round_a_short_one(
    tmp_path, monkeypatch
):
    gpus = Gpus(monkeypatch)
    rounds = 6
    stop_after(monkeypatch, rounds)
    found = measured(tmp_path, "graph")
    assert len(found[0][1]) == rounds
    counted = sum(len(s.us) for s in found[0][1])
    mine = [count for rank, count in gpus.captures if rank == 0]
    assert mine.count(timing_gpu.MANY) == 1 + timing_gpu.Graph.pilot + counted  # the warm-up's, the pilot's
    assert mine.count(timing_gpu.FEW) == 2 + rounds
    assert mine[:5] == [40, 8, 40, 40, 8]
    # the first replay of each graph does not count
    assert gpus.replays.count((0, timing_gpu.MANY)) == 2 * mine.count(timing_gpu.MANY)
    assert gpus.replays.count((0, timing_gpu.FEW)) == 2 + (1 + timing_gpu.Graph.pilot) + (rounds + counted)


def test_a_graph_follows_itself_and_a_wait_before_each_replay_is_let(tmp_path, monkeypatch):
    gpus = Gpus(monkeypatch)

    def action(group):
        timer = warm_timer(tmp_path, group)
        group.barrier()
        if group.rank == 0:
            gpus.replays.clear()
            timer.before = lambda: before.append(len(gpus.replays))
        group.barrier()
        return timer.measure(3)

    before = []
    readings = on_all_ranks(WORLD, action)[0]
    assert readings == pytest.approx(3 * [20 + 40 * EACH_US] + 3 * [20 + 8 * EACH_US])
    seen = [count for rank, count in gpus.replays if rank == 0]
    assert seen == 3 * [40, 40] + 4 * [8]
    assert len(before) == len(seen)


def test_it_is_the_first_replay_of_a_graph_that_does_not_count(tmp_path, monkeypatch):
    Gpus(monkeypatch)
    replay, seen = timing_gpu.Chain.replay_us, set()

    def slow_at_first(chain):
        us = replay(chain) + (0.0 if id(chain) in seen else 1000.0)
        seen.add(id(chain))
        kept.append(chain)  # so that no other gets its id
        return us

    kept = []
    monkeypatch.setattr(timing_gpu.Chain, "replay_us", slow_at_first)
    readings = on_all_ranks(WORLD, lambda group: warm_timer(tmp_path, group).measure(3))[0]
    assert readings == pytest.approx(3 * [20 + 40 * EACH_US] + 3 * [20 + 8 * EACH_US])


def test_what_a_replay_costs_is_all_that_its_round_took(tmp_path, monkeypatch):
    gpus = Gpus(monkeypatch)
    clock = SimpleNamespace(perf_counter=lambda: gpus.clock.now_s, monotonic=time.monotonic)
    for module in (measure, timing_gpu):
        monkeypatch.setattr(module, "time", clock)
    warm, rounds = [], []

    def replays_a_round(replay_s, budget_s, *, rounds):
        warm.append(replay_s)
        return 5

    def decide(taken, *, spent_s, **_):
        rounds.append(spent_s)
        return ("budget", 0) if len(rounds) == 2 else (None, 3)

    monkeypatch.setattr(stopping, "replays_a_round", replays_a_round)
    monkeypatch.setattr(stopping, "decide", decide)
    measured(tmp_path, "graph")

    def took_s(replays):
        """A capture and two replays of each long chain; a capture of the short, and one replay more."""
        return replays * (CAPTURE_S + 2 * REPLAY_S) + CAPTURE_S + (replays + 1) * REPLAY_S

    assert warm == [pytest.approx(took_s(2) / 2)] * WORLD
    assert rounds == [pytest.approx(took_s(5)), pytest.approx(took_s(5) + took_s(3))]


def test_a_comparison_can_hold_on_to_its_graphs(tmp_path, monkeypatch):
    gpus = Gpus(monkeypatch)

    def action(group):
        timer = warm_timer(tmp_path, group)
        timer.rebuild = False
        for _ in range(3):
            timer.measure(2)

    on_all_ranks(WORLD, action)
    assert len(gpus.captures) == 2 * WORLD


def test_the_last_rank_decides_over_an_isolated_operation(tmp_path, monkeypatch):
    Gpus(monkeypatch)
    base = timing_gpu.Chain.replay_us
    monkeypatch.setattr(
        timing_gpu.Chain, "replay_us", lambda chain: base(chain) + 3.0 * chain.rank * (chain.count > 0)
    )
    found = measured(tmp_path, "isolated")
    assert [{us for s in samples for us in s.us} for _, samples in found] == [
        {EACH_US + 3.0 * rank} for rank in range(WORLD)
    ]
    assert found[0][0].results[0].latency.value == pytest.approx(EACH_US + 3.0 * (WORLD - 1))


def test_a_budget_is_spent_in_so_many_rounds():
    assert stopping.replays_a_round(0.001, 0.08) == 10
    assert stopping.replays_a_round(0.001, 0.08, rounds=4) == 20
    assert stopping.replays_a_round(0.03, 0.02) == 1


def test_a_narrow_interval_stops_a_case_from_ten_rounds_on():
    calm = [[10.0, 10.0, 10.01]] * 10
    stops = [
        stopping.decide(calm[:n], spent_s=0.01, budget_s=1.0, interval=0.01, rounds=14)[0] for n in (9, 10)
    ]
    assert stops == [None, "interval"]


def test_short_chains_on_two_levels_enter_by_their_mean():
    timer = object.__new__(timing_gpu.Graph)
    timer._few_us = [[], []]
    for few in (60.0, 77.0, 60.0, 77.0, 60.0):  # of which a median would be 60
        slopes = timer.samples([[400.0, 410.0, few, few], [300.0, 300.0, 50.0, 50.0]])
    each = timing_gpu.MANY - timing_gpu.FEW
    base = (60 + 60 + 77) / 3  # without the least and the greatest
    assert slopes[0] == pytest.approx([(400 - base) / each, (410 - base) / each])
    assert slopes[1] == pytest.approx([250 / each] * 2)
