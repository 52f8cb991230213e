"""Processes of two_ranks.py on real GPUs, one a rank, that run what tests ask of them."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, NoReturn

import torch

from arfloor.runtime.ranks import NO_MULTICAST

PROGRAM = Path(__file__).with_name("two_ranks.py")
ROOT = Path(__file__).parents[2]
# by path, what tests on real ranks reduce with: every protocol, one-shot and two-shot, push and pull
PLANS = {
    "peer": (
        "line16t32-one-22x256",
        "line64t32-one-16x256-ahead1",
        "line128t64-one-137x128",
        "line512t64-one-66x256",
        "line128t64-two-32x256-ahead1",
        "line128t64-one-staged-16x128",
        "ll-one-64x512",
        "flag-one-16x256",
        "flag-two-32x256",
        "flag-one-pull-16x512",
        "flag-two-pull-16x256",
    ),
    "host": (
        "line16t32-one-22x256",
        "line64t32-one-16x256-ahead1",
        "line128t64-one-64x256-lag200",
        "line512t64-one-66x256-pace27-lag150-window2",
        "line512t64-two-32x256-ahead1",
        "ll-one-64x512",
        "flag-one-16x256",
        "flag-two-32x256",
    ),
}


def environment(**more: str) -> dict[str, str]:
    """This process's, for ranks on GPUs: this tree's arfloor, and no multicast."""
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
    return {**os.environ, **NO_MULTICAST, "PYTHONPATH": path, **more}


def torchrun(
    *command: str, cwd: Path | None = None, limit_s: float = 240.0
) -> subprocess.CompletedProcess[str]:
    """A program on two ranks, ended after `limit_s`."""
    launcher = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
    return ended([*launcher, *command], limit_s, cwd=cwd, env=environment(OMP_NUM_THREADS="1"))


def ended(command: Sequence[str], limit_s: float, **options: Any) -> subprocess.CompletedProcess[str]:
    """`subprocess.run` that keeps what a command printed until its time was over, and says that it was."""
    try:
        return subprocess.run(
            command, capture_output=True, text=True, timeout=limit_s, check=False, **options
        )
    except subprocess.TimeoutExpired as error:
        out, said = (
            s.decode(errors="replace") if isinstance(s, bytes) else s or ""
            for s in (error.stdout, error.stderr)
        )
        return subprocess.CompletedProcess(
            command, -9, out, f"{said}\nended after {limit_s:.0f} s, its time being over"
        )


STARTING_S = 60.0
"""What processes may take to import and meet, beside a scenario's own time."""


class CrewLost(AssertionError):
    """Processes that did not answer as they should; the message says what each rank left."""


class Crew:
    """`world` processes of a program, a GPU each, that run the scenarios they are asked, one after another.

    Starting them takes longer than most scenarios. `program` reads a scenario a line and prints JSON a line.
    """

    def __init__(self, world: int, program: Path = PROGRAM) -> None:
        self._store = torch.distributed.TCPStore(
            "127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=60)
        )
        env = environment(PORT=str(self._store.port), WORLD_SIZE=str(world))
        self._errors: list[Any] = []
        for _ in range(world):
            self._errors.append(tempfile.TemporaryFile("w+", encoding="utf-8"))  # noqa: SIM115 - closed by close
        self._ranks = [
            subprocess.Popen(
                [sys.executable, str(program)],
                env=env | {"RANK": str(rank)},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )
            for rank, errors in enumerate(self._errors)
        ]
        self._answers: list[queue.Queue[str | None]] = [queue.Queue() for _ in range(world)]
        self._readers = [
            threading.Thread(target=_read, args=(process.stdout, into), daemon=True)
            for process, into in zip(self._ranks, self._answers, strict=True)
        ]
        for reader in self._readers:
            reader.start()
        self._spare_s, self.alive = STARTING_S, True

    def ask(self, *scenario: str, timeout_s: float = 90.0, lost: Sequence[int] = ()) -> list[Any]:
        """Run a scenario; each rank's answer. `lost`: ranks that it kills, whose answer is None.

        The processes are over where a rank is lost. Raises CrewLost when one does not answer, or when one of
        `lost` does.
        """
        end = time.monotonic() + timeout_s + self._spare_s
        self._spare_s = 0.0
        for process in self._ranks:
            assert process.stdin is not None
            with contextlib.suppress(OSError):  # it has ended: seen below
                process.stdin.write(" ".join(scenario) + "\n")
                process.stdin.flush()
        found: list[Any] = []
        for rank, answers in enumerate(self._answers):
            try:
                line = answers.get(timeout=max(0.01, end - time.monotonic()))
                why = f"rank {rank} ended" if line is None else f"rank {rank} outlived being killed"
            except queue.Empty:
                line, why = None, f"rank {rank} did not answer within {timeout_s:.0f} s"
            if (line is None) != (rank in lost) or (rank in lost and self._ranks[rank].wait(10) != -9):
                self._give_up(" ".join(scenario), why, found)
            found.append(None if line is None else json.loads(line))
        if lost:
            self.close()
        return found

    def _give_up(self, scenario: str, why: str, found: list[Any]) -> NoReturn:
        """Faults show in what the others left, too: all are ended first, saying where they stood."""
        time.sleep(0.3)  # for exit codes: a pipe ends before its process
        codes = [process.poll() for process in self._ranks]
        for process in self._ranks:
            process.terminate()
        for process in self._ranks:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(1)
        self._end()
        left = []
        for rank, (errors, code) in enumerate(zip(self._errors, codes, strict=True)):
            errors.seek(0)
            left.append(f"rank {rank}, exit code {code}: {errors.read()[-1500:]}")
        self.close()
        raise CrewLost("\n".join([f"{scenario}: {why}; answers before: {found}", *left]))

    def _end(self) -> None:
        self.alive = False
        for process in self._ranks:
            process.kill()
        for process in self._ranks:
            with contextlib.suppress(subprocess.TimeoutExpired):  # one stuck in a driver may not even die
                process.wait(10)

    def close(self) -> None:
        """End the processes; idempotent."""
        self._end()
        for reader in self._readers:
            reader.join(10)
        for process in self._ranks:
            for stream in (process.stdin, process.stdout):
                if stream is not None:
                    with contextlib.suppress(OSError):  # what was written to one that has ended
                        stream.close()
        for errors in self._errors:
            errors.close()


class Crews:
    """A crew a number of ranks, started when first asked, and anew after one was lost."""

    def __init__(self, program: Path = PROGRAM) -> None:
        self._program = program
        self._by_world: dict[int, Crew] = {}

    def ask(self, world: int, *scenario: str, timeout_s: float = 90.0, lost: Sequence[int] = ()) -> list[Any]:
        """See `Crew.ask`."""
        crew = self._by_world.get(world)
        if crew is None or not crew.alive:
            crew = self._by_world[world] = Crew(world, self._program)
        return crew.ask(*scenario, timeout_s=timeout_s, lost=lost)

    def close(self) -> None:
        for crew in self._by_world.values():
            crew.close()


def _read(stream: Any, into: queue.Queue[str | None]) -> None:
    """Lines of JSON, then None: libraries may print other things."""
    for line in stream:
        if line.startswith("{"):
            into.put(line)
    into.put(None)
