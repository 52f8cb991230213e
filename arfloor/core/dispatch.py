"""Which of our plans reduces which message, for programs that use the kernels: pure, equal on all ranks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from arfloor.core.cases import Path, Result
from arfloor.core.plans import parse
from arfloor.core.tuning import Facts, Tuned, family

STRICT_LL_NBYTES = 128 << 10
"""Up to here a strict program uses LL, beyond it flag: LL sends every byte twice."""


def from_results(results: Iterable[Result], *, path: Path, world: int, dtype: str) -> Tuned:
    """The plans that a sweep tuned for a path, world and dtype: those behind its correct `auto` cases."""
    found: dict[int, str] = {}
    for result in results:
        case = result.case
        if (case.backend, case.variant, case.path, case.world, case.dtype) != (
            path,
            "auto",
            path,
            world,
            dtype,
        ):
            continue
        if result.status == "ok" and result.ran is not None and result.ran.algorithm:
            found[case.nbytes] = parse(result.ran.algorithm).name
    return Tuned(path=path, world=world, dtype=dtype, plans=tuple(sorted(found.items())))


def strict(facts: Facts, dtype: str, sizes: Sequence[int]) -> Tuned:
    """LL and flag alone: what needs no hash to tell a torn line, because nothing it trusts can tear."""
    plans = tuple(
        (size, family("ll" if size <= STRICT_LL_NBYTES else "flag", facts, size).name)
        for size in sorted(sizes)
    )
    return Tuned(path=facts.path, world=facts.world, dtype=dtype, plans=plans)


def up_to(tuned: Tuned, max_nbytes: int) -> Tuned:
    """The table without plans that no message of at most `max_nbytes` would use."""
    kept = []
    for size, name in tuned.plans:
        kept.append((size, name))
        if size >= max_nbytes:
            break
    return Tuned(path=tuned.path, world=tuned.world, dtype=tuned.dtype, plans=tuple(kept))
