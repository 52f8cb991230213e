"""Runs as the commands read them: what was left out of one is said on standard error."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path

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
