"""What every reader of other people's measurements yields, and how it becomes a run directory."""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass, field, replace
from pathlib import Path

from arfloor.core.cases import (
    SCHEMA_VERSION,
    Block,
    BlockRecord,
    Case,
    DType,
    Estimate,
    Machine,
    Manifest,
    Mode,
    Primitive,
    Result,
)
from arfloor.core.cases import Path as WirePath
from arfloor.core.rig import SPREAD
from arfloor.ingest.outside import IngestError, Warned
from arfloor.rundir import Writer

MAX_RESULTS = 100_000

DTYPES: dict[str, DType] = {
    "float": "float32",
    "float32": "float32",
    "fp32": "float32",
    "half": "float16",
    "float16": "float16",
    "fp16": "float16",
    "bfloat16": "bfloat16",
    "bf16": "bfloat16",
}
"""Other tools' names of the dtypes that arfloor speaks of."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hints:
    """What a format does not say and a user may: the path, the number of ranks, the link."""

    path: WirePath = "peer"
    world: int | None = None
    link: str | None = None


@dataclass(slots=True, kw_only=True)
class Imported:
    """Measurements of another tool as arfloor's records, and what could not be read or was assumed."""

    tool: str
    device_name: str = ""
    results: list[Result] = field(default_factory=list)
    primitives: list[Primitive] = field(default_factory=list)
    versions: dict[str, str] = field(default_factory=dict)
    warned: list[Warned] = field(default_factory=list)
    assumed: list[str] = field(default_factory=list)

    def warn(self, line: int, text: str) -> None:
        """Name something at a line that was left out; after a hundred the rest is counted, not listed."""
        if len(self.warned) < 100:
            self.warned.append(Warned(line=line, text=text))
        elif len(self.warned) == 100:
            self.warned.append(Warned(line=line, text="more of the like from here on is not listed"))

    def assume(self, text: str) -> None:
        """Name, once, something that the format does not say."""
        if text not in self.assumed:
            self.assumed.append(text)


def published(value: float, unit: str) -> Estimate:
    """One published value with the usual interval of published figures, since it states none."""
    spread = SPREAD["published"]
    return Estimate(value=value, lo=value * (1 - spread), hi=value * (1 + spread), n=1, unit=unit)


def case(
    backend: str, world: int, numel: int, dtype: DType, mode: Mode, path: WirePath, *, inplace: bool = True
) -> Case:
    """A case of another tool; `world` ranks on devices 0 to world - 1."""
    kind = "cpu" if path == "cpu" else "cuda"
    return Case(
        backend=backend,
        path=path,
        devices=tuple(f"{kind}:{i}" for i in range(world)),
        numel=numel,
        dtype=dtype,
        mode=mode,
        inplace=inplace,
    )


def backend_name(text: str) -> str:
    """Another tool's name for an implementation, as lower-case words joined by underscores."""
    return re.sub(r"[^a-z0-9]+", "_", text.lower()).strip("_")[:60] or "unknown"


def write_run(imported: Imported, folder: Path, *, source: str, started: str) -> int:
    """Write a run directory of origin `published`; the number of cases and primitives in it.

    `source` says where the measurements come from, `started` is an ISO time. Raises IngestError when there
    is nothing to write, or the folder already holds a run.
    """
    results = _once(imported)
    if not results and not imported.primitives:
        raise IngestError(f"{imported.tool}: no all-reduce and no link rate of GPUs was found in it")
    if len(results) > MAX_RESULTS:
        raise IngestError(f"{imported.tool}: {len(results)} results, at most {MAX_RESULTS} are read")
    if (folder / "manifest.json").exists():
        raise IngestError(f"{folder}: already holds a run; give another folder")
    blocks = _blocks(results)
    writer = Writer(folder)
    worlds = [r.case.world for r in results] + [_world_of(imported.primitives)]
    manifest = Manifest(
        schema=SCHEMA_VERSION,
        run_id=folder.resolve().name,
        origin="published",
        started=started,
        recipe={"imported": source, "tool": imported.tool, "assumed": list(imported.assumed)},
        seed=0,
        launches=1,
        machine=Machine(
            world=max(worlds),
            device_kind="cpu" if any(r.case.path == "cpu" for r in results) else "cuda",
            device_name=imported.device_name or "not stated",
        ),
        versions=imported.versions,
        env={},
        blocks_done=tuple(b.block.id for b in blocks),
    )
    writer.manifest(manifest)
    for record in blocks:
        writer.block(record)
    writer.primitives(imported.primitives)
    return len(results) + len(imported.primitives)


def _world_of(primitives: list[Primitive]) -> int:
    ends = {e for p in primitives for e in (p.src, p.dst) if e.startswith("cuda:")}
    return max(len(ends), 1)


def _once(imported: Imported) -> list[Result]:
    """Each case once: the first is kept, and how many were left out is said."""
    found: dict[str, Result] = {}
    repeated = 0
    for result in imported.results:
        repeated += result.case.id in found
        found.setdefault(result.case.id, result)
    if repeated:
        imported.warn(0, f"{repeated} measurements of cases that stood before were left out")
    return list(found.values())


def _blocks(results: list[Result]) -> list[BlockRecord]:
    grouped: dict[tuple[object, ...], list[Result]] = defaultdict(list)
    for result in results:
        c = result.case
        grouped[c.path, c.devices, c.dtype, c.numel].append(result)
    records = []
    for number, members in enumerate(grouped.values()):
        first = members[0].case
        block = Block(
            id=f"imported-{number}",
            settings=first.settings,
            path=first.path,
            devices=first.devices,
            dtype=first.dtype,
            numel=first.numel,
            case_ids=tuple(m.case.id for m in members),
        )
        held = tuple(replace(m, block_id=block.id) for m in members)
        records.append(BlockRecord(schema=SCHEMA_VERSION, block=block, launch=0, results=held))
    return records
