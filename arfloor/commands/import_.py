"""`arfloor import FILE`: other people's measurements as a run directory."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from arfloor.commands.options import Input, Whole
from arfloor.core.errors import reason

if TYPE_CHECKING:
    from arfloor.ingest.imported import Imported

Format = Literal["nccl-tests", "nvbandwidth", "aiconfigurator"]


def command(
    file: Input,
    /,
    *,
    out: Path,
    format: Annotated[Format | None, Parameter(help="Told from the content unless named.")] = None,
    path: Literal["peer", "host", "cpu"] = "peer",
    world: Whole | None = None,
    link: Literal["pcie", "nvlink"] | None = None,
) -> None:
    """Turn the output of nccl-tests or nvbandwidth, or an AIConfigurator table, into a run directory.

    What the format does not say is taken from the options or assumed; both are written into the manifest.

    Parameters
    ----------
    file
        The file (`-`: standard input).
    out
        A new folder for the run directory; `arfloor report` reads it.
    path
        How the bytes travelled, where the format does not say.
    world
        The number of ranks, where the format does not say.
    link
        What joins the GPUs, where the format does not say.
    """
    from arfloor.commands.reading import read_text
    from arfloor.ingest.imported import Hints, write_run
    from arfloor.ingest.nccl_tests_text import MAX_WORLD
    from arfloor.ingest.outside import IngestError
    from arfloor.ingest.runs import read_run

    if world is not None and not 2 <= world <= MAX_WORLD:
        raise IngestError(f"--world {world}: expected the number of ranks, 2 to {MAX_WORLD}")
    text, name = read_text(file)
    imported = read_run(text, Hints(path=path, world=world, link=link), format)
    try:
        count = write_run(imported, out, source=name, started=_written(file))
    except (OSError, ValueError) as error:
        raise IngestError(
            f"--out {str(out)[:200]!r}: cannot be written ({reason(error)}); give a new folder"
        ) from error
    _tell(imported, name, count, out)


def _tell(imported: Imported, name: str, count: int, out: Path) -> None:
    """What was left out, what was assumed, and what was written where."""
    for warned in imported.warned:
        print(f"{name}, {warned}", file=sys.stderr)
    for assumed in imported.assumed:
        print(f"assumed {assumed}")
    kinds = f"{len(imported.results)} results and {len(imported.primitives)} link rates"
    print(f"wrote {count} records ({kinds} of {imported.tool}) to {out}; see: arfloor report {out}")


def _written(file: Path) -> str:
    """When the file was last written: the nearest thing to when it was measured."""
    standard = str(file) == "-"
    moment = datetime.now(UTC) if standard else datetime.fromtimestamp(file.stat().st_mtime, UTC)
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")
