"""The report for a terminal: a table a path, the verdicts, what failed and why."""

from __future__ import annotations

import re
from io import StringIO

from rich import box
from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from arfloor.core import nccl_picks, units
from arfloor.core.cases import Result
from arfloor.report import libraries, phrases
from arfloor.report import why as whys
from arfloor.report.fitting import fitting, keep_whole
from arfloor.report.model import (
    Failure,
    Report,
    Row,
    Section,
    attainable,
    size_span,
    slow_probes,
    status_spans,
)
from arfloor.report.series import series

_STYLE = {
    "switch": "bold green",
    "at_floor": "green",
    "gap": "yellow",
    "undecided": "magenta",
    "no_data": "dim",
}


NARROWEST = 80
"""Columns that the figures of a table of sizes need, with nothing but a space between them."""
_TIGHT = 100
"""Columns from which on tables have room between their columns."""


def render(report: Report, *, width: int = 140, color: bool = False) -> str:
    """The whole report as text of at most `width` columns (of 80, where `width` is less)."""
    stream = StringIO()
    console = Console(
        file=stream,
        width=max(width, NARROWEST),
        force_terminal=color,
        highlight=False,
        emoji=False,
        markup=False,  # `[unknown]` would be taken for a style
    )
    console.print(_heading(report))
    for part in _winners(report):
        console.print(part)
    for section in report.sections:
        table = _fitting(section, console)
        console.print(_section(section, table, report, console.width))
    if report.failures:
        console.print(_failures(report.failures))
    if report.sections:
        console.print(Padding(Text(_legend(report)), (1, 0, 0, 0)))
    for warning in report.warnings:
        console.print(Text(f"warning: {warning}", style="yellow"))
    text = "\n".join(line.rstrip() for line in stream.getvalue().splitlines()) + "\n"
    return re.sub(r"\n{3,}", "\n\n", text)  # tables leave a line, and so do the parts around them


def _legend(report: Report) -> str:
    """What the columns of the tables of sizes are."""
    said = ["us with the 95 % interval"]
    if report.origin == "measured":
        said = ["us: the slowest rank of each replay, a median a round, averaged, with the 95 % interval"]
    if any(section.checked for section in report.sections):
        said.append("check: err is the largest error over the allowed one")
    said.append("now = default / best")
    if any(row.floor for section in report.sections for row in section.rows):
        said += [
            "left = best / attainable",
            "attainable: the best known schedule at the links' rates",
            "bound: no software can be faster",
        ]
    return f"{'; '.join(said)}."


def _heading(report: Report) -> RenderableType:
    manifest = report.manifest
    lines = [
        f"arfloor: {report.box}",
        f"run {manifest.run_id}, {phrases.occasion(manifest)}",
        phrases.versions(manifest),
        f"{report.partial} measured; a sweep with --resume measures the others" if report.partial else "",
        *(f"note: {note}" for note in manifest.notes),
    ]
    return Text("\n".join(line for line in lines if line))


def _fitting(section: Section, console: Console) -> Table:
    """The table of sizes with as much as the terminal has room for."""
    tables = [
        _sizes(section, intervals=intervals, checks=checks, ratios=ratios, width=console.width)
        for intervals, checks, ratios in (
            (True, True, True),
            (True, False, True),
            (False, True, True),
            (False, False, True),
            (False, False, False),
        )
        if section.checked or not checks
    ]
    return fitting(console, tables)


def _table(title: str, width: int) -> Table:
    padding = (0, 0) if width < _TIGHT else (0, 1)
    return Table(
        title=title,
        title_justify="left",
        title_style="bold",
        box=box.SIMPLE_HEAD,
        padding=padding,
        show_edge=width >= _TIGHT,
    )


