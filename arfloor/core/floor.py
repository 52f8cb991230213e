"""The floor: what the wires allow, from measured primitives alone.

    bound(S)      = L_min + max( 2 (n-1)/n S / b_max , S / capacity of each cut that separates ranks )
    attainable(S) = t0 + min over schedules [ rounds * L + max over edges of ( bytes on e / rate of e ) ]
                    + the additions, where the ranks are CPU processes

`bound` is what no software can beat: the best rate of any engine, size and pattern, the least
latency, each at the optimistic end of its interval. That a rank must move 2 (n-1)/n S is the
result of Patarasuk and Yuan (J. Parallel Distrib. Comput. 69, 2009). `attainable` is the best
schedule of `arfloor.core.schedules` at the rates measured for its own traffic pattern.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from arfloor.core import units
from arfloor.core.cases import DType, Estimate, Mode, Origin, Path, Primitive, Result, record
from arfloor.core.intervals import exact, largest, scaled, smallest, total, transfer_us
from arfloor.core.lossy import is_lossy
from arfloor.core.rates import RateTable, usable
from arfloor.core.schedules import Schedule, schedules
from arfloor.core.verdict import short_label


@record
class Term:
    """One part of a bound or of an attainable time, and the probe it comes from."""

    name: str
    us: Estimate
    source: str


@record
class Terms:
    """The parts that add up to `bound` and to `attainable`. Names: launch, latency, wire, additions."""

    bound: tuple[Term, ...]
    attainable: tuple[Term, ...]


@record
class Cut:
    """A cut that separates ranks: at least S bytes must cross it each way, at `gbps` in all."""

    name: str
    gbps: Estimate


@record
class Floor:
    """The floor of one world, path, size, dtype and mode.

    bound.value is its optimistic end (bound.lo); bound.hi uses the middles of the same probes.
    `considered` holds every schedule's time. `slow_probe` names the probe that a faster correct
    result proved slow (`raise_attainable`). `origin` is the least certain of the primitives used.
    `sources` names what probed the links: on CPU the launchers (gloo, mpi).
    """

    path: Path
    world: int
    nbytes: int
    dtype: DType
    mode: Mode
    bound: Estimate
    attainable: Estimate
    algorithm: str
    terms: Terms
    considered: tuple[tuple[str, Estimate], ...] = ()
    origin: Origin = "measured"
    slow_probe: str | None = None
    sources: tuple[str, ...] = ()


_CERTAINTY: tuple[Origin, ...] = ("measured", "published", "predicted", "assumed")


def floor(
    primitives: Iterable[Primitive],
    *,
    path: Path,
    world: int,
    nbytes: int,
    dtype: DType,
    mode: Mode,
    devices: Sequence[str] | None = None,
    cuts: Sequence[Cut] = (),
) -> Floor | None:
    """The floor of an all-reduce of `nbytes` a rank, or None when latency or rate was not probed.

    `devices` restricts the probes to those ranks' devices (and the host). CPU launchers (gloo, MPI)
    are told apart by `Primitive.source`: attainable is the best one's, bound takes the best of each
    probe. In mode `isolated` no launch is part of the latency, so t0 is 0. Raises ValueError for
    fewer than two ranks or a size below one byte.
    """
    if nbytes < 1:
        raise ValueError(f"floor: expected nbytes >= 1, found {nbytes}")
    known = tuple(primitives)
    probes = usable(known, path=path, devices=devices)
    groups = _launchers(probes, path)
    tables = [t for g in groups if (t := RateTable.of(g, path=path, world=world)) is not None]
    if not tables:
        return None
    # software that may use peer access may also go through host memory: the bound must allow for both
    either = usable(known, path="host", devices=devices) if path == "peer" else ()
    bound, bound_terms = _bound((*probes, *either), world, nbytes, cuts)
    t0 = _launch(probes, mode, path)
    tried = [
        (schedule.name, _terms(table, schedule, t0, nbytes, cuts))
        for table in tables
        for schedule in schedules(path, world, nbytes)
    ]
    name, terms, considered = _best(tried)
    attainable = replace(smallest(considered.values()), n=considered[name].n)
    return Floor(
        path=path,
        world=world,
        nbytes=nbytes,
        dtype=dtype,
        mode=mode,
        bound=bound,
        attainable=attainable,
        algorithm=name,
        terms=Terms(bound=bound_terms, attainable=terms),
        considered=tuple(considered.items()),
        origin=max((p.origin for p in probes), key=_CERTAINTY.index),
        sources=tuple(sorted({p.source for p in probes if p.kind in ("pingpong", "stream")})),
    )


def _best(
    tried: Sequence[tuple[str, tuple[Term, ...]]],
) -> tuple[str, tuple[Term, ...], dict[str, Estimate]]:
    """The fastest schedule's name and terms, and the best time of each name; the first of equals."""
    timed = [(total(t.us for t in terms), name, terms) for name, terms in tried]
    considered: dict[str, Estimate] = {}
    for time, name, _ in timed:
        if name not in considered or time.value < considered[name].value:
            considered[name] = time
    _, name, terms = min(timed, key=lambda t: t[0].value)
    return name, terms, considered


