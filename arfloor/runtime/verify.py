"""Is a result right? Every slot, on every rank, before anything is timed.

Two payloads. Integers small enough that every partial sum is exact in the dtype must match exactly:
an element left out, taken twice or taken from another operation shows. Random values, rounded to the
dtype, must lie within the rounding error of a sum in any order: a sum of n terms takes at most n
roundings (n - 1 additions and a final conversion), so

    |result - reference| <= ((1 + u)^n - 1) * sum |x_i|        u: unit roundoff of the dtype

(Higham, Accuracy and Stability of Numerical Algorithms, section 4.2). The reference is summed in
float64. Each slot of each rank has its own payload: a stale read is a wrong result.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from arfloor.core.cases import Case, Check

# unit roundoff: half the spacing of numbers just above one
ROUNDOFF = {"float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}
# integers up to here are exact
_EXACT = {"float32": 2**24, "float16": 2**11, "bfloat16": 2**8}
# shift of the shared base array between payloads; a prime, so that no power-of-two stride lines up
_STRIDE = 37
KINDS = ("integers", "random")


@lru_cache(maxsize=2)
def _base(kind: str, dtype: str, world: int, length: int) -> np.ndarray:
    rng = np.random.default_rng([KINDS.index(kind), world, length])
    if kind == "integers":
        limit = min(_EXACT[dtype] // world, 1000)
        return rng.integers(-limit, limit + 1, length).astype(np.float64)
    return round_to(rng.standard_normal(length), dtype)


def round_to(values: np.ndarray, dtype: str) -> np.ndarray:
    """float64 values rounded to the nearest number of `dtype` (ties to even), still as float64."""
    if dtype == "bfloat16":
        bits = values.astype(np.float32).view(np.uint32)
        bits = bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
        return (bits & np.uint32(0xFFFF0000)).view(np.float32).astype(np.float64)
    return values.astype(dtype).astype(np.float64)


def payload(kind: str, case: Case, slot: int, rank: int, slots: int) -> np.ndarray:
    """One rank's input for one slot, shape (numel,), float64, representable in the case's dtype.

    All payloads are windows into one random array, each shifted by another distance: distinct at
    nearly every position, and as cheap as a view.
    """
    ranks = len(case.devices)
    base = _base(kind, case.dtype, case.world, case.numel + _STRIDE * slots * ranks)
    start = _STRIDE * (slot * ranks + rank)
    return base[start : start + case.numel]


def members(case: Case, rank: int) -> tuple[int, ...]:
    """The ranks that reduce with `rank`."""
    return next((g for g in case.groups if rank in g), tuple(range(len(case.devices))))


@dataclass(frozen=True, slots=True, kw_only=True)
class RankCheck:
    """What one rank saw: worst error over the bound, wrong elements, one digest a kind and slot."""

    max_error: float
    wrong: int
    digests: tuple[str, ...]


def error_factor(dtype: str, terms: int) -> float:
    """The bound's factor before sum |x_i|."""
    return float((1.0 + ROUNDOFF[dtype]) ** terms - 1.0)


def check_rank(op: Any, case: Case, rank: int, *, between: Callable[[], None] | None = None) -> RankCheck:
    """Run every slot once per kind of payload and compare. Collective; raises what the op raises.

    `op` is a `PreparedOp`. `between` is called after all inputs are written and before any slot runs.
    """
    worst, wrong, digests = 0.0, 0, []
    group = members(case, rank)
    for kind in KINDS:
        for slot in range(op.slots):
            op.write(slot, payload(kind, case, slot, rank, op.slots))
            op.poison(slot)
        if between is not None:
            between()
        for slot in range(op.slots):
            op.run(slot)
        for slot in range(op.slots):
            result = np.asarray(op.read(slot), dtype=np.float64)
            terms = [payload(kind, case, slot, r, op.slots) for r in group]
            error, bad = compare(result, terms, kind, case.dtype)
            worst, wrong = max(worst, error), wrong + bad
            digests.append(hashlib.blake2b(result.tobytes(), digest_size=12).hexdigest())
    return RankCheck(max_error=worst, wrong=wrong, digests=tuple(digests))


def compare(result: np.ndarray, terms: list[np.ndarray], kind: str, dtype: str) -> tuple[float, int]:
    """(worst |error| over its bound, number of wrong elements) of one slot.

    Integers must match exactly and add nothing to the worst error. Anything not finite is wrong; the
    worst error stays finite so that it can be written (an element that is no number counts as 1e9).
    """
    if result.shape != terms[0].shape:
        return 1e9, int(terms[0].size)
    reference = np.sum(terms, axis=0)
    if kind == "integers":
        return 0.0, int(np.count_nonzero(~(result == reference)))
    bound = error_factor(dtype, len(terms)) * np.sum(np.abs(terms), axis=0)
    error = np.abs(result - reference)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.where(error == 0, 0.0, error / bound)
    ratio = np.where(np.isfinite(ratio), ratio, 1e9)
    return float(np.max(ratio, initial=0.0)), int(np.count_nonzero(~(ratio <= 1.0)))


def merge(case: Case, checks: list[RankCheck]) -> Check:
    """One check from all ranks'. Ranks of one group must agree bit for bit to count as equal."""
    groups = case.groups or (tuple(range(len(checks))),)
    equal = all(len({checks[r].digests for r in group}) == 1 for group in groups)
    return Check(
        max_error=max(c.max_error for c in checks),
        bound=error_factor(case.dtype, case.world),
        wrong=sum(c.wrong for c in checks),
        bitwise_equal=equal,
    )
