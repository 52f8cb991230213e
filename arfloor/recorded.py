"""A measured run made small, to be kept: one path of it, and the box as its own probes describe it.

Samples stay behind. The latencies keep the intervals that they had, but cannot be paired anew: a report
of what is kept compares by intervals alone, and says so.
"""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

from arfloor import rundir, topologies_io
from arfloor.core.cases import BlockRecord, Primitive
from arfloor.core.cases import Path as Way
from arfloor.core.errors import InputError
from arfloor.core.rig import Rig
from arfloor.core.rig_of_run import rig_of_run

MAX_BYTES = 1_500_000
"""What a recorded run may weigh: enough for some two thousand cases."""

_KEPT = rundir.KEPT


def records_of(run: rundir.Run, path: Way | None = None) -> list[BlockRecord]:
    """One record a block of `path` (of all), with every case's result merged over the launches."""
    merged = {r.case.id: r for r in run.results}
    blocks = {r.block.id: r.block for r in run.records if path in (None, r.block.path)}
    return [
        BlockRecord(
            schema=run.manifest.schema,
            block=block,
            launch=0,
            results=tuple(replace(merged[c], block_id=block.id) for c in block.case_ids if c in merged),
        )
        for block in sorted(blocks.values(), key=lambda b: (b.path, b.numel, b.dtype, b.id))
    ]


def probes_of(run: rundir.Run, path: Way | None = None) -> list[Primitive]:
    """The link probes of `path` (of all), and the cost of a graph node, which belongs to every path.

    With `peer` stay those of host memory: software that may use peer access may go that way too, so the
    bound allows for both.
    """
    ways = {path, "host"} if path == "peer" else {path}
    return [p for p in run.primitives if path is None or p.path in ways or p.kind == "launch"]


def rig(run: rundir.Run, path: Way | None = None, *, name: str | None = None) -> Rig:
    """The box of a run on GPUs as its probes describe it. Raises InputError when they do not suffice."""
    machine, probes = run.manifest.machine, probes_of(run, path)
    if machine.device_kind != "cuda":
        raise InputError(
            f"{run.path}: expected a run on GPUs to describe a box by, found {machine.device_kind}"
        )
    links = sorted({f"{p.path}/{p.link}" for p in probes if p.link and p.kind in ("pingpong", "stream")})
    title = f"{machine.world}x {machine.device_name}, {' and '.join(links)}"
    source = f"link probes of run {run.manifest.run_id}"
    try:
        return rig_of_run(machine, probes, name=name or run.manifest.run_id, title=title, source=source)
    except ValueError as error:
        raise InputError(f"{run.path}: {error}; measure the links, or give another --path") from error


def write(run: rundir.Run, out: Path, path: Way | None = None, *, max_bytes: int = MAX_BYTES) -> int:
    """Write one path of a run (all of it) as a run directory without samples; returns its bytes.

    The manifest's `notes` say what was left out. A run kept there before is replaced. Raises
    InputError when nothing was measured on that path, or when it weighs more than `max_bytes`.
    """
    records = records_of(run, path)
    if not records:
        paths = ", ".join(sorted({r.block.path for r in run.records})) or "nothing"
        where = f" on path {path!r}; measured: {paths}" if path else "; complete it with --resume first"
        raise InputError(f"{run.path}: nothing was measured{where}")
    probes = probes_of(run, path)
    weight = sum(len(rundir.to_json(r).encode()) + 1 for r in (*records, *probes))
    if weight > max_bytes:
        raise InputError(
            f"{run.path}: without samples it still weighs {weight} bytes, more than {max_bytes}; "
            "give --path, or a larger --max-bytes"
        )
    if out.resolve() == run.path.resolve():
        raise InputError(f"--out {out}: expected another folder than the run itself")
    _make_room(out)
    kept = f"path {path} only, " if path else ""
    done = len(rundir.blocks_done(run))
    if run.planned and done < run.planned:
        kept = f"partial ({done} of {run.planned} blocks measured), {kept}"
    note = (
        f"{_KEPT} {run.manifest.run_id}: {kept}results of {run.manifest.launches} launches merged; "
        "samples left out, so default and best are compared by their intervals, unpaired"
    )
    manifest = replace(
        run.manifest,
        blocks_done=tuple(f"{r.block.id}@0" for r in records),
        env={},
        notes=(*run.manifest.notes, note),
    )
    try:
        writer = rundir.Writer(out)
        writer.manifest(manifest)
        for record in records:
            writer.block(record)
        writer.primitives(probes)
        writer.tuning(t for t in rundir.tunings(run.path) if path in (None, t.path))
        return sum(f.stat().st_size for f in out.iterdir())
    except OSError as error:
        raise InputError(f"--out {out}: cannot be written ({error.strerror}); give another place") from error


def _make_room(out: Path) -> None:
    """Remove what was kept at `out` before; anything else there is left alone, and refused."""
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return
    try:
        mine = any(n.startswith(_KEPT) for n in rundir.load(out).manifest.notes)
    except rundir.RunDirError:
        mine = False
    if not mine:
        raise InputError(
            f"--out {out}: expected no folder, or a run kept before, found another; give a new one"
        )
    shutil.rmtree(out)


def write_box(run: rundir.Run, folder: Path, path: Way | None = None, *, max_bytes: int = MAX_BYTES) -> int:
    """Write folder/run and folder/topology.toml, a box of the library; returns the bytes of the run.

    Raises InputError as `rig` and `write` do, and writes nothing then.
    """
    described = rig(run, path, name=folder.resolve().name)
    weight = write(run, folder / topologies_io.RUN_NAME, path, max_bytes=max_bytes)
    topologies_io.write(described, folder / topologies_io.FILE_NAME)
    return weight
