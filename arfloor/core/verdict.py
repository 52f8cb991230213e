"""The verdict for one size: is there something better to switch to, and is that at the floor?

Everything here is a pure decision over results that are already measured and checked. The order of
the questions is the order in which a reader can act: was anything measured, does something beat the
default, and how far is the best from what the wires allow.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, Literal, Protocol

from arfloor.core import units
from arfloor.core.cases import Case, Estimate, Result, Settings, Verdict, VerdictStatus, record
from arfloor.core.demands import demand_of
from arfloor.core.intervals import quotient
from arfloor.core.lossy import is_lossy
from arfloor.core.reasons import REASONS, explain

AT_FLOOR = 1.25
"""best / attainable up to which a result counts as being at the floor (design section 3)."""

BAND = 0.02
"""Half width of the band of equality of two latencies."""

NOISY = 4.0
"""A gain whose interval spans more than this factor is sure, but how large it is, only repeating tells."""

# transports in NCCL's log that do not touch the peer's memory
_THROUGH_HOST = frozenset({"SHM", "NET"})

Answer = Literal["faster", "slower", "same", "undecided"]
Pairing = Literal["round", "launch", "unpaired"]

# Settings that a path needs to exist at all: with them set, the rest is still what a user gets
# without touching anything. P2P off is the only way to make NCCL use host memory on a box with peer access.
PATH_SETTINGS: dict[str, frozenset[tuple[str, str]]] = {
    "cpu": frozenset(),
    "peer": frozenset(),
    "host": frozenset({("NCCL_P2P_DISABLE", "1")}),
}
DEFAULT_BACKEND = {"cpu": "gloo", "peer": "nccl", "host": "nccl"}

# How the processes are started, which is no choice of the all-reduce's user.
_LAUNCH_SETTINGS = frozenset({"launcher"})


@record
class Comparison:
    """Default over candidate: `ratio` above 1 means that the candidate is faster.

    pairing: `round` (interleaved in the same processes), `launch` (other settings, so other processes:
    weaker) or `unpaired` (no common samples: the intervals of the two latencies alone). reason: why the
    answer is open. `decided_on` is the interval that the answer is taken on, `band` the half-width of the
    band of equality, the A/A spread included.
    """

    answer: Answer
    ratio: Estimate
    pairing: Pairing
    reason: str = "interval_meets_band"
    decided_on: tuple[float, float] | None = None
    band: float = BAND


class FloorLike(Protocol):
    """What a verdict needs of `arfloor.core.floor.Floor`."""

    @property
    def bound(self) -> Estimate: ...
    @property
    def attainable(self) -> Estimate: ...
    @property
    def algorithm(self) -> str: ...
    @property
    def slow_probe(self) -> str | None: ...


Compare = Callable[[Result, Result], Comparison]


def is_default(case: Case) -> bool:
    """Whether `case` is what a user gets on its path without touching anything.

    The default variant of the path's standard library (gloo on `cpu`, NCCL on GPUs), with no settings
    but those that the path itself needs.
    """
    standard = case.backend == DEFAULT_BACKEND[case.path] and case.variant == "default"
    return standard and not chosen_settings(case)


def chosen_settings(case: Case) -> Settings:
    """The settings that somebody chose: all but how ranks are started and what the path itself needs."""
    needed = PATH_SETTINGS[case.path]
    return tuple(s for s in case.settings if s[0] not in _LAUNCH_SETTINGS and s not in needed)


# Settings through which a variant is chosen: its name says as much.
_OF_VARIANT = ("OMPI_MCA_",)


def short_label(case: Case) -> str:
    """What a reader of one path's section calls the case: backend, variant, chosen settings."""
    default = case.variant == "default"
    name = case.backend if default else f"{case.backend} {case.variant}"
    shown = [s for s in chosen_settings(case) if default or not s[0].startswith(_OF_VARIANT)]
    chosen = " ".join(f"{k}={v}" for k, v in shown)
    return f"{name} [{chosen}]" if chosen else name


