"""How long the statistics take: a benchmark to run by hand, no test.

python -m tests.benchmark [CASES]     fits with intervals, and merging the samples of a run
"""

from __future__ import annotations

import os
import resource
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor

import numpy as np

from arfloor import rundir
from arfloor.core.cases import Block, BlockRecord, Case, Estimate, Machine, Manifest, Result, Samples
from arfloor.core.fits import fit
from tests.worlds import CURVES, World, rounds_of


def fit_one(seed: int) -> int:
    curve = list(CURVES.values())[seed % len(CURVES)]
    return len(fit(curve.points(np.random.default_rng(seed))).segments)


def write_run(path: str, cases: int) -> None:
    """A run of `cases` cases: two launches, ten rounds, twelve replays, two ranks."""
    world = World(cases=cases)
    us = world.draw(np.random.default_rng(0))
    writer = rundir.Writer(path)
    machine = Machine(world=2, device_kind="cpu", device_name="drawn")
    writer.manifest(
        Manifest(
            schema=1, run_id="benchmark", origin="assumed", started="2026-01-01T00:00:00Z", recipe={}, seed=0,
            launches=2, machine=machine, versions={}, env={},
        )
    )  # fmt: skip
    devices = ("cpu:0", "cpu:1")
    made = [
        Case(backend="drawn", path="cpu", devices=devices, numel=i + 1, dtype="float32", mode="eager")
        for i in range(cases)
    ]
    for rank in (0, 1):
        writer.samples(
            rank,
            [
                Samples(case_id=case.id, launch=i, round=j, rank=rank, us=tuple(replays))
                for case, values in zip(made, us, strict=True)
                for (i, j), replays in rounds_of(values).items()
            ],
        )
    estimate = Estimate(value=1.0, lo=1.0, hi=1.0, n=1, unit="us")
    for launch in (0, 1):
        for case in made:
            block = Block(
                id=case.id, settings=(), path="cpu", devices=devices, dtype="float32", numel=case.numel,
                case_ids=(case.id,),
            )  # fmt: skip
            result = Result(case=case, status="ok", latency=estimate, block_id=case.id)
            writer._append(
                "results.jsonl", [BlockRecord(schema=1, block=block, launch=launch, results=(result,))]
            )


def main(cases: int) -> None:
    start = time.perf_counter()
    for seed in range(cases // 10):
        fit_one(seed)
    one = (time.perf_counter() - start) / (cases // 10)
    start = time.perf_counter()
    with ProcessPoolExecutor(2) as pool:
        list(pool.map(fit_one, range(cases), chunksize=20))
    both = time.perf_counter() - start
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    busy = children.ru_utime + children.ru_stime
    print(f"fits: {one * 1e3:.1f} ms a case in one process; {cases} cases in {both:.1f} s in two processes")
    print(f"      ({busy:.1f} s of processor time; load of the machine {os.getloadavg()[0]:.1f})")
    with tempfile.TemporaryDirectory() as path:
        write_run(path, cases)
        start = time.perf_counter()
        run = rundir.load(path)
        whole = time.perf_counter() - start
    from arfloor.core.merge import merge_results

    start = time.perf_counter()
    merge_results(run.records, run.samples)
    print(
        f"load: {len(run.samples)} samples of {cases} cases in {whole:.1f} s, "
        f"{time.perf_counter() - start:.2f} s of it statistics"
    )


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 1000)
