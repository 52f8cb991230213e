"""`arfloor export RUN`: a run in the shape of other tools, or small, to be kept."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from arfloor.commands.options import Whole
from arfloor.core.cases import Path as Way
from arfloor.core.errors import InputError, reason

if TYPE_CHECKING:
    from arfloor.rundir import Run

Which = Literal["best", "default"]


Format = Literal["aiconfigurator", "nccl-tests", "csv", "topology", "run", "box"]


def command(
    run: Path,
    /,
    *,
    format: Format = "csv",
    which: Annotated[Which, Parameter(help="Of each size, for aiconfigurator.")] = "best",
    path: Annotated[Way | None, Parameter(help="Only this path, for topology, run and box.")] = None,
    max_bytes: Annotated[Whole, Parameter(help="What run and box may weigh.")] = 1_500_000,
    out: Path | None = None,
) -> None:
    """Write a recorded run in the shape of other tools, or small, to be kept.

    Parameters
    ----------
    run
        A run directory.
    format
        aiconfigurator: the table that its planner reads (sizes in elements, latencies in ms). nccl-tests:
        text in the shape of its output. csv: one row a case. topology: topology.toml, the box as the run's
        own probes describe it. run: a run directory without samples, its latencies kept. box: a folder with
        both, as the library of boxes has them.
    out
        A file to write to instead of standard output; for run and box the folder.
    """
    from arfloor.commands.reading import read_run

    loaded = read_run(run)
    if format in ("run", "box"):
        _keep(loaded, format, path, max_bytes, out)
        return
    text = _text(loaded, format, which, path, out)
    if out is None:
        sys.stdout.write(text)
        return
    try:
        out.write_text(text, encoding="utf-8")
    except (OSError, ValueError) as error:  # ValueError: a null byte in the name
        raise InputError(
            f"{str(out)[:200]!r}: cannot be written ({reason(error)}); give another place"
        ) from error


def _text(loaded: Run, format: str, which: Which, path: Way | None, out: Path | None) -> str:
    if format == "topology":
        from arfloor import recorded, topologies_io

        name = out.resolve().parent.name if out is not None else None
        return topologies_io.dumps(recorded.rig(loaded, path, name=name))
    if path is not None:
        raise InputError(f"--path {path}: only for --format topology, run and box; leave it out")
    from arfloor.report import aiconfigurator, flat, model, nccl_tests

    if format == "csv":
        return flat.render(loaded)
    if format == "nccl-tests":
        return nccl_tests.render(model.build(loaded))
    return aiconfigurator.render(model.build(loaded), which)


def _keep(loaded: Run, format: str, path: Way | None, max_bytes: int, out: Path | None) -> None:
    from arfloor import recorded

    if out is None:
        raise InputError(f"--out: expected the folder to write the {format} to, found none")
    write = recorded.write if format == "run" else recorded.write_box
    weight = write(loaded, out, path, max_bytes=max_bytes)
    see = f"arfloor report {out}" if format == "run" else f"arfloor report --topology {out}"
    print(f"wrote {out} (a run of {weight} bytes, without samples); see: {see}")
