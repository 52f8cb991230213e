"""From times of chains of operations to the cost of one operation. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Sequence


def chain_us(rows: Sequence[Sequence[float]]) -> tuple[float, ...]:
    """The time of a chain in each replay, from every rank's (rank, replay), in us: the slowest rank's."""
    return tuple(max(at) for at in zip(*rows, strict=True))


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
