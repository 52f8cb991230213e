"""Is a result right? Every slot, on every rank, before anything is timed.

Two payloads. Integers small enough that every partial sum is exact in the dtype must match exactly:
an element left out, taken twice or taken from another operation shows. Random values, rounded to the
dtype, must lie within the rounding error of a sum in any order: a sum of n terms takes at most n
roundings (n - 1 additions and a final conversion), so

    |result - reference| <= ((1 + u)^n - 1) * sum |x_i|        u: unit roundoff of the dtype

(Higham, Accuracy and Stability of Numerical Algorithms, section 4.2). The reference is summed in
float64. Each slot of each rank has its own payload: a stale read is a wrong result.

A case that sends fewer bits (`arfloor.core.lossy`) is held to its own bound, integers too.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from arfloor.core import lossy
from arfloor.core.cases import Case, Check
from arfloor.core.plans import Wire

# unit roundoff: half the spacing of numbers just above one
ROUNDOFF = {"float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}
# integers up to here are exact
_EXACT = {"float32": 2**24, "float16": 2**11, "bfloat16": 2**8}
# shift of the shared base array between payloads; a prime, so that no power-of-two stride lines up
_STRIDE = 37
KINDS = ("integers", "random")
# above this a message is checked in one pass (see `passes`)
ONE_PASS_NBYTES = 256 << 10
# references up to this length are kept for the other cases of a block
_KEPT_NUMEL = 1 << 21


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
    return _payload(kind, case.dtype, case.world, case.numel, len(case.devices), slot, rank, slots)


def _payload(
    kind: str, dtype: str, world: int, numel: int, ranks: int, slot: int, rank: int, slots: int
) -> np.ndarray:
    base = _base(kind, dtype, world, numel + _STRIDE * slots * ranks)
    start = _STRIDE * (slot * ranks + rank)
    return base[start : start + numel]


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


def passes(case: Case, slots: int) -> list[list[tuple[int, str]]]:
    """Which slot carries which kind of payload, pass by pass.

    Small messages: every slot with both kinds, in two passes. Large ones, where checking takes longer
    than timing: one pass, in which slots take turns; all slots are still written, run and compared.
    """
    if case.nbytes > ONE_PASS_NBYTES and slots > 1:
        return [[(slot, KINDS[slot % len(KINDS)]) for slot in range(slots)]]
    return [[(slot, kind) for slot in range(slots)] for kind in KINDS]


def check_rank(op: Any, case: Case, rank: int, *, between: Callable[[], None] | None = None) -> RankCheck:
    """Run the slots with known payloads and compare. Collective; raises what the op raises.

    `op` is a `PreparedOp`. `between` is called after all inputs are written and before any slot runs.
    """
    worst, wrong, digests = 0.0, 0, []
    for row in passes(case, op.slots):
        for slot, kind in row:
            op.write(slot, payload(kind, case, slot, rank, op.slots))
            op.poison(slot)
        if between is not None:
            between()
        for slot, _ in row:
            op.run(slot)
        for slot, kind in row:
            result = np.asarray(op.read(slot), dtype=np.float64)
            error, bad = compare(result, *_expected(kind, case, slot, op.slots, members(case, rank)))
            worst, wrong = max(worst, error), wrong + bad
            # values of every dtype are exact in float32: half the bytes to digest
            digests.append(hashlib.blake2b(result.astype(np.float32).tobytes(), digest_size=12).hexdigest())
    return RankCheck(max_error=worst, wrong=wrong, digests=tuple(digests))


def _expected(
    kind: str, case: Case, slot: int, slots: int, group: tuple[int, ...]
) -> tuple[np.ndarray, np.ndarray | None]:
    # all cases of a block ask for the same ones; huge ones are not worth the memory
    ask = _reference if case.numel <= _KEPT_NUMEL else _reference.__wrapped__
    wire = lossy.wire_of(case.variant) if lossy.is_lossy(case) else ""
    return ask(kind, case.dtype, case.world, case.numel, len(case.devices), slot, slots, group, wire)


@lru_cache(maxsize=8)
def _reference(
    kind: str,
    dtype: str,
    world: int,
    numel: int,
    ranks: int,
    slot: int,
    slots: int,
    group: tuple[int, ...],
    wire: Wire,
) -> tuple[np.ndarray, np.ndarray | None]:
    terms = [_payload(kind, dtype, world, numel, ranks, slot, rank, slots) for rank in group]
    if wire:
        return np.sum(terms, axis=0), lossy.bound(terms, wire, ROUNDOFF[dtype])
    return reference(terms, kind, dtype)


def reference(terms: list[np.ndarray], kind: str, dtype: str) -> tuple[np.ndarray, np.ndarray | None]:
    """(sum in float64, allowed |error| an element); None for integers, which must match exactly."""
    total = np.sum(terms, axis=0)
    if kind == "integers":
        return total, None
    return total, error_factor(dtype, len(terms)) * np.sum(np.abs(terms), axis=0)


def compare(result: np.ndarray, total: np.ndarray, bound: np.ndarray | None) -> tuple[float, int]:
    """(worst |error| over its bound, number of wrong elements) of one slot; see `reference`.

    Integers must match exactly and add nothing to the worst error. Anything not finite is wrong; the
    worst error stays finite so that it can be written (an element that is no number counts as 1e9).
    """
    if result.shape != total.shape:
        return 1e9, int(total.size)
    if bound is None:
        return 0.0, int(np.count_nonzero(~(result == total)))
    with np.errstate(invalid="ignore", over="ignore"):
        error = np.abs(result - total)
        wrong = int(np.count_nonzero(~(error <= bound)))
        worst = float(np.max(error / np.maximum(bound, np.finfo(float).tiny), initial=0.0))
    return min(worst, 1e9) if np.isfinite(worst) else 1e9, wrong


def merge(case: Case, checks: list[RankCheck]) -> Check:
    """One check from all ranks'. Ranks of one group must agree bit for bit to count as equal."""
    groups = case.groups or (tuple(range(len(checks))),)
    wire = lossy.wire_of(case.variant) if lossy.is_lossy(case) else ""
    equal = all(len({checks[r].digests for r in group}) == 1 for group in groups)
    return Check(
        max_error=max(c.max_error for c in checks),
        bound=case.world * lossy.relative_step(wire) if wire else error_factor(case.dtype, case.world),
        wrong=sum(c.wrong for c in checks),
        bitwise_equal=equal,
    )
