"""What one launch of a run tunes, later launches need not tune again: names and choices in a file.

Only a convenience: a file that cannot be read or written costs a search. Nothing is raised, since one rank
writes while the others go on, and would wait for it.
"""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path

from arfloor import rundir
from arfloor.core.cases import Tuning

PLANS_DIR = "ARFLOOR_PLANS_DIR"
"""Variable that names the folder of the table."""


def read() -> dict[str, str]:
    """Choices by name, as earlier processes left them; empty without a folder."""
    folder = os.environ.get(PLANS_DIR)
    file = Path(folder or ".") / "plans.json"
    if not folder or not file.is_file():
        return {}
    with contextlib.suppress(OSError, ValueError):
        return dict(json.loads(file.read_text(encoding="utf-8")))
    return {}


def add(name: str, choice: str) -> None:
    """Keep a choice; the file is replaced whole, so that a kill leaves the old one or the new one."""
    folder = os.environ.get(PLANS_DIR)
    if not folder:
        return
    file = Path(folder) / "plans.json"
    fresh = file.with_suffix(".tmp")
    with contextlib.suppress(OSError):
        fresh.write_text(json.dumps({**read(), name: choice}), encoding="utf-8")
        fresh.replace(file)


def note(tuning: Tuning) -> None:
    """Append how a choice was made to the run, whose hidden folder the variable names."""
    folder = os.environ.get(PLANS_DIR)
    if folder and Path(folder).is_dir():
        with contextlib.suppress(OSError):
            rundir.Writer(Path(folder).parent).tuning([tuning])
