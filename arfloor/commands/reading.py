"""Runs and outside files as the commands read them: what was left out of a run is said on standard error."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path

from arfloor.ingest.outside import MAX_BYTES, IngestError, decode, read_bounded
from arfloor.rundir import Run, load


def read_run(path: Path) -> Run:
    """A run directory. What was damaged and dropped is printed, so that no program's output hides it."""
    run = load(path)
    warn(path, run.warnings)
    return run


def warn(source: object, warnings: Iterable[str]) -> None:
    """Print what was left out of a source."""
    for warning in warnings:
        print(f"{source}: warning: {warning}", file=sys.stderr)


def read_text(file: Path) -> tuple[str, str]:
    """The text of a file (`-`: standard input), and what to call it. Raises IngestError."""
    if str(file) != "-":
        return read_bounded(file), file.name
    if sys.stdin is None:  # `<&-`
        raise IngestError("expected an open standard input, found it closed; name a file")
    return decode(sys.stdin.buffer.read(MAX_BYTES + 1)), "standard input"
