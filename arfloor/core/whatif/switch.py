"""Switch to another implementation of all-reduce, where it is the faster one."""

from __future__ import annotations

from dataclasses import replace

from arfloor.core.cases import record
from arfloor.core.decode import MissingInput
from arfloor.core.whatif.curves import LatencyCurve
from arfloor.core.whatif.step import ATTAINABLE, Step
from arfloor.core.whatif.uncertainty import Draw


@record
class Switch:
    """Every reduce runs on `to` instead. Waiting for other ranks stays as it was."""

    to: LatencyCurve

    @property
    def label(self) -> str:
        if self.is_floor:
            return "reach the attainable floor"
        return f"switch to {self.to.backend}{' (predicted)' if self.to.origin == 'predicted' else ''}"

    @property
    def is_floor(self) -> bool:
        """Whether this is no implementation but what the best known schedule would take."""
        return self.to.backend == ATTAINABLE

    def apply(self, step: Step, draw: Draw) -> Step:
        return step.with_groups([replace(g, curve=self.to) for g in step.groups])

    def assumptions(self, step: Step) -> tuple[str, ...]:
        if self.is_floor:
            carried = "the difference to the standalone latency carries into the step by the in-situ factor"
            return (f"somebody writes it: {self.to.source}", carried)
        return (
            f"{self.to.backend} runs on this box and at these sizes: {self.to.source}",
            "the difference of the standalone latencies carries into the step by the in-situ factor",
        )

    def loses_when(self, step: Step) -> str:
        """The smallest measured size at which the other implementation is the slower one."""
        if not step.groups:
            return "never: no reduce is left"
        group = step.groups[0]
        crossing = crossing_nbytes(group.curve, self.to)
        if crossing is None:
            return "at no measured size"
        per_token = step.situation.shape.message_nbytes(step.tokens)
        return f"S >= {crossing // 1024} KiB (concurrency >= {-(-crossing // per_token)})"


def crossing_nbytes(ours: LatencyCurve, other: LatencyCurve) -> int | None:
    """Smallest measured size from which on `other` is slower than `ours` at every measured size."""
    sizes = sorted({size for curve in (ours, other) for size, _ in curve.points})
    slower: int | None = None
    for size in sizes:
        try:
            loses = other.latency(size).estimate.value > ours.latency(size).estimate.value
        except MissingInput:
            continue
        if loses and slower is None:
            slower = size
        elif not loses:
            slower = None
    return slower
