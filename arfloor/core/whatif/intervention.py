"""What an intervention is, and small helpers they share."""

from __future__ import annotations

from typing import Protocol

from arfloor.core.cases import Estimate, Origin
from arfloor.core.decode import MissingInput
from arfloor.core.whatif.step import Step
from arfloor.core.whatif.uncertainty import Draw, Input


class Intervention(Protocol):
    """A change to a decode step. A new one is one file: a frozen record with these four members, and a
    line in `arfloor.core.whatif.registry`."""

    @property
    def label(self) -> str:
        """What a reader calls it."""
        ...

    def apply(self, step: Step, draw: Draw) -> Step:
        """The step after the change. Raises MissingInput naming what it cannot do without."""
        ...

    def assumptions(self, step: Step) -> tuple[str, ...]:
        """What is taken for granted when it is applied to `step`."""
        ...

    def loses_when(self, step: Step) -> str:
        """When it makes things worse, with the number where there is one."""
        ...


def given(name: str, estimate: Estimate, origin: Origin = "measured", source: str = "given") -> Input:
    """An input that the user stated."""
    return Input(name=name, estimate=estimate, origin=origin, source=source)


def require(value: Estimate | None, what: str, how: str) -> Estimate:
    """The value, or MissingInput naming it."""
    if value is None:
        raise MissingInput(f"{what}: not given; {how}")
    return value
