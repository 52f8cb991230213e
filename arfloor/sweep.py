"""Measure all-reduce on this box: `torchrun --standalone --nproc-per-node=N -m arfloor.sweep [RECIPE.toml]`.

Every rank runs this same program as a supervisor: it reads the command line, agrees with the others
on what to do, starts workers that measure (`arfloor.runtime`), and rank 0 reports. Exit codes:

    0    done; failed cases are listed in the report
    2    input or machine unfit: one line on rank 0, nothing written
    4    nothing could be measured
    5    a result was wrong, or faster than the bound
    130  interrupted, or the disk is full; what was done is kept (and reported, where it can be)
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, TypeVar

import cyclopts
from cyclopts import App, Parameter

from arfloor import __version__, recipes, rundir
from arfloor.backends import registry
from arfloor.core import plan as planning
from arfloor.core.cases import Machine
from arfloor.core.recipe import BadInput, Recipe, check_groups, parse_groups
from arfloor.runtime import machine as machines
from arfloor.runtime.ranks import Ranks, StoreLost, place
from arfloor.runtime.spares import Spares, started

T = TypeVar("T")
OK, BAD_INPUT, NOTHING, WRONG, INTERRUPTED = 0, 2, 4, 5, 130
DEFAULT_RECIPE = "decode"


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """The command line, read and checked as far as that goes without knowing the machine."""

    recipe: Recipe
    out: str | None
    resume: str | None
    dry_run: bool


app = App(
    name="torchrun -m arfloor.sweep",
    help="Measure all-reduce on this box, check it, and say how far it is from the floor.",
    version=__version__,
    result_action="return_value",
)


@Parameter(name="*")
@dataclass(frozen=True, slots=True, kw_only=True)
class Replaced:
    """Keys of the recipe that the command line replaces, in its words."""

    sizes: str | None = None
    """Sizes of one rank's message, as 4096,256KiB,1MiB."""
    dtypes: str | None = None
    """Of float32, float16, bfloat16."""
    backends: str | None = None
    """Names, or package.module:Class."""
    paths: str | None = None
    """Of peer, host, cpu."""
    modes: str | None = None
    """Of graph, eager, isolated."""
    devices: str | None = None
    """auto, cpu or cuda."""
    groups: str | None = None
    """Groups of ranks that reduce at the same time, as 0,1;2,3."""
    budget: float | None = None
    """Seconds of timing in all."""

    def keys(self) -> dict[str, Any]:
        """The recipe's keys that were given, with values as a recipe file has them. Raises BadInput."""
        lists = ("sizes", "dtypes", "backends", "paths", "modes")
        given = {key: _listed(getattr(self, key)) for key in lists} | {
            "devices": self.devices,
            "groups": None if self.groups is None else parse_groups(self.groups),
            "budget_s": self.budget,
        }
        return {key: value for key, value in given.items() if value is not None}


@app.default
def read_command_line(
    recipe: str | None = None,
    *,
    replaced: Replaced | None = None,
    out: str | None = None,
    resume: str | None = None,
    dry_run: Annotated[bool, Parameter(negative="")] = False,
    from_: Annotated[str | None, Parameter(name="--from")] = None,
) -> Wanted:
    """Read the command line.

    Parameters
    ----------
    recipe
        A shipped recipe (decode, libraries, nccl-grid, smoke, tp4) or a TOML file. Default: decode.
    out
        Folder to write to. Default: a new one under runs/.
    resume
        A run directory to complete; its recipe holds.
    dry_run
        Say what would be measured, and measure nothing.
    from_
        A run directory whose recipe to measure again.
    """
    overrides = replaced.keys() if replaced else {}
    if resume is not None:
        extra = [*overrides, *(k for k, v in (("recipe", recipe), ("out", out), ("from", from_)) if v)]
        if extra:
            raise BadInput(f"{extra[0]}: not allowed with --resume, which completes the run as it was begun")
    if from_ is not None and recipe is not None:
        raise BadInput(f"recipe: {recipe!r} is not allowed with --from, which brings its own")
    source = resume or from_
    values = _recorded(source) if source else recipes.load(recipe or DEFAULT_RECIPE)
    made = recipes.make({**values, **overrides})
    return Wanted(recipe=made, out=out, resume=resume, dry_run=dry_run)