def is_correct(result: Result) -> bool:
    """Measured, not known to be wrong, and the sum of all bits: the only results that may be called fast."""
    checked = (result.check is None or result.check.wrong == 0) and not is_lossy(result.case)
    return result.status == "ok" and result.latency is not None and checked


def default_result(results: Iterable[Result]) -> Result | None:
    """The result of the default case among `results`, correct or not; in-place before out-of-place."""
    candidates = [r for r in results if is_default(r.case)]
    return min(
        candidates,
        key=lambda r: (not is_correct(r), len(r.case.settings), not r.case.inplace, r.case.id),
        default=None,
    )


def best_result(results: Iterable[Result]) -> Result | None:
    """The correct result of least latency; the default wins a tie."""
    return min(
        (r for r in results if is_correct(r)),
        key=lambda r: (_latency(r).value, not is_default(r.case), r.case.id),
        default=None,
    )


def answer_of(ratio: Estimate, band: float = BAND) -> Answer:
    """Which of the four answers an interval of default / candidate gives."""
    if ratio.lo > 1 + band:
        return "faster"
    if ratio.hi < 1 / (1 + band):
        return "slower"
    if 1 / (1 + band) <= ratio.lo and ratio.hi <= 1 + band:
        return "same"
    return "undecided"


def compare_unpaired(default: Result, candidate: Result) -> Comparison:
    """Comparison from the two intervals alone: the widest that they allow, so never too sure."""
    ratio = quotient(_latency(default), _latency(candidate))
    return Comparison(answer=answer_of(ratio), ratio=ratio, pairing="unpaired")


def judge(results: Sequence[Result], floor: FloorLike | None, compare: Compare = compare_unpaired) -> Verdict:
    """The verdict over the results of one group: same world, path, size, dtype, mode and devices.

    Raises ValueError when `results` is empty or mixes groups.
    """
    keys = {group_key(r.case) for r in results}
    if len(keys) != 1:
        raise ValueError(f"judge: expected the results of one group, found {len(keys)} groups")
    case = results[0].case
    default, best = default_result(results), best_result(results)
    usable = default is not None and is_correct(default)
    comparison = None
    if default is not None and best is not None and usable and best is not default:
        comparison = compare(default, best)
    now = comparison.ratio if comparison else None
    if usable and best is default:
        now = Estimate(value=1.0, lo=1.0, hi=1.0, n=_latency(best).n if best else 0, unit="ratio")
    left = _headroom_left(best, floor)
    status, reason = _status(default if usable else None, best, floor, comparison, left)
    verdict = Verdict(
        world=case.world,
        path=case.path,
        nbytes=case.nbytes,
        dtype=case.dtype,
        mode=case.mode,
        default=default,
        best=best,
        attainable=floor.attainable if floor else None,
        bound=floor.bound if floor else None,
        status=status,
        reason=reason,
        sentence="",
        attainable_algorithm=floor.algorithm if floor else None,
        headroom_now=now,
        headroom_left=left,
        pairing=comparison.pairing if comparison else None,
        decided_on=comparison.decided_on if comparison else None,
        band=comparison.band if comparison else None,
        devices=case.devices,
        groups=case.groups,
    )
    free = best_result(r for r in results if demand_of(r.case) is None)
    return _with_sentence(verdict, floor.slow_probe if floor else None, free)


def group_key(case: Case) -> tuple[object, ...]:
    """What two cases must share to be compared in one verdict."""
    return (case.world, case.path, case.nbytes, case.dtype, case.mode, case.devices, case.groups)


def group_order(case: Case) -> tuple[Any, ...]:
    """Sort key of groups: path, world, devices, mode, dtype, size."""
    path = ("peer", "host", "cpu").index(case.path)
    mode = ("graph", "eager", "isolated").index(case.mode)
    return (path, case.world, case.devices, case.groups, mode, case.dtype, case.nbytes)


