"""From an agreed plan to a complete run directory: the manifest around the driver."""

from __future__ import annotations

import os
import subprocess
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from arfloor import rundir
from arfloor.core import redact
from arfloor.core.cases import SCHEMA_VERSION, Machine, Manifest
from arfloor.core.plan import RunPlan, devices_of
from arfloor.core.recipe import BadInput, Recipe
from arfloor.runtime import machine as machines
from arfloor.runtime import supervisor
from arfloor.runtime.driver import Driver, Job, Signals, Watch
from arfloor.runtime.ranks import Ranks
from arfloor.runtime.show import Show
from arfloor.runtime.spares import Spares

# `module:function`, loaded by workers: the layer above may not be imported from here
PRIMITIVES = {"cpu": "arfloor.primitives.cpu:measure", "cuda": "arfloor.primitives.gpu:measure"}
# GPUs are nobody else's during a sweep; CPU ranks share their cores, so theirs are probed again and again
AGAIN = {"cpu": "arfloor.primitives.cpu:Again"}


def previous(path: str | None, machine: Machine) -> rundir.Run:
    """The run to resume. Raises BadInput when it cannot be read or was made on another machine."""
    try:
        run = rundir.load(path or "")
    except rundir.RunDirError as error:
        raise BadInput(str(error)) from error
    then = run.manifest.machine
    if run.manifest.origin != "measured":
        raise BadInput(f"resume: {path} holds {run.manifest.origin} figures, not a measured run")
    if any(note.startswith(rundir.KEPT) for note in run.manifest.notes):  # its launches are merged into one
        raise BadInput(
            f"resume: {path} was kept without its samples; resume the run that it is of, or use --from"
        )
    for name, before, now in (
        ("ranks", then.world, machine.world),
        ("device", then.device_kind, machine.device_kind),
        ("device name", then.device_name, machine.device_name),
        *((key, then.versions.get(key), machine.versions.get(key)) for key in ("arfloor", "torch", "mpi4py")),
    ):
        if before != now:
            raise BadInput(
                f"resume: {path} was measured with {name} {before}, found {now}; "
                "measure anew with --from, or restore what was"
            )
    return run


def job(root: Path, recipe: Recipe, machine: Machine, backends: dict[str, str]) -> Job:
    """What the driver needs of an agreed run."""
    return Job(
        root=root,
        run_id=f"{root.name}-{os.environ.get('TORCHELASTIC_RUN_ID', '')}",
        devices=devices_of(machine),
        backends=backends,
        primitives=PRIMITIVES[machine.device_kind] if recipe.primitives else None,
        again=AGAIN.get(machine.device_kind) if recipe.primitives else None,
        seed=recipe.seed,
        interval=recipe.interval,
        timeout_s=recipe.timeout_s,
    )


def carry_out(
    work: Job,
    ranks: Ranks,
    signals: Signals,
    plan: RunPlan,
    recipe: Recipe,
    machine: Machine,
    spares: Spares | None = None,
) -> supervisor.State:
    """Run the plan. Rank 0 keeps the manifest and shows progress; others are silent."""
    rundir.drop_incomplete(work.root, ranks.rank)
    if ranks.rank != 0:
        return Driver(work, ranks, signals, Watch(), spares).run(plan)
    writer = rundir.Writer(work.root)
    manifest = _manifest(work.root, recipe, machine)
    writer.manifest(manifest)
    writer.event(
        at=_now(),
        event="start",
        ranks=ranks.world,
        launcher=ranks.place.launcher,
        blocks=len(rundir.blocks_done(rundir.load(work.root))) + plan.blocks,
    )
    show = Show(plan)
    done = list(manifest.blocks_done)

    def event(**fields: Any) -> None:
        writer.event(at=_now(), **fields)
        if fields["event"] == "launch":
            show.launch(fields["index"])

    watch = Watch(note=show.note, event=event)

    def block(line: dict[str, Any]) -> None:
        done.append(f"{line['block']}@{line['launch']}")
        writer.manifest(replace(manifest, blocks_done=tuple(done)))
        writer.event(at=_now(), event="block", block=line["block"], launch=line["launch"])
        show.block(line)

    watch.block = block
    try:
        state = Driver(work, ranks, signals, watch, spares).run(plan)
    finally:
        show.close()
    _finish(writer, manifest, state)
    return state


def _finish(writer: rundir.Writer, manifest: Manifest, state: supervisor.State) -> None:
    run = rundir.load(writer.root)
    done = tuple(f"{r.block.id}@{r.launch}" for r in run.records)
    failures = (*manifest.failures, *state.failures)
    writer.manifest(replace(manifest, blocks_done=tuple(dict.fromkeys(done)), failures=failures))
    writer.event(at=_now(), event="interrupted" if state.interrupted else "end", failures=state.failures)


def _manifest(root: Path, recipe: Recipe, machine: Machine) -> Manifest:
    if (root / "manifest.json").is_file():
        return rundir.load(root).manifest
    names = machines.private_names()
    return Manifest(
        schema=SCHEMA_VERSION,
        run_id=root.name,
        origin="measured",
        started=_now(),
        recipe=asdict(recipe),
        seed=recipe.seed,
        launches=recipe.launches,
        machine=machine,
        versions=machine.versions,
        env=redact.redact_env(os.environ, names=names),
        git=_commit(),
    )


def _commit() -> str | None:
    """The commit of the source tree that arfloor runs from, or None where it is installed."""
    here = Path(__file__).resolve().parents[2]
    if not (here / ".git").exists():
        return None
    try:
        asked = subprocess.run(
            ["git", "-C", str(here), "rev-parse", "HEAD"],
            capture_output=True,
            text=True,
            timeout=5,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return asked.stdout.strip() if asked.returncode == 0 else None  # a tree without commits echoes HEAD


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
