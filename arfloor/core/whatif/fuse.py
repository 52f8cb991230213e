"""Fuse the residual add and the RMSNorm that follow a reduce into it, as an epilogue."""

from __future__ import annotations

from dataclasses import replace

from arfloor.core.cases import Estimate, record
from arfloor.core.decode import MissingInput
from arfloor.core.whatif.intervention import given, less
from arfloor.core.whatif.step import Step
from arfloor.core.whatif.uncertainty import Draw, Input


@record
class Fuse:
    """Each layer's reduces take the add and the norm with them: `saved_us` a reduce.

    Without `saved_us`, only the graph node that disappears is counted, at the box's launch cost.
    """

    saved_us: Estimate | None = None

    @property
    def label(self) -> str:
        return "fuse add and RMSNorm"

    def _saving(self, step: Step) -> Input:
        if self.saved_us is not None:
            return given("time saved a fused reduce", self.saved_us)
        if step.situation.launch is None:
            raise MissingInput(
                "fuse: the time saved a reduce is not known and the run has no `launch` primitive; "
                "give fuse:saved_us=LO..HI (the add and norm kernels' time that the epilogue replaces)"
            )
        return step.situation.launch

    def apply(self, step: Step, draw: Draw) -> Step:
        shape = step.situation.shape
        outside = min(shape.other_reduces, step.reduces)
        saved = (step.reduces - outside) * draw(self._saving(step))
        return replace(step, compute_us=less(step, saved, draw, "fuse"))

    def assumptions(self, step: Step) -> tuple[str, ...]:
        lines = ["the reduce itself gets no slower; the embedding's reduce has no norm to fuse"]
        if self.saved_us is None:
            lines.append("only the launch that disappears is counted, not the norm's memory traffic")
        if step.situation.shape.residual == "hyper_connections":
            lines.append(
                "hyper-connections mix residual streams between reduce and norm: a plain add + RMSNorm "
                "epilogue does not fit this model, the mixing would have to be fused too"
            )
        return tuple(lines)

    def loses_when(self, step: Step) -> str:
        return "it slows the reduce by more"
