"""`arfloor report RUN`: what a recorded run says."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from arfloor.core.errors import InputError


def command(
    run: Path | None = None,
    /,
    *,
    format: Literal["text", "md", "json"] = "text",
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
        text for a terminal, md for a card to paste, json for programs.
    """
    from arfloor.report import card, model, nccl_tests, rows, text
    from arfloor.rundir import load

    if run is None:
        raise InputError(
            "report: expected a run directory, found none; give one, as in `arfloor report runs/NAME`"
        )
    report = model.build(load(run))
    if format == "json":
        sys.stdout.write(rows.render(report))
    elif format == "md":
        sys.stdout.write(card.render(report))
    elif table == "nccl-tests":
        sys.stdout.write(nccl_tests.render(report))
    else:
        tty = sys.stdout.isatty()
        width = shutil.get_terminal_size().columns if tty else 140
        sys.stdout.write(text.render(report, width=max(width, 100), color=tty))
