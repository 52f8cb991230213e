"""topology.toml: the schema at the edge, its loader and writer, and the boxes that come with arfloor.

A folder of `topologies/` holds topology.toml, and where someone ran arfloor on the box a recorded run
in `run/` (or in the folder itself). Installed, the folders are package data; from a source tree they
lie beside the package.
"""

from __future__ import annotations

import os
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tomli_w
from pydantic import TypeAdapter, ValidationError

from arfloor.core.errors import InputError
from arfloor.core.rig import RIG_SCHEMA, Rig, rig_problems

FILE_NAME = "topology.toml"
RUN_NAME = "run"
MAX_BYTES = 1 << 20

_RIG: TypeAdapter[Rig] = TypeAdapter(Rig)


class TopologyFileError(InputError):
    """A topology that cannot be read: what was expected, what was found, what to do, in one line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Folder:
    """One box: its folder, its description, and the recorded run when there is one."""

    path: Path
    rig: Rig
    run: Path | None


def roots() -> tuple[Path, ...]:
    """Where boxes are looked for: package data first, then the source tree of an editable install."""
    package = Path(__file__).resolve().parent
    places = (package / "topologies", package.parent / "topologies")
    return tuple(p for p in places if p.is_dir())


def names() -> tuple[str, ...]:
    """Names of the boxes that come with arfloor, sorted."""
    return tuple(sorted({file.parent.name for root in roots() for file in root.glob(f"*/{FILE_NAME}")}))


def find(name_or_path: str | os.PathLike[str]) -> Folder:
    """A box by name, or by the path of its folder or topology.toml. Raises TopologyFileError."""
    given = Path(name_or_path)
    for candidate in (*(root / given for root in roots()), given):
        folder = candidate.parent if candidate.name == FILE_NAME else candidate
        if (folder / FILE_NAME).is_file():
            runs = [d for d in (folder / RUN_NAME, folder) if (d / "manifest.json").is_file()]
            return Folder(path=folder, rig=read(folder / FILE_NAME), run=runs[0] if runs else None)
    raise TopologyFileError(
        f"topology {os.fspath(name_or_path)!r}: expected one of {', '.join(names()) or 'none installed'}, "
        f"or a folder with {FILE_NAME}; found neither"
    )


def read(file: str | os.PathLike[str]) -> Rig:
    """Read and check one topology.toml. Raises TopologyFileError naming the file and the first problem."""
    path = Path(file)
    try:
        if path.stat().st_size > MAX_BYTES:
            raise TopologyFileError(
                f"{path}: expected at most {MAX_BYTES} bytes, found {path.stat().st_size}"
            )
        text = path.read_text(encoding="utf-8-sig")  # Windows editors write a byte order mark
    except (OSError, ValueError) as error:
        raise TopologyFileError(f"{path}: cannot be read ({error}); give a {FILE_NAME}") from error
    return loads(text, where=os.fspath(path))


def loads(text: str, *, where: str = FILE_NAME) -> Rig:
    """Parse and check the text of a topology.toml. Raises TopologyFileError."""
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise TopologyFileError(f"{where}: not valid TOML: {error}") from error
    except RecursionError:
        raise TopologyFileError(f"{where}: not valid TOML: nested beyond all use") from None
    schema = data.get("schema")
    if isinstance(schema, int) and schema > RIG_SCHEMA:
        raise TopologyFileError(
            f"{where}: schema {schema} is newer than this arfloor reads ({RIG_SCHEMA}); upgrade arfloor"
        )
    try:
        rig = _RIG.validate_python(data)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(str(part) for part in first["loc"]) or "document"
        raise TopologyFileError(f"{where}: {place}: {first['msg']}") from error
    problem = next(iter(rig_problems(rig)), None)
    if problem:
        raise TopologyFileError(f"{where}: {problem}")
    return rig


def dumps(rig: Rig) -> str:
    """The text of a topology.toml; `loads` gives the same rig back."""
    return tomli_w.dumps(_without_none(_RIG.dump_python(rig, mode="json")), multiline_strings=False)


def write(rig: Rig, file: str | os.PathLike[str]) -> None:
    """Write a topology.toml."""
    Path(file).write_text(dumps(rig), encoding="utf-8")


def json_schema() -> dict[str, Any]:
    """JSON Schema of topology.toml."""
    return _RIG.json_schema()


def _without_none(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _without_none(v) for k, v in value.items() if v is not None and v != [] and v != {}}
    return [_without_none(v) for v in value] if isinstance(value, list) else value
