"""Is a fused all-reduce + residual add + RMSNorm right? The new residual must match bit for bit; the normed
rows must lie within the rounding of one division, root and two products of a float64 reference.

    |out - reference| <= (u + 2^-17) |reference| + tiny       u: unit roundoff of the dtype

2^-17 covers float32 in between: the sum of squares of a row (error at most that of adding up some hundred
partial sums, halved by the root), the reciprocal root (2 ulp) and two products.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from arfloor.runtime.verify import ROUNDOFF, round_to

_BETWEEN = 2.0**-17
# the smallest normal number: below it, results lose digits in half precision
_TINY = {"float32": 2.0**-126, "float16": 2.0**-14, "bfloat16": 2.0**-126}


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """What an operation must give, float64: `residual` exactly, `out` within `bound`; all (rows, hidden)."""

    residual: np.ndarray
    out: np.ndarray
    bound: np.ndarray


def expected(
    terms: Sequence[np.ndarray], residual: np.ndarray, weight: np.ndarray, eps: float, dtype: str
) -> Expected:
    """The reference from every rank's rows in rank order, all representable in `dtype`, float64."""
    total = terms[0].astype(np.float32)
    for term in terms[1:]:
        total = total + term.astype(np.float32)
    reduced = round_to(total.astype(np.float64), dtype)
    h = round_to((reduced.astype(np.float32) + residual.astype(np.float32)).astype(np.float64), dtype)
    out = h / np.sqrt(np.mean(h * h, axis=-1, keepdims=True) + eps) * weight
    bound = (ROUNDOFF[dtype] + _BETWEEN) * np.abs(out) + _TINY[dtype] * ROUNDOFF[dtype] * 2
    return Expected(residual=h, out=out, bound=bound)


def wrong(found: Expected, residual: np.ndarray, out: np.ndarray) -> tuple[float, int]:
    """(worst |out - reference| over its bound, elements of either result that are wrong)."""
    with np.errstate(invalid="ignore"):
        error = np.abs(out - found.out)
        bad = int(np.count_nonzero(~(residual == found.residual)) + np.count_nonzero(~(error <= found.bound)))
        worst = float(np.max(error / found.bound, initial=0.0))
    return (worst if np.isfinite(worst) else 1e9), bad
