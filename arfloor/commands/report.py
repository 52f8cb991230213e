"""`arfloor report RUN`: what a recorded run says, or what a described box allows."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, TypedDict

from cyclopts import Parameter

from arfloor.commands.options import Whole
from arfloor.core.cases import Path as Way
from arfloor.core.errors import InputError, reason

if TYPE_CHECKING:
    from arfloor.core.outlook import Outlook
    from arfloor.report.model import Report


class _Terminal(TypedDict):
    width: int
    color: bool


Format = Literal["text", "md", "json", "html"]


def command(
    run: Path | None = None,
    /,
    *,
    format: Format = "text",
    figures: Annotated[Path | None, Parameter(help="Also write the pictures (PNG, SVG) here.")] = None,
    topology: Annotated[
        str | None, Parameter(help="A box of the library, or a folder with topology.toml, instead of RUN.")
    ] = None,
    world: Annotated[
        Whole | None, Parameter(help="Only this number of ranks: measured, else predicted.")
    ] = None,
    path: Annotated[Way | None, Parameter(help="Only this path: measured, else predicted.")] = None,
    table: Annotated[
        Literal["summary", "nccl-tests"], Parameter(help="Shape of the tables of --format text.")
    ] = "summary",
    worth: Annotated[
        str | None, Parameter(help="Also say what it is worth: model=NAME,tp=2,tok_s=32:800[,share=0.19@32].")
    ] = None,
) -> None:
    """Show what a recorded run says: sizes, floors, verdicts, failures; or what a described box allows.

    What was measured is shown as measured. A box without a recorded run, or a number of ranks that its
    run did not measure, is predicted, and every format says so.

    Parameters
    ----------
    run
        A run directory that `torchrun -m arfloor.sweep` wrote.
    format
        text for a terminal, md for a card to paste, json for programs, html for one self-contained page.
    """
    from arfloor.commands.reading import warn
    from arfloor.report.model import Report

    if table != "summary" and format != "text":
        raise InputError(f"--table {table}: expected --format text, found {format}; leave one of them out")
    shown = _subject(run, topology, world, path)
    line = _worth(worth, format, run, topology, path)
    if isinstance(shown, Report):
        if format != "text" or table != "summary":  # the text has them among its lines
            warn(run or topology, shown.warnings)
        sys.stdout.write(_measured(shown, format, table, line))
    else:
        sys.stdout.write(_predicted(shown, format, table, line))
    if figures is not None:
        for written in _figures(shown, figures):
            print(written, file=sys.stderr)


def _subject(run: Path | None, topology: str | None, world: int | None, path: Way | None) -> Report | Outlook:
    from arfloor.report import subject

    if run is not None and topology is not None:
        raise InputError(
            "report: expected a run directory or --topology, found both; a run is judged by its own link "
            f"probes alone: leave out {run} to see the floor of {topology}, and read the two side by side"
        )
    if topology is not None:
        return subject.of_topology(topology, world, path)
    if run is None:
        raise InputError(
            "report: expected a run directory, found none; give one, as in `arfloor report runs/NAME`, "
            "or a box of the library with --topology NAME"
        )
    return subject.of_run(run, world, path)


def _worth(text: str | None, format: Format, run: Path | None, topology: str | None, path: Way | None) -> str:
    """The line on what it is worth; empty unless asked for."""
    if text is None:
        return ""
    if format not in ("text", "md"):
        raise InputError(
            f"--worth: expected --format text or md, found {format}; `arfloor whatif` has a JSON document"
        )
    from arfloor.report import worth

    return worth.line(text, run=run, topology=topology, way=path)


def _measured(report: Report, format: Format, table: str, worth: str) -> str:
    if format == "json":
        from arfloor.report import rows

        return rows.render(report)
    if format == "md":
        from arfloor.report import card

        return card.render(report, worth)
    if format == "html":
        from arfloor.report import html

        return html.render(report)
    if table == "nccl-tests":
        from arfloor.report import nccl_tests

        return nccl_tests.render(report)
    from arfloor.report import text

    return text.render(report, **_terminal()) + (f"\n{worth}\n" if worth else "")


def _predicted(outlook: Outlook, format: Format, table: str, worth: str) -> str:
    if table == "nccl-tests":
        raise InputError("--table nccl-tests: expected a measured run, found a prediction; leave --table out")
    if format == "json":
        from arfloor.report.predicted import rows

        return rows.render(outlook)
    if format == "md":
        from arfloor.report.predicted import card

        return card.render(outlook, worth)
    if format == "html":
        from arfloor.report.predicted import html

        return html.render(outlook)
    from arfloor.report.predicted import text

    return text.render(outlook, **_terminal()) + (f"\n{worth}\n" if worth else "")


def _figures(shown: Report | Outlook, folder: Path) -> list[Path]:
    """The pictures written. Raises InputError for a folder that cannot be written to."""
    from arfloor.report.model import Report

    try:
        if isinstance(shown, Report):
            from arfloor.report import plots

            return plots.write(shown, folder)
        from arfloor.report.predicted import plot

        return plot.write(shown, folder)
    except (OSError, ValueError) as error:  # ValueError: a null byte in the name
        place = f"--figures {str(folder)[:200]!r}"
        raise InputError(f"{place}: cannot be written ({reason(error)}); give another folder") from error


def _terminal() -> _Terminal:
    width = shutil.get_terminal_size(fallback=(160, 24)).columns  # COLUMNS, where it is no terminal
    return {"width": width, "color": sys.stdout.isatty()}
