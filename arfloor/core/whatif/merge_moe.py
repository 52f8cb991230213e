"""Merge the sum over experts with the tensor-parallel reduce."""

from __future__ import annotations

from dataclasses import replace

from arfloor.core.cases import Estimate, record
from arfloor.core.decode import MissingInput
from arfloor.core.whatif.intervention import given, less
from arfloor.core.whatif.step import Step
from arfloor.core.whatif.uncertainty import Draw


@record
class MergeMoe:
    """Routed and shared experts' outputs are added before one reduce; where the runtime does so
    already, only the adding kernel can go: `saved_us` a MoE layer."""

    saved_us: Estimate | None = None

    @property
    def label(self) -> str:
        return "merge the MoE sum with the reduce"

    def apply(self, step: Step, draw: Draw) -> Step:
        shape = step.situation.shape
        if not shape.moe_layers:
            raise MissingInput(f"merge: {shape.name} has no MoE layers; leave it out")
        removed = shape.separate_shared_reduces * shape.moe_layers
        groups = [
            replace(g, count=max(g.count - removed, 0)) if i == 0 and removed else g
            for i, g in enumerate(step.groups)
        ]
        saved = 0.0
        if self.saved_us is not None:
            saved = shape.moe_layers * draw(given("time saved a merged MoE layer", self.saved_us))
        return replace(step.with_groups(groups), compute_us=less(step, saved, draw, "merge"))

    def assumptions(self, step: Step) -> tuple[str, ...]:
        shape = step.situation.shape
        if shape.separate_shared_reduces:
            return ("the shared experts' reduce goes away, nothing else changes",)
        return (
            f"the runtime already reduces the sum ({shape.reduces} reduces a step): no reduce disappears, "
            "only the adding kernel could; give merge:saved_us=LO..HI when its time is measured",
        )

    def loses_when(self, step: Step) -> str:
        return "a merged kernel is slower than two"
