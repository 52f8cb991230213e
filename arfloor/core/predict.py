"""What a described box allows, without measuring it: bound, attainable, NCCL and our kernels.

Everything is computed three times, with all figures at their fast, middle and slow ends, so each
result is an interval; its origin is `predicted` however good the figures are.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

import numpy as np
from scipy.sparse import csr_matrix
from scipy.sparse.csgraph import maximum_flow

from arfloor.core.cases import DType, Edge, Estimate, Mode, Path, record
from arfloor.core.floor import Floor, Term, Terms
from arfloor.core.intervals import exact, largest, product, smallest, total
from arfloor.core.nccl_model import nccl_pick, nccl_table
from arfloor.core.patterns import HOST, PEER, Model, Timing, phases
from arfloor.core.rig import End, Rig, select
from arfloor.core.topology import Graph, islands

ENDS: tuple[End, ...] = ("fast", "value", "slow")

# kinds of links that lead to other GPUs alone, not to the host
FABRICS = frozenset({"nvlink", "link"})

# Our kernels against the schedule they follow, from two H200s through host memory and over NVLink, one
# host (8 KiB to 1 MiB): polling, the barrier among blocks and the reduction cost this much a round, and
# lines with tags, uneven blocks and the last line this much of the wire.
KERNEL_ROUND_US = Estimate(value=1.4, lo=0.8, hi=1.9, n=4, unit="us")
KERNEL_WIRE = Estimate(value=1.2, lo=1.07, hi=1.35, n=4, unit="ratio")


@record
class Prediction:
    """What is to be expected of one world, path and size. `nccl` is None where the rig says nothing of it."""

    rig: str
    ranks: tuple[str, ...]
    path: Path
    nbytes: int
    floor: Floor
    kernels: Estimate
    kernels_algorithm: str
    nccl: Estimate | None = None
    nccl_choice: str = ""


@lru_cache(maxsize=8)
def models(rig: Rig) -> tuple[Model, ...]:
    """The rig's models at the fast, middle and slow ends."""
    return tuple(Model(rig, end) for end in ENDS)


def default_path(rig: Rig) -> Path:
    """`peer` where GPUs reach each other's memory, else `host`, which every box has.

    Where nobody said whether they do: `peer` for GPUs that are all joined by links of their own, which
    serve nothing else.
    """
    return "peer" if rig.p2p or (rig.p2p is None and _all_joined(rig)) else "host"


def _check(rig: Rig, path: Path) -> None:
    if path == "peer" and rig.p2p is False:
        raise ValueError(f"{rig.name}: its GPUs have no peer access, or not every pair; expected path host")


def path_assumed(rig: Rig, path: Path | None) -> str:
    """What has to be assumed of peer access to predict a path (None: the default one), in a sentence; empty
    where it is known, or where the host path was asked for."""
    if rig.p2p is not None or path == "host":
        return ""
    settle = "`nvidia-smi topo -p2p r` and `-p2p w` tell; p2p = true or false in topology.toml settles it"
    if (path or default_path(rig)) == "peer":
        return f"Its GPUs are assumed to have peer access, which the description does not say ({settle})."
    return (
        "Whether its GPUs have peer access is not known: assumed that they have none, so that bytes go "
        f"through host memory; the path peer can be asked for ({settle})."
    )


def _all_joined(rig: Rig) -> bool:
    joined = {frozenset((k.a, k.b)) for k in rig.links}
    return all(frozenset(pair) in joined for pair in itertools.combinations(rig.gpus, 2))


def timings(
    rig: Rig, ranks: Sequence[str], path: Path, nbytes: int
) -> dict[str, tuple[Timing, Timing, Timing]]:
    """Every algorithm that applies, timed at the fast, middle and slow ends (no launch).

    Raises ValueError for the peer path on a box without peer access.
    """
    scale = nbytes / _REFERENCE_NBYTES
    return {
        name: (_scaled(timed[0], scale), _scaled(timed[1], scale), _scaled(timed[2], scale))
        for name, timed in _reference(rig, tuple(ranks), path).items()
    }


