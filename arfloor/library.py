"""The library of boxes: `topologies/NAME/`, each with a topology.toml, a recorded run, or both.

Installed, the folders lie inside the package; in a checkout, beside it.
"""

from __future__ import annotations

from pathlib import Path

from arfloor.core.errors import InputError

RUN = "run"
"""The recorded run of a box, a run directory inside its folder."""


def root() -> Path:
    """The folder of all boxes. Raises InputError when there is none."""
    here = Path(__file__).parent
    for folder in (here / "topologies", here.parent / "topologies"):
        if folder.is_dir():
            return folder
    raise InputError(
        "the library of boxes is not installed: expected a folder `topologies` in the package or beside it; "
        "reinstall arfloor, or give a run directory"
    )


def names(*, recorded: bool = False) -> tuple[str, ...]:
    """Names of the boxes; with `recorded`, of those that hold a recorded run."""
    wanted = f"*/{RUN}/manifest.json" if recorded else "*"
    folders = (p if not recorded else p.parent.parent for p in root().glob(wanted))
    return tuple(sorted(p.name for p in folders if p.is_dir() and not p.name.startswith((".", "_"))))


def folder(name: str) -> Path:
    """The folder of one box. Raises InputError naming the boxes there are."""
    if name not in names():
        raise InputError(f"topology {name!r}: no such box in the library; there are {_list(names())}")
    return root() / name


def recorded_run(name: str) -> Path:
    """The run directory recorded on a box. Raises InputError naming the boxes that have one."""
    path = folder(name) / RUN
    if not (path / "manifest.json").is_file():
        have = _list(names(recorded=True))
        raise InputError(f"topology {name!r}: no run is recorded for this box; recorded: {have}")
    return path


def _list(found: tuple[str, ...]) -> str:
    return ", ".join(found) or "none"
