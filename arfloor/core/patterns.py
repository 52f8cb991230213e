"""An algorithm on a graph: which flows run at once, and how many one-way latencies are in its way."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Mapping, Sequence

from arfloor.core.cases import Edge, Path, record
from arfloor.core.flows import Flow, complete
from arfloor.core.rig import End, Pattern, Rig, share_of, topology
from arfloor.core.topology import READ_REQUEST_SHARE, Graph, Resource, equal_islands, resource

PEER = (
    "one-shot",
    "one-shot pull",
    "two-shot",
    "two-shot pull",
    "one-shot staged",
    "two-shot staged",
    "ring",
    "islands",
    "islands staged",
)
HOST = ("one-shot", "two-shot")


@record
class Transfer:
    """`nbytes` from `src` to `dst`; pushed by the source, or pulled by the destination."""

    src: str
    dst: str
    nbytes: float
    pull: bool = False


@record
class Phase:
    """Transfers that run at once, `count` times over, each time after `rounds` one-way latencies."""

    transfers: tuple[Transfer, ...]
    pattern: Pattern
    rounds: int = 1
    count: int = 1


@record
class Timing:
    """An algorithm's time without launch: latency and wire in us, and what the wire waited for last."""

    algorithm: str
    latency_us: float
    wire_us: float
    bottleneck: str

    @property
    def us(self) -> float:
        return self.latency_us + self.wire_us