def _scaled(timing: Timing, scale: float) -> Timing:
    """The same algorithm with `scale` times the bytes: rates do not depend on the size, so time is linear."""
    return replace(timing, wire_us=timing.wire_us * scale)


_REFERENCE_NBYTES = 1 << 20


@lru_cache(maxsize=256)
def _reference(rig: Rig, ranks: tuple[str, ...], path: Path) -> dict[str, tuple[Timing, Timing, Timing]]:
    _check(rig, path)
    found: dict[str, tuple[Timing, Timing, Timing]] = {}
    for algorithm in PEER if path == "peer" else HOST:
        timed = []
        for model in models(rig):
            steps = phases(model, algorithm, ranks, path, _REFERENCE_NBYTES)
            if steps:
                timed.append(model.time(algorithm, steps, path))
        if len(timed) == 3:
            found[algorithm] = (timed[0], timed[1], timed[2])
    return found


def interval(fast: float, value: float, slow: float) -> Estimate:
    """Three times in us, one an end of the figures, as an estimate."""
    low, high = min(fast, value, slow), max(fast, value, slow)
    return Estimate(value=value, lo=low, hi=high, n=0, unit="us")


def _parts(timed: tuple[Timing, Timing, Timing]) -> tuple[Estimate, Estimate]:
    latency = interval(*(t.latency_us for t in timed))
    return latency, interval(*(t.wire_us for t in timed))


def launch_of(rig: Rig, mode: Mode) -> Term:
    """An empty graph node; nothing in mode isolated, where no launch is part of the latency."""
    if mode == "isolated":
        return Term(name="launch", us=exact(0.0), source="no launch in this mode")
    figure = rig.figures[rig.launch]
    return Term(name="launch", us=figure.estimate, source=figure.source)


def predict_floor(
    rig: Rig,
    *,
    world: int = 0,
    ranks: Sequence[str] | None = None,
    path: Path | None = None,
    nbytes: int,
    dtype: DType = "bfloat16",
    mode: Mode = "graph",
) -> Floor:
    """Bound and attainable of a described box, marked predicted.

    Raises ValueError for a world, ranks or path that the box does not have.
    """
    chosen = select(rig, ranks, world)
    way = path or default_path(rig)
    _check(rig, way)
    t0 = launch_of(rig, mode)
    bound, bound_terms = _bound(rig, chosen, way, nbytes)
    considered: list[tuple[str, Estimate]] = []
    best: tuple[float, str, tuple[Term, ...]] | None = None
    for algorithm, timed in timings(rig, chosen, way, nbytes).items():
        latency, wire = _parts(timed)
        terms = (
            t0,
            Term(name="latency", us=latency, source=f"{algorithm}: one-way flags"),
            Term(name="wire", us=wire, source=f"{algorithm}: {timed[1].bottleneck}"),
        )
        time = total(t.us for t in terms)
        considered.append((algorithm, time))
        if best is None or time.value < best[0]:
            best = (time.value, algorithm, terms)
    assert best is not None  # one-shot always applies
    return Floor(
        path=way,
        world=len(chosen),
        nbytes=nbytes,
        dtype=dtype,
        mode=mode,
        bound=bound,
        attainable=smallest(e for _, e in considered),
        algorithm=best[1],
        terms=Terms(bound=bound_terms, attainable=best[2]),
        considered=tuple(considered),
        origin="predicted",
    )


