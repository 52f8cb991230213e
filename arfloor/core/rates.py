"""Measured primitives as functions of bytes: how long does an edge take under a traffic pattern?"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Literal

from arfloor.core.cases import Estimate, Mode, Path, Primitive, record
from arfloor.core.intervals import between, largest, product, smallest
from arfloor.core.schedules import Traffic

# What share of a port's both-ways rate is left when a GPU talks to all others at once over PCIe, and
# when it has one stream in and one out: published four-GPU figures, used only where not measured.
DENSE_SHARE = between(0.57, 0.64, "ratio")
STAGED_SHARE = between(0.90, 0.96, "ratio")

# `Primitive.active` of a single best repetition: what a bound may use, and no estimate should
BEST = "best"

Curve = tuple[tuple[int, Estimate], ...]


def usable(
    primitives: Iterable[Primitive], *, path: Path, devices: Sequence[str] | None = None
) -> tuple[Primitive, ...]:
    """Primitives of a path that carry a positive figure, between the given devices (and the host)."""
    places = None if devices is None else {*devices, "host"}
    return tuple(
        p
        for p in primitives
        if p.status == "ok"
        and p.estimate is not None
        and 0 < p.estimate.lo <= p.estimate.value <= p.estimate.hi
        and (p.path == path or p.kind in ("launch", "reduce"))
        and (places is None or p.kind == "reduce" or {p.src, p.dst} <= places)
        and not (p.kind == "reduce" and path != "cpu")
    )


def curve_us(curve: Curve, nbytes: float) -> Estimate:
    """Time to move nbytes along a curve of (size, GB/s), in us.

    Between sizes the time is linear; before the first and after the last it is proportional. A size
    never takes less time than a smaller one: without this, noise between two probes would let more
    bytes arrive sooner.
    """
    knots = sorted(curve, key=lambda knot: knot[0])
    return Estimate(
        value=_end_us([(size, rate.value) for size, rate in knots], nbytes),
        lo=_end_us([(size, rate.hi) for size, rate in knots], nbytes),
        hi=_end_us([(size, rate.lo) for size, rate in knots], nbytes),
        n=min(rate.n for _, rate in knots),
        unit="us",
    )


def _end_us(knots: Sequence[tuple[int, float]], nbytes: float) -> float:
    last_size, last_time = 0.0, 0.0
    for size, gbps in knots:
        time = max(last_time, size / gbps / 1e3)
        if nbytes <= size:
            return last_time + (time - last_time) * (nbytes - last_size) / (size - last_size)
        last_size, last_time = float(size), time
    return last_time * nbytes / last_size


@record
class RateTable:
    """The probes of one path (and, on CPU, one launcher), ready to time schedules for `world` ranks."""

    path: Path
    world: int
    latency: tuple[Estimate, str]
    streams: tuple[Primitive, ...]
    additions: tuple[Primitive, ...]

    @staticmethod
    def of(probes: Sequence[Primitive], *, path: Path, world: int) -> RateTable | None:
        """None when no ping-pong or no stream is among the probes."""
        typical = [p for p in probes if p.active != BEST]
        pings = [p for p in typical if p.kind == "pingpong"]
        streams = tuple(p for p in typical if p.kind == "stream")
        if not pings or not streams:
            return None
        return RateTable(
            path=path,
            world=world,
            latency=_latency(pings),
            streams=streams,
            additions=tuple(p for p in typical if p.kind == "reduce"),
        )

    @staticmethod
    def name(p: Primitive) -> str:
        """What a reader calls a probe."""
        where = f"{p.src}>{p.dst}" if p.src or p.dst else p.path
        source = f" ({p.source})" if p.source else ""
        return f"{p.kind} {p.engine} {p.access} {where} {p.active}{source}"

    def edge_us(
        self, direction: Literal["out", "in"], nbytes: float, traffic: Traffic
    ) -> tuple[Estimate, str]:
        """Time of the slowest edge that carries `nbytes` of one rank, and the probe it comes from."""
        streams = self._direction(direction)
        pattern = self._pattern(streams, traffic)
        by_pair: dict[tuple[str, str], list[Primitive]] = defaultdict(list)
        for p in streams:
            if p.active == pattern:
                by_pair[p.src, p.dst].append(p)
        share = self._share(pattern, traffic)
        split = self.world - 1 if self._per_pair(pattern, traffic) else 1
        timed = [_pair_us(probes, nbytes / split, share) for probes in by_pair.values()]
        slowest = max(timed, key=lambda t: t[0].value)
        return largest(t[0] for t in timed), slowest[1]

    def additions_us(self, nbytes: float) -> tuple[Estimate, str] | None:
        """Time to add nbytes of operands on a CPU; None where additions were not probed."""
        if not self.additions:
            return None
        return _pair_us(self.additions, nbytes, None)

    def _direction(self, direction: Literal["out", "in"]) -> tuple[Primitive, ...]:
        if self.path != "host":
            return self.streams
        access = "write" if direction == "out" else "read"
        return tuple(p for p in self.streams if p.access == access) or self.streams

    def _pattern(self, streams: Sequence[Primitive], traffic: Traffic) -> str:
        measured = {p.active for p in streams}
        wanted = ["both_ways", "all", "one_way"]
        if self.path == "host" or (traffic == "dense" and self.world > 2):
            wanted = ["all", "both_ways", "one_way"]
        return next((w for w in wanted if w in measured), min(measured))

    def _per_pair(self, pattern: str, traffic: Traffic) -> bool:
        """Whether the pattern's rate is that of one pair among all that are active at once."""
        return pattern == "all" and self.path != "host" and traffic == "dense" and self.world > 2

    def _share(self, pattern: str, traffic: Traffic) -> Estimate | None:
        pcie = self.path == "peer" and any("pcie" in p.link for p in self.streams)
        if not pcie or self.world == 2 or pattern == "all":
            return None
        return DENSE_SHARE if traffic == "dense" else STAGED_SHARE


