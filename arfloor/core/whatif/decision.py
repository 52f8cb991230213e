"""What to do, in one sentence: the rule is told in docs/whatif.md, "Verdicts"."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from arfloor.core import units
from arfloor.core.cases import Estimate, record
from arfloor.core.whatif.partition import UNEXPLAINED, Partition
from arfloor.core.whatif.scenario import Scenario

Decision = Literal[
    "switch_now", "pursue", "find_out_first", "accept_the_floor", "none_is_worth_it", "undecided", "no_plan"
]
WORTH = 0.02
_SHOWN = 3  # decimals of a gain that a reader sees: +1.5 %


@record
class Verdict:
    """What to do, and the number or input that decided; `also`: what else is to be said of the plans."""

    decision: Decision
    sentence: str
    decided_by: str
    also: tuple[str, ...] = ()


@record
class Unexplained:
    """Profiled time that nothing explains: its share of the step, and the gain without it."""

    share: Estimate
    gain: Estimate


def unexplained_gain(parts: Partition) -> Unexplained | None:
    """What it would be worth if the unexplained part went away; None where there surely is none."""
    part = next((p for p in parts.parts if p.name == UNEXPLAINED), None)
    if part is None or part.share.estimate.lo <= 0:
        return None
    share = part.share.estimate
    value, lo, hi = (1 / (1 - min(x, 0.99)) - 1 for x in (share.value, share.lo, share.hi))
    return Unexplained(share=share, gain=Estimate(value=value, lo=lo, hi=hi, n=0, unit="of today"))


def decide(
    free: Scenario, scenarios: Sequence[Scenario], worth: float, unexplained: Unexplained | None = None
) -> Verdict:
    """The rule behind the sentence; `worth` is the least gain that is worth the work.

    A chain counts with each of its beginnings. What gains for sure (the whole interval above zero) comes
    first, by the lower end of its gain; then what may; a bound is never a plan.
    """
    if free.gain.estimate.hi < worth:
        number = f"even free reduces would give {units.gain(free.gain.estimate)}"
        sentence = f"accept the floor, because {number}, under the {_percent(worth)} that is worth the work"
        return Verdict(decision="accept_the_floor", sentence=sentence, decided_by=number)
    plans = [b for s in scenarios for b in s.beginnings() if not b.hypothetical]
    sure = sorted((p for p in plans if p.gain.estimate.lo > 0), key=_rank)
    open_ = [s for s in scenarios if not s.hypothetical and _matters(s, worth)]
    if unexplained is not None and unexplained.gain.lo > max(
        worth, *(p.gain.estimate.lo for p in plans), 0.0
    ):
        return _find_out_first(unexplained, plans, sure, open_, worth)
    if not plans:
        number = f"reduces that cost nothing would give {units.gain(free.gain.estimate)}"
        sentence = f"no plan to judge: {number}, which is a bound and no plan; ask about changes"
        return Verdict(decision="no_plan", sentence=sentence, decided_by=number)
    if any(p.gain.estimate.hi > worth for p in sure):
        return _best(sure, open_, worth)
    if open_:
        return _undecided(open_)
    return _none_does(free, plans, worth)


def _rank(plan: Scenario) -> tuple[float, int, int]:
    """By what it gives at least, to the digits that are shown; then what exists, then what is less work."""
    return (-round(plan.gain.estimate.lo, _SHOWN), plan.unwritten, len(plan.stages))


def _matters(scenario: Scenario, worth: float) -> bool:
    e = scenario.gain.estimate
    return e.lo <= 0 <= e.hi and e.hi > worth


def _best(sure: Sequence[Scenario], open_: Sequence[Scenario], worth: float) -> Verdict:
    """The surest of what exists, where it is or may be worth the work; else the surest of all."""
    enough = [p for p in sure if p.gain.estimate.lo > worth]
    ready = [p for p in enough if p.only_switches and p.latencies == "measured"]
    exists = [p for p in sure if not p.unwritten]
    may = [p for p in exists if p.gain.estimate.hi > worth]
    best = (ready or may or enough or sure)[0]
    also = []
    further = max(sure, key=lambda p: p.gain.estimate.value)
    if further.gain.estimate.value > best.gain.estimate.value + 0.001:
        also.append(f"more is left: {_told(further, worth)}")
    if best.unwritten and exists:
        also.append(f"of what exists: {_told(exists[0], worth)}")
    return Verdict(
        decision="switch_now" if ready else "pursue",
        sentence=f"{'switch now' if ready else 'pursue'}, because: {_told(best, worth)}",
        decided_by=_named(best),
        also=(*also, *_still_open([s for s in open_ if s.label != best.label])),
    )


def _find_out_first(
    unexplained: Unexplained,
    plans: Sequence[Scenario],
    sure: Sequence[Scenario],
    open_: Sequence[Scenario],
    worth: float,
) -> Verdict:
    number = f"without it {units.gain(unexplained.gain)}"
    said = f"find out first what the unexplained {_share(unexplained.share)} of the step is: {number}"
    said += ", more than any change here is sure to give" if plans else ""
    exists = [p for p in sure if not p.unwritten]
    also = [f"the surest of those changes: {_told(exists[0], worth)}"] if exists else []
    return Verdict(
        decision="find_out_first", sentence=said, decided_by=number, also=(*also, *_still_open(open_))
    )


def _undecided(open_: Sequence[Scenario]) -> Verdict:
    best = max(open_, key=lambda s: s.gain.estimate.value)
    blame = _blame(best)
    return Verdict(
        decision="undecided",
        sentence=f"undecided: {_named(best)}; the number to pin down is {blame}",
        decided_by=blame,
        also=_still_open([s for s in open_ if s is not best]),
    )


def _none_does(free: Scenario, plans: Sequence[Scenario], worth: float) -> Verdict:
    best = max(plans, key=lambda s: (round(s.gain.estimate.value, _SHOWN), -len(s.stages)))
    sentence = (
        f"no change that was asked about gives {_percent(worth)}, the most: {_named(best)}; reduces "
        f"that cost nothing would give {units.gain(free.gain.estimate)}, so ask about others"
    )
    return Verdict(decision="none_is_worth_it", sentence=sentence, decided_by=_named(best))


def _still_open(open_: Sequence[Scenario]) -> tuple[str, ...]:
    """What may gain and may lose, with the input that decides it; likely losses are called so."""
    return tuple(
        f"{'undecided' if s.gain.estimate.value > 0 else 'likely a loss'}: {_named(s)}, {_blame(s)} decides"
        for s in sorted(open_, key=lambda s: -s.gain.estimate.value)
    )


def _named(plan: Scenario) -> str:
    return f"{plan.label} {units.gain(plan.gain.estimate)}"


def _told(plan: Scenario, worth: float) -> str:
    """A plan with its gain, and what to be careful about."""
    said = _named(plan)
    if plan.gain.estimate.hi <= worth:
        said += f", less than the {_percent(worth)} that is worth the work"
    elif plan.gain.estimate.lo <= worth:
        said += f", not sure to be the {_percent(worth)} that is worth the work"
    if plan.unwritten:
        return f"{said}; nothing measured reaches it"
    if plan.latencies == "measured":
        return said
    whose = "predicted" if plan.latencies == "predicted" else "others' (published)"
    return f"{said}; its latencies are {whose}, so measure them on your box first"


def _blame(scenario: Scenario) -> str:
    return scenario.gain.budget[0].input.name if scenario.gain.budget else "nothing measured"


def _percent(worth: float) -> str:
    return f"{worth * 100:g} %"


def _share(e: Estimate) -> str:
    if e.lo == e.hi:
        return units.percent(e.value)
    return f"{units.percent(e.value)} [{e.lo * 100:.1f}, {e.hi * 100:.1f}]"
