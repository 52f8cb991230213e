"""Data-parallel attention: each rank attends for its own sequences; the experts stay parallel."""

from __future__ import annotations

from dataclasses import replace

from arfloor.core import units
from arfloor.core.cases import Estimate, record
from arfloor.core.decode import MissingInput
from arfloor.core.whatif.intervention import given, given_or_assumed, require
from arfloor.core.whatif.step import Step
from arfloor.core.whatif.uncertainty import Draw

GATHER_AND_SCATTER = Estimate(value=1.0, lo=0.8, hi=2.0, n=0, unit="reduces")


@record
class DataParallelAttention:
    """The two reduces of a layer become one gather before the experts and one scatter-add after.

    The pair costs `pair` reduces of the same size (a reduce is a scatter-add and a gather in the
    bandwidth-bound limit; latency can make two calls dearer). `compute` is C after over C before:
    attention weights are no longer split, its rows are.
    """

    compute: Estimate | None = None
    pair: Estimate = GATHER_AND_SCATTER

    @property
    def label(self) -> str:
        return "data-parallel attention"

    def apply(self, step: Step, draw: Draw) -> Step:
        shape, tp = step.situation.shape, step.situation.tp
        if not shape.moe_layers:
            raise MissingInput(f"dp_attention: {shape.name} has no MoE layers to stay parallel; leave it out")
        if step.sequences < tp:
            raise MissingInput(
                f"dp_attention: {step.sequences} sequences do not feed {tp} ranks; ask at concurrency >= {tp}"
            )
        ratio = require(
            self.compute,
            "dp_attention: compute, the rest of the step after over before",
            "measure one step both ways and give dp_attention:compute=LO..HI",
        )
        pair = draw(given_or_assumed("a gather and a scatter over a reduce", self.pair, GATHER_AND_SCATTER))
        kept = shape.reduces - shape.reduces_per_layer * shape.layers
        groups = list(step.groups)
        if groups:
            count = shape.layers * pair + kept
            groups[0] = replace(groups[0], count=count * groups[0].count / shape.reduces)
        return replace(
            step.with_groups(groups),
            compute_us=step.compute_us * draw(given("C with data-parallel attention over C", ratio)),
        )

    def assumptions(self, step: Step) -> tuple[str, ...]:
        return (
            f"a gather and a scatter cost {self.pair.lo:g} to {self.pair.hi:g} reduces of the same size",
            "sequences are spread evenly: the longest rank decides, and every rank waits for it",
        )

    def loses_when(self, step: Step) -> str:
        draw = Draw()
        same = replace(self, compute=Estimate(value=1.0, lo=1.0, hi=1.0, n=0, unit="x"))
        saved = step.time_us(draw) - same.apply(step, draw).time_us(draw)
        return f"the rest of the step grows by more than {units.percent(saved / step.compute_us)}"
