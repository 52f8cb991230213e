"""Reduces that send fewer bits than the message has: what they lose, and that they are another result.

A plan with a `wire` (`arfloor.core.plans`) sends every element as 8 bits, int8 or fp8 (e4m3: 1 sign, 4
exponent, 3 mantissa bits), scaled by the largest magnitude of a block of 14. Every rank's contribution is
rounded so, its own too, and the sum is taken in float32 and rounded to the dtype. With m the largest
magnitude of a rank's message (blocks are smaller, so this is an upper bound), u the unit roundoff of the
dtype, and 1 + 2^-7 for a scale rounded up to 8 bits of mantissa, an element's error is at most

    int8    sum over ranks of (1 + 2^-7) m / 254                                     + u |sum|
    fp8     sum over ranks of max(2^-4 |x|, (1 + 2^-7) m / 448 / 1024)               + u |sum|

Such results are marked, and are never called best, default or fast: no verdict compares them.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from arfloor.core import units
from arfloor.core.cases import Case
from arfloor.core.plans import Wire, parse

FAMILIES: tuple[Wire, ...] = ("int8", "fp8")
_SCALE = 1 + 2.0**-7
# products and sums in float32 beside the roundings that the bounds count
_BETWEEN = 1 + 2.0**-20
_TINY = 1e-28


def wire_of(variant: str) -> Wire:
    """The wire format of a variant of our backends; empty when every bit of the message travels."""
    if variant in FAMILIES:
        return variant
    try:
        return parse(variant).wire
    except ValueError:
        return ""


def is_lossy(case: Case) -> bool:
    """Whether a case computes another result than an all-reduce of its dtype."""
    return case.backend in ("peer", "host") and wire_of(case.variant) != ""


def relative_step(wire: Wire) -> float:
    """The largest error of one contribution: of a message's largest element (int8), of itself (fp8)."""
    return {"int8": _SCALE / 254, "fp8": 2.0**-4}[wire]


def bound(terms: Sequence[np.ndarray], wire: Wire, roundoff: float) -> np.ndarray:
    """The allowed error of every element of the sum of the ranks' messages, all float64 of one shape."""
    lost = np.zeros_like(terms[0])
    for term in terms:
        largest = float(np.max(np.abs(term), initial=0.0))
        if wire == "int8":
            lost += relative_step(wire) * largest
        else:
            lost += np.maximum(relative_step(wire) * np.abs(term), _SCALE * largest / 448 / 1024)
    return np.asarray((lost + roundoff * (np.abs(np.sum(terms, axis=0)) + lost)) * _BETWEEN + _TINY)


def mark(case: Case) -> str:
    """What a reader must know of a lossy case; empty for others."""
    if not is_lossy(case):
        return ""
    of = {"int8": "a message's largest element", "fp8": "each contribution"}
    wire = wire_of(case.variant)
    most = units.percent(relative_step(wire), 2)
    return f"{wire} on the wire: another result, off by up to {most} of {of[wire]} a rank"
