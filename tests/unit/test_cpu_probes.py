"""CPU link probes over a link that answers at once, on one rank that plays both."""

import time
import types

import pytest

from arfloor.core.floor import floor
from arfloor.primitives import cpu


class Instant:
    """A link whose messages take no time."""

    source, link = "instant", "shm"

    def buffer(self, nbytes):
        return bytearray(nbytes)

    def send(self, buffer, peer): ...
    def receive(self, buffer, peer): ...
    def exchange(self, pairs): ...


class Alone:
    world, rank = 2, 0

    def barrier(self): ...
    def broadcast(self, value):
        return value

    def all_gather(self, value):
        return [value, value]


def make_bench(world=2):
    group = Alone()
    group.world = world
    return types.SimpleNamespace(group=group, rank=0, start=types.SimpleNamespace(wait=lambda: None))


def probed(monkeypatch):
    monkeypatch.setattr(cpu, "GlooLink", lambda world: Instant())
    return cpu.measure(make_bench(), budget_s=0.2)


def test_every_probe_yields_a_figure_and_the_best_is_never_worse(monkeypatch):
    found = probed(monkeypatch)
    assert all(p.status == "ok" and p.estimate and p.estimate.lo > 0 for p in found)
    typical = {p.kind: [] for p in found}
    for p in found:
        if p.active != "best":
            typical[p.kind].append(p.estimate.value)
    best = {p.kind: p.estimate.value for p in found if p.active == "best"}
    assert set(best) == {"pingpong", "stream", "reduce"}
    assert best["pingpong"] <= min(typical["pingpong"])
    assert best["stream"] >= max(typical["stream"])
    assert best["reduce"] >= max(typical["reduce"])


def test_probes_make_a_floor(monkeypatch):
    got = floor(probed(monkeypatch), path="cpu", world=2, nbytes=65536, dtype="float32", mode="eager")
    assert 0 < got.bound.value <= got.attainable.lo
    assert [t.name for t in got.terms.attainable] == ["launch", "latency", "wire", "additions"]
    assert got.sources == ("instant",)


class Busy(Instant):
    """Messages take `delay_s`, as on cores that others use."""

    def __init__(self):
        self.delay_s, self.peers = 0.002, set()

    def send(self, buffer, peer):
        time.sleep(self.delay_s)

    def exchange(self, pairs):
        self.peers.add(len(pairs))
        time.sleep(self.delay_s)


@pytest.mark.parametrize("world", [2, 3])
def test_probes_beside_a_quiet_block_lower_the_bound_of_a_busy_moment(monkeypatch, world):
    link = Busy()
    monkeypatch.setattr(cpu, "GlooLink", lambda world: link)
    bench = make_bench(world)
    bench.group.all_gather = lambda value: [value] * world
    first = cpu.measure(bench, budget_s=0.05)
    again = cpu.Again(bench)
    link.peers.clear()
    busy = again()
    assert {p.kind for p in busy} == {"pingpong", "stream", "reduce"}
    assert link.peers == {world - 1}  # as in an all-reduce of so many
    link.delay_s = 0.0
    quiet = again()
    assert {"pingpong", "stream"} <= {p.kind for p in quiet}
    assert all(p.active == "best" and p.estimate for p in quiet)

    def bound_us(probes):
        found = floor(probes, path="cpu", world=world, nbytes=65536, dtype="float32", mode="eager")
        return found.bound.value

    assert bound_us([*first, *busy]) > 900.0  # half of a slept round trip
    assert bound_us([*first, *busy, *quiet]) < 900.0
    link.delay_s = 0.002
    assert not {"pingpong", "stream"} & {p.kind for p in again()}  # what is slower is not told


def test_what_a_rank_sends_to_all_others_at_once_counts_together():
    bench = make_bench(3)
    bench.group.all_gather = lambda value: [value] * 3
    probe = cpu.Probe(bench=bench, link=Busy(), share_s=0.01)
    one, *_ = probe.all_at_once(65536)
    (best,) = probe.best()
    assert best.estimate.value >= 2 * one.estimate.value


def test_probing_ends_after_its_patience_with_the_first_probes(monkeypatch):
    link = Busy()
    monkeypatch.setattr(cpu, "GlooLink", lambda world: link)
    found = cpu.measure(make_bench(), budget_s=0.01)  # four of them: two probes at the most
    assert {p.kind for p in found} <= {"pingpong", "stream"}
    assert [p.kind for p in found if p.active == "one_way"] == ["pingpong"]


def test_a_probe_that_turns_slow_ends_with_what_it_has(monkeypatch):
    """The first two repetitions are quick, so thousands would fit; each of the others takes 5 ms."""
    link = Busy()
    link.sent = 0

    def send(buffer, peer):
        link.sent += 1
        time.sleep(0.005 if link.sent > 2 else 0.0)

    link.send = send
    monkeypatch.setattr(cpu, "GlooLink", lambda world: link)
    probe = cpu.Probe(bench=make_bench(), link=link, share_s=0.01)
    (found,) = probe.pingpong((0, 1))
    assert found.estimate.n == link.sent - 2
    assert 5 <= found.estimate.n < 30  # four budgets are 8 of them
