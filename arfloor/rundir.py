"""The run directory: plain text that survives being killed, and that later versions can read.

    manifest.json         what the run is (`Manifest`)
    results.jsonl         one `BlockRecord` a line: all results of one block in one launch
    samples-rank*.jsonl   one `Samples` a line
    primitives.jsonl      one `Primitive` a line
    ran.jsonl             one `RanRecord` a line: what probe workers saw running, before anything was timed
    tuning.jsonl          one `Tuning` a line: how plans of our kernels were chosen
    events.jsonl          what happened when, for people; a start says how many blocks the run has
    report.*              derived, may be deleted

Lines are appended and flushed a block at a time. A torn last line is dropped when read; a block
counts once its line in results.jsonl is complete, so a killed run loses at most the block in flight.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from arfloor.core.cases import (
    SCHEMA_VERSION,
    BlockRecord,
    Manifest,
    Primitive,
    Ran,
    RanRecord,
    Result,
    Samples,
    Tuning,
)
from arfloor.core.errors import InputError, reason
from arfloor.core.merge import merge_results
from arfloor.core.sanity import fault, whole_rounds

T = TypeVar("T")


class RunDirError(InputError):
    """A run directory that cannot be read; the message says what was expected, found, and what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A run directory in memory. `results` holds one merged result per case, `warnings` what was dropped.

    `planned`: blocks that the sweep set out to measure, all launches together; None where nobody noted it.
    """

    path: Path
    manifest: Manifest
    records: tuple[BlockRecord, ...]
    results: tuple[Result, ...]
    samples: tuple[Samples, ...]
    primitives: tuple[Primitive, ...]
    warnings: tuple[str, ...] = ()
    planned: int | None = None


_NAMED = 10  # lines dropped of one file that are named; the rest is counted

_ADAPTERS: dict[type[Any], TypeAdapter[Any]] = {}


KEPT = "kept from run"
"""How the note begins that a run without samples, its launches merged, carries in its manifest."""


def adapter(record_type: type[T]) -> TypeAdapter[T]:
    """The validator of one record type (built once: building is slow)."""
    if record_type not in _ADAPTERS:
        _ADAPTERS[record_type] = TypeAdapter(record_type)
    return _ADAPTERS[record_type]


def to_json(record: Any) -> str:
    """One record as one line of JSON. Raises ValueError on a value that JSON cannot hold (NaN)."""
    # not dump_json, which writes null for NaN: a record that no reader would take back
    plain = adapter(type(record)).dump_python(record, mode="json")
    return json.dumps(plain, allow_nan=False, separators=(",", ":"), ensure_ascii=False)


def load(path: str | os.PathLike[str]) -> Run:
    """Read a run directory. Raises RunDirError when it is none, is newer, or its manifest is damaged."""
    root = Path(path)
    manifest = _read_manifest(root)
    warnings: list[str] = []
    records = _read_lines(root / "results.jsonl", BlockRecord, warnings)
    samples = [
        s for file in sorted(root.glob("samples-rank*.jsonl")) for s in _read_lines(file, Samples, warnings)
    ]
    complete = {(c, r.launch) for r in records for c in r.block.case_ids}
    ranks = {result.case.id: len(result.case.devices) for r in records for result in r.results}
    finished = (s for s in samples if (s.case_id, s.launch) in complete)
    kept, left_out = whole_rounds(finished, ranks)
    warnings += left_out
    primitives = _read_lines(root / "primitives.jsonl", Primitive, warnings)
    return Run(
        path=root,
        manifest=manifest,
        records=tuple(records),
        results=merge_results(records, kept),
        samples=kept,
        primitives=tuple(primitives),
        warnings=tuple(warnings),
        planned=_planned(root / "events.jsonl"),
    )


def _planned(file: Path) -> int | None:
    """Blocks of the whole run, by the last start that names them; nothing else of this file is read."""
    try:
        lines = file.read_bytes().splitlines()
    except OSError:
        return None
    for line in reversed(lines):
        if b'"start"' not in line:
            continue
        with contextlib.suppress(ValueError, RecursionError):
            event = json.loads(line)
            blocks = event.get("blocks") if isinstance(event, dict) else None
            if type(blocks) is int and 0 < blocks < 10**9:
                return blocks
    return None


def _read_manifest(root: Path) -> Manifest:
    file = root / "manifest.json"
    try:
        there = file.is_file()
    except (OSError, ValueError) as error:  # a name that is too long, a folder that may not be entered
        raise RunDirError(f"{str(root)[:200]!r}: cannot be read ({reason(error)}); give another") from error
    if not there and (root / "topology.toml").is_file():
        kept = root / "run"
        measured = f" or the run measured on it, {kept}" if (kept / "manifest.json").is_file() else ""
        raise RunDirError(f"{root}: expected a run, found a box; give --topology {root}{measured}")
    if not there:
        raise RunDirError(
            f"{root}: expected a run directory with manifest.json, found none; "
            "give a folder that `torchrun -m arfloor.sweep` wrote"
        )
    try:
        text = file.read_text(encoding="utf-8")
        data = json.loads(text)
        schema = data.get("schema") if isinstance(data, dict) else None
        if isinstance(schema, int) and schema > SCHEMA_VERSION:
            raise RunDirError(
                f"{file}: schema {schema} is newer than this arfloor reads ({SCHEMA_VERSION}); "
                "upgrade arfloor"
            )
        manifest: Manifest = adapter(Manifest).validate_json(text)
    except OSError as error:
        raise RunDirError(f"{file}: cannot be read ({reason(error)}); give a readable run") from error
    except ValidationError as error:
        raise RunDirError(f"{file}: not an arfloor manifest: {_first_error(error)}") from error
    except (ValueError, RecursionError) as error:  # no JSON or no UTF-8; numbers or nesting beyond all use
        raise RunDirError(f"{file}: not valid JSON ({error}); the run directory is damaged") from error
    wrong = fault(manifest)
    if wrong is not None:
        raise RunDirError(f"{file}: not an arfloor manifest: {wrong}")
    return manifest


def _read_lines(file: Path, record_type: type[T], warnings: list[str]) -> list[T]:
    try:
        if not file.is_file():
            return []
        lines = file.read_bytes().split(b"\n")
    except OSError as error:
        raise RunDirError(f"{file}: cannot be read ({reason(error)}); give a readable run") from error
    records: list[T] = []
    dropped = 0
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            record = adapter(record_type).validate_json(line)
            why = fault(record)
        except ValidationError as error:
            why = _first_error(error)
        if why is None:
            records.append(record)
            continue
        dropped += 1
        torn = number == len(lines)  # no newline after it: the writer was killed mid-line
        if dropped <= _NAMED or torn:
            what = "torn last line dropped" if torn else f"line {number} dropped: {why}"
            warnings.append(f"{file.name}: {what}")
    if dropped > _NAMED:
        warnings.append(f"{file.name}: {dropped} lines dropped in all, of {len(records) + dropped}")
    return records


def _first_error(error: ValidationError) -> str:
    first = error.errors(include_url=False, include_input=False)[0]
    where = ".".join(str(part) for part in first["loc"]) or "document"
    return f"{where}: {first['msg']}"


class Writer:
    """Appends to a run directory. Each rank writes its own samples; rank 0 writes everything else."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.root = Path(path)
        self.root.mkdir(parents=True, exist_ok=True)

    def manifest(self, manifest: Manifest) -> None:
        """Write manifest.json atomically: a reader sees the old one or the new one."""
        temporary = self.root / "manifest.json.tmp"
        text = json.dumps(json.loads(to_json(manifest)), indent=1)
        temporary.write_text(text + "\n", encoding="utf-8")
        temporary.replace(self.root / "manifest.json")

    def samples(self, rank: int, samples: Iterable[Samples]) -> None:
        """Append one rank's samples of a block; call before `block`, so that a complete block has them."""
        self._append(f"samples-rank{rank}.jsonl", samples)

    def block(self, record: BlockRecord) -> None:
        """Append a block's record: from here on the block counts as done."""
        self._append("results.jsonl", [record])

    def primitives(self, primitives: Sequence[Primitive]) -> None:
        """Append link probes."""
        self._append("primitives.jsonl", primitives)

    def ran(self, records: Iterable[RanRecord]) -> None:
        """Append what probe workers saw running."""
        self._append("ran.jsonl", records)

    def tuning(self, records: Iterable[Tuning]) -> None:
        """Append how plans were chosen."""
        self._append("tuning.jsonl", records)

    def event(self, **fields: Any) -> None:
        """Append one line to events.jsonl, for people."""
        self._write("events.jsonl", json.dumps(fields, default=str) + "\n")

    def _append(self, name: str, records: Iterable[Any]) -> None:
        text = "".join(to_json(record) + "\n" for record in records)
        if text:
            self._write(name, text)

    def _write(self, name: str, text: str) -> None:
        file = self.root / name
        with file.open("a+b") as stream:
            if stream.tell() and not _ends_with_newline(stream):
                stream.write(b"\n")  # closes a line torn by a kill, so that it spoils only itself
            stream.write(text.encode())
            stream.flush()
            os.fsync(stream.fileno())


