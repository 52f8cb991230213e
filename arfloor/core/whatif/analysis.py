"""From a situation and scenarios to tokens a second, contributions, and one sentence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from arfloor.core import units
from arfloor.core.cases import Estimate, record
from arfloor.core.whatif.free import ReducesFree
from arfloor.core.whatif.intervention import Intervention
from arfloor.core.whatif.partition import Partition, partition
from arfloor.core.whatif.rest import RestFaster
from arfloor.core.whatif.step import Situation, Step, observe
from arfloor.core.whatif.switch import Switch
from arfloor.core.whatif.uncertainty import Answer, Draw, Input, propagate

Decision = Literal["switch_now", "pursue", "accept_the_floor", "undecided"]
WORTH = 0.02


@record
class Stage:
    """A scenario after one more intervention. `saved_us` is time saved per token of a sequence by this
    intervention on top of those before it (negative: it costs); `gain` is tok/s over today's, less 1."""

    label: str
    tok_s: Answer
    gain: Answer
    saved_us: Answer
    reduces_per_token: float
    nbytes_per_token: float
    share_after: float
    assumptions: tuple[str, ...]
    loses_when: str


@record
class Scenario:
    """Interventions applied one after the other. `hypothetical` ones are no plan: reduces that cost
    nothing, or a rest of the step that somebody makes faster. `predicted`: rests on a latency that was
    predicted, not measured."""

    stages: tuple[Stage, ...]
    only_switches: bool = False
    hypothetical: bool = False
    predicted: bool = False

    @property
    def label(self) -> str:
        return " + ".join(stage.label for stage in self.stages)

    @property
    def gain(self) -> Answer:
        """Gain of all its interventions together."""
        return self.stages[-1].gain


@record
class Verdict:
    """What to do, the number that decided, and the input to pin down where nothing is decided."""

    decision: Decision
    sentence: str
    decided_by: str


@record
class Analysis:
    """Everything `arfloor whatif` says about one concurrency."""

    sequences: int
    tok_s: Answer
    token_us: Answer
    partition: Partition
    scenarios: tuple[Scenario, ...]
    free: Scenario
    verdict: Verdict
    inputs: tuple[Input, ...]


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
    only = all(isinstance(i, Switch) and not i.is_floor for i in interventions)
    idle = any(isinstance(i, ReducesFree | RestFaster) for i in interventions)
    predicted = any(i.origin == "predicted" for i in inputs.values())
    scenario = Scenario(stages=stages, only_switches=only, hypothetical=idle, predicted=predicted)
    return scenario, inputs, answers


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


def analyse(
    situation: Situation, sequences: int, scenarios: Sequence[Sequence[Intervention]], worth: float = WORTH
) -> Analysis:
    """The whole answer at one concurrency. A scenario that lacks an input raises MissingInput."""
    free, inputs, today = run_scenario(situation, sequences, [ReducesFree()])
    done = []
    for interventions in scenarios:
        scenario, used, _ = run_scenario(situation, sequences, interventions)
        inputs |= used
        done.append(scenario)
    parts = partition(situation, sequences)
    for part in parts.parts:
        inputs |= {c.input.name: c.input for c in part.us.budget}
    return Analysis(
        sequences=sequences,
        tok_s=today["tok_s 0"],
        token_us=today["us 0"],
        partition=parts,
        scenarios=tuple(done),
        free=free,
        verdict=decide(free, done, worth),
        inputs=tuple(inputs.values()),
    )


def decide(free: Scenario, scenarios: Sequence[Scenario], worth: float) -> Verdict:
    """The rule behind the sentence. A change is worth it when the whole interval of its gain lies above
    `worth`; the floor is accepted when not even free reduces could give that much."""
    most = free.gain.estimate
    if most.hi < worth:
        number = f"even free reduces would give {units.gain(free.gain.estimate)}"
        return Verdict(
            decision="accept_the_floor",
            sentence=(
                f"accept the floor, because {number}, under the {worth * 100:g} % that is worth the work"
            ),
            decided_by=number,
        )

    scenarios = [s for s in scenarios if not s.hypothetical]
    sure = [s for s in scenarios if s.gain.estimate.lo > worth]
    if sure:
        return _sure(sure)
    possible = [s for s in scenarios if s.gain.estimate.hi > worth]
    if scenarios and not possible:
        return _none_does(free, scenarios, worth)
    widest = max(possible or [free], key=lambda s: s.gain.estimate.hi)
    blame = widest.gain.budget[0].input.name if widest.gain.budget else "nothing measured"
    number = f"{widest.label} may give {units.gain(widest.gain.estimate)}"
    return Verdict(
        decision="undecided",
        sentence=f"undecided: {number}; the number to pin down is: {blame}",
        decided_by=blame,
    )


def _none_does(free: Scenario, scenarios: Sequence[Scenario], worth: float) -> Verdict:
    best = max(scenarios, key=lambda s: s.gain.estimate.hi)
    number = f"{best.label} gives {units.gain(best.gain.estimate)}"
    sentence = (
        f"undecided: no change that was asked about gives {worth * 100:g} %, the most: {number}; reduces "
        f"that cost nothing would give {units.gain(free.gain.estimate)}, so ask about others"
    )
    return Verdict(decision="undecided", sentence=sentence, decided_by=number)


def _sure(sure: Sequence[Scenario]) -> Verdict:
    switches = [s for s in sure if s.only_switches and not s.predicted]
    best = max(switches or sure, key=lambda s: s.gain.estimate.value)
    number = f"{best.label} gives {units.gain(best.gain.estimate)}"
    if not switches:
        caution = "; its latency is predicted, so measure it first" if best.predicted else ""
        return Verdict(decision="pursue", sentence=f"pursue, because: {number}{caution}", decided_by=number)
    further = max(sure, key=lambda s: s.gain.estimate.value)
    more = (
        f"; more is left: {further.label}, {units.gain(further.gain.estimate)}" if further is not best else ""
    )
    return Verdict(decision="switch_now", sentence=f"switch now, because: {number}{more}", decided_by=number)
