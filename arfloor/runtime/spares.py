"""Workers started ahead: they import everything, then wait for an order, so that a launch starts at once.

Importing torch takes seconds of a core. All of it happens before anything is measured: the sweep starts its
spares first of all, and its driver waits until each has said that it is ready. From then on a spare is
blocked reading its standard input: it uses no core, has no CUDA context and no thread of its own, and so
disturbs nothing that is measured meanwhile. Settings are environment variables that libraries read at their
first use: an order brings them, and a spare sets them before it uses any library.

A spare that did not come up costs nothing: the launch starts a worker of its own.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from arfloor.runtime.ranks import launch_environment, own_environment

COUNT = "ARFLOOR_SPARE_WORKERS"
"""Variable that says how many spares a rank starts; 0 turns them off."""
USUAL = 6  # two probes of what runs, and two launches of two settings each
MOST = 12  # the same with graph mixing off besides: more than that start when they are needed
READY_S = 60.0
_DRIVER = (Path("/proc/driver/nvidia/version"), Path("/dev/nvidiactl"))
WAIT = "--wait"

# What workers on GPUs import at their first use. None of it makes a context or starts a thread.
MODULES = (
    "torch.distributed",
    "cuda.bindings.runtime",
    "cuda.bindings.driver",
    "pynvml",
    "arfloor.runtime.timing_gpu",
    "arfloor.primitives.gpu",
    "arfloor.backends.nccl",
    "arfloor.backends.peer",
    "arfloor.backends.host",
)


def wanted(env: Mapping[str, str], *, gpus: bool | None = None) -> int:
    """How many spares to start: what the variable says, else the usual where there is a GPU driver.

    CPU ranks start none: their workers import less, and share few cores.
    """
    with contextlib.suppress(KeyError, ValueError):
        return max(0, int(env[COUNT]))
    there = any(map(Path.exists, _DRIVER)) if gpus is None else gpus
    return USUAL if there else 0


class Spares:
    """One rank's spares, all of them interchangeable. `most`: how many there may be when a plan is known."""

    def __init__(self, count: int, rank: int, modules: Sequence[str] = MODULES, *, most: int = 0) -> None:
        self._waiting: list[subprocess.Popen[bytes]] = []
        self._ready: set[int] = set()
        self._rank, self._modules, self._most = rank, modules, most
        for _ in range(count):
            self._waiting.append(self._start(rank, modules))

    def _start(self, rank: int, modules: Sequence[str]) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, "-m", "arfloor.runtime.worker", WAIT, *modules],
            env=own_environment(()) | {"ARFLOOR_RANK": str(rank)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # as `driver.Worker`
        )

    def __len__(self) -> int:
        return len(self._waiting)

    def wait(self, *, until: Callable[[], bool] = lambda: False, timeout_s: float = READY_S) -> None:
        """Return when every spare is ready or has ended, when `until` says so, or after `timeout_s`.

        One that is not ready by then is ended: it would go on importing while others measure.
        """
        end = time.monotonic() + timeout_s
        with selectors.DefaultSelector() as selector:
            for process in self._waiting:
                if process.pid not in self._ready:
                    selector.register(process.stdout, selectors.EVENT_READ, process)  # type: ignore[arg-type]
            while selector.get_map() and time.monotonic() < end and not until():
                for key, _ in selector.select(timeout=0.1):
                    if os.read(key.fd, 64):  # nothing: it ended
                        self._ready.add(key.data.pid)
                    selector.unregister(key.fileobj)
        for process in [p for p in self._waiting if p.pid not in self._ready]:
            _end(process)
            self._waiting.remove(process)

    def fit(self, count: int) -> None:
        """As many as a plan's launches: end what is too many, start what is missing, up to `most`."""
        self.keep(count)
        for _ in range(len(self), min(count, self._most)):
            self._waiting.append(self._start(self._rank, self._modules))

    def keep(self, count: int) -> None:
        """End the spares beyond `count`."""
        for process in self._waiting[count:]:
            _end(process)
        del self._waiting[count:]

    def take(self, plan: Path, log: Path, settings: Sequence[tuple[str, str]]) -> Any | None:
        """Order a ready spare to carry out `plan`, its output going to `log`; its process.

        None where no spare is left.
        """
        while self._waiting:
            process = self._waiting.pop(0)
            order = json.dumps({"plan": str(plan), "log": str(log), "settings": [list(s) for s in settings]})
            try:
                if process.pid not in self._ready or process.poll() is not None:
                    raise OSError("it did not come up")
                assert process.stdin is not None
                process.stdin.write(order.encode() + b"\n")
                process.stdin.close()
            except OSError:
                _end(process)
                continue
            if process.stdout is not None:
                process.stdout.close()
            return process
        return None

    def close(self) -> None:
        """End the spares that nobody took."""
        self.keep(0)


def started(env: Mapping[str, str], rank: int, *, dry_run: bool) -> Spares:
    """The spares that a sweep starts before it knows its plan; none for a dry run.

    Where nobody said how many, a plan of more launches gets more."""
    count = 0 if dry_run else wanted(env)
    return Spares(count, rank, most=MOST if count and COUNT not in env else 0)


def _end(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            with contextlib.suppress(OSError):
                stream.close()


def await_order(modules: Sequence[str]) -> str | None:
    """In the spare: import, say that this process is ready, and wait. The plan's file, or None at the end.

    On an order, standard output and error go to its log and its settings into the environment.
    """
    for name in modules:
        with contextlib.suppress(ImportError, RuntimeError, OSError):
            importlib.import_module(name)
    os.write(1, b"ready\n")
    line = sys.stdin.buffer.readline()
    if not line:
        return None  # the supervisor is gone, or needs no more workers
    order = json.loads(line)
    log = os.open(order["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for descriptor in (1, 2):
        os.dup2(log, descriptor)
    os.close(log)
    os.environ.update(launch_environment(order["settings"]))  # not known when this process started
    return str(order["plan"])