def _bound(rig: Rig, ranks: Sequence[str], path: Path, nbytes: int) -> tuple[Estimate, tuple[Term, ...]]:
    """Least latency plus the larger of the ports' and the cuts' time, at the fast end (middle as hi)."""
    fast, middle, _ = models(rig)
    ends = [_bound_parts(m, ranks, path, nbytes) for m in (fast, middle)]
    latency = Estimate(value=ends[0][0], lo=ends[0][0], hi=max(e[0] for e in ends), n=0, unit="us")
    wire = Estimate(value=ends[0][1], lo=ends[0][1], hi=max(e[1] for e in ends), n=0, unit="us")
    terms = (
        Term(name="latency", us=latency, source="one flag between the two GPUs farthest apart"),
        Term(name="wire", us=wire, source=ends[0][2]),
    )
    return total(t.us for t in terms), terms


def _bound_parts(model: Model, ranks: Sequence[str], path: Path, nbytes: int) -> tuple[float, float, str]:
    pairs = list(itertools.permutations(ranks, 2))
    flag = model.host_flag_us if path == "host" else model.one_way_us
    latency = max(flag(a, b) for a, b in pairs)
    n = len(ranks)
    # every rank sends 2 (n-1)/n S on average, so the ports together need at least this long
    kinds = {node.id: node.kind for node in model.graph.topology.nodes}
    edges = [e for e in model.graph.topology.edges if e.src in ranks and _on_way(e, kinds[e.dst], path)]
    ports = sum(_rate(e) for e in edges)
    wires = [(2 * (n - 1) * nbytes / ports / 1e3, "ports")]
    for name, a, b in _cuts(model.graph, ranks):
        wires.append((nbytes / cut_gbps(model.graph, a, b, path) / 1e3, name))
    wire, source = max(wires)
    return latency, wire, source


def _on_way(edge: Edge, end: str, path: Path) -> bool:
    """Whether a GPU's link, to a node of kind `end`, carries bytes of a path."""
    return end != "memory" if path == "peer" else end != "gpu" and edge.kind not in FABRICS


def _rate(edge: Edge) -> float:
    return max(edge.read_gbps, edge.write_gbps)


def _cuts(graph: Graph, ranks: Sequence[str]) -> list[tuple[str, tuple[str, ...], tuple[str, ...]]]:
    """Partitions worth looking at: each switch, socket and single GPU against the others."""
    found: dict[tuple[str, ...], str] = {}
    for level in ("switch", "socket"):
        for group in islands(graph.topology, level):
            members = tuple(r for r in ranks if r in group)
            if 0 < len(members) < len(ranks):
                found.setdefault(members, f"cut around {', '.join(members)}")
    return [(name, a, tuple(r for r in ranks if r not in a)) for a, name in found.items()]


def cut_gbps(graph: Graph, a: Sequence[str], b: Sequence[str], path: Path = "peer") -> float:
    """The most that can flow from GPUs `a` to GPUs `b`, GB/s: a maximum flow over the directed links.

    On the host path the bytes go to memory and from there. Other GPUs do not forward.
    """
    if path == "host":
        memories = tuple(n.id for n in graph.topology.nodes if n.kind == "memory")
        return min(_max_flow(graph, a, memories), _max_flow(graph, memories, b))
    return _max_flow(graph, a, b)


def _max_flow(graph: Graph, a: Sequence[str], b: Sequence[str]) -> float:
    scale = 1e3  # maximum_flow takes integers: MB/s
    ends = {*a, *b}
    ids = [n.id for n in graph.topology.nodes if n.kind not in ("gpu", "memory", "nic") or n.id in ends]
    index = {name: i for i, name in enumerate(ids)}
    source, sink = len(ids), len(ids) + 1
    capacity = np.zeros((len(ids) + 2, len(ids) + 2), dtype=np.int32)
    for e in graph.topology.edges:
        if e.src in index and e.dst in index and e.dst not in a and e.src not in b:
            capacity[index[e.src], index[e.dst]] = math.ceil(_rate(e) * scale)
    for name in a:
        capacity[source, index[name]] = np.iinfo(np.int32).max // (len(ends) + 1)
    for name in b:
        capacity[index[name], sink] = np.iinfo(np.int32).max // (len(ends) + 1)
    return float(maximum_flow(csr_matrix(capacity), source, sink).flow_value) / scale