def _status(
    default: Result | None,
    best: Result | None,
    floor: FloorLike | None,
    comparison: Comparison | None,
    left: Estimate | None,
) -> tuple[VerdictStatus, str]:
    if best is None:
        return "no_data", "no_best"
    if default is None:
        return "no_data", "no_default"
    if comparison and comparison.answer == "faster":
        return "switch", "best_beats_default"
    # it was the faster one by the medians that made it the best: as open as can be
    if comparison and comparison.answer == "slower":
        return "undecided", "medians_disagree"
    if comparison and comparison.answer == "undecided":
        return "undecided", comparison.reason if comparison.reason in REASONS else "interval_meets_band"
    if floor is None or left is None:
        return "no_data", "no_floor"
    if left.lo <= AT_FLOOR < left.hi:
        return "undecided", "interval_meets_floor"
    if left.value > AT_FLOOR:
        return "gap", "above_floor"
    at_floor = quotient(_latency(default), floor.attainable).value <= AT_FLOOR
    return "at_floor", "default_at_floor" if at_floor else "best_at_floor"


def _headroom_left(best: Result | None, floor: FloorLike | None) -> Estimate | None:
    if best is None or floor is None:
        return None
    if floor.slow_probe is not None:  # attainable is the best result itself: no doubt remains between them
        return Estimate(value=1.0, lo=1.0, hi=1.0, n=_latency(best).n, unit="ratio")
    return quotient(_latency(best), floor.attainable)


def _latency(result: Result) -> Estimate:
    if result.latency is None:
        raise ValueError(f"{result.case.id}: expected a measured latency, found none")
    return result.latency


# -- the sentence ------------------------------------------------------------------------------------


def _with_sentence(verdict: Verdict, slow_probe: str | None, free: Result | None) -> Verdict:
    """`free`: the best of the results that ask nothing of a program, named where the best asks something."""
    text = _SENTENCES[verdict.status](verdict)
    notes = caveats(verdict) + ([f"({slow_probe}.)"] if slow_probe else [])
    if verdict.best and demand_of(verdict.best.case) and free:
        notes.append(f"(The best that asks nothing of a program: {_name(free)}, {_took(free)}.)")
    return replace(verdict, sentence=" ".join([f"At {units.size(verdict.nbytes)}: {text}", *notes]))


def ratio_span(estimate: Estimate) -> str:
    """`3.41x [3.39, 3.42]`; `3.41x [unknown]` where the interval says nothing."""
    value, lo, hi = units.ratio(estimate.value), units.ratio(estimate.lo)[:-1], units.ratio(estimate.hi)[:-1]
    return f"{value} [{lo}, {hi}]" if units.known(estimate.lo, estimate.hi) else f"{value} [unknown]"


def _name(result: Result | None) -> str:
    return short_label(result.case) if result else "nothing"


def _took(result: Result | None) -> str:
    return units.us(_latency(result).value) if result and result.latency else "not measured"


def _floor_clause(v: Verdict) -> str:
    """How far the best is from the floor, as a clause; says so when no floor is known."""
    if v.headroom_left is None or v.attainable is None:
        return "how far that is from the floor is not known (no link primitives measured)"
    floor = f"the {units.us(v.attainable.value)} attainable by {v.attainable_algorithm}"
    if v.headroom_left.value <= 1:
        return f"that is at {floor}"
    return f"that is {units.ratio(v.headroom_left.value)} {floor}"


def is_noisy(v: Verdict) -> bool:
    """Whether something beats the default, but by a factor that the machine was too busy to tell."""
    now = v.headroom_now
    return v.status == "switch" and now is not None and now.hi > NOISY * now.lo


def _switch(v: Verdict) -> str:
    now = f" {ratio_span(v.headroom_now)} faster" if v.headroom_now else ""
    what = "the machine was busy, repeat this before switching to" if is_noisy(v) else "switch to"
    return (
        f"{what} {_name(v.best)}: {_took(v.best)} instead of the default's {_took(v.default)} "
        f"({_name(v.default)}),{now}; {_floor_clause(v)}."
    )


