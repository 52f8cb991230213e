"""The process that measures: `python -m arfloor.runtime.worker PLAN`, started by a supervisor.

PLAN is a JSON file (`WorkPlan`); with `--wait MODULE...` instead it is told on standard input, later
(`arfloor.runtime.spares`). The rank comes from ARFLOOR_RANK, or from MPI when the launcher is
mpiexec. It reports to its progress file, writes what it measured, and dies with its supervisor.
"""

from __future__ import annotations

import ctypes
import importlib
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from arfloor import rundir
from arfloor.core.cases import SCHEMA_VERSION, Case, Primitive, record
from arfloor.core.plan import BlockPlan, LaunchPlan
from arfloor.runtime import spares
from arfloor.runtime.agree import FATAL_EXIT, Failure, one_line, together
from arfloor.runtime.group import MpiGroup, TorchGroup
from arfloor.runtime.measure import Bench, measure_block
from arfloor.runtime.probe import see_what_runs
from arfloor.runtime.progress import Progress, progress_file
from arfloor.runtime.timing import StartLine

PRIMITIVES_S = 60.0
_PR_SET_PDEATHSIG = 1
Again = Callable[[], list[Primitive]]
T = TypeVar("T")


@record
class WorkPlan:
    """What a worker is told. `backends` maps names to `module:Class`.

    `primitives` is a `module:function` that probes the links before the first block; `again` a
    `module:Class` whose instance, called after each block, returns probes that turned out better.
    """

    root: str
    run_id: str
    attempt: int
    launch: LaunchPlan
    devices: tuple[str, ...]
    backends: dict[str, str]
    store_host: str
    store_port: int
    seed: int
    interval: float
    timeout_s: float
    startup_s: float
    primitives: str | None = None
    again: str | None = None


def die_with_parent() -> None:
    """Linux: be killed when the process that started this one ends, however it ends."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def load(spec: str) -> Any:
    """The object that `module:name` names."""
    module, _, name = spec.partition(":")
    return getattr(importlib.import_module(module), name)


def open_device(device: str) -> None:
    """Make `device` (`cuda:1`, `cpu:0`) this process's own."""
    kind, _, index = device.partition(":")
    if kind == "cuda":
        import torch

        torch.cuda.set_device(int(index))
    elif "torch" in sys.modules:
        import torch

        torch.set_num_threads(1)  # ranks share the host's cores


def main(argv: list[str]) -> int:
    """Run one launch. Returns 0, or exits with FATAL_EXIT after reporting why."""
    die_with_parent()
    adapter = rundir.adapter(WorkPlan)
    file = spares.await_order(argv[2:]) if argv[1] == spares.WAIT else argv[1]
    if file is None:
        return 0
    plan = adapter.validate_json(Path(file).read_text(encoding="utf-8"))
    mpi = plan.launch.launcher == "mpiexec"
    # the rank under mpiexec is known only after MPI_Init; until then Open MPI's own variable says it
    rank = int(os.environ["OMPI_COMM_WORLD_RANK"] if mpi else os.environ["ARFLOOR_RANK"])
    progress = Progress(progress_file(plan.root, plan.launch.index, plan.attempt, rank))
    progress.line("phase", name="startup", deadline_s=plan.startup_s)
    try:
        _run(plan, rank, progress, mpi)
    except Exception as error:  # noqa: BLE001 - whatever it is, the supervisor must hear of it
        progress.line("broken", reason="worker_died", message=one_line(error))
        sys.stderr.flush()
        os._exit(FATAL_EXIT)
    progress.line("exit")
    if not mpi:
        os._exit(0)  # everything is written; libraries' destructors may hang or abort
    return 0


def _run(plan: WorkPlan, rank: int, progress: Progress, mpi: bool) -> None:
    group = (
        MpiGroup()
        if mpi
        else TorchGroup(
            host=plan.store_host,
            port=plan.store_port,
            prefix=f"{plan.run_id}/workers/{plan.launch.index}/{plan.attempt}",
            rank=rank,
            world=len(plan.devices),
            timeout_s=plan.startup_s,
        )
    )
    open_device(plan.devices[rank])
    work = Path(plan.root) / ".work"
    os.environ["ARFLOOR_PLANS_DIR"] = str(work)  # what one launch tunes, the next need not tune again
    bench = Bench(
        group=group,
        rank=rank,
        device=plan.devices[rank],
        work=work,
        start=StartLine(work / f"start-{plan.launch.index}-{plan.attempt}", group),
        progress=progress,
        backends={name: load(spec)() for name, spec in plan.backends.items()},
        launch=plan.launch.launch,
        seed=plan.seed,
        timed_s=plan.launch.timed_s,
        interval=plan.interval,
        timeout_s=plan.timeout_s,
    )
    writer = rundir.Writer(plan.root)
    if plan.launch.probe:
        see_what_runs(bench, writer, plan.launch.blocks, work / f"probe-{plan.launch.index}-{rank}")
        group.close()
        return
    bench.ran = rundir.ran_by_case(plan.root)
    if plan.launch.primitives and plan.primitives:
        _primitives(plan, bench, writer)
    again = _made_again(plan, bench)
    for row in plan.launch.blocks:
        _block(bench, writer, row)
        if again is not None:
            _again(plan, bench, writer, again)
    group.close()


def _probed(plan: WorkPlan, bench: Bench, action: Callable[[], T]) -> tuple[T | None, Failure | None]:
    """Run `action` on every rank as the phase `primitives`; see `together`."""
    bench.progress.line("phase", name="primitives", deadline_s=PRIMITIVES_S + plan.timeout_s)
    return together(bench.group, bench.progress, "primitives", action)


def _primitives(plan: WorkPlan, bench: Bench, writer: rundir.Writer) -> None:
    """Probe the links. A failure is noted and costs the floor, not the run."""
    spec = plan.primitives
    assert spec is not None
    found, failure = _probed(plan, bench, lambda: load(spec)(bench, budget_s=PRIMITIVES_S / 10))
    if bench.rank == 0 and found is not None and failure is None:
        writer.primitives(found)
    bench.progress.line(
        "primitives", count=len(found or ()), failure="" if failure is None else failure.detail
    )


def _made_again(plan: WorkPlan, bench: Bench) -> Again | None:
    """The probes that are repeated beside blocks; None where there are none, or where a rank has none."""
    if not plan.again:
        return None
    spec = plan.again
    again, failure = _probed(plan, bench, lambda: load(spec)(bench))
    return None if failure else again


def _again(plan: WorkPlan, bench: Bench, writer: rundir.Writer, again: Again) -> None:
    """Probe once more beside a block; a failure costs nothing but these probes."""
    found, failure = _probed(plan, bench, again)
    if bench.rank == 0 and found and failure is None:
        writer.primitives(found)


def _short(case: Case) -> str:
    """Backend and variant: progress lines leave the settings out."""
    return case.backend if case.variant == "default" else f"{case.backend} {case.variant}"


def _block(bench: Bench, writer: rundir.Writer, row: BlockPlan) -> None:
    result, samples = measure_block(bench, row, SCHEMA_VERSION)
    writer.samples(bench.rank, samples)
    bench.group.barrier()  # rank 0's record makes the block count: all samples must lie on disk by then
    if bench.rank == 0:
        writer.block(result)
    summary = [
        [_short(r.case), r.status, None if r.latency is None else r.latency.value, r.reason]
        for r in result.results
    ]
    bench.progress.line("block", block=row.block.id, launch=bench.launch, summary=summary)


if __name__ == "__main__":
    sys.exit(main(sys.argv))
