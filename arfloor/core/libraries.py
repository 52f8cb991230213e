"""What each library takes untouched and at its best, at one size of one path, and what the best one is."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import takewhile

from arfloor.core.cases import Case, Result, record
from arfloor.core.verdict import Compare, Comparison, default_result, is_correct


@record
class Library:
    """One backend in one group. `untouched`: its fastest correct case that nobody tuned (None: it has none);
    `best`: its fastest correct case; `comparison`: the path's default over `best` (None: no such pair);
    `behind`: `best` over the fastest library's best (None: it is that one)."""

    backend: str
    untouched: Result | None
    best: Result
    comparison: Comparison | None
    behind: Comparison | None = None


def is_untouched(case: Case) -> bool:
    """Whether a case is what a library does unless it is told or tuned to do otherwise.

    NCCL and gloo: the default variant. Our kernels: the plan by rule of thumb. MSCCL++: an algorithm at its
    own grid. Others: whatever is not called tuned, as their variants are algorithms and not settings.
    """
    if case.backend in ("nccl", "gloo"):
        return case.variant == "default"
    if case.backend in ("peer", "host"):
        return case.variant == "rule"
    if case.backend == "mscclpp":
        return "-" not in case.variant
    return not case.variant.endswith("-tuned")


def by_library(results: Iterable[Result], compare: Compare) -> tuple[Library, ...]:
    """Every backend with a correct case among the results of one group, the fastest first."""
    groups: dict[str, list[Result]] = defaultdict(list)
    found = list(results)
    for result in found:
        if is_correct(result):
            groups[result.case.backend].append(result)
    default = default_result(found)
    usable = default if default is not None and is_correct(default) else None
    made = [_library(name, members, usable, compare) for name, members in groups.items()]
    ordered = sorted(made, key=lambda library: _us(library.best))
    behind = [replace(other, behind=compare(other.best, ordered[0].best)) for other in ordered[1:]]
    return (*ordered[:1], *behind)


def tied(results: Iterable[Result], best: Result | None, compare: Compare) -> tuple[Result, ...]:
    """The correct results that cannot be told from the fastest, by rising latency.

    Told by the rule of the verdicts: `best` must be faster than a result, and neither `same` nor `undecided`.
    The first that is surely slower ends the list, as all that follow have still larger latencies.
    """
    others = sorted((r for r in results if is_correct(r) and r is not best), key=_us)
    if best is None:
        return ()
    return tuple(takewhile(lambda other: compare(other, best).answer != "faster", others))


def _library(backend: str, members: Sequence[Result], default: Result | None, compare: Compare) -> Library:
    best = min(members, key=_us)
    paired = None if default is None or best is default else compare(default, best)
    untouched = min((r for r in members if is_untouched(r.case)), key=_us, default=None)
    return Library(backend=backend, untouched=untouched, best=best, comparison=paired)


def _us(result: Result) -> float:
    assert result.latency is not None  # `is_correct` asks for it
    return result.latency.value
