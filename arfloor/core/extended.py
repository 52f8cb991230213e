"""From a measured pair of GPUs to a box with more of them, none of which was measured.

What a pair shows of a port, a flag and a host bridge is kept as measured. What it cannot show is assumed, at
both of its ends: whether more GPUs share one capacity of the host, and what a port loses when it talks to
several at once.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from arfloor.core.cases import Estimate, Node, Primitive
from arfloor.core.rig import Derate, Figure, Link, Rig

DENSE_LOSS = 0.8
"""What a port keeps at worst when it talks to several peers at once: assumed, as no pair can show it."""


def extended(pair: Rig, gpus: int, *, name: str, title: str) -> Rig:
    """A box of `gpus` GPUs like the two of `pair`, whose peer links lead to one switch between all.

    `pair` is described by its own probes (`rig_of_run`), with both paths. A GPU's port to the switch carries
    what one link of the pair carried: with more peers it is shared, not multiplied. Over the host every GPU
    keeps the share that it kept beside one other; at the slow end all together get no more than the two got.
    Raises ValueError for another number of GPUs, or a pair without both paths.
    """
    if len(pair.gpus) != 2 or gpus < 2:
        raise ValueError(f"extended: expected a pair and 2 GPUs at least, found {len(pair.gpus)} and {gpus}")
    missing = [f for f in ("peer_write", "peer_flag_hop", "host_write", "host_host") if f not in pair.figures]
    if missing:
        raise ValueError(f"{pair.name}: expected both paths probed, found no figure {missing[0]!r}")
    names = tuple(f"gpu{i}" for i in range(gpus))
    return replace(
        pair,
        name=name,
        title=title,
        nodes=(
            *(Node(id=g, kind="gpu") for g in names),
            Node(id="nvswitch0", kind="switch"),
            Node(id="memory0", kind="memory"),
        ),
        gpus=names,
        links=(*(_port(pair, g) for g in names), *(_bridge(pair, g) for g in names)),
        figures=_figures(pair, gpus),
        derates=(
            Derate(pattern="dense", kind="nvlink", share="peer_dense"),
            Derate(pattern="staged", kind="nvlink", share="peer_staged"),
            Derate(pattern="host", kind="pcie", share="host_host"),
        ),
        notes=(
            f"Nobody measured this box: figures of two of its GPUs ({pair.name}), extended to {gpus}.",
            "Assumed: a port is shared by all peers; over the host each GPU keeps what it kept beside one "
            "other, at the slow end all together get what two got.",
        ),
    )


def _port(pair: Rig, gpu: str) -> Link:
    read = "peer_read" if "peer_read" in pair.figures else None
    return Link(a=gpu, b="nvswitch0", kind="nvlink", write="peer_write", latency="peer_half_hop", read=read)


def _bridge(pair: Rig, gpu: str) -> Link:
    read = "host_read" if "host_read" in pair.figures else None
    return Link(a=gpu, b="memory0", kind="pcie", write="host_write", latency="host_flag_hop", read=read)


def _figures(pair: Rig, gpus: int) -> dict[str, Figure]:
    kept = {n: f for n, f in pair.figures.items() if n not in ("peer_flag_hop", "peer_dense", "host_host")}
    hop, dense, host = (pair.figures[n].estimate for n in ("peer_flag_hop", "peer_staged", "host_host"))
    flag = pair.figures["peer_flag_hop"]
    kept["peer_half_hop"] = replace(
        flag, value=round(hop.value / 2, 4), lo=round(hop.lo / 2, 4), hi=round(hop.hi / 2, 4)
    )
    several = gpus > 2
    kept["peer_dense"] = Figure(
        value=round(dense.value, 4),
        lo=round(dense.lo * (DENSE_LOSS if several else 1), 4),
        hi=round(dense.hi, 4),
        unit="ratio",
        origin="assumed" if several else "measured",
        source=f"a pair kept {dense.value:.3f} both ways; several peers at once: assumed",
    )
    kept["host_host"] = Figure(
        value=round(host.value, 4),
        lo=round(host.lo * 2 / gpus, 4),
        hi=round(host.hi, 4),
        unit="ratio",
        origin="assumed" if several else "measured",
        source=f"two GPUs kept {host.value:.3f} each of one direction alone; {gpus} GPUs: assumed",
    )
    return kept


def extended_probes(pair: Iterable[Primitive], gpus: int) -> tuple[Primitive, ...]:
    """The link probes that a box of `gpus` such GPUs should give, from those of two; origin predicted.

    Every pair is like the one measured, towards the higher number and towards the lower each like its own.
    Peer `all`: a port's rate both ways, divided among its peers, at worst `DENSE_LOSS` of it. Host patterns
    with all GPUs active: as with two, at worst the two GPUs' sum divided by all.
    """
    found: list[Primitive] = []
    for p in pair:
        found += _many(p, gpus) if p.estimate is not None and p.status == "ok" else ()
    return tuple(found)


def _many(p: Primitive, gpus: int) -> list[Primitive]:
    names = [f"cuda:{i}" for i in range(gpus)]
    made = replace(p, origin="predicted", source=f"of two GPUs, extended to {gpus}")
    if p.path == "host" or p.kind == "launch":
        return _over_host(made, names)
    if (p.src, p.dst) not in (("cuda:0", "cuda:1"), ("cuda:1", "cuda:0")):
        return []
    up = p.src < p.dst  # both directions are kept: a bound takes the faster one, a round waits for the slower
    pairs = [(a, b) for a in names for b in names if a != b and (a < b) == up]
    if p.active == "both_ways":
        ring = {(a, names[(i + 1) % gpus]) for i, a in enumerate(names)}
        dense = [replace(made, src=a, dst=b, active="all", estimate=_shared(p, gpus)) for a, b in pairs]
        return [replace(made, src=a, dst=b) for a, b in pairs if (a, b) in ring] + (dense if gpus > 2 else [])
    return [replace(made, src=a, dst=b) for a, b in pairs]


def _over_host(p: Primitive, names: list[str]) -> list[Primitive]:
    if "cuda:0" not in (p.src, p.dst):  # GPU 1's own probes: GPU 0's stand for all
        return []
    if p.kind == "pingpong":
        return [replace(p, src=a, dst=b) for a in names for b in names if a < b]
    estimate = p.estimate
    if estimate is not None and p.active.startswith("all"):
        estimate = replace(estimate, lo=estimate.lo * 2 / len(names))
    places = {"cuda:0"}
    return [
        replace(
            p, src=n if p.src in places else p.src, dst=n if p.dst in places else p.dst, estimate=estimate
        )
        for n in names
    ]


def _shared(p: Primitive, gpus: int) -> Estimate | None:
    e, peers = p.estimate, gpus - 1
    if e is None:
        return None
    return replace(e, value=e.value / peers, lo=e.lo * DENSE_LOSS / peers, hi=e.hi / peers)
