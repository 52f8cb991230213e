"""Where the fastest implementation changes with size, from fits of what was measured."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from arfloor.core.cases import Estimate
from arfloor.core.choose import Crossover
from arfloor.core.curves import Fit

STEPS = 400  # sizes looked at between the smallest and the largest that all fits cover


def measured_crossovers(fits: Mapping[str, Fit]) -> tuple[Crossover, ...]:
    """Sizes at which the lowest fitted curve becomes another's, by rising size.

    The interval holds all sizes about the crossing at which the two curves' own intervals overlap. A
    crossing whose interval reaches either end of the range is left out: the two are not told apart
    there, and their order may be chance.
    """
    if len(fits) < 2:
        return ()
    first = max(f.range[0] for f in fits.values())
    last = min(f.range[1] for f in fits.values())
    if first >= last:
        return ()
    sizes = [round(float(s)) for s in np.geomspace(first, last, STEPS)]
    curves = {name: [fit.predict(size) for size in sizes] for name, fit in fits.items()}
    lowest = [min(curves, key=lambda name: curves[name][i].value) for i in range(len(sizes))]
    found = []
    for i in range(1, len(sizes)):
        if lowest[i] != lowest[i - 1]:
            crossing = _between(sizes, curves[lowest[i - 1]], curves[lowest[i]], i)
            if crossing is not None:
                found.append(Crossover(first=lowest[i - 1], second=lowest[i], nbytes=crossing))
    return tuple(found)


def _between(sizes: list[int], a: list[Estimate], b: list[Estimate], i: int) -> Estimate | None:
    overlaps = [x.lo <= y.hi and y.lo <= x.hi for x, y in zip(a, b, strict=True)]
    low, high = i - 1, i
    while low > 0 and overlaps[low]:
        low -= 1
    while high < len(sizes) - 1 and overlaps[high]:
        high += 1
    if overlaps[low] or overlaps[high]:
        return None
    value = float(np.sqrt(sizes[i - 1] * sizes[i]))
    return Estimate(value=value, lo=float(sizes[low]), hi=float(sizes[high]), n=0, unit="B")
