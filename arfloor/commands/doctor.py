"""`arfloor doctor`: know the box, and say what would spoil a result on it."""

from __future__ import annotations

import itertools
import os
import shutil
import sys
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from arfloor.commands.options import Input
from arfloor.core.box import Box
from arfloor.core.errors import InputError, reason


def command(
    *,
    from_: Annotated[Input | None, Parameter(name="--from")] = None,
    format: Literal["text", "json"] = "text",
    write: Path | None = None,
    svg: Path | None = None,
    probe: bool = True,
) -> int:
    """Know the box: its tree, its links, what would spoil a result, what each serving engine can use.

    Exit status 0, or 1 when something was found that spoils results.

    Parameters
    ----------
    from_
        Read a pasted `nvidia-smi topo -m` or `-p2p`, an NCCL or RCCL topology XML, or an hwloc XML from this
        file (`-`: standard input) instead of looking at this machine.
    format
        text for a terminal, json for programs.
    write
        A folder to put topology.toml and box.svg in.
    svg
        A file to draw the box to.
    probe
        Move data over the links for a few seconds, to check what the driver only claims.
    """
    from arfloor.core.doctor import diagnose
    from arfloor.core.engines import engine_table
    from arfloor.core.findings import exit_status
    from arfloor.report import box_json, box_svg, box_text

    box, warnings = _described(from_) if from_ is not None else (_this_machine(probe), ())
    findings = diagnose(box)
    uses = engine_table(box)
    if format == "json":
        sys.stdout.write(box_json.render(box, findings, uses, warnings))
    else:
        tty = sys.stdout.isatty()
        width = max(shutil.get_terminal_size().columns if tty else 120, 80)
        sys.stdout.write(box_text.render(box, findings, uses, warnings, width=width, color=tty))
    if svg is not None:
        _write(svg, box_svg.render(box))
    if write is not None:
        _write_folder(write, box)
    return exit_status(findings)


def _this_machine(probe: bool) -> Box:
    from arfloor.runtime.discover import discover
    from arfloor.runtime.probe_box import probe_box

    box = discover(Path("/"), os.environ)
    return probe_box(box) if probe else box


def _described(file: Path) -> tuple[Box, tuple[str, ...]]:
    from arfloor.commands.reading import read_text
    from arfloor.ingest.boxes import read_box
    from arfloor.ingest.outside import IngestError

    text, name = read_text(file)
    try:
        box, warned = read_box(text)
    except IngestError as error:
        raise InputError(f"{name}: {error}") from error
    return box, tuple(f"{name}, {w}" for w in warned)


def _write(file: Path, content: str) -> None:
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content, encoding="utf-8")
    except (OSError, ValueError) as error:  # ValueError: a null byte in the name
        raise InputError(
            f"{str(file)[:200]!r}: cannot be written ({reason(error)}); give another place"
        ) from error


def _write_folder(folder: Path, box: Box) -> None:
    from arfloor import topologies_io
    from arfloor.core.box_rig import BoxRigError, rig_of
    from arfloor.report import box_svg

    try:
        name = folder.resolve().name
    except (OSError, ValueError) as error:
        raise InputError(f"{str(folder)[:200]!r}: cannot be written ({error}); give another place") from error
    try:
        rig = rig_of(box, name)
    except BoxRigError as error:
        raise InputError(f"--write: no topology to write: {error}") from error
    file = folder / topologies_io.FILE_NAME
    text = topologies_io.dumps(rig)
    kept = _keep(file, text)
    _write(file, text)
    _write(folder / "box.svg", box_svg.render(box))
    told = f"; the {file.name} that was there is now {kept.name}" if kept else ""
    print(
        f"wrote {file.name} and box.svg to {folder}{told}; see: arfloor report --topology {folder}",
        file=sys.stderr,
    )


def _keep(file: Path, text: str) -> Path | None:
    """Where another description that stands in the way was moved to: someone may have edited it."""
    try:
        if not file.exists() or (found := file.read_bytes()) == text.encode():
            return None
        # rates differ from probe to probe: a second call must not write over what the first one kept
        places = (file.with_name(f"{file.name}.old{n or ''}") for n in itertools.count())
        return file.replace(next(p for p in places if not p.exists() or p.read_bytes() == found))
    except (OSError, ValueError) as error:
        raise InputError(
            f"{str(file)[:200]!r}: cannot be written ({reason(error)}); give another place"
        ) from error