def _at_floor(v: Verdict) -> str:
    if v.reason == "default_at_floor":
        return (
            f"accept the floor: the default ({_name(v.default)}) takes {_took(v.default)} and "
            f"{_floor_clause(v)}; no other setting or library can give much."
        )
    return f"{_name(v.best)} takes {_took(v.best)}; {_floor_clause(v)}, so no more is to be had."


def _gap(v: Verdict) -> str:
    beaten = (
        f"no measured case beats the default ({_name(v.default)})"
        if v.best is v.default
        else f"{_name(v.best)} is no faster than the default ({_name(v.default)})"
    )
    return f"{beaten}, which takes {_took(v.default)}; {_floor_clause(v)}: the wires would allow more."


def _undecided(v: Verdict) -> str:
    if v.reason == "interval_meets_floor" and v.headroom_left:
        return (
            f"undecided: {_name(v.best)} takes {_took(v.best)}, {ratio_span(v.headroom_left)} "
            f"what is attainable, and the interval contains {AT_FLOOR}; "
            "measure longer or on a quieter machine."
        )
    return (
        f"undecided: {_name(v.best)} takes {_took(v.best)} against the default's {_took(v.default)}, "
        f"{doubt(v)}; measure more launches before switching; {_floor_clause(v)}."
    )


def doubt(v: Verdict) -> str:
    """Why default against best is open: the ratio, the interval that decides, and what it meets."""
    if v.headroom_now is None:
        return ""
    now = units.ratio(v.headroom_now.value)
    lo, hi = v.decided_on or (v.headroom_now.lo, v.headroom_now.hi)
    level = "99" if v.decided_on else "95"
    interval = f"[{units.ratio(lo)[:-1]}, {units.ratio(hi)[:-1]}]"
    if v.reason == "medians_disagree":
        how = "unpaired" if v.pairing in (None, "unpaired") else f"{v.pairing} by {v.pairing}"
        return f"faster by its latency, but compared {how} the default takes {now} {interval} of its time"
    if v.reason == "aa_spread" and v.band is not None:
        return (
            f"{now} faster, but two measurements of one case differ by up to {units.ratio(1 + v.band)} here"
        )
    if not units.known(lo, hi):
        return f"{now} faster, but the {level} % interval is so wide that it says nothing"
    band = units.percent(BAND, 0)
    return f"{now} faster, but the {level} % interval {interval} meets the +-{band} band of equality"


def _no_data(v: Verdict) -> str:
    if v.reason == "no_best":
        return "no verdict: no case was measured and correct; see the failures."
    if v.reason == "no_default":
        why = f" ({explain(v.default.reason)})" if v.default and v.default.reason else ""
        return (
            f"no verdict: the default has no correct measurement{why}; the best is {_name(v.best)} "
            f"at {_took(v.best)}, {_floor_clause(v)}."
        )
    return f"{_name(v.best)} is the best at {_took(v.best)}, but {explain('no_floor')}."


_SENTENCES: dict[str, Callable[[Verdict], str]] = {
    "switch": _switch,
    "at_floor": _at_floor,
    "gap": _gap,
    "undecided": _undecided,
    "no_data": _no_data,
}


def caveats(v: Verdict) -> list[str]:
    """What weakens the verdict or what a reader must know beside it, one sentence each."""
    notes = []
    if v.pairing == "launch":
        notes.append("(Other settings, so other processes: paired by launch, which is weaker.)")
    if v.pairing == "unpaired":
        notes.append("(Compared by their intervals alone, unpaired.)")
    if v.path == "peer" and v.default and v.default.ran and v.default.ran.transport in _THROUGH_HOST:
        notes.append(
            f"(The default did not use peer access: its log says {v.default.ran.transport}, "
            "so its bytes went through host memory.)"
        )
    demand = demand_of(v.best.case) if v.best else None
    if demand:
        notes.append(f"({demand.sentence}.)")
    marks = sorted({m for r in (v.default, v.best) if r is not None for m in r.marks})
    if marks:
        notes.append(f"(Disturbed while measured: {', '.join(marks)}.)")
    return notes