def _ends_with_newline(stream: Any) -> bool:
    stream.seek(-1, os.SEEK_END)
    return bool(stream.read(1) == b"\n")


def drop_incomplete(path: str | os.PathLike[str], rank: int) -> None:
    """Rewrite one rank's samples without those of blocks that have no record.

    A killed attempt may leave such samples; measured again, the block would have them twice.
    """
    root = Path(path)
    file = root / f"samples-rank{rank}.jsonl"
    if not file.is_file():
        return
    ignored: list[str] = []
    records = _read_lines(root / "results.jsonl", BlockRecord, ignored)
    complete = {(c, r.launch) for r in records for c in r.block.case_ids}
    samples = _read_lines(file, Samples, ignored)
    temporary = file.with_suffix(".tmp")
    kept = (to_json(s) + "\n" for s in samples if (s.case_id, s.launch) in complete)
    temporary.write_text("".join(kept), encoding="utf-8")
    temporary.replace(file)


def ran_by_case(path: str | os.PathLike[str]) -> dict[str, Ran]:
    """What probe workers saw running, by case id; empty where none did."""
    return {r.case_id: r.ran for r in _read_lines(Path(path) / "ran.jsonl", RanRecord, [])}


def tunings(path: str | os.PathLike[str]) -> list[Tuning]:
    """How plans of our kernels were chosen; empty where none was. Lines that are none are left out."""
    return _read_lines(Path(path) / "tuning.jsonl", Tuning, [])


def blocks_done(run: Run) -> frozenset[tuple[str, int]]:
    """(block id, launch) pairs that need no measuring when the run is resumed."""
    return frozenset((r.block.id, r.launch) for r in run.records)
