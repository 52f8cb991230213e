"""Carries intervals from inputs to answers, and says which input the width of an answer comes from.

The answer is computed once with every input at its value, then twice more per input with that one
moved to either end of its interval. The deviations of independent inputs add in quadrature (the
numerical form of JCGM 100:2008, 5.1.2; also known as Kragten's method). It is exact where the answer
is linear, deterministic, and does not narrow when an input's interval widens where the answer is monotone
in that input. Several interventions together can bend it near an end (a part that reaches 0 stops there):
then an answer's end can move in by some 1e-4 of the interval's width.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from typing import Literal

from arfloor.core.cases import Estimate, Origin, record


@record
class Input:
    """A number the answer depends on. `name` is unique within one question."""

    name: str
    estimate: Estimate
    origin: Origin
    source: str


class Draw:
    """The values of all inputs in one evaluation; remembers which inputs were asked for."""

    def __init__(self, shifted: str | None = None, end: Literal["lo", "hi"] = "lo") -> None:
        self._shifted = shifted
        self._end = end
        self.inputs: dict[str, Input] = {}

    @property
    def nominal(self) -> bool:
        """True when no input is moved from its value."""
        return self._shifted is None

    def __call__(self, item: Input) -> float:
        self.inputs.setdefault(item.name, item)
        if item.name != self._shifted:
            return item.estimate.value
        return item.estimate.lo if self._end == "lo" else item.estimate.hi


@record
class Contribution:
    """How far an answer moves when one input goes to the ends of its interval (in the answer's unit)."""

    input: Input
    down: float
    up: float

    @property
    def width(self) -> float:
        """What the input adds to the width of the answer's interval when alone."""
        return self.up - self.down


@record
class Answer:
    """A computed quantity with its interval and, largest first, the inputs the interval comes from."""

    name: str
    estimate: Estimate
    budget: tuple[Contribution, ...]


def propagate(
    compute: Callable[[Draw], Mapping[str, float]],
    *,
    units: Mapping[str, str],
    positive: Collection[str] = (),
) -> tuple[dict[str, Answer], dict[str, Input]]:
    """Answers of `compute` with intervals, and the inputs it used.

    `units` gives each answer's unit; answers named in `positive` are combined as logarithms, so that
    their intervals stay positive.
    """
    first = Draw()
    nominal = compute(first)
    moved: dict[str, tuple[Mapping[str, float], Mapping[str, float]]] = {}
    for name, item in first.inputs.items():
        if item.estimate.lo < item.estimate.hi:
            moved[name] = (compute(Draw(name, "lo")), compute(Draw(name, "hi")))
    answers = {
        answer: _combine(answer, nominal, moved, first.inputs, units[answer], answer in positive)
        for answer in nominal
    }
    return answers, first.inputs


def _combine(
    answer: str,
    nominal: Mapping[str, float],
    moved: Mapping[str, tuple[Mapping[str, float], Mapping[str, float]]],
    inputs: Mapping[str, Input],
    unit: str,
    positive: bool,
) -> Answer:
    value = nominal[answer]
    reached = [value, *(end[answer] for ends in moved.values() for end in ends)]
    logarithmic = positive and min(reached) > 0  # an input may reach 0, which has no logarithm
    contributions = []
    down = up = 0.0
    for name, (low, high) in moved.items():
        ends = (low[answer], high[answer], value)
        lowest, highest = min(ends), max(ends)
        if logarithmic:
            down += math.log(lowest / value) ** 2
            up += math.log(highest / value) ** 2
        else:
            down += (value - lowest) ** 2
            up += (highest - value) ** 2
        if lowest < highest:
            contributions.append(Contribution(input=inputs[name], down=lowest - value, up=highest - value))
    if logarithmic:
        lo, hi = value * math.exp(-math.sqrt(down)), value * math.exp(math.sqrt(up))
    else:
        lo, hi = value - math.sqrt(down), value + math.sqrt(up)
        lo = max(lo, 0.0) if positive and value >= 0 else lo
    contributions.sort(key=lambda c: -c.width)
    estimate = Estimate(value=value, lo=lo, hi=hi, n=0, unit=unit)
    return Answer(name=answer, estimate=estimate, budget=tuple(contributions))
