"""`arfloor compare A B`: what became faster, slower, or cannot be told."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter


def command(
    a: Path,
    b: Path,
    /,
    *,
    format: Literal["text", "json"] = "text",
    every: Annotated[bool, Parameter(name="--all", negative="", help="Show unchanged cases too.")] = False,
) -> None:
    """Compare two recorded runs case by case: is B faster than A, slower, the same, or undecided?

    Parameters
    ----------
    a
        The run to compare with (before).
    b
        The run that is judged (after).
    format
        text for a terminal, json for programs.
    """
    from arfloor.commands.reading import read_run
    from arfloor.core.compare import compare
    from arfloor.report import comparison

    first, second = read_run(a), read_run(b)
    rows = compare(first, second)
    if format == "json":
        sys.stdout.write(comparison.to_json(rows))
        return
    width = max(shutil.get_terminal_size(fallback=(160, 24)).columns, 80)
    tty = sys.stdout.isatty()
    sys.stdout.write(comparison.to_text(first, second, rows, every=every, width=width, color=tty))
