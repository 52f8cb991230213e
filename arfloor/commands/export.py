"""`arfloor export RUN`: a run in the shape of other tools."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from arfloor.core.errors import InputError


def command(
    run: Path,
    /,
    *,
    format: Literal["aiconfigurator", "nccl-tests", "csv"] = "csv",
    which: Annotated[
        Literal["best", "default"], Parameter(help="Of each size, for aiconfigurator.")
    ] = "best",
    out: Path | None = None,
) -> None:
    """Write a recorded run in the shape of other tools.

    Parameters
    ----------
    run
        A run directory.
    format
        aiconfigurator: the table that its planner reads (sizes in elements, latencies in ms). nccl-tests:
        text in the shape of its output. csv: one row a case.
    out
        A file to write to instead of standard output.
    """
    from arfloor.commands.reading import read_run
    from arfloor.report import aiconfigurator, flat, model, nccl_tests

    loaded = read_run(run)
    if format == "csv":
        text = flat.render(loaded)
    elif format == "nccl-tests":
        text = nccl_tests.render(model.build(loaded))
    else:
        text = aiconfigurator.render(model.build(loaded), which)
    if out is None:
        sys.stdout.write(text)
        return
    try:
        out.write_text(text)
    except OSError as error:
        raise InputError(f"{out}: cannot be written ({error.strerror}); give another place") from error
