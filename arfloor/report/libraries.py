"""Libraries side by side, and which case wins where: the parts that text, card and page share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from arfloor.core import units
from arfloor.core.cases import Result
from arfloor.core.libraries import Library
from arfloor.core.verdict import BAND, Comparison, ratio_span
from arfloor.report import phrases
from arfloor.report.model import Report, Row, Section

LEAST = 3
"""Libraries from which on a section shows them side by side: fewer stand in its table anyway."""
_USUAL = (8_192, 65_536, 262_144, 1_048_576)
_MANY = 8
MARK = "*"
NOTE = f"{MARK} its ranks get results that differ in the last place"
TIE = " or "
TIE_NOTE = f"or: tied; they are the same within {units.percent(BAND, 0)}, or too noisy to be told apart"


@dataclass(frozen=True, slots=True, kw_only=True)
class Winners:
    """The winner map: a row a size, a cell a path (`Section.name`); an empty cell: nothing correct there.

    `notes`: what the marks in its cells mean.
    """

    paths: tuple[str, ...]
    rows: tuple[tuple[int, tuple[str, ...]], ...]
    notes: tuple[str, ...]


def differs(result: Result | None) -> bool:
    """Whether the ranks' results of a case were not equal bit for bit."""
    return result is not None and result.check is not None and not result.check.bitwise_equal


def marked(result: Result | None) -> str:
    """A case's name, with a mark where its ranks differ."""
    return f"{phrases.which(result)}{MARK if differs(result) else ''}"


def winners(report: Report) -> Winners | None:
    """Which case is fastest, by size and path, in each path's leading section; None below two paths."""
    sections = report.headline()
    if len(sections) < 2:
        return None
    rows = {section.path: {row.nbytes: row for row in section.rows} for section in sections}
    sizes = _some(sorted({nbytes for of in rows.values() for nbytes in of}))
    cells = {nbytes: tuple(_cell(rows[s.path].get(nbytes)) for s in sections) for nbytes in sizes}
    shown = "".join(cell for at in cells.values() for cell in at)
    return Winners(
        paths=tuple(s.name for s in sections),
        rows=tuple(cells.items()),
        notes=tuple(note for mark, note in ((MARK, NOTE), (TIE, TIE_NOTE)) if mark in shown),
    )


def _some(sizes: Sequence[int]) -> list[int]:
    """All sizes, or those that people ask for where there are many."""
    usual = [n for n in sizes if n in _USUAL]
    return usual if len(sizes) > _MANY and usual else list(sizes)


def _cell(row: Row | None) -> str:
    """The fastest case and its latency, then the next that ties with it and how many more do."""
    if row is None or row.verdict.best is None:
        return ""
    found = [row.verdict.best, *row.tied[:1]]
    shown = [f"{marked(r)} {units.number(r.latency.value)}" for r in found if r.latency]
    more = len(row.tied) - 1
    return TIE.join([*shown, f"{more} more"] if more > 0 else shown)


def rows_of(section: Section) -> tuple[Row, ...]:
    """The rows whose libraries are worth a table: empty where few libraries were measured."""
    if max((len(row.libraries) for row in section.rows), default=0) < LEAST:
        return ()
    wanted = _some([row.nbytes for row in section.rows])
    return tuple(row for row in section.rows if row.nbytes in wanted and row.libraries)


HEADER = ("size", "library", "untouched us", "best us", "which", "default / best", "best / fastest", "ranks")


RIGHT = ("size", "untouched us", "best us", "default / best", "best / fastest")
"""Columns of figures."""


def cells(library: Library) -> tuple[str, ...]:
    """A library's cells after the size; ratios are paired by round, or say how they are not."""
    check = library.best.check
    return (
        library.backend,
        phrases.latency(library.untouched),
        phrases.latency(library.best),
        phrases.which(library.best).removeprefix(library.backend).strip() or "default",
        _paired(library.comparison),
        _paired(library.behind),
        "" if check is None else "equal" if check.bitwise_equal else "differ",
    )


def _paired(found: Comparison | None) -> str:
    """A ratio with its interval, and the pairing where it is not the best there is."""
    if found is None:
        return ""
    return ratio_span(found.ratio) + ("" if found.pairing == "round" else f" ({found.pairing})")


def line(row: Row) -> str:
    """All libraries of one row in a line, the fastest first: `packet-tuned 4.9 (untouched 6.0)`."""
    parts = []
    for library in row.libraries:
        best = library.best.latency
        first = library.untouched.latency if library.untouched else None
        both = best is not None and first is not None and library.best is not library.untouched
        more = f" (untouched {units.number(first.value)})" if both and first else ""
        parts.append(f"{marked(library.best)} {units.number(best.value) if best else ''}{more}")
    note = f"; {NOTE}" if any(differs(library.best) for library in row.libraries) else ""
    return f"By library at {units.size(row.nbytes)}, us: {'; '.join(parts)}{note}."