def launch_us(probes: Sequence[Primitive], mode: Mode) -> float:
    """The least time of an empty graph node, in us; 0 where the mode launches none or it was not probed."""
    nodes = [p.estimate.value for p in probes if p.kind == "launch" and p.estimate is not None]
    return min(nodes, default=0.0) if mode != "isolated" else 0.0


def latency_of(probes: Sequence[Primitive], access: str) -> Estimate | None:
    """One-way latency of the slowest pair by one kind of access, in us; None where it was not probed."""
    pings = [p for p in probes if p.kind == "pingpong" and p.access == access and p.active != BEST]
    return _latency(pings)[0] if pings else None


def _latency(pings: Sequence[Primitive]) -> tuple[Estimate, str]:
    """Slowest pair of the fastest kind of access: a round ends when its last flag has arrived."""
    by_kind: dict[tuple[str, str], list[Primitive]] = defaultdict(list)
    for p in pings:
        by_kind[p.engine, p.access].append(p)
    worst: list[tuple[Estimate, Primitive]] = []
    for probes in by_kind.values():
        by_pair: dict[tuple[str, str], list[Primitive]] = defaultdict(list)
        for p in probes:
            by_pair[p.src, p.dst].append(p)
        quickest = [min(group, key=_value) for group in by_pair.values()]
        slow = max(quickest, key=_value)
        worst.append((largest(p.estimate for p in quickest if p.estimate), slow))
    estimate, probe = min(worst, key=lambda w: w[0].value)
    return estimate, RateTable.name(probe)


def _value(p: Primitive) -> float:
    return p.estimate.value if p.estimate else float("inf")


def _pair_us(probes: Sequence[Primitive], nbytes: float, share: Estimate | None) -> tuple[Estimate, str]:
    """Least time over the engines and accesses that were probed between one pair."""
    by_engine: dict[tuple[str, str], list[Primitive]] = defaultdict(list)
    for p in probes:
        by_engine[p.engine, p.access].append(p)
    options = []
    for group in by_engine.values():
        best: dict[int, Estimate] = {}
        for p in group:
            if p.estimate is not None:
                rate = p.estimate if share is None else product(p.estimate, share, p.estimate.unit)
                size = max(1, p.nbytes)
                if size not in best or rate.value > best[size].value:
                    best[size] = rate
        options.append((curve_us(tuple(best.items()), nbytes), RateTable.name(group[0])))
    fastest = min(options, key=lambda o: o[0].value)
    return smallest(o[0] for o in options), fastest[1]
