"""One scenario: interventions applied one after the other, each with what it gives."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Literal

from arfloor.core.cases import Estimate, Origin, record
from arfloor.core.whatif.free import ReducesFree
from arfloor.core.whatif.intervention import Intervention
from arfloor.core.whatif.rest import RestFaster
from arfloor.core.whatif.step import Situation, Step, observe
from arfloor.core.whatif.switch import Switch
from arfloor.core.whatif.uncertainty import Answer, Draw, Input, propagate

Kind = Literal["switch", "change", "unwritten", "bound"]
"""switch: to an implementation that exists; change: of the program that serves; unwritten: the floor, as if
somebody wrote a kernel that reaches it; bound: no plan, but what no plan can beat, or a faster rest of it."""


Surety = Literal["measured", "published", "predicted"]


@record
class Stage:
    """A scenario after one more intervention. `saved_us` is time saved per token of a sequence by this
    intervention on top of those before it (negative: it costs); `gain` is tok/s over today's, less 1.
    `kind` is that of this intervention alone."""

    label: str
    tok_s: Answer
    gain: Answer
    saved_us: Answer
    reduces_per_token: float
    nbytes_per_token: float
    share_after: float
    assumptions: tuple[str, ...]
    loses_when: str
    kind: Kind = "change"


@record
class Scenario:
    """Interventions applied one after the other. `latencies`: the least sure origin of what it rests on:
    measured, published by others, or predicted."""

    stages: tuple[Stage, ...]
    latencies: Surety = "measured"

    @property
    def only_switches(self) -> bool:
        """Whether nobody has to write anything."""
        return all(stage.kind == "switch" for stage in self.stages)

    @property
    def hypothetical(self) -> bool:
        """Whether it is no plan: reduces that cost nothing, or a rest of the step that somebody speeds up."""
        return any(stage.kind == "bound" for stage in self.stages)

    @property
    def unwritten(self) -> bool:
        """Whether it needs an implementation that nobody wrote."""
        return any(stage.kind == "unwritten" for stage in self.stages)

    def beginnings(self) -> tuple[Scenario, ...]:
        """Its first intervention, its first two, and so on: each can be done without those that follow."""
        return tuple(replace(self, stages=self.stages[:i]) for i in range(1, len(self.stages) + 1))

    @property
    def label(self) -> str:
        return " + ".join(stage.label for stage in self.stages)

    @property
    def gain(self) -> Answer:
        """Gain of all its interventions together."""
        return self.stages[-1].gain


class _Units(dict[str, str]):
    def __missing__(self, key: str) -> str:
        return {"tok_s": "tok/s", "ratio": "x", "us": "us a token"}[key.split()[0]]


def run_scenario(
    situation: Situation, sequences: int, interventions: Sequence[Intervention]
) -> tuple[Scenario, dict[str, Input], dict[str, Answer]]:
    """One scenario, the inputs it used, and today's `tok_s` and `us` a token.

    Raises MissingInput when an intervention lacks an input, ValueError when the figures contradict."""

    def compute(draw: Draw) -> Mapping[str, float]:
        step = observe(situation, sequences, draw)
        today = step.tok_s(draw)
        outputs = {"tok_s 0": today, "us 0": step.token_us(draw)}
        for i, intervention in enumerate(interventions, start=1):
            before = step.token_us(draw)
            step = intervention.apply(step, draw)
            after = step.token_us(draw)
            outputs[f"tok_s {i}"] = step.tok_s(draw)
            outputs[f"ratio {i}"] = step.tok_s(draw) / today
            outputs[f"us {i}"] = before - after
        return outputs

    count = len(interventions)
    positive = [f"{name} {i}" for i in range(count + 1) for name in ("tok_s", "ratio")]
    answers, inputs = propagate(compute, units=_Units(), positive=positive)
    stages = _stages(situation, sequences, interventions, answers)
    origins = {i.origin for i in inputs.values()}
    return Scenario(stages=stages, latencies=_least_sure(origins)), inputs, answers


def _least_sure(origins: Collection[Origin]) -> Surety:
    if "predicted" in origins:
        return "predicted"
    return "published" if "published" in origins else "measured"


def _kind(intervention: Intervention) -> Kind:
    if isinstance(intervention, Switch):
        return "unwritten" if intervention.is_floor else "switch"
    return "bound" if isinstance(intervention, ReducesFree | RestFaster) else "change"


def _stages(
    situation: Situation, sequences: int, interventions: Sequence[Intervention], answers: Mapping[str, Answer]
) -> tuple[Stage, ...]:
    draw = Draw()
    step = observe(situation, sequences, draw)
    stages = []
    for i, intervention in enumerate(interventions, start=1):
        before, step = step, intervention.apply(step, draw)
        stages.append(
            Stage(
                label=intervention.label,
                tok_s=answers[f"tok_s {i}"],
                gain=_gain(answers[f"ratio {i}"]),
                saved_us=answers[f"us {i}"],
                reduces_per_token=step.reduces_per_token,
                nbytes_per_token=step.nbytes_per_token,
                share_after=_share(step, draw),
                assumptions=intervention.assumptions(before),
                loses_when=intervention.loses_when(before),
                kind=_kind(intervention),
            )
        )
    return tuple(stages)


def _gain(ratio: Answer) -> Answer:
    """A ratio of tok/s as a gain; what each input adds to its width stays the same."""
    e = ratio.estimate
    less_one = Estimate(value=e.value - 1, lo=e.lo - 1, hi=e.hi - 1, n=e.n, unit="of today")
    return Answer(name="gain", estimate=less_one, budget=ratio.budget)


def _share(step: Step, draw: Draw) -> float:
    """Share of the step that is reduces, hidden ones not counted."""
    total = step.time_us(draw)
    return max(total - step.compute_us, 0.0) / total
