"""The supervisor's hands: turns the world into events for `supervisor.step` and carries out its actions."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from arfloor import rundir
from arfloor.core.plan import LaunchPlan, RunPlan
from arfloor.runtime import supervisor as sup
from arfloor.runtime.agree import poison_named
from arfloor.runtime.progress import Tail, progress_file
from arfloor.runtime.ranks import Ranks, StoreLost, own_environment
from arfloor.runtime.spares import Spares
from arfloor.runtime.worker import WorkPlan, die_with_parent

# supervisors share the cores with what is measured: look rarely enough to cost it nothing
POLL_S = 0.1
# how long mpiexec may take to end its ranks by itself, which also clears its files
TERMINATE_S = 3.0
# how much of the end of a worker's output is searched for why it ended
LAST_WORDS_NBYTES = 1 << 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What the driver needs to know about the run. `primitives` and `again` are as in `WorkPlan`."""

    root: Path
    run_id: str
    devices: tuple[str, ...]
    backends: dict[str, str]
    primitives: str | None
    again: str | None
    seed: int
    interval: float
    timeout_s: float


@dataclass(kw_only=True)
class Watch:
    """What happens as seen by people; the driver calls it only outside timed regions."""

    block: Callable[[dict[str, Any]], None] = lambda line: None
    note: Callable[[str], None] = lambda text: None
    event: Callable[..., None] = lambda **fields: None
    failures: list[str] = field(default_factory=list)


class Signals:
    """SIGINT, SIGTERM and SIGHUP set a flag; torchrun turns a Ctrl-C into these."""

    def __init__(self) -> None:
        self.seen = False
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, self._on)

    def _on(self, number: int, frame: Any) -> None:
        del number, frame
        self.seen = True


class Worker:
    """The process that this rank started for one attempt."""

    def __init__(
        self,
        command: list[str],
        env: dict[str, str],
        log: Path,
        gentle: bool,
        spare: Callable[[], subprocess.Popen[bytes] | None] = lambda: None,
    ) -> None:
        """`spare` gives the process that carries the command out, where one was started ahead."""
        self._gentle, self._log = gentle, log
        with log.open("ab") as stream:
            self._log_start = stream.tell()  # a resumed run goes on in the same file
            # its own session: a Ctrl-C reaches the supervisors only, which end workers in order
            self._process = spare() or subprocess.Popen(
                command,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=stream,
                start_new_session=True,
                preexec_fn=die_with_parent,
            )

    def poll(self) -> int | None:
        """The exit code, or None while it runs."""
        return self._process.poll()

    def lost(self) -> str | None:
        """Reason code of the unusable device context that the end of its output tells of, if it does."""
        with self._log.open("rb") as stream:
            stream.seek(max(self._log_start, self._log.stat().st_size - LAST_WORDS_NBYTES))
            return poison_named(stream.read().decode(errors="replace"))

    def kill(self) -> None:
        """End it and its process group. mpiexec is asked first: it ends its ranks and clears up."""
        if self._gentle and self._process.poll() is None:
            self._process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(TERMINATE_S)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


