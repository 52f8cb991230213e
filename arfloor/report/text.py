"""The report for a terminal: a table a path, the verdicts, what failed and why."""

from __future__ import annotations

from io import StringIO

from rich import box
from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from arfloor.core import nccl_picks, units
from arfloor.report import phrases
from arfloor.report.model import HEADLINE_NBYTES, Failure, Report, Row, Section, size_span, status_spans
from arfloor.report.series import series

_STYLE = {
    "switch": "bold green",
    "at_floor": "green",
    "gap": "yellow",
    "undecided": "magenta",
    "no_data": "dim",
}


def render(report: Report, *, width: int = 140, color: bool = False) -> str:
    """The whole report as text of at most `width` columns."""
    stream = StringIO()
    console = Console(file=stream, width=width, force_terminal=color, highlight=False, emoji=False)
    console.print(_heading(report))
    for section in report.sections:
        console.print(_section(section))
    if report.failures:
        console.print(_failures(report.failures))
    for warning in report.warnings:
        console.print(Text(f"warning: {warning}", style="yellow"))
    text = stream.getvalue()
    return "\n".join(line.rstrip() for line in text.splitlines()) + "\n"


def _heading(report: Report) -> RenderableType:
    manifest = report.manifest
    lines = [
        f"arfloor: {report.box}",
        f"run {manifest.run_id}, started {manifest.started}, {manifest.launches} launches, {report.origin}",
        phrases.versions(manifest),
    ]
    return Text("\n".join(line for line in lines if line))


def _section(section: Section) -> RenderableType:
    table = Table(title=section.title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD)
    floors = any(row.floor for row in section.rows)
    for name in ("size", "default us", "best us"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("which", min_width=13)
    table.add_column("check", min_width=15)
    for name in ("attainable", "bound", "now", "left") if floors else ("now",):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    for row in section.rows:
        table.add_row(*_cells(row, floors=floors))
    spans = "; ".join(f"{status} {size_span(sizes)}" for status, sizes in status_spans(section))
    row = section.nearest(HEADLINE_NBYTES)
    lines = [spans, row.verdict.sentence, *_floor_lines(row)]
    picked = nccl_picks.sentence(nccl_picks.bad_picks(r for row in section.rows for r in row.results))
    if picked:
        lines.append(picked)
    lines += [
        f"fit {s.label}: {phrases.fit_line(s.fit)}" for s in series(section) if s.fit and s.role != "other"
    ]
    return Group("", table, *(Padding(Text(line), (0, 0, 0, 2)) for line in lines))


def _floor_lines(row: Row) -> list[str]:
    if row.floor is None:
        return []
    parts = (("attainable", row.floor.terms.attainable), ("bound", row.floor.terms.bound))
    return [f"{name} at {units.size(row.nbytes)}, us: {phrases.floor_parts(terms)}" for name, terms in parts]


def _cells(row: Row, *, floors: bool) -> list[RenderableType]:
    v = row.verdict
    same = v.best is not None and v.best is v.default
    floor = [phrases.interval(v.attainable), units.number(v.bound.value) if v.bound else ""]
    return [
        units.size(v.nbytes),
        phrases.latency(v.default),
        phrases.latency(v.best),
        "(the default)" if same else phrases.which(v.best),
        phrases.check(v.best),
        *(floor if floors else []),
        units.ratio(v.headroom_now.value) if v.headroom_now else "",
        *([units.ratio(v.headroom_left.value) if v.headroom_left else ""] if floors else []),
        Text(v.status, style=_STYLE[v.status]),
    ]


def _failures(failures: tuple[Failure, ...]) -> RenderableType:
    table = Table(title="Not measured, or not believed", title_justify="left", title_style="bold")
    table.box = box.SIMPLE_HEAD
    for name in ("case", "path", "mode", "sizes", "status", "why"):
        table.add_column(name)
    for f in failures:
        why = f"{f.explanation} ({f.detail})" if f.detail else f.explanation
        table.add_row(f.label, f.path, f.mode, size_span(f.sizes), f.status, why)
    return Group("", table)