def _listed(text: str | None) -> list[str] | None:
    return None if text is None else [part.strip() for part in text.split(",") if part.strip()]


def _recorded(path: str) -> dict[str, Any]:
    try:
        return dict(rundir.load(path).manifest.recipe)
    except rundir.RunDirError as error:
        raise BadInput(str(error)) from error


def parse(argv: list[str]) -> Wanted:
    """The command line, read and checked. Raises BadInput."""
    try:
        result: Wanted = app(argv, exit_on_error=False, print_error=False)
    except cyclopts.CycloptsError as error:
        raise BadInput(f"command line: {' '.join(str(error).split())}; see --help") from error
    return result


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreed:
    """What all ranks know before anything is written."""

    wanted: Wanted
    machine: Machine
    chosen: list[registry.Chosen]
    plan: planning.RunPlan


def agree(ranks: Ranks, argv: list[str], facts: machines.Facts) -> Agreed:
    """Read, check and plan on every rank; a mistake seen by one is raised by all, as rank 0's one line.

    Raises BadInput.
    """
    wanted = jointly(ranks, "input", lambda: parse(argv))
    every = ranks.exchange("facts", {"facts": asdict(facts), "recipe": asdict(wanted.recipe)})
    all_facts = [entry["facts"] for entry in every]

    def check() -> Agreed:
        machines.agreed(all_facts)
        if any(entry["recipe"] != every[0]["recipe"] for entry in every):
            raise BadInput("recipe: ranks were given different ones; start all with one command line")
        kind = machines.device_kind(wanted.recipe.devices, ranks.world, all_facts)
        machine = machines.machine(kind, ranks.world, facts)
        check_groups(wanted.recipe, ranks.world)
        chosen = registry.choose(wanted.recipe.backends, kind)
        plan = planning.make_plan(
            wanted.recipe, machine, registry.offers(chosen, machine), registry.supports(chosen, machine)
        )
        largest = max(
            (c for b in plan.launches[0].blocks for c in b.cases), key=lambda c: c.nbytes, default=None
        )
        if largest is not None:
            most = max(len(row.cases) for launch in plan.launches for row in launch.blocks)
            machines.check_memory(largest.nbytes, ranks.world, 4, most, all_facts)
        return Agreed(wanted=wanted, machine=machine, chosen=chosen, plan=plan)

    return jointly(ranks, "plan", check)


def jointly(ranks: Ranks, name: str, action: Callable[[], T]) -> T:
    """Run `action` on every rank; if it raises BadInput on any, all raise the lowest rank's."""
    value, error = None, None
    try:
        value = action()
    except BadInput as raised:
        error = str(raised)
    first = next((e for e in ranks.exchange(f"errors/{name}", error) if e is not None), None)
    if first is not None:
        raise BadInput(first)
    return value  # type: ignore[return-value]


def run_directory(ranks: Ranks, wanted: Wanted) -> Path:
    """Rank 0 chooses and makes the folder; the others must see it. Raises BadInput."""

    def make() -> str | None:
        if ranks.rank != 0:
            return None
        if wanted.resume is not None:
            path = Path(wanted.resume)
        elif wanted.out is not None:
            path = Path(wanted.out)
            if path.exists() and (not path.is_dir() or any(path.iterdir())):
                raise BadInput(
                    f"out: {wanted.out!r} exists and is not empty; give a new folder, or --resume it"
                )
        else:
            stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
            path = next(p for n in range(1, 1000) if not (p := Path("runs") / f"{stamp}-{n}").exists())
        try:
            (path / ".work").mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise BadInput(f"out: cannot make {str(path)!r}: {error.strerror}") from error
        return str(path.resolve())

    root = Path(ranks.from_first("root", jointly(ranks, "out", make)))

    def see() -> None:
        if not (root / ".work").is_dir():
            raise BadInput(
                f"out: rank {ranks.rank} does not see rank 0's {str(root)!r}; give a shared folder"
            )

    jointly(ranks, "see", see)
    return root


def _refuse(error: BadInput) -> int:
    """One line on what is unfit. torchrun tells of any status but 0 at length, which no setting turns off."""
    torchrun = "TORCHELASTIC_RUN_ID" in os.environ
    rest = " (What torchrun prints below is about this and says no more.)" if torchrun else ""
    print(f"arfloor: {error}{rest}", file=sys.stderr, flush=True)
    return BAD_INPUT


