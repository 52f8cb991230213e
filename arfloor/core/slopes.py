"""From times of chains of operations to the cost of one operation. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Sequence


def chain_us(rows: Sequence[Sequence[float]]) -> tuple[float, ...]:
    """The time of a chain in each replay, from every rank's (rank, replay), in us: the least over the ranks.

    Ranks leave the barrier together, and no operation of a chain ends on one rank before all have entered
    it: their chains end within one operation of each other, a constant that the slope cancels. A rank whose
    end event comes later than another's waited for something that is not the chain. Graphs of NCCL's
    operations do so in every second replay, each rank on its own, by about 1.8 us times the operations in
    the graph (docs/measurements.md): too much for a maximum, or for a median over few replays.
    """
    return tuple(min(at) for at in zip(*rows, strict=True))


def slopes_us(many_us: Sequence[float], few_us: Sequence[float], many: int, few: int) -> tuple[float, ...]:
    """Cost of one more operation, per replay of the long chain, in us.

    The short chain enters by its median: its noise would otherwise be added to every sample, and a
    maximum over ranks would turn that noise into a bias upward. Raises ValueError on no samples.
    """
    if not many_us or not few_us:
        raise ValueError("slopes_us: expected at least one replay of each chain, found none")
    base = statistics.median(few_us)
    return tuple((t - base) / (many - few) for t in many_us)


def less_control_us(measured_us: Sequence[float], control_us: Sequence[float]) -> tuple[float, ...]:
    """Each measured time less the median of the control, in us."""
    if not control_us:
        raise ValueError("less_control_us: expected at least one control, found none")
    base = statistics.median(control_us)
    return tuple(t - base for t in measured_us)
