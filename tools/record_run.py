"""Put one path of a measured run into the library of boxes, small.

    python tools/record_run.py runs/RUN peer topologies/h200-x2-nvlink
    python tools/record_run.py runs/RUN host topologies/h200-x2-host-bridge

Writes run/ (manifest, one record a block with the results of all launches merged, the path's link
probes) and topology.toml, the box as its own probes describe it. Samples stay behind: the latencies
keep the intervals that they had, but cannot be paired anew.
"""

from __future__ import annotations

import shutil
import sys
from dataclasses import replace
from pathlib import Path

from arfloor import rundir, topologies_io
from arfloor.core.cases import BlockRecord, Primitive
from arfloor.core.rig_of_run import rig_of_run


def of_path(run: rundir.Run, path: str) -> list[BlockRecord]:
    """One record a block of `path`, with the merged result of every case."""
    merged = {r.case.id: r for r in run.results}
    blocks = {r.block.id: r.block for r in run.records if r.block.path == path}
    return [
        BlockRecord(
            schema=run.manifest.schema,
            block=block,
            launch=0,
            results=tuple(replace(merged[c], block_id=block.id) for c in block.case_ids if c in merged),
        )
        for block in sorted(blocks.values(), key=lambda b: (b.numel, b.dtype))
    ]


def probes_of_path(run: rundir.Run, path: str) -> list[Primitive]:
    """The link probes of `path`, and the cost of a graph node, which belongs to every path."""
    return [p for p in run.primitives if p.path == path or p.kind == "launch"]


def record(run: rundir.Run, path: str, folder: Path) -> None:
    """Write folder/run and folder/topology.toml. Raises ValueError when the run has nothing on that path."""
    records = of_path(run, path)
    if not records:
        raise ValueError(f"{run.path}: nothing was measured on path {path!r}")
    target = folder / "run"
    if target.exists():
        shutil.rmtree(target)
    writer = rundir.Writer(target)
    done = tuple(f"{r.block.id}@0" for r in records)
    writer.manifest(replace(run.manifest, blocks_done=done, env={}))
    for entry in records:
        writer.block(entry)
    probes = probes_of_path(run, path)
    writer.primitives(probes)
    source = f"link probes of run {run.manifest.run_id}"
    try:
        rig = rig_of_run(run.manifest.machine, probes, name=folder.name, source=source)
    except ValueError:  # a run without link probes records latencies, and describes no box
        return
    topologies_io.write(rig, folder / "topology.toml")


def main() -> None:
    if len(sys.argv) != 4 or sys.argv[2] not in ("peer", "host", "cpu"):
        raise SystemExit(__doc__)
    try:
        record(rundir.load(sys.argv[1]), sys.argv[2], Path(sys.argv[3]))
    except (rundir.RunDirError, ValueError) as error:
        raise SystemExit(f"record_run: {error}") from error


if __name__ == "__main__":
    main()