def main(argv: list[str] | None = None) -> int:
    """The whole command on one rank. Returns the exit code."""
    from arfloor.runtime.driver import Signals

    argv = sys.argv[1:] if argv is None else argv
    if {"-h", "--help", "--version"} & set(argv):
        if os.environ.get("RANK", os.environ.get("OMPI_COMM_WORLD_RANK", "0")) == "0":
            app(argv, exit_on_error=False, print_error=False)
        return OK
    signals = Signals()
    try:
        where = place(os.environ)
        machines.forget_binding(where.launcher)
        if where.world < 2:
            raise BadInput(
                f"ranks: an all-reduce needs at least 2 ranks, found {where.world}; raise the count"
            )
        # first of all: they import torch while this process does
        spares = started(os.environ, where.rank, dry_run="--dry-run" in argv)
    except BadInput as error:
        return _refuse(error)
    with contextlib.closing(spares):
        try:
            ranks = Ranks(where)
        except BadInput as error:
            return _refuse(error)
        return _among(ranks, argv, signals, spares)


_UNWRITABLE = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)


def _among(ranks: Ranks, argv: list[str], signals: Any, spares: Spares) -> int:
    """The command on one of `ranks`: what ends it early becomes one line and an exit code."""
    try:
        return _on_rank(ranks, argv, signals, spares)
    except BadInput as error:
        return _refuse(error) if ranks.rank == 0 else BAD_INPUT
    except (StoreLost, TimeoutError) as error:
        print(f"arfloor: rank {ranks.rank} lost the others: {error}", file=sys.stderr)
        return INTERRUPTED
    except OSError as error:
        if error.errno not in _UNWRITABLE:
            raise
        where = f"{error.filename}: " if error.filename else ""
        print(
            f"arfloor: rank {ranks.rank}: {where}{error.strerror}; what was done is kept: "
            "make room, then go on with --resume",
            file=sys.stderr,
        )
        return INTERRUPTED
    finally:
        _leave(ranks)
        # torchrun ends the others as soon as the first rank has failed: each keeps its own exit code
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)


def _leave(ranks: Ranks) -> None:
    """Rank 0 may hold the store: it goes last."""
    with contextlib.suppress(StoreLost, TimeoutError):
        ranks.set(f"left/{ranks.rank}", 1)
        if ranks.place.serves:
            for rank in range(ranks.world):
                ranks.wait(f"left/{rank}", timeout_s=10.0)


def _on_rank(ranks: Ranks, argv: list[str], signals: Any, spares: Spares) -> int:
    from arfloor.runtime import running

    agreed = agree(ranks, argv, machines.facts())
    plan = agreed.plan
    if agreed.wanted.resume is not None:
        previous = jointly(ranks, "resume", lambda: running.previous(agreed.wanted.resume, agreed.machine))
        plan = planning.without_done(plan, rundir.blocks_done(previous))
    if agreed.wanted.dry_run:
        if ranks.rank == 0:
            print("\n".join(planning.describe(plan)))
        return OK
    root = run_directory(ranks, agreed.wanted)
    job = running.job(root, agreed.wanted.recipe, agreed.machine, {c.name: c.spec for c in agreed.chosen})
    state = running.carry_out(job, ranks, signals, plan, agreed.wanted.recipe, agreed.machine, spares)
    code = _report(root, state.interrupted) if ranks.rank == 0 else OK
    if state.interrupted:
        return INTERRUPTED
    return int(ranks.from_first("exit", code, timeout_s=300.0))


def _report(root: Path, interrupted: bool) -> int:
    """Rank 0: print the card, and where it all lies. Returns the exit code."""
    from arfloor import report

    run = rundir.load(root)
    judged, card = report.write_run(run)
    print(card)
    print(f"run directory: {root}")
    statuses = [r.status for r in run.results]
    for f in judged.impossible:
        print(f"arfloor: {f.label}, {f.mode}: {f.explanation}; {f.detail}", file=sys.stderr)
    if "wrong" in statuses or judged.impossible:
        return WRONG
    if interrupted:
        return INTERRUPTED
    return OK if "ok" in statuses else NOTHING


if __name__ == "__main__":
    sys.exit(main())