def _launchers(probes: Sequence[Primitive], path: Path) -> list[list[Primitive]]:
    """One group of probes a launcher on CPU (additions belong to all), one group in all elsewhere."""
    if path != "cpu":
        return [list(probes)]
    links = sorted({(p.source, p.link) for p in probes if p.kind in ("pingpong", "stream")})
    additions = [p for p in probes if p.kind == "reduce"]
    return [
        [p for p in probes if p.kind != "reduce" and (p.source, p.link) == link] + additions for link in links
    ]


def _bound(
    probes: Sequence[Primitive], world: int, nbytes: int, cuts: Sequence[Cut]
) -> tuple[Estimate, tuple[Term, ...]]:
    ping = min((p for p in probes if p.kind == "pingpong"), key=lambda p: _of(p).lo)
    # additions read their operand: ranks that share memory may reduce it in place of copying it
    streams = [p for p in probes if p.kind in ("stream", "reduce")]
    dense_probed = any(p.active == "all" for p in streams)

    def of_rank(p: Primitive) -> Estimate:
        """What all streams of one rank may carry together when each carries this."""
        apart = p.active == "all" or (p.link != "pcie" and not dense_probed)
        several = p.kind == "stream" and p.path != "host" and apart
        return scaled(_of(p), world - 1) if several else _of(p)

    stream = max(streams, key=lambda p: of_rank(p).hi)
    latency, rate = _of(ping), of_rank(stream)
    wires = [(_optimistic(transfer_us(2 * (world - 1) / world * nbytes, rate)), _name(stream))]
    wires += [(_optimistic(transfer_us(nbytes, c.gbps)), f"cut {c.name}") for c in cuts]
    wire, source = max(wires, key=lambda w: w[0].value)
    terms = (
        Term(name="latency", us=_optimistic(latency), source=_name(ping)),
        Term(name="wire", us=replace(wire, hi=max(w.hi for w, _ in wires)), source=source),
    )
    return total(t.us for t in terms), terms


def _optimistic(e: Estimate) -> Estimate:
    return Estimate(value=e.lo, lo=e.lo, hi=e.value, n=e.n, unit=e.unit)


def _launch(probes: Sequence[Primitive], mode: Mode, path: Path) -> Term:
    nodes = [p for p in probes if p.kind == "launch"]
    if mode == "isolated" or not nodes:
        missing = "CPU ranks launch nothing" if path == "cpu" else "not probed"
        why = "no launch in this mode" if mode == "isolated" else missing
        return Term(name="launch", us=exact(0.0), source=why)
    node = min(nodes, key=lambda p: _of(p).value)
    return Term(name="launch", us=_of(node), source=_name(node))


