"""A box described by figures of known provenance: what `topologies/NAME/topology.toml` holds.

A link names its figures, so that every rate and latency has an interval, an origin and a source, and
one figure is stated once however many links carry it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from typing import Literal

from arfloor.core.cases import Edge, Estimate, Node, Origin, Topology, record
from arfloor.core.topology import TopologyError, problems

RIG_SCHEMA = 1

End = Literal["value", "slow", "fast"]
Pattern = Literal["dense", "staged", "host"]

CERTAINTY: tuple[Origin, ...] = ("measured", "published", "predicted", "assumed")

# Half-width of the interval of a figure that states none: nvbandwidth and our probes agree within
# 3 %; published figures of one kind of link differ by about 5; the rest is a judgement.
SPREAD: dict[Origin, float] = {"measured": 0.03, "published": 0.05, "predicted": 0.10, "assumed": 0.25}


@record
class Figure:
    """One number with its interval and where it comes from (`source`: an address, a formula, a reason)."""

    value: float
    unit: Literal["GB/s", "us", "ratio"]
    origin: Origin
    source: str
    lo: float | None = None
    hi: float | None = None

    @property
    def estimate(self) -> Estimate:
        """The figure with its interval, or with the usual one of its origin where it states none."""
        spread = SPREAD[self.origin]
        lo = self.value * (1 - spread) if self.lo is None else self.lo
        hi = self.value * (1 + spread) if self.hi is None else self.hi
        return Estimate(value=self.value, lo=lo, hi=hi, n=0, unit=self.unit)

    def at(self, end: End) -> float:
        """The value at one end: `fast` is the high rate or the low latency, `slow` the opposite."""
        e = self.estimate
        if end == "value":
            return e.value
        return e.hi if (end == "fast") != (self.unit == "us") else e.lo


@record
class Link:
    """A duplex link between nodes `a` and `b`; `write`, `read` and `latency` name figures.

    `write` and `read` are rates of payload in GB/s each way, `latency` is one way in us. `shared`
    names a capacity that both directions, and other links of that name, have in common.
    """

    a: str
    b: str
    kind: str
    write: str
    latency: str
    read: str | None = None
    shared: str | None = None


@record
class Derate:
    """What share (a figure, ratio) of their rate links of a kind keep under a traffic pattern.

    `dense`: every rank talks to all others at once; `staged`: one stream in and one out at a time;
    `host`: ranks write to and read from host memory at once.
    """

    pattern: Pattern
    kind: str
    share: str


@record
class Collapse:
    """Posted writes of several GPUs over one uplink (of `kind`) to several root ports drop to `rate`."""

    kind: str
    rate: str


@record
class NcclFacts:
    """What NCCL's model is told of the box: bandwidth of its graph (figure), and the figure of its error.

    `error` is a ratio measured / NCCL's formula.
    """

    bus: str
    error: str
    channels: int = 2


@record
class Series:
    """Published latencies of one implementation on this box: (bytes, us) pairs."""

    backend: str
    world: int
    path: Literal["peer", "host"]
    source: str
    points: tuple[tuple[int, float], ...]
    dtype: str = "bfloat16"


@record
class Rig:
    """A described box. `p2p`: whether GPUs can load and store each other's memory; absent: nobody said."""

    schema: int
    name: str
    title: str
    gpu: str
    compute_capability: tuple[int, int]
    p2p: bool | None = None
    launch: str
    nodes: tuple[Node, ...]
    gpus: tuple[str, ...]
    links: tuple[Link, ...]
    figures: dict[str, Figure] = field(hash=False)
    derates: tuple[Derate, ...] = ()
    collapses: tuple[Collapse, ...] = ()
    nccl: NcclFacts | None = None
    series: tuple[Series, ...] = ()
    notes: tuple[str, ...] = ()


LEAST, MOST = 1e-6, 1e6
"""Of a figure, in us, GB/s or as a ratio: beyond lies no machine, and sums of extremes overflow."""


