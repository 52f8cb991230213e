"""The library of boxes: `topologies/NAME/`, each with a topology.toml, a recorded run, or both.

Where the folders lie is known to `arfloor.topologies_io`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from arfloor import topologies_io
from arfloor.core.errors import InputError
from arfloor.core.rig import Rig

RUN = topologies_io.RUN_NAME
"""The recorded run of a box, a run directory inside its folder."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Box:
    """A box of the library: what is known of it. At least one of `rig` and `run` is there."""

    name: str
    rig: Rig | None
    run: Path | None


def root() -> Path:
    """The folder of all boxes. Raises InputError when there is none."""
    for place in topologies_io.roots():
        return place
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


def box(name: str) -> Box:
    """A box by name, or by the path of a folder that describes or records one.

    Raises InputError naming the boxes there are, or what of the folder cannot be read.
    """
    given = Path(name)
    known = len(given.parts) == 1 and name in names()
    place = root() / name if known else given.parent if given.name == topologies_io.FILE_NAME else given
    description = place / topologies_io.FILE_NAME
    run = place / RUN if (place / RUN / "manifest.json").is_file() else None
    rig = topologies_io.read(description) if description.is_file() else None
    if rig is None and run is None:
        if place.is_dir():
            raise InputError(
                f"topology {name!r}: expected {topologies_io.FILE_NAME} or {RUN}/ in its folder, "
                f"found neither; recorded: {_list(names(recorded=True))}"
            )
        folder(name)  # names those there are
    return Box(name=place.resolve().name, rig=rig, run=run)


def _list(found: tuple[str, ...]) -> str:
    return ", ".join(found) or "none"