def _sizes(section: Section, *, intervals: bool, checks: bool, ratios: bool, width: int) -> Table:
    """`ratios`: with the intervals of ratios that a verdict hangs on."""
    table = _table(section.title, width)
    floors = any(row.floor for row in section.rows)
    for name in ("size", "default us", "best us"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("which", min_width=12 if width >= _TIGHT else 10, overflow="fold")
    if checks:
        table.add_column("check", min_width=11)
    for name in ("attainable", "bound", "now", "left") if floors else ("now",):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    for row in section.rows:
        table.add_row(*_cells(row, floors=floors, intervals=intervals, checks=checks, ratios=ratios))
    keep_whole(table)
    columns = (("intervals", intervals and ratios), ("checks", checks or not section.checked))
    left_out = " and ".join(name for name, kept in columns if not kept)
    if left_out:
        table.caption = f"{left_out} need a wider terminal (or COLUMNS=200); --format html has them"
        table.caption_justify = "left"
    return table


def _section(section: Section, table: Table, report: Report, width: int) -> RenderableType:
    spans = "; ".join(f"{status} {size_span(sizes)}" for status, sizes in status_spans(section))
    drawn = series(section)
    found = whys.why(section, report.primitives, drawn)
    slow = slow_probes(section.rows)
    lines = [f"by size: {spans}", *([slow] if slow else [])]
    lines += [found.row.verdict.sentence, *_floor_lines(found.row)]
    picked = nccl_picks.sentence(nccl_picks.bad_picks(r for row in section.rows for r in row.results))
    lines += [f"next: {found.lever.sentence}"] if found.lever else []
    lines += [f"but: {caveat}" for caveat in report.caveats]
    chosen = whys.choices_line(found.choices) or picked
    lines += [chosen] if chosen else []
    lines += whys.crossing_lines(found.crossovers)
    lines += [f"fit {s.label}: {phrases.fit_line(s.fit)}" for s in drawn if s.fit and s.role != "other"]
    parts = _parts(found, width) if found.apart else []
    parts += _libraries(section, width)
    return Group("", table, *(_indented(line) for line in lines), "", *parts)


def _indented(line: str) -> RenderableType:
    """Under a table; all of a part's lines further in."""
    text = line.lstrip()
    return Padding(Text(text), (0, 0, 0, 2 + len(line) - len(text)))


def _parts(found: whys.Why, width: int) -> list[RenderableType]:
    """What each backend's fastest case spends its time on; notes below it where there is no room beside."""
    table = _table(f"why, us at {units.size(found.row.nbytes)}", width)
    roomy = width >= _TIGHT
    table.add_column("case", overflow="fold", min_width=8)
    for name in ("measured", *found.parts):
        table.add_column(name, justify="right", overflow="fold", no_wrap=roomy)
    if roomy:
        table.add_column("notes")
    for a in found.apart:
        cells = [units.number(a.gap.measured.value), *(a.us(name) for name in found.parts)]
        table.add_row(a.label, *cells, *([a.notes] if roomy else []))
    notes = [f"{a.label}: {a.notes}" for a in found.apart if a.notes and not roomy]
    return [table, *(Padding(Text(note), (0, 0, 0, 2)) for note in notes)]


def _libraries(section: Section, width: int) -> list[RenderableType]:
    """Each library untouched and at its best, where more than a few were measured."""
    rows = libraries.rows_of(section)
    if not rows:
        return []
    table = _table("by library", width)
    for name in libraries.HEADER:
        table.add_column(name, justify="right" if name in libraries.RIGHT else "left", overflow="fold")
    for row in rows:
        for number, library in enumerate(row.libraries):
            table.add_row("" if number else units.size(row.nbytes), *libraries.cells(library))
    return [table]


def _winners(report: Report) -> list[RenderableType]:
    """Which case is fastest, by size and path."""
    found = libraries.winners(report)
    if found is None:
        return []
    table = Table(title="Fastest by size and path, us", title_justify="left", title_style="bold")
    table.box = box.SIMPLE_HEAD
    table.add_column("size", justify="right")
    for name in found.paths:
        table.add_column(name, overflow="fold")
    for nbytes, row in found.rows:
        table.add_row(units.size(nbytes), *row)
    return ["", table, *(Padding(Text(f"{note}."), (0, 0, 0, 2)) for note in found.notes)]


def _floor_lines(row: Row) -> list[str]:
    if row.floor is None:
        return []
    parts = (("attainable", row.floor.terms.attainable), ("bound", row.floor.terms.bound))
    lines = []
    for name, terms in parts:
        lines.append(f"{name} at {units.size(row.nbytes)}, us:")
        lines += [f"  {part}" for part in phrases.floor_parts(terms)]
    return lines


def _cells(row: Row, *, floors: bool, intervals: bool, checks: bool, ratios: bool) -> list[RenderableType]:
    v = row.verdict
    same = v.best is not None and v.best is v.default

    def latency(result: Result | None) -> str:
        if result is None or result.latency is None:
            return ""
        return phrases.interval(result.latency) if intervals else units.number(result.latency.value)

    def ratio(found: str) -> str:
        return found if ratios else found.partition(" ")[0]

    floor = [attainable(row, interval=intervals), units.number(v.bound.value) if v.bound else ""]
    return [
        units.size(v.nbytes),
        latency(v.default),
        latency(v.best),
        "(the default)" if same else libraries.marked(v.best),
        *([phrases.check(v.best)] if checks else []),
        *(floor if floors else []),
        ratio(phrases.now(v)),
        *([ratio(phrases.left(v))] if floors else []),
        Text(v.status, style=_STYLE[v.status]),
    ]


def _failures(failures: tuple[Failure, ...]) -> RenderableType:
    table = Table(title="Not measured, or not believed", title_justify="left", title_style="bold")
    table.box = box.SIMPLE_HEAD
    for name in ("case", "path", "mode", "sizes", "status", "why"):
        table.add_column(name, overflow="fold")
    for f in failures:
        why = f"{f.explanation} ({f.detail})" if f.detail else f.explanation
        table.add_row(f.label, f.path, f.mode, size_span(f.sizes), f.status, why)
    return Group("", table)
