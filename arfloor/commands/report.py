"""`arfloor report RUN`: what a recorded run says."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from arfloor.commands.options import Whole
from arfloor.core.errors import InputError

if TYPE_CHECKING:
    from arfloor.report.model import Report


def command(
    run: Path | None = None,
    /,
    *,
    format: Literal["text", "md", "json", "html"] = "text",
    figures: Annotated[Path | None, Parameter(help="Also write the pictures (PNG, SVG) here.")] = None,
    topology: Annotated[str | None, Parameter(help="A box of the library instead of RUN.")] = None,
    world: Annotated[Whole | None, Parameter(help="Only what this number of ranks measured.")] = None,
    table: Annotated[
        Literal["summary", "nccl-tests"], Parameter(help="Shape of the text tables.")
    ] = "summary",
) -> None:
    """Show what a recorded run says: sizes, floors, verdicts, failures.

    Parameters
    ----------
    run
        A run directory that `torchrun -m arfloor.sweep` wrote.
    format
        text for a terminal, md for a card to paste, json for programs, html for one self-contained page.
    """
    from arfloor.report import model
    from arfloor.rundir import load

    report = model.build(load(_source(run, topology)))
    if world is not None:
        report = model.only_world(report, world)
    sys.stdout.write(_render(report, format, table))
    if figures is not None:
        from arfloor.report import plots

        for path in plots.write(report, figures):
            print(path, file=sys.stderr)


def _source(run: Path | None, topology: str | None) -> Path:
    if run is not None and topology is not None:
        raise InputError(f"report: expected a run directory or --topology, found both; leave out {run}")
    if topology is not None:
        from arfloor import library

        return library.recorded_run(topology)
    if run is None:
        raise InputError(
            "report: expected a run directory, found none; give one, as in `arfloor report runs/NAME`, "
            "or a box of the library with --topology NAME"
        )
    return run


def _render(report: Report, format: str, table: str) -> str:
    if format == "json":
        from arfloor.report import rows

        return rows.render(report)
    if format == "md":
        from arfloor.report import card

        return card.render(report)
    if format == "html":
        from arfloor.report import html

        return html.render(report)
    if table == "nccl-tests":
        from arfloor.report import nccl_tests

        return nccl_tests.render(report)
    from arfloor.report import text

    tty = sys.stdout.isatty()
    width = shutil.get_terminal_size().columns if tty else 140
    return text.render(report, width=max(width, 100), color=tty)
