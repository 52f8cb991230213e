"""Take the reduces away altogether: Amdahl's bound on anything that can be done about them."""

from __future__ import annotations

from arfloor.core.cases import record
from arfloor.core.whatif.step import Step
from arfloor.core.whatif.uncertainty import Draw


@record
class ReducesFree:
    """No reduce takes any time, and nobody waits for one: no software can do better."""

    @property
    def label(self) -> str:
        return "all reduces free (a bound)"

    def apply(self, step: Step, draw: Draw) -> Step:
        return step.with_groups([])

    def assumptions(self, step: Step) -> tuple[str, ...]:
        return ("the reduces' share of the step is time that nothing else hides",)

    def loses_when(self, step: Step) -> str:
        return "never, but it is no plan"