def _terms(
    table: RateTable, schedule: Schedule, t0: Term, nbytes: int, cuts: Sequence[Cut]
) -> tuple[Term, ...]:
    latency, ping = table.latency
    out, out_source = table.edge_us("out", schedule.out_bytes, schedule.traffic)
    into, in_source = table.edge_us("in", schedule.in_bytes, schedule.traffic)
    crossing = [transfer_us(nbytes, c.gbps) for c in cuts]
    wire = largest([out, into, *crossing])
    source = out_source if out.value >= into.value else in_source
    if wire.value > max(out.value, into.value):
        source = "cut " + max(cuts, key=lambda c: -c.gbps.value).name
    terms = [
        t0,
        Term(name="latency", us=scaled(latency, schedule.rounds), source=f"{schedule.rounds} x {ping}"),
        Term(name="wire", us=wire, source=source),
    ]
    additions = table.additions_us(schedule.added_bytes)
    if additions is not None:
        terms.append(Term(name="additions", us=additions[0], source=additions[1]))
    return tuple(terms)


def _of(p: Primitive) -> Estimate:
    assert p.estimate is not None  # `usable` kept only probes that have one
    return p.estimate


def _name(p: Primitive) -> str:
    return RateTable.name(p)


def _covers(floor: Floor, result: Result) -> bool:
    """Whether the bound speaks of a result: on CPU, only when its launcher was probed.

    MPI through shared memory may rightly beat a bound that was probed over gloo's TCP alone.
    """
    return floor.path != "cpu" or not any(floor.sources) or result.case.backend in floor.sources


CPU_SLACK = 0.8
"""Probes of CPU ranks, short as they are, came out 8 % slower on two busy cores than a later block."""


def check_bound(result: Result, floor: Floor) -> Result:
    """The result, or, when it is correct but faster than the bound, a failed one (`below_bound`).

    Nothing can beat the bound, so such a result proves its own timing or the probes wrong. CPU ranks
    share their cores with whatever else runs, and probes may have met a busier moment than the
    result: there the whole interval must lie below CPU_SLACK of it, and the result's launcher must have
    been probed (else `raise_attainable` lowers the bound).
    """
    # a lossy reduce moves fewer bytes than the bound counts
    if is_lossy(result.case) or result.status != "ok" or result.latency is None or not _covers(floor, result):
        return result
    cpu = floor.path == "cpu"
    fastest = result.latency.hi / CPU_SLACK if cpu else result.latency.value
    if fastest >= floor.bound.lo:
        return result
    probe = max(floor.terms.bound, key=lambda t: t.us.value)
    detail = (
        f"measured {units.us(result.latency.value)}, below the bound of {units.us(floor.bound.lo)}: "
        f"the timing or a probe is wrong (largest term: {probe.name} {units.us(probe.us.value)}, "
        f"{probe.source})"
    )
    return replace(result, status="failed", reason="below_bound", detail=detail, latency=None)


def raise_attainable(floor: Floor, results: Iterable[Result]) -> Floor:
    """The floor with attainable replaced by the fastest correct result when that beat it.

    What was measured is attainable; the largest term of the old estimate names the probe that was
    slow. Results of another world, path, size, dtype or mode are ignored, and so are those below the
    bound (see `check_bound`); on CPU one whose interval reaches the bound, or whose launcher was not
    probed, lowers it.
    """
    rivals = [r for r in results if _comparable(r, floor)]
    best = min(rivals, key=_latency, default=None)
    if best is None or best.latency is None or best.latency.value >= floor.attainable.value:
        return floor
    slow = max(floor.terms.attainable, key=lambda t: t.us.value)
    beaten = f"{short_label(best.case)} took {units.us(best.latency.value)} where the probes gave"
    why = (
        f"slow probe: {slow.source} ({slow.name})" if _covers(floor, best) else "its launcher was not probed"
    )
    bound, least = floor.bound, best.latency.value
    if least < bound.lo:
        bound = replace(bound, value=least, lo=least, hi=max(least, bound.hi))
    return replace(
        floor,
        bound=bound,
        attainable=best.latency,
        algorithm=short_label(best.case),
        slow_probe=f"{beaten} {units.us(floor.attainable.value)}: {why}",
    )


def _latency(result: Result) -> float:
    return result.latency.value if result.latency else float("inf")


def _comparable(result: Result, floor: Floor) -> bool:
    case = result.case
    same = (case.world, case.path, case.nbytes, case.dtype, case.mode) == (
        floor.world,
        floor.path,
        floor.nbytes,
        floor.dtype,
        floor.mode,
    )
    possible = check_bound(result, floor) is result and result.latency is not None
    return result.status == "ok" and same and possible
