"""Two to four GPUs of one box: measure what docs/four-gpus.md predicts, in two commands of ten minutes.

    python tools/four_gpus.py sweeps OUT     the recipe tp4 at four, three and two ranks
    python tools/four_gpus.py steps OUT      decode step, fused reduce, correctness at three and four ranks
    python tools/four_gpus.py scripts OUT    what scripts of microbench/ ask, both paths; seven minutes at two
    python tools/four_gpus.py compare OUT    every prediction beside its measurement; misses above 20 %
    python tools/four_gpus.py page [OUT]     write docs/four-gpus.md, with what OUT measured, and h200-x4

A step that fails or outlasts its time costs itself and nothing else: its output is in OUT/logs, and the last
lines of every step's are shown. The scripts among the steps write what they have as they go. Exit codes: 0, 1
when a step failed, 2 when the input is unfit. `--worlds 2` suits two GPUs. What follows `--` goes to each
sweep: `-- --devices cpu --backends gloo,mpi --budget 6` tries the sweeps on CPU ranks.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path

import jinja2

from arfloor import topologies_io
from arfloor.core.errors import InputError
from arfloor.core.misses import misses
from arfloor.report.four_gpus import measured, page, predicted
from arfloor.runtime.ranks import NO_MULTICAST

ROOT = Path(__file__).resolve().parent.parent
PAGE, TEMPLATE = ROOT / "docs" / "four-gpus.md", ROOT / "docs" / "four-gpus.md.j2"
BOX = ROOT / "topologies" / "h200-x4" / topologies_io.FILE_NAME
COMMAND_S = 580.0
"""What a command may take in all: ten minutes, less what it needs to end."""
ENDING_S = 20.0
"""What a step that was interrupted may take to keep and report what it has."""
STARTING_S = 20.0
"""What a script's ranks take to start, before its own limit counts."""
SHOWN = 20
"""Lines of a step's output that are shown."""
_LAUNCHER = re.compile(r"[WEI]\d{4} .*torch/distributed/|\*{20}|Setting OMP_NUM_THREADS")
HOST = {"NCCL_P2P_DISABLE": "1"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One process to run: `share` of the command's time at most, with `environment` besides the usual."""

    name: str
    argv: tuple[str, ...]
    share: float
    environment: tuple[tuple[str, str], ...] = ()


def torchrun(world: int, *arguments: str) -> tuple[str, ...]:
    """A command line that starts `world` ranks on this machine."""
    launcher = (sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={world}")
    return (*launcher, *arguments)


def sweeps(out: Path, worlds: tuple[int, ...], options: tuple[str, ...]) -> list[Step]:
    """A sweep a world, the largest first: what is cut off for lack of time is what is known best."""
    return [
        Step(
            name=f"world-{world}",
            argv=torchrun(
                world, "-m", "arfloor.sweep", "tp4", "--out", str(out / f"world-{world}"), *options
            ),
            share=0.4,
        )
        for world in worlds
    ]


def script(world: int, name: str, path: str, *arguments: str, limit_s: float, share: float) -> Step:
    """A script of microbench/ on one path, which ends by itself, between two rows, after `limit_s`."""
    return Step(
        name=f"{name}-{path}",
        argv=torchrun(world, *arguments, "--limit-s", f"{limit_s:.0f}"),
        share=share,
        environment=tuple(HOST.items()) if path == "host" else (),
    )


def steps(out: Path, world: int = 4, command_s: float = COMMAND_S) -> list[Step]:
    """What is no sweep, at `world` ranks; correctness at three and four (skipped on fewer GPUs)."""
    test = "pytest -q -rs -p no:cacheprovider tests/gpu/test_many_ranks.py"
    decode = "microbench/decode_step.py --variants default,16ch --rounds 9 --json"
    fused = "microbench/fused.py --rows 1,32 --json"

    def on(path: str, name: str, command: str, share: float) -> Step:
        limit_s = max(1.0, share * command_s - ENDING_S - STARTING_S)
        into = str(out / f"{name}-{path}.json")
        return script(world, name, path, *command.split(), into, limit_s=limit_s, share=share)

    return [
        *(on(path, "decode", decode, 0.25) for path in predicted.PATHS),
        Step(name="correctness", argv=(sys.executable, "-m", *test.split()), share=0.55),
        *(on(path, "fused", fused, 0.15) for path in predicted.PATHS),
    ]


# scripts of microbench/ by what they ask first, with the paths, and seconds a path on two GPUs
SCRIPTS = (
    ("torn_lines", ("host",), 25),
    ("quantised_wire", ("host",), 40),
    ("which_protocol_wins", ("host", "peer"), 60),
    ("contention", ("host",), 25),
    ("staging_saves", ("peer",), 50),
    ("slab_luck", ("host",), 25),
    ("capture_levels", ("peer", "host"), 30),
    ("quantised_wire", ("peer",), 30),
    ("torn_lines", ("peer",), 25),
)


def scripts(world: int, command_s: float = COMMAND_S) -> list[Step]:
    """Scripts of microbench/ at `world` ranks, at two the tests of two ranks; each with twice its time."""
    made = []
    for name, paths, seconds in SCRIPTS:
        if name == "staging_saves" and world < 3:
            continue
        for path in paths:
            limit_s = 2.0 * seconds
            share = (limit_s + STARTING_S + ENDING_S) / command_s
            made.append(script(world, name, path, f"microbench/{name}.py", limit_s=limit_s, share=share))
    if world == 2:
        argv = (sys.executable, "-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider")
        made.append(
            Step(name="two-ranks", argv=(*argv, "tests/gpu/test_two_ranks.py"), share=220 / command_s)
        )
    return made


def carry_out(out: Path, todo: list[Step], command_s: float) -> int:
    """Run the steps one after another within `command_s`; 1 when any failed, else 0."""
    logs = out / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    began, failed = time.monotonic(), False
    for step in todo:
        left = command_s - (time.monotonic() - began)
        limit = min(left, step.share * command_s)
        if limit < ENDING_S:
            print(f"{step.name}: not begun, {left:.0f} s are left", flush=True)
            failed = True
            continue
        log = logs / f"{step.name}.txt"
        started = time.monotonic()
        code = run(step, log, limit)
        took = time.monotonic() - started
        print(f"{step.name}: {'done' if code == 0 else code} after {took:.0f} s, {log}", flush=True)
        failed |= code != 0
        said = last_lines(log.read_text(encoding="utf-8", errors="replace"))
        print("\n".join(f"    {line[:160]}" for line in said), flush=True)
    return int(failed)


def last_lines(text: str) -> list[str]:
    """The last SHOWN lines of what ranks printed, without what their launcher says about their end."""
    lines = [line for line in text.splitlines() if line.strip() and not _LAUNCHER.match(line)]
    for i, line in enumerate(lines):
        frames = list(takewhile(lambda x: x.startswith(" "), lines[i + 1 :]))
        if line.startswith("Traceback") and any("torch/distributed/run.py" in x for x in frames):
            lines = lines[:i]
            break
    return lines[-SHOWN:]


def run(step: Step, log: Path, limit_s: float) -> int | str:
    """A step's exit code, or what became of it; its whole process group ends with it."""
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
    environment = {**os.environ, **NO_MULTICAST, "PYTHONPATH": path, **dict(step.environment)}
    with log.open("w", encoding="utf-8") as stream:
        process = subprocess.Popen(
            step.argv, cwd=ROOT, env=environment, stdout=stream, stderr=stream, start_new_session=True
        )
        try:
            code = process.wait(timeout=max(1.0, limit_s - ENDING_S))
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout=ENDING_S)
            return "out of time, what it had is kept"
        finally:  # what it left behind would disturb the next
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            with contextlib.suppress(subprocess.TimeoutExpired):  # one stuck in a driver may not even die
                process.wait(timeout=5)
    return code if code == 0 else f"failed with {code}"


def compare(out: Path) -> list[str]:
    """Every measured prediction on a line, then how many are to be explained. Raises InputError."""
    every = misses(predicted.predictions(), measured.measured(out))
    known = [m for m in every if m.measured is not None]
    lines = [("  ! " if m.to_explain else "    ") + page.line(m) for m in known]
    outside = sum(not m.inside for m in known)
    return [
        *lines,
        f"{len(known)} of {len(every)} predictions were measured; {sum(m.to_explain for m in known)} missed "
        f"by more than 20 % (marked !), {outside} lie outside their intervals",
    ]


def render(out: Path | None = None) -> str:
    """The page, with what `out` measured, else with what the recorded pair did. Raises InputError."""
    environment = jinja2.Environment(undefined=jinja2.StrictUndefined, keep_trailing_newline=True)
    found = measured.recorded(predicted.predictions())
    if out is not None:
        found |= measured.measured(out)
    return environment.from_string(TEMPLATE.read_text(encoding="utf-8")).render(page.facts(found))


def main(argv: list[str]) -> int:
    """The command. Returns its exit code."""
    split = argv.index("--") if "--" in argv else len(argv)
    parser = argparse.ArgumentParser(description="measure two to four GPUs of one box; see docs/four-gpus.md")
    parser.add_argument("what", choices=("sweeps", "steps", "scripts", "compare", "page"))
    parser.add_argument("out", type=Path, nargs="?", help="folder of the runs")
    parser.add_argument("--worlds", default="4,3,2", help="numbers of ranks, in the sweeps' order")
    parser.add_argument("--seconds", type=float, default=COMMAND_S, help="what the command may take")
    chosen = parser.parse_args(argv[:split])
    if chosen.out is None and chosen.what != "page":
        parser.error("expected the folder of the runs, found none")
    try:
        if chosen.what == "page":
            PAGE.write_text(render(chosen.out), encoding="utf-8")
            topologies_io.write(predicted.box(4), BOX)
            print(f"{PAGE}\n{BOX}")
            return 0
        if chosen.what == "compare":
            print("\n".join(compare(chosen.out)))
            return 0
    except InputError as error:
        print(f"four_gpus: {error}", file=sys.stderr)
        return 2
    out = chosen.out.resolve()
    given = chosen.worlds.split(",")
    if not all(w.isdecimal() and 2 <= int(w) <= 8 for w in given):
        parser.error(f"--worlds: expected numbers of ranks from 2 to 8 as 4,3,2, found {chosen.worlds!r}")
    worlds = tuple(map(int, given))
    if chosen.what == "steps":
        todo = steps(out, max(worlds), chosen.seconds)
    elif chosen.what == "scripts":
        todo = scripts(max(worlds), chosen.seconds)
    else:
        todo = sweeps(out, worlds, tuple(argv[split + 1 :]))
    return carry_out(out, todo, chosen.seconds)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
