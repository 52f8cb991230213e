"""Two-batch overlap: one half of the batch computes while the other half's reduces travel."""

from __future__ import annotations

from dataclasses import replace

from arfloor.core import units
from arfloor.core.cases import Estimate, record
from arfloor.core.decode import MissingInput
from arfloor.core.whatif.intervention import given_or_assumed
from arfloor.core.whatif.step import Group, Step, scale_compute
from arfloor.core.whatif.uncertainty import Draw

CONTENTION = Estimate(value=1.05, lo=1.0, hi=1.2, n=0, unit="x")


def _half(step: Step) -> int:
    """Tokens in half the batch, the larger half of an odd one: it takes the longer."""
    return -(-step.sequences // 2) * step.tokens


def _halved(group: Group) -> Group:
    """Twice the reduces at half the size; what they waited in all stays the same."""
    return replace(
        group,
        count=2 * group.count,
        nbytes=group.nbytes // 2,
        observed_nbytes=group.observed_nbytes // 2,
        waiting_us=group.waiting_us / 2,
        extra_us=group.extra_us / 2,
    )


@record
class TwoBatchOverlap:
    """The step runs as two batches of b/2, each hiding its reduces behind the other's compute.

    That takes two passes of C(b/2), slowed by `contention` (reduces use multiprocessors and memory).
    """

    contention: Estimate = CONTENTION
    assumed_contention: bool = True

    @property
    def label(self) -> str:
        return "two-batch overlap"

    def apply(self, step: Step, draw: Draw) -> Step:
        if step.sequences < 2:
            raise MissingInput(
                "overlap: one sequence cannot be split in two batches; ask at a higher concurrency"
            )
        ratio = scale_compute(step, _half(step), draw)
        name = "contention of compute with reduces"
        slowed = draw(given_or_assumed(name, self.contention, CONTENTION))
        return replace(
            step.with_groups([_halved(g) for g in step.groups]),
            compute_us=2 * step.compute_us * ratio * slowed,
            overlapped=True,
        )

    def assumptions(self, step: Step) -> tuple[str, ...]:
        return (
            "C(b/2) comes from the tok/s at that concurrency, or from its bracket where none is given",
            f"contention {self.contention.lo:g} to {self.contention.hi:g}x"
            + (" is assumed until measured" if self.assumed_contention else ""),
            "all reduces but the last are hidden as far as there is compute to hide them",
        )

    def loses_when(self, step: Step) -> str:
        draw = Draw()
        halves = step.with_groups([_halved(g) for g in step.groups])
        last = max((g.each_us(step.situation, draw) for g in halves.groups), default=0.0)
        limit = (step.time_us(draw) - last) / 2 / self.contention.value
        half = step.compute_us * scale_compute(step, _half(step), draw)
        return f"C(b/2) > {units.number(limit / 1e3)} ms (here {units.number(half / 1e3)})"
