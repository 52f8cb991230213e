"""Send the reduces in fewer bits: int8 or fp8 with a scale a group of elements."""

from __future__ import annotations

from dataclasses import replace

from arfloor.core import units
from arfloor.core.cases import Estimate, record
from arfloor.core.whatif.intervention import given, require
from arfloor.core.whatif.step import Group, Step
from arfloor.core.whatif.uncertainty import Draw

FORMATS = ("int8", "fp8")


@record
class QuantisedWire:
    """Each message shrinks to one byte an element plus a 4-byte scale a group of `group` elements;
    quantising and dequantising cost `overhead_us` a reduce."""

    format: str
    overhead_us: Estimate | None = None
    group: int = 128

    @property
    def label(self) -> str:
        return f"{self.format} on the wire"

    def _shrunk(self, group: Group, element_bytes: int, overhead: float) -> Group:
        elements = group.nbytes // element_bytes
        return replace(
            group,
            nbytes=elements + 4 * -(-elements // self.group),
            overhead_us=group.overhead_us + overhead,
        )

    def apply(self, step: Step, draw: Draw) -> Step:
        overhead = require(
            self.overhead_us,
            f"quant:{self.format}: overhead_us, the time to quantise and dequantise one reduce",
            f"measure it and give quant:{self.format}:overhead_us=LO..HI",
        )
        cost = draw(given(f"{self.format} overhead a reduce", overhead))
        element = step.situation.shape.activation_bytes
        return step.with_groups([self._shrunk(g, element, cost) for g in step.groups])

    def assumptions(self, step: Step) -> tuple[str, ...]:
        return (
            "latency follows bytes along the same curve: the smaller message costs what that size costs",
            "every rank adds rounding errors; model quality is not judged here",
        )

    def loses_when(self, step: Step) -> str:
        if not step.groups:
            return "never: no reduce is left"
        draw = Draw()
        group = step.groups[0]
        small = self._shrunk(group, step.situation.shape.activation_bytes, 0.0)
        saved = group.transport_us(step.situation, draw) - small.transport_us(step.situation, draw)
        return f"its overhead exceeds {units.us(saved)} a reduce"
