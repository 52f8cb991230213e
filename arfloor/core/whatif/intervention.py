"""What an intervention is, and what all of them need."""

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


def given_or_assumed(name: str, estimate: Estimate, default: Estimate) -> Input:
    """An input that the user stated, or the assumption that stands in for it."""
    if estimate != default:
        return given(name, estimate)
    return given(name, estimate, "assumed", "nobody measured it here; --apply takes a measured one")


def less(step: Step, saved_us: float, draw: Draw, what: str) -> float:
    """The rest of the step less `saved_us` of it. Raises MissingInput when it has no more than that."""
    if saved_us >= step.compute_us and draw.nominal:
        raise MissingInput(
            f"{what}: a saving of {saved_us / 1e3:.4g} ms a step is more than the rest of the step, "
            f"{step.compute_us / 1e3:.4g} ms; expected the time saved a reduce or layer, in us"
        )
    return max(step.compute_us - saved_us, 0.01 * step.compute_us)


def require(value: Estimate | None, what: str, how: str) -> Estimate:
    """The value. Raises MissingInput, which names it, where there is none."""
    if value is None:
        raise MissingInput(f"{what}: not given; {how}")
    return value
