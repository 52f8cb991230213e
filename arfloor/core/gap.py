"""Why a result misses the floor: launch, hops, wire, protocol, channels, and what none of them explains.

The parts are computed for the algorithm that really ran, from the probes of the same run; they add up
to the measured latency, because what is left over is a part of its own.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from arfloor.core import units
from arfloor.core.cases import Case, Estimate, Path, Primitive, Result, record
from arfloor.core.demands import demand_of
from arfloor.core.floor import Term
from arfloor.core.intervals import exact, quotient, scaled, total
from arfloor.core.rates import RateTable, latency_of, usable
from arfloor.core.schedules import Schedule, Traffic, schedules
from arfloor.core.trips import plan_of
from arfloor.core.verdict import is_correct, short_label

# how many bytes a protocol puts on the wire for each byte of payload
_PACKET = {"ll": 2.0, "ll128": 128 / 120, "simple": 1.0, "flag": 1.0, "line32": 32 / 28, "line64": 64 / 60}
_FENCED = frozenset({"simple", "flag"})  # data, then a release: the reader acquires


_EAGER = "launch is a graph node's, the host's own is unexplained"


@record
class Gap:
    """The parts of one measured latency in us. They sum to `measured`; `unexplained` may be negative.

    `assumed` says what was not known of the run and taken for granted, empty when nothing was.
    """

    measured: Estimate
    parts: tuple[Term, ...]
    unexplained: Estimate
    assumed: str = ""

    @property
    def terms(self) -> tuple[Term, ...]:
        """All parts with the unexplained one last."""
        rest = Term(name="unexplained", us=self.unexplained, source="measured less the parts above")
        return (*self.parts, rest)

    @property
    def claimed(self) -> Estimate | None:
        """By how much the parts surely claim more than was measured, us; None where they may not."""
        rest = self.unexplained
        if rest.hi >= 0:
            return None
        return replace(rest, value=-rest.value, lo=-rest.hi, hi=-rest.lo)


def why_gap(
    result: Result, primitives: Iterable[Primitive], *, siblings: Sequence[Result] = ()
) -> Gap | None:
    """Take a correct result apart; None without a latency or without the probes it takes.

    `siblings` are the other results of the same group: one that differs in its channels alone shows
    what the channels cost.
    """
    case = result.case
    if result.status != "ok" or result.latency is None:
        return None
    probes = usable(primitives, path=case.path, devices=case.devices)
    if case.path == "cpu":  # launchers are told apart by their name
        probes = tuple(p for p in probes if p.kind == "reduce" or p.source in ("", case.backend))
    table = RateTable.of(probes, path=case.path, world=case.world)
    if table is None:
        return None
    schedule, assumed = schedule_of(result)
    if case.mode == "eager" and case.path != "cpu":
        assumed = "; ".join(filter(None, (assumed, _EAGER)))
    latency, ping = table.latency
    out, out_source = table.edge_us("out", schedule.out_bytes, schedule.traffic)
    into, in_source = table.edge_us("in", schedule.in_bytes, schedule.traffic)
    wire, source = (out, out_source) if out.value >= into.value else (into, in_source)
    parts = [_launch(probes, case)]
    hops = f"{schedule.name}: {schedule.rounds} x {ping}"
    parts.append(Term(name="hops", us=scaled(latency, schedule.rounds), source=hops))
    parts.append(Term(name="wire", us=wire, source=f"{schedule.name}: {source}"))
    additions = table.additions_us(schedule.added_bytes)
    if additions is not None:
        parts.append(Term(name="additions", us=additions[0], source=additions[1]))
    protocol = _protocol(result, wire, probes, schedule)
    parts += [protocol] if protocol else []
    channels = _channels(result, siblings)
    parts += [channels] if channels else []
    known = total(p.us for p in parts)
    rest = Estimate(
        value=result.latency.value - known.value,
        lo=result.latency.lo - known.hi,
        hi=result.latency.hi - known.lo,
        n=result.latency.n,
        unit="us",
    )
    return Gap(measured=result.latency, parts=tuple(parts), unexplained=rest, assumed=assumed)


def schedule_of(result: Result) -> tuple[Schedule, str]:
    """The schedule that ran, and what had to be assumed for want of a word about it.

    NCCL's ring and tree, and this project's shapes, are known by their names, an implementation without
    variants by its own (`pcie_oneshot`); NCCL's tree within one box is a chain up and down.
    """
    case = result.case
    said = (result.ran.algorithm if result.ran else None) or ""
    name = said.lower() or case.variant.lower()
    wanted = _shape(name) or _shape(case.backend.lower())
    if wanted is None:
        ring = case.backend.startswith(("nccl", "rccl"))
        wanted = "ring" if ring else "two-shot"
        what = f"nothing says which algorithm ran; taken for a {wanted}"
        return _schedule(wanted, case.path, case.world, case.nbytes), what
    return _schedule(wanted, case.path, case.world, case.nbytes), ""


# MSCCL++'s names; the first that fits counts
_MSCCLPP = {"allpair": "one-shot", "packet": "two-shot", "rsag": "two-shot", "fullmesh": "two-shot"}


def _shape(name: str) -> str | None:
    parts = re.split(r"[\s_-]+", name)  # of our plans too: line512t64-one-33x512
    words = "".join(parts)
    for key in ("ring", "tree", "island"):
        if key in words:
            return key
    of_mscclpp = next((shape for key, shape in _MSCCLPP.items() if key in words), None)
    if of_mscclpp:
        return of_mscclpp
    shot = next((f"{n}-shot" for n in ("one", "two") if f"{n}shot" in words or n in parts), None)
    return f"{shot} staged" if shot and "staged" in words else shot


def _schedule(name: str, path: Path, world: int, nbytes: int) -> Schedule:
    known = {s.name: s for s in schedules(path, world, nbytes)}
    if name in known:
        return known[name]
    if name.endswith(" staged") and name.removesuffix(" staged") in known:
        return known[name.removesuffix(" staged")]
    twice = 2 * (world - 1) / world * nbytes
    share = (world - 1) / world * nbytes
    if name == "tree":
        moved = float(2 * nbytes if world > 2 else nbytes)
        return _plain("tree", 2 * (world - 1), moved, float(nbytes), "staged")
    if name == "island":
        return _plain("islands", 4, twice, share, "dense")
    return _plain("ring", 2 * (world - 1), twice, share, "staged")


def _plain(name: str, rounds: int, moved: float, added: float, traffic: Traffic) -> Schedule:
    return Schedule(
        name=name, rounds=rounds, out_bytes=moved, in_bytes=moved, added_bytes=added, traffic=traffic
    )


def _launch(probes: Sequence[Primitive], case: Case) -> Term:
    nodes = [p for p in probes if p.kind == "launch" and p.estimate is not None]
    if case.mode == "isolated" or not nodes:
        return Term(name="launch", us=exact(0.0), source="none in this mode" if nodes else "not probed")
    node = min(nodes, key=lambda p: p.estimate.value if p.estimate else 0.0)
    assert node.estimate is not None
    return Term(name="launch", us=node.estimate, source=RateTable.name(node))


def packet_factor(result: Result) -> float | None:
    """Bytes on the wire for each byte of payload, by the protocol that ran; None where that is not known.

    A 128-byte line of which no plan is known carries a 64-bit tag through host memory and a 32-bit one
    elsewhere.
    """
    plan = plan_of(result)
    if plan is not None:
        return plan.packet / plan.payload
    name = ((result.ran.protocol if result.ran else None) or "").lower()
    if name == "line128":
        return 128 / (120 if result.case.path == "host" else 124)
    return _PACKET.get(name)


def _protocol(result: Result, wire: Estimate, probes: Sequence[Primitive], schedule: Schedule) -> Term | None:
    """Bytes that carry no payload, and the fences of protocols that need them."""
    packet = packet_factor(result)
    if packet is None:
        return None
    name = ((result.ran.protocol if result.ran else None) or "").lower()
    us, source = scaled(wire, packet - 1), f"{name}: {packet:.3g} bytes on the wire for each of payload"
    if name in _FENCED:
        relaxed, fenced = latency_of(probes, "relaxed"), latency_of(probes, "acquire_release")
        if relaxed and fenced and fenced.value > relaxed.value:
            extra = fenced.value - relaxed.value
            us = total([us, scaled(exact(extra), schedule.rounds)])
            source += f", and a fence of {extra:.2g} us a round"
    return Term(name="protocol", us=us, source=source)


def _channels(result: Result, siblings: Sequence[Result]) -> Term | None:
    """What more channels gain with the same algorithm and protocol."""
    ran, case = result.ran, result.case
    if ran is None or ran.channels is None or result.latency is None:
        return None
    best: Result | None = None
    for other in siblings:
        same = (
            other.status == "ok"
            and other.latency is not None
            and other.ran is not None
            and (other.case.backend, other.case.settings) == (case.backend, case.settings)
            and (other.ran.algorithm, other.ran.protocol) == (ran.algorithm, ran.protocol)
            and (other.ran.channels or 0) > ran.channels
        )
        if same and (best is None or _us(other) < _us(best)):
            best = other
    if best is None or best.latency is None or best.ran is None or _us(best) >= result.latency.value:
        return None
    gain = Estimate(
        value=result.latency.value - best.latency.value,
        lo=max(0.0, result.latency.lo - best.latency.hi),
        hi=result.latency.hi - best.latency.lo,
        n=best.latency.n,
        unit="us",
    )
    return Term(name="channels", us=gain, source=f"{ran.channels} channels instead of {best.ran.channels}")


def _us(result: Result) -> float:
    return result.latency.value if result.latency else float("inf")


@record
class Lever:
    """What to pull next: how much faster it was measured, and the sentence to print."""

    kind: str
    ratio: Estimate | None
    sentence: str


# what is left to do about the largest part, when no measured case is faster
_REMEDY = {
    "launch": "a launch costs {us} us of it: fuse the reduce with its neighbour, or replay a graph",
    "hops": "one-way latencies cost {us} us of it: fewer rounds (one-shot) are the only cure",
    "wire": "the wire takes {us} us of it: only fewer bytes help (reduce less often, quantise)",
    "protocol": "the protocol's own bytes and fences cost {us} us of it: another protocol",
    "additions": "the additions cost {us} us of it: more cores, or a two-shot that adds each chunk once",
    "channels": "too few channels cost {us} us of it",
    "unexplained": "{us} us of it are unexplained: profile the reduce itself before changing anything",
}


def next_lever(
    default: Result,
    results: Iterable[Result],
    gap: Gap | None = None,
    *,
    advice: Callable[[Case], str] = lambda case: case.label,
    paired: Mapping[str, Estimate] | None = None,
) -> Lever | None:
    """The best next step from `default`: its own settings first, then another backend, then the largest part.

    A setting that asks something of a program (`arfloor.core.demands`) says what, and which one asks nothing.
    `advice` turns a case into what a user sets or calls. A step counts when its whole interval is
    faster than the default's. A setting that another backend beats says so. `paired`: default over case by
    case id, where they were compared round by round, which says more than their two latencies do. None
    without a latency of the default.
    """
    if default.latency is None:
        return None
    faster = []
    for r in results:
        if is_correct(r) and r.latency is not None and r.case.id != default.case.id:
            ratio = (paired or {}).get(r.case.id) or quotient(default.latency, r.latency)
            if ratio.lo > 1.02:
                faster.append((ratio, r))
    own = [f for f in faster if f[1].case.backend == default.case.backend]
    if own:
        ratio, best = max(own, key=lambda f: f[0].value)
        further = max(faster, key=lambda f: f[0].value)
        said = _setting(default, best, ratio, advice)
        free = [f for f in own if demand_of(f[1].case) is None]
        if free and demand_of(best.case):
            less, plain = max(free, key=lambda f: f[0].value)
            said += f" Of what asks nothing of a program: {_setting(default, plain, less, advice)}"
        if further[1] is not best:
            label, gain = short_label(further[1].case), f"{further[0].value:.2f}x"
            said += f" Beyond its settings, {label} measured {gain} faster: {advice(further[1].case)}."
        return Lever(kind="setting", ratio=ratio, sentence=said)
    if faster:
        ratio, best = max(faster, key=lambda f: f[0].value)
        said = f"{short_label(best.case)} measured {ratio.value:.2f}x faster than {short_label(default.case)}"
        return Lever(kind="backend", ratio=ratio, sentence=f"{said}: {advice(best.case)}.")
    if gap is None:
        return None
    largest = max(gap.terms, key=lambda t: t.us.value)
    if largest.us.value > gap.measured.value:
        return None  # a part that is more than the whole says what ran was something else
    remedy = _REMEDY[largest.name].format(us=units.number(largest.us.value))
    said = f"Nothing measured beats {short_label(default.case)} ({units.us(gap.measured.value)}): "
    return Lever(kind=largest.name, ratio=None, sentence=said + remedy + ".")


def _setting(default: Result, best: Result, ratio: Estimate, advice: Callable[[Case], str]) -> str:
    name = default.case.backend.upper() if default.case.backend == "nccl" else default.case.backend
    had, has = default.ran, best.ran
    gain = f"measured {ratio.value:.2f}x faster: set {advice(best.case)}"
    demand = demand_of(best.case)
    if demand:
        where = "in graphs" if best.case.mode == "graph" else "here"
        return f"{advice(best.case)} measured {ratio.value:.2f}x faster {where}; {demand.condition}."
    if had and has and had.channels and has.channels and had.channels != has.channels:
        if (had.algorithm, had.protocol) == (has.algorithm, has.protocol):
            return f"{name} uses {had.channels} channels here; {has.channels} {gain}."
        change = f"{has.algorithm}/{has.protocol} on {has.channels}"
        return f"{name} uses {had.algorithm}/{had.protocol} on {had.channels} channels here; {change} {gain}."
    if had and has and (had.algorithm, had.protocol) != (has.algorithm, has.protocol):
        return f"{name} chose {had.algorithm}/{had.protocol} here; {has.algorithm}/{has.protocol} {gain}."
    return f"{name} as it is can be beaten by itself: {short_label(best.case)} {gain}."


@record
class ChoiceCost:
    """What NCCL chose against the best of its own settings that ask nothing of a program, at one size.

    `chosen_us`: what the choice took; `expected_us`: what the library itself expects of it, where its log
    says so.
    """

    nbytes: int
    chosen: str
    best: str
    ratio: Estimate
    chosen_us: float
    expected_us: float | None = None


def choice_cost(default: Result, results: Iterable[Result]) -> ChoiceCost | None:
    """The default (NCCL's own choice) against the best correct case of its backend; None without both."""
    own = [
        r
        for r in results
        if r.status == "ok" and r.latency is not None and r.case.backend == default.case.backend
        if demand_of(r.case) is None
    ]
    if default.latency is None or default.status != "ok" or not own:
        return None
    best = min(own, key=_us)
    assert best.latency is not None
    return ChoiceCost(
        nbytes=default.case.nbytes,
        chosen=_described(default),
        best=_described(best),
        ratio=quotient(default.latency, best.latency),
        chosen_us=default.latency.value,
        expected_us=default.ran.predicted_us if default.ran else None,
    )


def _described(result: Result) -> str:
    ran = result.ran
    if ran is None or not ran.algorithm:
        return short_label(result.case)
    words = "/".join(w for w in (ran.algorithm, ran.protocol) if w)
    return f"{words} {ran.channels}ch" if ran.channels else words
