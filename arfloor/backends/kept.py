"""What one launch of a run tunes, later launches need not tune again: names and choices in a file."""

from __future__ import annotations

import json
import os
from pathlib import Path

PLANS_DIR = "ARFLOOR_PLANS_DIR"
"""Variable that names the folder of the table."""


def read() -> dict[str, str]:
    """Choices by name, as earlier processes left them; empty without a folder."""
    folder = os.environ.get(PLANS_DIR)
    file = Path(folder or ".") / "plans.json"
    if not folder or not file.is_file():
        return {}
    return dict(json.loads(file.read_text(encoding="utf-8")))


def add(name: str, choice: str) -> None:
    """Keep a choice; the file is replaced whole, so that a kill leaves the old one or the new one."""
    folder = os.environ.get(PLANS_DIR)
    if not folder:
        return
    file = Path(folder) / "plans.json"
    fresh = file.with_suffix(".tmp")
    fresh.write_text(json.dumps({**read(), name: choice}), encoding="utf-8")
    fresh.replace(file)


def note(record: dict[str, object]) -> None:
    """Append how a choice was made to `tuning.jsonl` of the run, whose hidden folder the variable names."""
    folder = os.environ.get(PLANS_DIR)
    if folder:
        with (Path(folder).parent / "tuning.jsonl").open("a", encoding="utf-8") as stream:
            stream.write(json.dumps(record) + "\n")
