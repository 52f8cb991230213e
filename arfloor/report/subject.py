"""What `arfloor report` is asked about: what a run measured, or what a description of its box predicts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from arfloor import library
from arfloor.core.cases import Path as Way
from arfloor.core.errors import InputError
from arfloor.report import model
from arfloor.rundir import Run, load

if TYPE_CHECKING:
    from arfloor.core.outlook import Outlook
    from arfloor.core.rig import Rig


def of_run(path: Path, world: int | None = None, way: Way | None = None) -> model.Report | Outlook:
    """What a run measured at `world` ranks on `way` (all of it unless given); where it measured nothing
    there, what its own probes predict.

    Raises InputError when neither is to be had.
    """
    return _measured_or_predicted(load(path), None, world, way)


def of_topology(name: str, world: int | None = None, way: Way | None = None) -> model.Report | Outlook:
    """The run recorded on a box, as `of_run`; without one, what its description predicts (for all its
    GPUs unless `world` is given). Where the recorded ranks are fewer than asked for, the description
    answers. Raises InputError.
    """
    box = library.box(name)
    if box.run is not None:
        return _measured_or_predicted(load(box.run), box.rig, world, way)
    assert box.rig is not None  # a box has at least one of them
    return _predict(box.rig, f"the description of {name} (topology.toml)", world, way)


def _measured_or_predicted(
    run: Run, described: Rig | None, world: int | None, way: Way | None
) -> model.Report | Outlook:
    _check(world)
    report = model.build(run)
    kept = tuple(s for s in report.sections if world in (None, s.world) and way in (None, s.path))
    if kept or (world is None and way is None):
        return replace(report, sections=kept)
    asked = (
        world
        if world is not None
        else max((s.world for s in report.sections), default=run.manifest.machine.world)
    )
    refusals = []
    own, why = _rig_of(run)
    refusals += [why] if why else []
    sources = [(own, f"the probes of run {run.manifest.run_id}")] if own else []
    sources += [(described, f"the description of {described.name} (topology.toml)")] if described else []
    for rig, source in sources:
        try:
            return _predict(rig, source, asked, way)
        except InputError as error:
            refusals.append(str(error))
    raise InputError(_nothing(report, world, way, refusals))


def _rig_of(run: Run) -> tuple[Rig | None, str]:
    """The box as the run's own probes describe it, or why they do not."""
    from arfloor.core.rig_of_run import rig_of_run

    if run.manifest.machine.device_kind != "cuda":
        return None, "only runs on GPUs can be predicted from"
    source = f"run {run.manifest.run_id}"
    try:
        return rig_of_run(run.manifest.machine, run.primitives, name=run.manifest.run_id, source=source), ""
    except ValueError as error:
        return None, str(error)


def _predict(rig: Rig, source: str, world: int | None, way: Way | None) -> Outlook:
    from arfloor.core.outlook import outlook

    _check(world)
    try:
        return outlook(rig, world=len(rig.gpus) if world is None else world, path=way, source=source)
    except ValueError as error:
        raise InputError(str(error)) from error


def _check(world: int | None) -> None:
    if world is not None and world < 2:
        raise InputError(f"--world {world}: expected the number of ranks, 2 or more")


def _nothing(report: model.Report, world: int | None, way: Way | None, refusals: list[str]) -> str:
    """Why there is nothing to show, in one line."""
    asked = " ".join(f"--{k} {v}" for k, v in (("world", world), ("path", way)) if v is not None)
    worlds = ", ".join(str(w) for w in sorted({s.world for s in report.sections})) or "nothing"
    ways = ", ".join(sorted({s.path for s in report.sections}))
    why = f"; no prediction: {'; '.join(refusals)}" if refusals else ""
    return f"{asked}: not in this run; measured: {worlds} ranks{f' on {ways}' if ways else ''}{why}"
