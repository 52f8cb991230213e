"""Timers: how one case is timed, chosen by the kind of device and the mode.

`TIMERS` maps (device kind, mode) to `module:Class`, imported when first needed, so a timer for
another device is one file and one line. A timer is made once per case and times it round by round.
"""

from __future__ import annotations

import importlib
import mmap
import resource
import struct
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from arfloor.core.cases import Case
from arfloor.runtime import verify


class Timer(Protocol):
    """Times one prepared op. Every method is collective: all ranks call it alike.

    Of its class: `slots`, how many slots the op is prepared with; `rounds`, in how many rounds a case's
    budget is best spent; `pilot`, the replays that say how long one takes. Reasons why a case cannot be
    timed are raised as exceptions; `marks` are words for `Result.marks`, known after `measure`.
    """

    slots: int
    rounds: int
    pilot: int

    def __init__(self, op: Any, case: Case, bench: TimingBench) -> None: ...
    def warm_up(self) -> float:
        """Run the op until it is warm; returns this rank's rough estimate in us an op."""
        ...

    def measure(self, replays: int) -> tuple[float, ...]:
        """A round of `replays` replays: this rank's readings, in us."""
        ...

    def samples(self, rows: Sequence[Sequence[float]]) -> tuple[tuple[float, ...], ...]:
        """The latencies of that round in us an op, one tuple of `replays` a rank, from every rank's readings.

        Equal on all ranks."""
        ...

    @property
    def marks(self) -> tuple[str, ...]:
        """See the class; collective."""
        ...

    def close(self) -> None: ...


class TimingBench(Protocol):
    """What a timer may use of its worker: the group, its own rank's device, a place for small files."""

    group: Any
    rank: int
    device: str
    work: Path
    start: StartLine


TIMERS: dict[tuple[str, str], str] = {
    ("cpu", "eager"): "arfloor.runtime.timing:CpuEager",
    ("cuda", "graph"): "arfloor.runtime.timing_gpu:Graph",
    ("cuda", "eager"): "arfloor.runtime.timing_gpu:Eager",
    ("cuda", "isolated"): "arfloor.runtime.timing_gpu:Isolated",
}


def timer_class(device_kind: str, mode: str) -> type[Timer] | None:
    """The timer for a mode on a kind of device, or None where there is none."""
    spec = TIMERS.get((device_kind, mode))
    if spec is None:
        return None
    module, _, name = spec.partition(":")
    try:
        found: type[Timer] = getattr(importlib.import_module(module), name)
    except ModuleNotFoundError as error:
        if error.name == module:
            return None
        raise
    return found


# share of replays in which the system took the core away, above which a case is marked
PREEMPTED = 0.05


class StartLine:
    """All ranks of one host start an op at the same instant, read from the host's one clock.

    A barrier lets its ranks go at different times: after a gloo barrier often by more than a small
    op takes, and the early rank would time its wait for the late one. So rank 0 puts an instant a
    little ahead into shared memory before the barrier, and after it every rank spins until then.
    `time.perf_counter_ns` is CLOCK_MONOTONIC on Linux: the same clock in every process of a host.
    """

    _SPAN_NS = (20_000, 2_000_000)

    def __init__(self, file: Path, group: Any) -> None:
        self._group = group
        if group.rank == 0:
            file.write_bytes(struct.pack("q", 0))
        group.barrier()
        with file.open("r+b") as stream:
            self._map = mmap.mmap(stream.fileno(), 8)
        self._word = memoryview(self._map).cast("q")
        self._ahead_ns = self._calibrate()

    def _calibrate(self) -> int:
        taken = []
        for _ in range(30):
            begin = time.perf_counter_ns()
            self._group.barrier()
            taken.append(time.perf_counter_ns() - begin)
        worst = max(self._group.all_gather(float(np.quantile(taken, 0.75))))
        low, high = self._SPAN_NS
        return int(min(max(1.5 * worst, low), high))

    def wait(self) -> int:
        """Return at the common instant, as a reading of `perf_counter_ns` (later if this rank is late)."""
        if self._group.rank == 0:
            self._word[0] = time.perf_counter_ns() + self._ahead_ns
        self._group.barrier()
        instant = self._word[0]
        now = time.perf_counter_ns()
        while now < instant:
            now = time.perf_counter_ns()
        return now


class CpuEager:
    """CPU ranks, one op at a time.

    What is timed: from the common start (see `StartLine`) to the return of the op on this rank, by
    the host's monotonic clock; the caller takes the slowest rank. It includes the call from Python.
    One op a replay; only an op shorter than twenty steps of the clock is averaged over several, run
    back to back. Inputs are rewritten before each round, outside the timed region, so that values of
    an op in place stay finite.
    """

    slots = 4
    rounds = 8
    pilot = 4

    def __init__(self, op: Any, case: Case, bench: TimingBench) -> None:
        self._op, self._case, self._bench = op, case, bench
        self._inner = 1
        # an op in place multiplies magnitudes by the world at each call on its slot
        self._limit = self.slots * max(1, int(30 / np.log10(max(2, case.world))))
        self._preempted, self._replays = 0, 0

    def warm_up(self) -> float:
        """A few ops in a row; decides how many are averaged in one replay (equal on all ranks)."""
        self._refill()
        taken = []
        for i in range(2 * self.slots):
            self._bench.group.barrier()
            begin = time.perf_counter_ns()
            self._op.run(i % self.slots)
            taken.append((time.perf_counter_ns() - begin) / 1e3)
        estimate = max(self._bench.group.all_gather(float(np.median(taken))))
        self._inner = max(1, min(16, int(np.ceil(20 * clock_step_us() / max(estimate, 1e-3)))))
        self._inner = self._bench.group.broadcast(self._inner)
        return float(estimate)

    def measure(self, replays: int) -> tuple[float, ...]:
        """See the class."""
        values: list[float] = []
        run, wait, slots, inner = self._op.run, self._bench.start.wait, self.slots, self._inner
        clock: Callable[[], int] = time.perf_counter_ns
        chunk = max(1, self._limit // inner)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw
        while len(values) < replays:
            self._refill()
            for i in range(min(chunk, replays - len(values))):
                begin = wait()
                for k in range(inner):
                    run((i + k) % slots)
                values.append((clock() - begin) / 1e3 / inner)
        self._preempted += resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw - before
        self._replays += replays
        return tuple(values)

    def samples(self, rows: Sequence[Sequence[float]]) -> tuple[tuple[float, ...], ...]:
        """A reading is a latency already."""
        return tuple(map(tuple, rows))

    @property
    def marks(self) -> tuple[str, ...]:
        """`preempted` when the system took the core away in more than one replay of twenty."""
        shares = self._bench.group.all_gather(self._preempted / max(1, self._replays))
        return ("preempted",) if max(shares) > PREEMPTED else ()

    def _refill(self) -> None:
        for slot in range(self.slots):
            values = verify.payload("random", self._case, slot, self._bench.rank, self.slots)
            self._op.write(slot, values)

    def close(self) -> None:
        """Nothing is held."""


def clock_step_us() -> float:
    """Smallest step of `perf_counter_ns` seen here, in us."""
    steps = []
    for _ in range(200):
        begin = time.perf_counter_ns()
        end = time.perf_counter_ns()
        if end > begin:
            steps.append(end - begin)
    return min(steps, default=1) / 1e3