def predict(
    rig: Rig,
    *,
    world: int = 0,
    ranks: Sequence[str] | None = None,
    path: Path | None = None,
    nbytes: int,
    dtype: DType = "bfloat16",
    mode: Mode = "graph",
) -> Prediction:
    """Bound, attainable, NCCL by NCCL's formula (no faster than attainable) and our kernels, with
    intervals, all predicted.

    `ranks` names GPUs, else the first `world` take part. Raises ValueError for what the box does not have.
    """
    chosen = select(rig, ranks, world)
    way = path or default_path(rig)
    floor = predict_floor(rig, ranks=chosen, path=way, nbytes=nbytes, dtype=dtype, mode=mode)
    kernels, algorithm = _kernels(rig, chosen, way, nbytes, mode)
    nccl, choice = predict_nccl(rig, len(chosen), nbytes) if _pcie(rig, way) else (None, "")
    if nccl is not None:  # its formula knows no memory and no pattern: it may promise what no schedule can
        nccl = largest([nccl, floor.attainable])
    return Prediction(
        rig=rig.name,
        ranks=chosen,
        path=way,
        nbytes=nbytes,
        floor=floor,
        kernels=kernels,
        kernels_algorithm=algorithm,
        nccl=nccl,
        nccl_choice=choice,
    )


def _pcie(rig: Rig, path: Path) -> bool:
    """Whether the path runs over PCIe, which the description's NCCL figures are about.

    GPUs joined directly or by a switch of their own (NVLink) are another graph to NCCL, of which a
    description says nothing.
    """
    joined = (k.kind in FABRICS or (k.a in rig.gpus and k.b in rig.gpus) for k in rig.links)
    return path == "host" or not any(joined)


def kernels_by_shape(
    rig: Rig, ranks: Sequence[str], path: Path, nbytes: int, mode: Mode = "graph"
) -> dict[str, Estimate]:
    """Our kernels: the schedules they implement, with their own cost a round and on the wire."""
    t0 = launch_of(rig, mode).us
    found = {}
    for algorithm, timed in timings(rig, ranks, path, nbytes).items():
        if algorithm == "ring":
            continue  # we have none
        latency, wire = _parts(timed)
        rounds = {"two": 2, "isl": 4}.get(algorithm[:3], 1)
        sync = Estimate(
            value=KERNEL_ROUND_US.value * rounds,
            lo=KERNEL_ROUND_US.lo * rounds,
            hi=KERNEL_ROUND_US.hi * rounds,
            n=0,
            unit="us",
        )
        found[algorithm] = total([t0, latency, sync, product(wire, KERNEL_WIRE, "us")])
    return found


def _kernels(rig: Rig, ranks: Sequence[str], path: Path, nbytes: int, mode: Mode) -> tuple[Estimate, str]:
    """The best of them, and its name."""
    shapes = kernels_by_shape(rig, ranks, path, nbytes, mode)
    return smallest(shapes.values()), min(shapes, key=lambda name: shapes[name].value)


def predict_nccl(rig: Rig, world: int, nbytes: int) -> tuple[Estimate | None, str]:
    """NCCL by its own formula times the error that was seen of it, and the choice the formula makes."""
    if rig.nccl is None:
        return None, ""
    bus = rig.figures[rig.nccl.bus]
    times = {}
    choice = ""
    for end in ENDS:
        table = nccl_table(
            world=world,
            hardware="pci",
            channels=rig.nccl.channels,
            channel_gbps=bus.at(end) / rig.nccl.channels,
            compute_capability=rig.compute_capability,
        )
        algorithm, protocol, times[end] = nccl_pick(table, nbytes)
        choice = f"{algorithm}/{protocol}" if end == "value" else choice
    formula = interval(times["fast"], times["value"], times["slow"])
    return product(formula, rig.figures[rig.nccl.error].estimate, "us"), choice
