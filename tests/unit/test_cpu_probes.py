"""CPU link probes over a link that answers at once, on one rank that plays both."""

import types

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


def probed(monkeypatch):
    bench = types.SimpleNamespace(group=Alone(), rank=0, start=types.SimpleNamespace(wait=lambda: None))
    monkeypatch.setattr(cpu, "GlooLink", lambda world: Instant())
    return cpu.measure(bench, budget_s=0.2)


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
