"""Write the run directory of a box whose latencies others published.

    python tools/published_run.py [topologies/NAME]

Reads published.toml there and writes run/ beside it: manifest, results, primitives, all of origin
`published` with their sources. Each latency gets an interval, which the sources do not print: the
spread of the sizes that they publish twice.
"""

from __future__ import annotations

import shutil
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from arfloor import rundir
from arfloor.core.cases import (
    ITEMSIZE,
    SCHEMA_VERSION,
    Block,
    BlockRecord,
    Case,
    Estimate,
    Machine,
    Manifest,
    Primitive,
    Result,
)

DEFAULT = Path(__file__).resolve().parent.parent / "topologies" / "rtx-pro-6000-x8-host-bridge"


def half_width(data: dict[str, Any]) -> float:
    """Relative half width of a 95 % interval of one published value.

    Two values x, y of the same size differ by about N(0, 2 sd^2) relative to each other; sd is the
    root mean square of their relative differences over sqrt(2).
    """
    differences = []
    for again in data["repeated"]:
        first = next(s for s in data["series"] if s["backend"] == again["backend"])
        once = dict(zip(first["kib"], first["us"], strict=True))
        differences += [np.log(us / once[kib]) for kib, us in zip(again["kib"], again["us"], strict=True)]
    return float(1.96 * np.sqrt(np.mean(np.square(differences)) / 2))


def cases(data: dict[str, Any], series: dict[str, Any]) -> Iterator[tuple[Case, float]]:
    """Each size of a series as a case, with its latency in us."""
    devices = tuple(f"cuda:{i}" for i in range(data["world"]))
    for kib, us in zip(series["kib"], series["us"], strict=True):
        yield (
            Case(
                backend=series["backend"],
                variant=series["variant"],
                path="peer",
                devices=devices,
                numel=kib * 1024 // ITEMSIZE[data["dtype"]],
                dtype=data["dtype"],
                mode=data["mode"],
            ),
            us,
        )


def block_record(number: int, data: dict[str, Any], results: list[Result]) -> BlockRecord:
    """One block a size, as a sweep would write it."""
    case = results[0].case
    block = Block(
        id=f"published-{number}",
        settings=(),
        path=case.path,
        devices=case.devices,
        dtype=case.dtype,
        numel=case.numel,
        case_ids=tuple(r.case.id for r in results),
    )
    return BlockRecord(schema=SCHEMA_VERSION, block=block, launch=0, results=tuple(results))


def records(data: dict[str, Any]) -> list[BlockRecord]:
    """All series, grouped by size."""
    half = half_width(data)
    where = f"{data['repository']} at {data['commit'][:7]}"
    by_size: dict[int, list[Result]] = {}
    for series in data["series"]:
        for case, us in cases(data, series):
            latency = Estimate(
                value=us,
                lo=round(us * np.exp(-half), 3),
                hi=round(us * np.exp(half), 3),
                n=1,
                unit="us",
            )
            result = Result(
                case=case,
                status="ok",
                detail=f"{where}: {series['source']}",
                latency=latency,
                origin="published",
            )
            by_size.setdefault(case.numel, []).append(result)
    return [block_record(i, data, by_size[numel]) for i, numel in enumerate(sorted(by_size))]


def primitives(data: dict[str, Any]) -> list[Primitive]:
    """The published link properties, one record a directed pair of the first four GPUs."""
    where = f"{data['repository']} at {data['commit'][:7]}"
    out = []
    ranks = range(data["world"])
    for p in data["primitive"]:
        pairs = (
            [(f"cuda:{i}", f"cuda:{j}") for i in ranks for j in ranks if i != j]
            if p["kind"] != "launch"
            else [(f"cuda:{i}", f"cuda:{i}") for i in ranks]
        )
        estimate = Estimate(value=p["value"], lo=p["lo"], hi=p["hi"], n=1, unit=p["unit"])
        source = p["source"] if p["origin"] == "assumed" else f"{where}: {p['source']}"
        out += [
            Primitive(
                kind=p["kind"],
                engine=p["engine"],
                access=p["access"],
                src=src,
                dst=dst,
                path="peer",
                link=data["link"],
                nbytes=p["nbytes"],
                active=p["active"],
                estimate=estimate,
                origin=p["origin"],
                source=source,
            )
            for src, dst in pairs
        ]
    return out


def manifest(data: dict[str, Any], done: list[BlockRecord]) -> Manifest:
    """What the run is; the recipe carries the caveats and the series that were read."""
    machine = Machine(
        world=data["world"],
        device_kind="cuda",
        device_name=data["device"],
        compute_capability=(12, 0),
        facts={"p2p": True, "nvlink": False},
    )
    recipe = {
        "published": f"{data['repository']} at {data['commit']}",
        "caveats": data["caveats"],
        "interval": f"+-{half_width(data):.1%}: spread of the sizes published twice",
    }
    return Manifest(
        schema=SCHEMA_VERSION,
        run_id=data["title"],
        origin="published",
        started=f"{data['seen']}T00:00:00Z",
        recipe=recipe,
        seed=0,
        launches=1,
        machine=machine,
        versions={},
        env={},
        blocks_done=tuple(r.block.id for r in done),
    )


def write(folder: Path) -> Path:
    """Write `folder`/run from `folder`/published.toml; returns the run directory."""
    data = tomllib.loads((folder / "published.toml").read_text(encoding="utf-8"))
    out = folder / "run"
    shutil.rmtree(out, ignore_errors=True)
    writer = rundir.Writer(out)
    done = records(data)
    for record in done:
        writer.block(record)
    writer.primitives(primitives(data))
    writer.manifest(manifest(data, done))
    return out


if __name__ == "__main__":
    print(write(Path(sys.argv[1]) if len(sys.argv) > 1 else DEFAULT))