class Model:
    """A rig at one end of its intervals, ready to time phases."""

    def __init__(self, rig: Rig, end: End = "value") -> None:
        self.rig = rig
        self.end: End = end
        self.graph = Graph(topology(rig, end))
        self._kinds = {n.id: n.kind for n in rig.nodes}

    def one_way_us(self, src: str, dst: str, *, pull: bool = False) -> float:
        """A flag from src to dst. Through memory, or pulled: a poll must go and come back after it landed."""
        if self._kinds[dst] == "memory" or self._kinds[src] == "memory":
            return self.graph.route(src, dst).latency_us
        return self.graph.route(src, dst).latency_us * (3 if pull else 1)

    def host_flag_us(self, src: str, dst: str) -> float:
        """A flag through host memory: the write, then on average one read there and back."""
        memory = self.graph.memory_of(src)
        return self.graph.route(src, memory).latency_us + 2 * self.graph.route(dst, memory).latency_us

    def time(self, algorithm: str, phases: Sequence[Phase], path: Path) -> Timing:
        """Latency and completion times of all phases, one after another."""
        latency = wire = 0.0
        bottleneck, slowest = "", -1.0
        for phase in phases:
            if phase.rounds:
                latency += phase.count * phase.rounds * self._latency(phase, path)
            done = complete(self.flows(phase))
            wire += phase.count * done.makespan_us
            if done.makespan_us > slowest:
                bottleneck, slowest = done.bottleneck, done.makespan_us
        return Timing(algorithm=algorithm, latency_us=latency, wire_us=wire, bottleneck=bottleneck)

    def _latency(self, phase: Phase, path: Path) -> float:
        gpus = {end for t in phase.transfers for end in (t.src, t.dst) if self._kinds[end] != "memory"}
        if path == "host":
            return max(self.host_flag_us(a, b) for a in gpus for b in gpus if a != b)
        return max(self.one_way_us(t.src, t.dst, pull=t.pull) for t in phase.transfers)

    def flows(self, phase: Phase) -> list[Flow]:
        """The phase's transfers as flows, with derates and posted-write collapse in their usage."""
        collapsed = self._collapsed(phase)
        return [
            Flow(name=f"{t.src}>{t.dst}", nbytes=t.nbytes, usage=self._usage(t, phase.pattern, collapsed))
            for t in phase.transfers
        ]

    def _usage(
        self, t: Transfer, pattern: Pattern, collapsed: Mapping[Resource, float]
    ) -> Mapping[Resource, float]:
        usage: dict[Resource, float] = defaultdict(float)
        if not t.pull:
            for edge in self.graph.route(t.src, t.dst).edges:
                rate = collapsed.get(resource(edge), edge.write_gbps * self._share(pattern, edge))
                usage[resource(edge)] += 1 / rate
            return usage
        for edge in self.graph.route(t.dst, t.src).edges:
            back = self.graph.edges.get((edge.dst, edge.src), edge)
            share = self._share(pattern, edge)
            usage[resource(back)] += 1 / (edge.read_gbps * share)
            if not (pattern == "host" and share < 1):  # a share seen with reads and writes has them in it
                usage[resource(edge)] += READ_REQUEST_SHARE / (edge.write_gbps * share)
        return usage

    def _share(self, pattern: Pattern, edge: Edge) -> float:
        return share_of(self.rig, pattern, edge.kind, self.end)

    def _collapsed(self, phase: Phase) -> dict[Resource, float]:
        """Uplinks whose posted writes collapse: several sources, several root ports at the far end."""
        found: dict[Resource, float] = {}
        for regime in self.rig.collapses:
            sources: dict[Resource, set[str]] = defaultdict(set)
            ports: dict[Resource, set[str]] = defaultdict(set)
            for t in phase.transfers:
                if t.pull:
                    continue  # completions are paced by their requests and do not collapse
                edges = self.graph.route(t.src, t.dst).edges
                far = [e.src for e in edges if self._kinds[e.src] == "root_port"]
                for edge in edges[: len(edges) // 2]:
                    if edge.kind == regime.kind and far:
                        sources[resource(edge)].add(t.src)
                        ports[resource(edge)].add(far[-1])
            rate = self.rig.figures[regime.rate].at(self.end)
            found |= {r: rate for r in sources if len(sources[r]) > 1 and len(ports[r]) > 1}
        return found


def phases(model: Model, algorithm: str, ranks: Sequence[str], path: Path, nbytes: int) -> tuple[Phase, ...]:
    """The phases of an algorithm; empty when it does not apply (islands without equal islands).

    Raises ValueError for an algorithm that the path does not know.
    """
    if path == "host":
        return _host(model, algorithm, ranks, nbytes)
    if algorithm not in PEER:
        raise ValueError(f"peer path: expected an algorithm of {', '.join(PEER)}, found {algorithm!r}")
    if algorithm.startswith("islands"):
        return _islands(model, ranks, nbytes, staged=algorithm.endswith("staged"))
    return _peer(algorithm, ranks, nbytes)


def _pairs(ranks: Sequence[str], nbytes: float, *, pull: bool = False) -> tuple[Transfer, ...]:
    return tuple(
        Transfer(src=a, dst=b, nbytes=nbytes, pull=pull) for a, b in itertools.permutations(ranks, 2)
    )


def _peer(algorithm: str, ranks: Sequence[str], nbytes: int) -> tuple[Phase, ...]:
    n = len(ranks)
    chunk = nbytes / n
    pull = algorithm.endswith("pull")
    if algorithm.startswith("one-shot") and not algorithm.endswith("staged"):
        return (Phase(transfers=_pairs(ranks, nbytes, pull=pull), pattern="dense"),)
    if algorithm in ("two-shot", "two-shot pull"):
        return (Phase(transfers=_pairs(ranks, chunk, pull=pull), pattern="dense", count=2),)
    if algorithm == "ring":
        return (Phase(transfers=_shift(ranks, 1, chunk), pattern="staged", count=2 * (n - 1)),)
    size, times = (nbytes, 1) if algorithm == "one-shot staged" else (chunk, 2)
    return _stages([_shift(ranks, k, size) for k in range(1, n)], times)


def _shift(ranks: Sequence[str], by: int, nbytes: float) -> tuple[Transfer, ...]:
    n = len(ranks)
    return tuple(Transfer(src=ranks[i], dst=ranks[(i + by) % n], nbytes=nbytes) for i in range(n))


def _islands(model: Model, ranks: Sequence[str], nbytes: int, *, staged: bool) -> tuple[Phase, ...]:
    """Reduce-scatter within islands, all-reduce of the shards across them, all-gather within islands."""
    groups = equal_islands(model.graph.topology, ranks)
    if not groups:
        return ()
    size, count = len(groups[0]), len(groups)
    columns = [tuple(g[i] for g in groups) for i in range(size)]
    across = tuple(t for c in columns for t in _pairs(c, nbytes / size / count))
    crossing = Phase(transfers=across, pattern="staged" if count == 2 else "dense", count=2)
    if not staged:
        within = tuple(t for g in groups for t in _pairs(g, nbytes / size))
        return Phase(transfers=within, pattern="dense", count=2), crossing
    stages = [tuple(t for g in groups for t in _shift(g, k, nbytes / size)) for k in range(1, size)]
    return (*_stages(stages, 2), crossing)


def _stages(stages: Sequence[tuple[Transfer, ...]], count: int) -> tuple[Phase, ...]:
    """Stages follow one another without waiting for flags: one latency for all of them."""
    return tuple(
        Phase(transfers=stage, pattern="staged", rounds=1 if k == 0 else 0, count=count)
        for k, stage in enumerate(stages)
    )


def _host(model: Model, algorithm: str, ranks: Sequence[str], nbytes: int) -> tuple[Phase, ...]:
    """Write once into the memory next to the writer; everybody reads it there."""
    memory = {r: model.graph.memory_of(r) for r in ranks}
    n = len(ranks)

    def exchange(out: float, read: float) -> tuple[Transfer, ...]:
        writes = [Transfer(src=r, dst=memory[r], nbytes=out) for r in ranks]
        reads = [
            Transfer(src=memory[a], dst=b, nbytes=read, pull=True)
            for a, b in itertools.permutations(ranks, 2)
        ]
        return (*writes, *reads)

    if algorithm == "one-shot":
        return (Phase(transfers=exchange(nbytes, nbytes), pattern="host"),)
    if algorithm == "two-shot":
        scatter = exchange((n - 1) / n * nbytes, nbytes / n)
        gather = exchange(nbytes / n, nbytes / n)
        return (Phase(transfers=scatter, pattern="host"), Phase(transfers=gather, pattern="host"))
    raise ValueError(f"host path: expected an algorithm of {', '.join(HOST)}, found {algorithm!r}")
