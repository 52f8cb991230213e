"""A run's report: tables, a card to paste, JSON rows, plots and a page, all from one view model.

    from arfloor import report
    print(report.write("runs/2026-11-29-cpu"))    # writes report.json, .md, .html; returns the card

Importing it needs neither torch nor matplotlib; plots and the page import what they need when called.
"""

from __future__ import annotations

from os import PathLike
from pathlib import Path


def write(run_dir: str | PathLike[str]) -> str:
    """Judge a run and write its derived files beside it. Returns the Markdown card.

    Raises `arfloor.rundir.RunDirError` (one line) when `run_dir` cannot be read.
    """
    from arfloor.report import card, html, model, rows
    from arfloor.rundir import load

    root = Path(run_dir)
    report = model.build(load(root))
    text = card.render(report)
    (root / "report.json").write_text(rows.render(report))
    (root / "report.md").write_text(text)
    (root / "report.html").write_text(html.render(report))
    return text
