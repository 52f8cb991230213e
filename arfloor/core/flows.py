"""Flows that share links: rates by progressive filling (max-min fair), and when the last byte arrives.

Progressive filling: all rates grow alike until a resource is full; the flows through it are frozen,
the others go on growing (Bertsekas and Gallager, Data Networks, section 6.5.2). When a flow ends,
its share is filled anew.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from arfloor.core.cases import record
from arfloor.core.topology import Resource, Usage

Array = NDArray[np.float64]


@record
class Flow:
    """`nbytes` to move; `usage` is the share of each resource that 1 GB/s of it takes (full at 1)."""

    name: str
    nbytes: float
    usage: Usage


@record
class Completion:
    """When flows end. `ends_us` by flow; `rates_gbps` while all ran; `bottleneck` is what held the last."""

    makespan_us: float
    ends_us: tuple[float, ...]
    rates_gbps: tuple[float, ...]
    bottleneck: Resource
    nbytes: float = 0.0

    @property
    def aggregate_gbps(self) -> float:
        """All bytes over the makespan, the way benchmarks report it; 0 when nothing moved."""
        return self.nbytes / self.makespan_us / 1e3 if self.makespan_us else 0.0


def max_min_rates(usages: Sequence[Usage]) -> tuple[tuple[float, ...], tuple[Resource, ...]]:
    """Max-min fair rates in GB/s, and for each flow the resource that froze it.

    Raises ValueError for a flow that uses no resource: its rate would have no bound.
    """
    empty = [i for i, usage in enumerate(usages) if not any(v > 0 for v in usage.values())]
    if empty:
        raise ValueError(f"flow {empty[0]}: expected at least one resource, found none")
    names = sorted({name for usage in usages for name in usage})
    matrix = _matrix(usages, names)
    rates, frozen_by = _fill(matrix)
    return tuple(rates.tolist()), tuple(names[int(i)] for i in frozen_by)


def _matrix(usages: Sequence[Usage], names: Sequence[Resource]) -> Array:
    column = {name: i for i, name in enumerate(names)}
    matrix = np.zeros((len(usages), len(names)))
    for row, usage in enumerate(usages):
        for name, share in usage.items():
            matrix[row, column[name]] = share
    return matrix


def _fill(matrix: Array) -> tuple[Array, NDArray[np.intp]]:
    count = matrix.shape[0]
    rates = np.zeros(count)
    frozen_by = np.zeros(count, dtype=np.intp)
    active = np.ones(count, dtype=bool)
    left = np.ones(matrix.shape[1])
    while active.any():
        load = matrix[active].sum(axis=0)
        room = np.full_like(left, np.inf)
        np.divide(left, load, out=room, where=load > 0)
        step = room.min()
        rates[active] += step
        left = np.maximum(left - step * load, 0.0)
        full = np.flatnonzero(room <= step * (1 + 1e-12))
        hit = active & (matrix[:, full] > 0).any(axis=1)
        frozen_by[hit] = full[np.argmax(matrix[np.ix_(hit.nonzero()[0], full)] > 0, axis=1)]
        active &= ~hit
    return rates, frozen_by


def complete(flows: Sequence[Flow]) -> Completion:
    """Run all flows from time 0 until the last byte has arrived; times in us.

    A flow of 0 bytes ends at 0. Raises ValueError for a flow that uses no resource.
    """
    moving = [i for i, f in enumerate(flows) if f.nbytes > 0]
    ends = np.zeros(len(flows))
    if not moving:
        return Completion(makespan_us=0.0, ends_us=tuple(ends), rates_gbps=(), bottleneck="")
    names = sorted({name for i in moving for name in flows[i].usage})
    first, _ = max_min_rates([flows[i].usage for i in moving])
    matrix = _matrix([flows[i].usage for i in moving], names)
    left = np.array([flows[i].nbytes for i in moving])
    index = np.array(moving)
    now, bottleneck = 0.0, ""
    while left.size:
        rates, frozen_by = _fill(matrix)
        remaining = left / rates / 1e3
        step = remaining.min()
        now += step
        done = remaining <= step * (1 + 1e-9)
        ends[index[done]] = now
        bottleneck = names[int(frozen_by[done][0])]
        left = (left - rates * step * 1e3)[~done]
        matrix, index = matrix[~done], index[~done]
    return Completion(
        makespan_us=float(now),
        ends_us=tuple(ends.tolist()),
        rates_gbps=tuple(first),
        bottleneck=bottleneck,
        nbytes=float(sum(f.nbytes for f in flows)),
    )


def loads(flows: Sequence[Flow]) -> Mapping[Resource, float]:
    """Time in us that each resource needs for its bytes alone; the makespan is at least the largest."""
    total: dict[Resource, float] = {}
    for flow in flows:
        for name, share in flow.usage.items():
            total[name] = total.get(name, 0.0) + flow.nbytes * share / 1e3
    return total