def rig_problems(rig: Rig) -> tuple[str, ...]:
    """What is wrong with a rig, one sentence each; empty when it can be reasoned about."""
    found: list[str] = []
    wanted = [("launch", rig.launch, "us")]
    for link in rig.links:
        name = f"link {link.a} - {link.b}"
        wanted += [(name, link.write, "GB/s"), (name, link.latency, "us")]
        wanted += [(name, link.read, "GB/s")] if link.read else []
    wanted += [(f"derate {d.pattern} {d.kind}", d.share, "ratio") for d in rig.derates]
    wanted += [(f"collapse {c.kind}", c.rate, "GB/s") for c in rig.collapses]
    if rig.nccl:
        wanted += [("nccl", rig.nccl.bus, "GB/s"), ("nccl", rig.nccl.error, "ratio")]
    for name, figure, unit in wanted:
        known = rig.figures.get(figure)
        if known is None:
            found.append(f"{name}: expected a figure named {figure!r} in [figures], found none")
        elif known.unit != unit:
            found.append(f"{name}: expected figure {figure!r} in {unit}, found {known.unit}")
    if rig.nccl and not 1 <= rig.nccl.channels <= 64:
        found.append(f"nccl: expected 1 to 64 channels, found {rig.nccl.channels}")
    for series in rig.series:
        if any(nbytes < 1 or not LEAST <= us <= MOST for nbytes, us in series.points) or series.world < 2:
            found.append(
                f"series of {series.backend}: expected a world of 2 or more, and bytes and us above 0"
            )
    for name, figure_ in rig.figures.items():
        e = figure_.estimate
        if not 0 < e.lo <= e.value <= e.hi:
            found.append(f"figure {name}: expected 0 < lo <= value <= hi, found {e.lo}, {e.value}, {e.hi}")
        elif e.lo < LEAST or e.hi > MOST:
            found.append(
                f"figure {name}: expected {LEAST:g} to {MOST:g} {e.unit}, found {e.lo:g} to {e.hi:g}"
            )
        if not figure_.source.strip():
            found.append(f"figure {name}: expected a source, found none")
    return tuple(found) if found else problems(topology(rig))


def topology(rig: Rig, end: End = "value") -> Topology:
    """The rig as a graph of directed edges, its figures at one end of their intervals.

    An edge's origin is that of its least certain figure, its source names them all. Raises
    TopologyError when a link names a figure that is not listed.
    """
    return Topology(
        schema=1,
        name=rig.name,
        nodes=rig.nodes,
        edges=tuple(edge for link in rig.links for edge in _edges(rig, link, end)),
        gpus=rig.gpus,
    )


def _edges(rig: Rig, link: Link, end: End) -> tuple[Edge, Edge]:
    names = (link.write, link.read or link.write, link.latency)
    missing = next((n for n in names if n not in rig.figures), None)
    if missing:
        raise TopologyError(f"{rig.name}: link {link.a} - {link.b}: no figure named {missing!r}")
    write, read, latency = (rig.figures[n] for n in names)
    used = (write, read, latency)
    origin = max((f.origin for f in used), key=CERTAINTY.index)
    source = "; ".join(dict.fromkeys(f.source for f in used))

    def edge(src: str, dst: str) -> Edge:
        return Edge(
            src=src,
            dst=dst,
            kind=link.kind,
            read_gbps=read.at(end),
            write_gbps=write.at(end),
            latency_us=latency.at(end),
            shared=link.shared,
            origin=origin,
            source=source,
        )

    return edge(link.a, link.b), edge(link.b, link.a)


def share_of(rig: Rig, pattern: Pattern, kind: str, end: End = "value") -> float:
    """What share of its rate a link of a kind keeps under a pattern; 1 where the rig states none."""
    for d in rig.derates:
        if (d.pattern, d.kind) == (pattern, kind):
            return rig.figures[d.share].at(end)
    return 1.0


def select(rig: Rig, ranks: Sequence[str] | None, world: int) -> tuple[str, ...]:
    """The GPUs that take part: those named, or the first `world`. Raises ValueError naming what is wrong."""
    if ranks is not None:
        unknown = [r for r in ranks if r not in rig.gpus]
        if unknown or len(set(ranks)) != len(ranks) or len(ranks) < 2:
            raise ValueError(
                f"{rig.name}: expected different GPUs of {', '.join(rig.gpus)}, found {list(ranks)}"
            )
        return tuple(ranks)
    if not 2 <= world <= len(rig.gpus):
        most = len(rig.gpus)
        allowed = "2 and no other" if most == 2 else f"2 to {most}"
        raise ValueError(f"{rig.name}: expected a world of {allowed}, found {world}")
    return rig.gpus[:world]
