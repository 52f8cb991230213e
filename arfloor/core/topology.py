"""A box as a directed graph: routes, islands, and what a flow of bytes takes from each link.

A write travels along the edges of its route. A read is pulled along them: its bytes travel against
the edges (and share the wire with writes of the other end), its requests along them. Edges with one
`shared` name share one capacity, whatever their direction.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Mapping, Sequence

from arfloor.core.cases import Edge, Node, Topology, record

# A read request is one header of about 24 bytes for every 128 bytes of data; a write of 128 bytes
# puts 128 + 24 on the wire. So a request costs 24/152 of what writing the same payload costs.
READ_REQUEST_SHARE = 24 / (128 + 24)

# Nodes that bytes pass through; a GPU, memory or NIC only sends and receives.
_TRANSIT = frozenset({"switch", "root_port", "socket", "cpu"})
_FABRIC = frozenset({"switch"})

Resource = str
Usage = Mapping[Resource, float]


class TopologyError(ValueError):
    """A graph that is no box: the message names the node or edge, what was expected and what was found."""


@record
class Route:
    """The edges from `src` to `dst`, and the one-way latency in us along them."""

    src: str
    dst: str
    edges: tuple[Edge, ...]

    @property
    def latency_us(self) -> float:
        return sum(e.latency_us for e in self.edges)


class Graph:
    """A checked topology with its routes. Raises TopologyError when it is inconsistent."""

    def __init__(self, topology: Topology) -> None:
        self.topology = topology
        self.nodes: dict[str, Node] = {n.id: n for n in topology.nodes}
        self.edges: dict[tuple[str, str], Edge] = {(e.src, e.dst): e for e in topology.edges}
        self._out: dict[str, list[Edge]] = defaultdict(list)
        self._routes: dict[tuple[str, str], Route] = {}
        problem = next(iter(problems(topology)), None)
        if problem:
            raise TopologyError(f"{topology.name}: {problem}")
        for edge in topology.edges:
            self._out[edge.src].append(edge)

    def route(self, src: str, dst: str) -> Route:
        """The direct link from `src` to `dst`, else the route of least latency (then fewest edges).

        PCIe routes by address and a driver prefers NVLink, so there is one route. Raises TopologyError
        when there is none.
        """
        if (src, dst) not in self._routes:
            direct = self.edges.get((src, dst))
            found = Route(src=src, dst=dst, edges=(direct,)) if direct else self._search(src, dst)
            self._routes[src, dst] = found
        return self._routes[src, dst]

    def _search(self, src: str, dst: str) -> Route:
        queue: list[tuple[float, int, str, tuple[Edge, ...]]] = [(0.0, 0, src, ())]
        done: set[str] = set()
        while queue:
            latency, hops, at, path = heapq.heappop(queue)
            if at == dst:
                return Route(src=src, dst=dst, edges=path)
            if at in done or (at != src and self.nodes[at].kind not in _TRANSIT):
                continue
            done.add(at)
            for edge in self._out[at]:
                if edge.dst not in done:
                    step = (latency + edge.latency_us, hops + 1, edge.dst, (*path, edge))
                    heapq.heappush(queue, step)
        raise TopologyError(f"{self.topology.name}: expected a route from {src} to {dst}, found none")

    def write(self, src: str, dst: str) -> dict[Resource, float]:
        """Share of each resource (per GB/s) that a stream of writes from src to dst takes."""
        usage: dict[Resource, float] = defaultdict(float)
        for edge in self.route(src, dst).edges:
            usage[resource(edge)] += 1 / edge.write_gbps
        return dict(usage)

    def read(self, reader: str, source: str) -> dict[Resource, float]:
        """Share of each resource (per GB/s) that a stream of reads by `reader` from `source` takes."""
        usage: dict[Resource, float] = defaultdict(float)
        for edge in self.route(reader, source).edges:
            back = self.edges.get((edge.dst, edge.src))
            usage[resource(back or edge)] += 1 / edge.read_gbps
            usage[resource(edge)] += READ_REQUEST_SHARE / edge.write_gbps
        return dict(usage)

    def memory_of(self, gpu: str) -> str:
        """The nearest memory node. Raises TopologyError when there is none within reach."""
        memories = [n.id for n in self.topology.nodes if n.kind == "memory"]
        if not memories:
            raise TopologyError(f"{self.topology.name}: expected a memory node for the host path, found none")
        return min(memories, key=lambda m: (self.route(gpu, m).latency_us, m))


def resource(edge: Edge) -> Resource:
    """What the edge takes its capacity from: its shared name, or itself."""
    return f"shared {edge.shared}" if edge.shared else f"{edge.src}>{edge.dst}"


def problems(topology: Topology) -> tuple[str, ...]:
    """What is wrong with a topology, one sentence each; empty when it is a box one can reason about."""
    ids = [n.id for n in topology.nodes]
    found = [f"node {i!r} is listed twice" for i in sorted({i for i in ids if ids.count(i) > 1})]
    known = set(ids)
    kinds = {n.id: n.kind for n in topology.nodes}
    pairs: set[tuple[str, str]] = set()
    for e in topology.edges:
        name = f"edge {e.src} > {e.dst}"
        found += [
            f"{name}: expected a listed node, found {end!r}" for end in (e.src, e.dst) if end not in known
        ]
        if (e.src, e.dst) in pairs:
            found.append(f"{name} is listed twice")
        pairs.add((e.src, e.dst))
        if min(e.read_gbps, e.write_gbps) <= 0:
            found.append(f"{name}: expected positive rates, found {e.read_gbps} and {e.write_gbps} GB/s")
        if e.latency_us < 0:
            found.append(f"{name}: expected a latency of at least 0 us, found {e.latency_us}")
    for gpu in topology.gpus:
        if kinds.get(gpu) not in ("gpu", "cpu"):
            found.append(f"gpus: expected a node of kind gpu, found {gpu!r}")
    if len(topology.gpus) < 2:
        found.append(f"gpus: expected at least 2, found {len(topology.gpus)}")
    return tuple(found)


def islands(topology: Topology, level: str = "switch") -> tuple[tuple[str, ...], ...]:
    """GPUs grouped by what they share, in rank order, in order of their first GPU.

    `switch`: reach each other through links and switches alone. `socket`: share a NUMA node (or the
    same nearest socket). Raises ValueError for another level.
    """
    if level == "switch":
        return _components(topology, _FABRIC)
    if level == "socket":
        return _components(topology, _FABRIC | {"root_port", "socket", "cpu"}, split_kind="socket")
    raise ValueError(f"islands: expected level switch or socket, found {level!r}")


def _components(
    topology: Topology, through: frozenset[str], split_kind: str | None = None
) -> tuple[tuple[str, ...], ...]:
    kinds = {n.id: n.kind for n in topology.nodes}
    near: dict[str, set[str]] = defaultdict(set)
    for e in topology.edges:
        ends = {kinds[e.src], kinds[e.dst]}
        if ends <= through | {"gpu"} and ends != {split_kind}:  # the link between sockets divides them
            near[e.src].add(e.dst)
            near[e.dst].add(e.src)
    groups: list[tuple[str, ...]] = []
    seen: set[str] = set()
    for gpu in topology.gpus:
        if gpu in seen:
            continue
        reached, queue = {gpu}, [gpu]
        while queue:
            fresh = near[queue.pop()] - reached
            reached |= fresh
            queue += sorted(fresh)
        groups.append(tuple(g for g in topology.gpus if g in reached))
        seen |= reached
    return tuple(groups)


def equal_islands(topology: Topology, ranks: Sequence[str]) -> tuple[tuple[str, ...], ...]:
    """The finest equal islands of at least two of these ranks each, or () when there are none."""
    for level in ("switch", "socket"):
        groups = [tuple(r for r in group if r in ranks) for group in islands(topology, level)]
        groups = [g for g in groups if g]
        if len(groups) > 1 and len({len(g) for g in groups}) == 1 and len(groups[0]) > 1:
            return tuple(groups)
    return ()
