"""From a situation and scenarios to tokens a second, contributions, and one sentence."""

from __future__ import annotations

from collections.abc import Sequence

from arfloor.core.cases import record
from arfloor.core.whatif.decision import WORTH, Verdict, decide, unexplained_gain
from arfloor.core.whatif.free import ReducesFree
from arfloor.core.whatif.intervention import Intervention
from arfloor.core.whatif.partition import Partition, partition
from arfloor.core.whatif.scenario import Scenario, run_scenario
from arfloor.core.whatif.step import Situation
from arfloor.core.whatif.uncertainty import Answer, Input


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
        verdict=decide(free, done, worth, unexplained_gain(parts)),
        inputs=tuple(inputs.values()),
    )
