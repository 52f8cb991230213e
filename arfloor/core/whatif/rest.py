"""The rest of the step gets faster: today's share of the reduces is another share tomorrow."""

from __future__ import annotations

from dataclasses import replace

from arfloor.core.cases import Estimate, record
from arfloor.core.whatif.intervention import given
from arfloor.core.whatif.step import Step
from arfloor.core.whatif.uncertainty import Draw


@record
class RestFaster:
    """Everything but the reduces runs `factor` times as fast."""

    factor: Estimate

    @property
    def label(self) -> str:
        return f"the rest of the step {self.factor.value:g}x faster"

    def apply(self, step: Step, draw: Draw) -> Step:
        factor = draw(given("speed-up of the rest of the step", self.factor, "assumed"))
        return replace(step, compute_us=step.compute_us / factor)

    def assumptions(self, step: Step) -> tuple[str, ...]:
        return ("the reduces take as long as before, so their share grows",)

    def loses_when(self, step: Step) -> str:
        return "never; the reduces then weigh more"
