"""A run's report: tables, a card to paste, JSON rows, plots and a page, all from one view model.

    from arfloor import report
    print(report.write("runs/2026-11-29-cpu"))    # writes report.json, .md, .html; returns the card

Importing it needs neither torch nor matplotlib; plots and the page import what they need when called.
"""

from __future__ import annotations

from os import PathLike
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from arfloor.report.model import Report
    from arfloor.rundir import Run


def write(run_dir: str | PathLike[str]) -> str:
    """Judge a run and write its derived files beside it. Returns the Markdown card.

    Raises `arfloor.rundir.RunDirError` (one line) when `run_dir` cannot be read.
    """
    from arfloor.rundir import load

    return write_run(load(run_dir))[1]


def write_run(run: Run) -> tuple[Report, str]:
    """As `write`, of a run that is loaded already. Returns the report and its Markdown card."""
    from arfloor.report import card, html, model, rows

    report = model.build(run)
    text = card.render(report)
    (run.path / "report.json").write_text(rows.render(report), encoding="utf-8")
    (run.path / "report.md").write_text(text, encoding="utf-8")
    (run.path / "report.html").write_text(html.render(report), encoding="utf-8")
    return report, text