class Driver:
    """Runs one supervisor to its end."""

    def __init__(
        self, job: Job, ranks: Ranks, signals: Signals, watch: Watch, spares: Spares | None = None
    ) -> None:
        self._job, self._ranks, self._signals, self._watch = job, ranks, signals, watch
        self._spares = spares or Spares(0, ranks.rank)
        self._writer = rundir.Writer(job.root)
        self._worker: Worker | None = None
        self._tails: dict[int, Tail] = {}
        self._key = ""
        self._timing = False
        self._pending: list[Callable[[], None]] = []

    def run(self, plan: RunPlan) -> sup.State:
        """Carry a plan out; returns the last state."""
        state = sup.State(rank=self._ranks.rank, world=self._ranks.world, launches=plan.launches)
        self._spares.fit(sum(launch.launcher == "supervisor" for launch in plan.launches))
        try:
            # their imports take cores: all must be over before anything is measured
            self._spares.wait(until=lambda: self._signals.seen)
            self._watch.event(event="ready", spares=len(self._spares))
            state = self._feed(state, sup.Begin(now=time.monotonic()))
            while state.phase != "finished":
                time.sleep(POLL_S)
                for event in self._events(state):
                    state = self._feed(state, event)
                self._show()
        except StoreLost:
            state = self._feed(state, sup.Interrupt(now=time.monotonic()))
        finally:
            self._kill()
            self._spares.close()
        self._timing = False
        self._show()
        return state

    def _feed(self, state: sup.State, event: sup.Event) -> sup.State:
        state, actions = sup.step(state, event)
        for action in actions:
            self._act(action, state)
        if state.phase != "finished" and state.launches:
            self._key = f"attempt/{state.current.index}/{state.attempt}"
        return state

    # --- events ---

    def _events(self, state: sup.State) -> Iterator[sup.Event]:
        """What has happened since the last look. Stops early when an event changed the attempt."""
        now, key = time.monotonic(), self._key
        if self._signals.seen:
            yield sup.Interrupt(now=now)
            return
        # the exit code is taken first: whatever the worker wrote before it ended is then in its file
        code = None if self._worker is None else self._worker.poll()
        for rank, tail in list(self._tails.items()):
            for data in tail.read():
                self._look(rank, data)
                yield sup.Line(now=now, rank=rank, data=data)
                if self._key != key or self._worker is None:
                    return
        if code is not None:
            lost = self._worker.lost() if self._worker is not None and code != 0 else None
            self._worker_ended()
            yield sup.Exited(now=now, code=code, lost=lost)
            return
        yield from self._from_others(now, key, state)
        if self._key == key:
            yield sup.Tick(now=now)

    def _from_others(self, now: float, key: str, state: sup.State) -> Iterator[sup.Event]:
        rung = self._ranks.peek(f"{key}/bell") is not None
        if not rung and state.phase == "running":
            return
        for rank in range(self._ranks.world):
            if rank == self._ranks.rank:
                continue
            found = self._ranks.peek(f"{key}/outcome/{rank}")
            if found is not None:
                yield sup.Heard(now=now, outcome=rundir.adapter(sup.Outcome).validate_python(found))
                if self._key != key:
                    return
        if rung:
            yield sup.Bell(now=now)

    def _look(self, rank: int, data: dict[str, Any]) -> None:
        """Keep what people want to see of rank 0's lines until the machine is quiet."""
        if rank != 0:
            return
        kind = data.get("kind")
        self._timing = kind == "timing" or (self._timing and kind not in ("block", "exit", "fatal", "broken"))
        if kind == "block":
            self._pending.append(lambda: self._watch.block(data))
        elif kind == "primitives" and data["failure"]:
            self._pending.append(lambda: self._watch.note(f"link probes failed: {data['failure']}"))

    def _show(self) -> None:
        if not self._timing:
            for call in self._pending:
                call()
            self._pending.clear()

    # --- actions ---

    def _act(self, action: sup.Action, state: sup.State) -> None:
        match action:
            case sup.Start():
                self._start(action)
            case sup.Kill():
                self._kill()
            case sup.Publish():
                # the key of the attempt that ended: `_feed` moves on only after the actions
                with contextlib.suppress(StoreLost):
                    value = rundir.adapter(sup.Outcome).dump_python(action.outcome, mode="json")
                    self._ranks.set(f"{self._key}/outcome/{action.outcome.rank}", value)
                    if action.ring:
                        self._ranks.set(f"{self._key}/bell", 1)
            case sup.Write():
                self._writer.block(action.record)
            case sup.Note():
                self._watch.failures.append(action.text)
                if state.rank == 0:
                    text = action.text
                    self._pending.append(lambda: self._watch.note(text))

    def _start(self, action: sup.Start) -> None:
        job, launch, attempt = self._job, action.launch, action.attempt
        self._watch.event(
            event="launch",
            index=launch.index,
            launch=launch.launch,
            attempt=attempt,
            settings=dict(launch.settings),
            probe=launch.probe,
        )
        if attempt:
            rundir.drop_incomplete(job.root, self._ranks.rank)
        mpi = launch.launcher == "mpiexec"
        file = job.root / ".work" / f"plan-{launch.index}-{attempt}-rank-{self._ranks.rank}.json"
        file.write_text(rundir.to_json(self._work_plan(launch, attempt)), encoding="utf-8")
        watched = range(self._ranks.world) if mpi else (self._ranks.rank,)
        self._tails = {rank: Tail(progress_file(job.root, launch.index, attempt, rank)) for rank in watched}
        env = own_environment(launch.settings)
        env["ARFLOOR_RANK"] = str(self._ranks.rank)
        command = [sys.executable, "-m", "arfloor.runtime.worker", str(file)]
        if mpi:
            from arfloor.runtime import mpi_launch

            command = mpi_launch.command(self._ranks.world) + command
            env |= mpi_launch.environment(self._ranks.world)
        log = job.root / ".work" / f"launch-{launch.index}-{attempt}-rank-{self._ranks.rank}.log"
        self._timing = False
        self._worker = Worker(
            command,
            env,
            log,
            gentle=mpi,
            spare=lambda: None if mpi else self._spares.take(file, log, launch.settings),
        )

    def _work_plan(self, launch: LaunchPlan, attempt: int) -> WorkPlan:
        job, where = self._job, self._ranks.place
        return WorkPlan(
            root=str(job.root),
            run_id=f"{where.job}/{job.run_id}",
            attempt=attempt,
            launch=launch,
            devices=job.devices,
            backends={
                name: spec
                for name, spec in job.backends.items()
                if any(case.backend == name for row in launch.blocks for case in row.cases)
            },
            store_host=where.host,
            store_port=where.port,
            seed=job.seed,
            interval=job.interval,
            timeout_s=job.timeout_s,
            startup_s=sup.STARTUP_S,
            primitives=job.primitives,
            again=job.again,
        )

    def _kill(self) -> None:
        if self._worker is not None:
            self._worker.kill()
            self._worker_ended()

    def _worker_ended(self) -> None:
        self._worker = None
        self._tails = {}
        self._timing = False
