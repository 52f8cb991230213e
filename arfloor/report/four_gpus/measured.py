"""What runs on two to four GPUs measured of what is predicted: sweeps and decode steps under one folder."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import pairwise
from math import log
from pathlib import Path
from typing import Any

from arfloor import rundir
from arfloor.core.cases import Result
from arfloor.core.errors import InputError
from arfloor.core.floor import check_bound, floor
from arfloor.core.misses import Expected
from arfloor.report.four_gpus.predicted import SIZES, TP, WORLDS, crossing, key

Found = dict[tuple[str, ...], float]

# variants that are one shape each, by path; their grids are by rule of thumb
SHAPE_OF = {
    ("peer", "line128"): "one-shot",
    ("peer", "line512-two"): "two-shot",
    ("peer", "line128-staged"): "one-shot staged",
    ("peer", "line512-two-staged"): "two-shot staged",
    ("peer", "pull"): "one-shot pull",
    ("host", "line512"): "one-shot",
    ("host", "line512-two"): "two-shot",
}


def measured(folder: Path) -> Found:
    """By the keys of the predictions, in their units, from every run directory and decode-*.json in `folder`.

    A later folder, by name, replaces an earlier one. Raises InputError when there is neither.
    """
    runs = sorted(p.parent for p in folder.glob("*/manifest.json"))
    runs += [folder] if (folder / "manifest.json").is_file() else []
    steps = sorted(folder.glob("decode-*.json"))
    if not runs and not steps:
        raise InputError(
            f"{folder}: expected run directories or decode-*.json of four GPUs, found neither; "
            "run `python tools/four_gpus.py sweeps` first"
        )
    found: Found = {}
    for run in runs:
        found |= dict(_of_run(rundir.load(run)))
    for file in steps:
        found |= dict(_of_steps(file))
    return found


def _of_run(run: rundir.Run) -> Iterator[tuple[tuple[str, ...], float]]:
    world = run.manifest.machine.world
    if world not in WORLDS or run.manifest.machine.device_kind != "cuda":
        return
    for path in sorted({r.case.path for r in run.results if r.case.path != "cpu"}):
        for nbytes in SIZES:
            cases = [r for r in run.results if _graph(r) and (r.case.path, r.case.nbytes) == (path, nbytes)]
            limits = floor(
                run.primitives, path=path, world=world, nbytes=nbytes, dtype="bfloat16", mode="graph"
            )
            if limits is not None:
                yield key(world, path, nbytes, "bound"), limits.bound.value
                yield key(world, path, nbytes, "attainable"), limits.attainable.value
                cases = [r for r in cases if check_bound(r, limits) is r]
            for what, us in _of_cases(cases).items():
                yield key(world, path, nbytes, what), us
        if world > 2 and floor(
            run.primitives, path=path, world=world, nbytes=1, dtype="bfloat16", mode="graph"
        ):
            yield ("crossover", str(world), path, "attainable"), crossing(run.primitives, path, world).value
        ours = _shapes(run, path)
        where = where_overtaken(ours["one-shot"], ours["two-shot"]) if world > 2 else None
        if where is not None:
            yield ("crossover", str(world), path, "ours"), where


def _shapes(run: rundir.Run, path: str) -> dict[str, dict[int, float]]:
    """us by bytes of our one-shot and two-shot."""
    found: dict[str, dict[int, float]] = {"one-shot": {}, "two-shot": {}}
    for result in run.results:
        shape = SHAPE_OF.get((path, result.case.variant))
        if shape in found and result.case.backend == path and _graph(result) and result.latency:
            found[shape][result.case.nbytes] = result.latency.value
    return found


def where_overtaken(first: dict[int, float], second: dict[int, float]) -> float | None:
    """Bytes at which `second` becomes the faster of two, on straight lines in log-log; None if it never does.

    None also where it is the faster from the smallest common size on: where it overtook lies below that.
    """
    sizes = sorted(first.keys() & second.keys())
    for a, b in pairwise(sizes):
        before, after = (log(second[n] / first[n]) for n in (a, b))
        if before > 0 >= after:
            return float(a * (b / a) ** (before / (before - after)))
    return None


def _graph(result: Result) -> bool:
    case = result.case
    usual = case.mode == "graph" and case.dtype == "bfloat16" and not case.groups
    return usual and result.status == "ok" and result.latency is not None


def _of_cases(cases: list[Result]) -> dict[str, float]:
    """What of one path and size is predicted, in us. NCCL's settings beyond this path's own are left out."""
    found: dict[str, float] = {}
    nccl: list[float] = []
    for result in cases:
        assert result.latency is not None
        case, us = result.case, result.latency.value
        if case.backend == "nccl":
            nccl.append(us)
            if case.variant == "default" and dict(case.settings).get("NCCL_P2P_LEVEL") is None:
                found["NCCL default"] = us
        elif case.backend == case.path:
            shape = SHAPE_OF.get((case.path, case.variant))
            if shape or case.variant == "auto":
                found[f"ours, {shape}" if shape else "ours, tuned"] = us
    return found | ({"NCCL best": min(nccl)} if nccl else {})


def _of_steps(file: Path) -> Iterator[tuple[tuple[str, ...], float]]:
    """Gains of a decode step at four ranks. Raises InputError on another file."""
    try:
        record: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        if record["world"] != TP:
            return
        for batch in record["batches"]:
            gained = batch["us"]["nccl default"] / batch["us"]["ours"] - 1
            if batch["alike"]:  # ranks that differ have reduced wrongly: no gain
                yield ("decode", str(record["path"]), str(batch["batch"])), gained
    except (OSError, ValueError, KeyError, TypeError, ZeroDivisionError) as error:
        raise InputError(
            f"{file}: expected what microbench/decode_step.py --json writes, found {type(error).__name__} "
            f"({error}); run it again"
        ) from error


def recorded(expected: tuple[Expected, ...]) -> Found:
    """What the recorded pair measured, at two ranks: where no run is given."""
    from arfloor import library
    from arfloor.report.four_gpus.predicted import RECORDED

    found: Found = {}
    for name in RECORDED.values():
        found |= dict(_of_run(rundir.load(library.recorded_run(name))))
    wanted = {e.key for e in expected}
    return {k: v for k, v in found.items() if k in wanted}
