"""Latency against size per implementation, with its fit: what plots and the page draw."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from arfloor.core.cases import Estimate
from arfloor.core.fits import Fit, fit
from arfloor.core.verdict import DEFAULT_BACKEND, is_correct
from arfloor.report import phrases
from arfloor.report.model import Section

Role = Literal["default", "contender", "other"]

LEAST = 3
"""Sizes that a fit, and each of its segments, needs."""

SHOWN = 4
"""Contenders that get a colour and a name; the rest are drawn faint."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """One implementation over the sizes at which it was correct.

    `fit` is None below three sizes, and for the series that are only drawn faint.
    """

    label: str
    role: Role
    points: tuple[tuple[int, Estimate], ...]
    fit: Fit | None


def series(section: Section) -> tuple[Series, ...]:
    """The default first, then the contenders by the number of sizes that they win, then the others.

    A contender is best at some size, or is the setting of the default's own library that wins most
    often: what a user gets without installing anything.
    """
    points: dict[str, list[tuple[int, Estimate]]] = defaultdict(list)
    logged: dict[str, list[tuple[int, tuple[object, ...]]]] = defaultdict(list)
    wins: Counter[str] = Counter()
    library_wins: Counter[str] = Counter()
    defaults: Counter[str] = Counter()
    for row in section.rows:
        correct = [r for r in row.results if is_correct(r)]
        seen: set[str] = set()
        for r in correct:
            name = phrases.label(r.case)
            if r.latency is not None and name not in seen:  # results are sorted: the fastest of a name
                points[name].append((row.nbytes, r.latency))
                seen.add(name)
                if r.ran is not None and r.ran.source.startswith("log"):
                    logged[name].append((row.nbytes, (r.ran.algorithm, r.ran.protocol)))
        wins.update(phrases.label(r.case) for r in correct[:1])
        own = [r for r in correct if r.case.backend == DEFAULT_BACKEND[section.path]]
        library_wins.update(phrases.label(r.case) for r in own[:1])
        if row.verdict.default is not None:
            defaults[phrases.label(row.verdict.default.case)] += 1
    default = defaults.most_common(1)[0][0] if defaults else None
    ranked = [name for name, _ in wins.most_common() if name != default]
    tuned = [name for name, _ in library_wins.most_common() if name != default and name not in ranked]
    chosen = [*ranked[: SHOWN - len(tuned[:1])], *tuned[:1]]
    roles: dict[str, Role] = dict.fromkeys(chosen, "contender")
    if default in points:
        roles = {str(default): "default", **roles}
    others: dict[str, Role] = {name: "other" for name in sorted(points) if name not in roles}
    return tuple(
        Series(
            label=name,
            role=role,
            points=tuple(sorted(points[name])),
            fit=fit(points[name], knots=knots_of(logged[name]))
            if role != "other" and len(points[name]) >= LEAST
            else None,
        )
        for name, role in (roles | others).items()
    )


def knots_of(ran: Sequence[tuple[int, tuple[object, ...]]]) -> tuple[int, ...]:
    """Sizes at which a library changed its algorithm or protocol, by its log; none that leaves a segment
    of fewer than `LEAST` sizes."""
    ordered = sorted(ran, key=lambda r: r[0])
    changes = [i for i in range(1, len(ordered)) if ordered[i][1] != ordered[i - 1][1]]
    kept = [0]
    for i in changes:
        if i - kept[-1] >= LEAST and len(ordered) - i >= LEAST:
            kept.append(i)
    return tuple(ordered[i][0] for i in kept[1:])
