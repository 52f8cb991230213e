"""Probes of the links between GPUs, and between GPUs and host memory: what the floor is made of.

    launch     an empty node of a CUDA graph
    pingpong   one-way time of a flag, in peer and in host memory, relaxed and release/acquire
    stream     GB/s of SM stores, SM loads and copy engines, by size and traffic pattern

The patterns of streams are those of `arfloor.primitives.gpu_patterns`.

A rate is a slope between few and many messages of one size, one after the other to their own addresses
in a window of constant size, so that launches and the first round trip cancel; it comes from CUDA
graphs that start behind the device barrier. SM streams keep the better of two widths of grid: too many
loads in flight can slow a host bridge down.
"""

from __future__ import annotations

import contextlib
import ctypes
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from arfloor.core.cases import Path, Primitive
from arfloor.core.slopes import slopes_us
from arfloor.core.statistics import median_estimate
from arfloor.primitives.gpu_patterns import Pattern, Stream, ends, patterns, rates_gbps
from arfloor.runtime import health
from arfloor.runtime.barrier import DeviceBarrier, empty_kernel
from arfloor.runtime.chains import Chain, side_stream
from arfloor.runtime.jit import Function, checked, compile_cubin, device_arch, read_sources
from arfloor.runtime.slabs import Slab, SlabError, slab

SIZES = (64 << 10, 256 << 10, 1 << 20, 4 << 20)
REPEATS = 9
_FLAG_STRIDE = 256
_FLAGS = 1 << 20  # bytes of a rank's region that hold flags; streams start behind them
_WINDOW = max(SIZES)
_THREADS = 256
# blocks of a stream at most, as multiples of the number of multiprocessors
_GRIDS = (2.0, 0.25)
_WAIT_NS = 2_000_000_000


class _Probe:
    """One rank's part in probing one path; every method is collective."""

    def __init__(self, bench: Any, path: Path, barrier: DeviceBarrier) -> None:
        import torch

        self.group, self.rank, self.world = bench.group, bench.rank, bench.group.world
        self.path, self.barrier = path, barrier
        self.ordinal = int(bench.device.partition(":")[2])
        self.slab: Slab = slab(path, bench.group, _FLAGS + _WINDOW)
        cubins = {
            relaxed: compile_cubin(
                read_sources("probes.cu"),
                arch=device_arch(self.ordinal),
                defines={"RELAXED": int(relaxed)},
                name="probes.cu",
            )
            for relaxed in (True, False)
        }
        self.pingpongs = {relaxed: Function(cubin, "pingpong") for relaxed, cubin in cubins.items()}
        self.write = Function(cubins[True], "stream_write")
        self.read = Function(cubins[True], "stream_read")
        self.local = torch.zeros(_WINDOW, dtype=torch.uint8, device="cuda")
        self.word = torch.zeros(1, dtype=torch.int64, device="cuda")
        self.multiprocessors = torch.cuda.get_device_properties(self.ordinal).multi_processor_count
        self.flag = 0

    def close(self) -> None:
        self.slab.close()

    def flag_us(self, a: int, b: int, *, relaxed: bool, rounds: int = 400) -> list[float]:
        """One-way times between two ranks, in us: one value a repeat, known on every rank."""
        import torch

        offset = self.flag * _FLAG_STRIDE
        self.flag += 1  # a fresh flag: its count starts at zero
        values: list[float] = []
        if self.rank in (a, b):
            other = b if self.rank == a else a
            for repeat in range(REPEATS):
                self.pingpongs[relaxed].launch(
                    1,
                    1,
                    _stream(),
                    ctypes.c_uint64(self.slab.pointers[other] + offset),
                    ctypes.c_uint64(self.slab.own + offset),
                    ctypes.c_uint32(repeat * (rounds + 20)),
                    ctypes.c_int(20),
                    ctypes.c_int(rounds),
                    ctypes.c_int(int(self.rank == a)),
                    ctypes.c_uint64(_WAIT_NS),
                    ctypes.c_uint64(self.word.data_ptr()),
                )
                torch.cuda.synchronize()
                values.append(self.word.item() / rounds / 2 / 1e3)
        gathered: list[float] = self.group.all_gather(values)[a]
        return [v for v in gathered if v > 0]

    def grids(self, engine: str, nbytes: int) -> list[int]:
        """Blocks to try for a stream of messages of `nbytes`: at most one thread per 16 bytes."""
        if engine == "ce":
            return [0]
        most = -(-nbytes // 16 // _THREADS)
        return sorted({max(1, min(most, int(g * self.multiprocessors))) for g in _GRIDS}, reverse=True)

    def enqueue(self, job: Stream, nbytes: int, passes: int, grid: int) -> None:
        """Put one stream's work on torch's current stream."""
        far = self.slab.pointers[self.rank if job.other < 0 and job.access == "write" else self._far(job)]
        far += _FLAGS
        if job.engine == "ce":
            _copy(self.local.data_ptr(), far, nbytes, passes, write=job.access == "write")
            return
        last = ctypes.c_uint32(self.rank) if job.access == "write" else ctypes.c_uint64(self.word.data_ptr())
        kernel = self.write if job.access == "write" else self.read
        kernel.launch(
            grid,
            _THREADS,
            _stream(),
            ctypes.c_uint64(far),
            ctypes.c_uint64(nbytes // 16 * passes),
            ctypes.c_uint64(_WINDOW // 16),
            last,
        )

    def _far(self, job: Stream) -> int:
        # loads from host memory read what another rank wrote, as a reduce through the host does
        return job.other if job.other >= 0 else (self.rank + 1) % self.world

    def stream_us(self, pattern: Pattern, nbytes: int, grid: int) -> list[float]:
        """Cost of one more message in every stream of a pattern, the slowest rank deciding, in us."""
        mine = [s for s in pattern.streams if s.rank == self.rank]
        few = max(2, (1 << 20) // nbytes)
        many = 5 * few
        chains = [
            Chain(
                _Streams(self, mine, nbytes, passes, grid),
                1,
                self.barrier,
                graph=True,
                least_nodes=len(mine),
            )
            for passes in (many, few)
        ]
        try:
            for chain in chains:
                chain.replay_us()  # the first replay uploads the graph
            times = [[chain.replay_us() for chain in chains] for _ in range(REPEATS)]
            self.barrier.check()
        finally:
            for chain in chains:
                chain.close()
        rows = self.group.all_gather(times)
        slowest = [[max(row[i][k] for row in rows) for i in range(REPEATS)] for k in (0, 1)]
        return list(slopes_us(slowest[0], slowest[1], many, few))


class _Streams:
    """The streams of one rank as one operation: forked from the current stream and joined again."""

    slots = 1

    def __init__(self, probe: _Probe, jobs: Sequence[Stream], nbytes: int, passes: int, grid: int) -> None:
        self._probe, self._jobs = probe, jobs
        self._shape = nbytes, passes, grid
        self._side = [side_stream(i) for i in range(len(jobs))]

    def run(self, _slot: int) -> None:
        import torch

        main = torch.cuda.current_stream()
        for job, side in zip(self._jobs, self._side, strict=True):
            side.wait_stream(main)
            with torch.cuda.stream(side):
                self._probe.enqueue(job, *self._shape)
        for side in self._side:
            main.wait_stream(side)


def _stream() -> int:
    import torch

    return int(torch.cuda.current_stream().cuda_stream)


def _copy(local: int, far: int, nbytes: int, passes: int, *, write: bool) -> None:
    from cuda.bindings import runtime

    src, dst = (local, far) if write else (far, local)
    kind = runtime.cudaMemcpyKind.cudaMemcpyDefault
    for i in range(passes):
        at = i * nbytes % _WINDOW
        checked(runtime.cudaMemcpyAsync(dst + at, src + at, nbytes, kind, _stream()))


class _Empty:
    slots = 1

    def __init__(self, ordinal: int) -> None:
        self._launch = empty_kernel(ordinal).bind(1, 32)

    def run(self, _slot: int) -> None:
        self._launch.launch(_stream())


def launch_us(bench: Any, barrier: DeviceBarrier) -> list[list[float]]:
    """Cost of one more empty node in a graph, in us, per rank. Collective."""
    op = _Empty(int(bench.device.partition(":")[2]))
    few, many = 20, 220
    chains = [Chain(op, count, barrier, graph=True) for count in (many, few)]
    for chain in chains:
        chain.replay_us()
    times = [[chain.replay_us() for chain in chains] for _ in range(REPEATS)]
    barrier.check()
    for chain in chains:
        chain.close()
    mine = slopes_us([t[0] for t in times], [t[1] for t in times], many, few)
    return list(bench.group.all_gather(list(mine)))


def measure(
    bench: Any, *, budget_s: float = 6.0, paths: Sequence[Path] = ("peer", "host")
) -> list[Primitive]:
    """Probe every path. Collective; the same records on every rank.

    A path that cannot be probed yields one record that says why. `budget_s` is meant for two ranks, and grows
    with their number, as the pairs do. When it runs out, what is left of a path's streams is not measured
    (rank 0's clock decides for all).
    """
    began = time.monotonic()
    budget_s *= bench.group.world / 2
    found: list[Primitive] = []

    def in_time(share: float) -> bool:
        return bool(bench.group.broadcast(time.monotonic() - began < budget_s * share))

    for index, path in enumerate(paths):
        with _probing(bench, path, found) as probe:
            if probe is None:
                continue
            if not any(p.kind == "launch" for p in found):
                found += _launches(bench, probe.barrier)
            link = health.link_of(bench.group.world, path)
            found += _flags(probe, link)
            found += _rates(probe, link, lambda i=index: in_time((i + 1) / len(paths)))
    return found


def flags(bench: Any, path: Path) -> list[Primitive]:
    """The ping-pongs of one path alone. Collective; one record that says why where it cannot be probed."""
    found: list[Primitive] = []
    with _probing(bench, path, found) as probe:
        return found if probe is None else _flags(probe, health.link_of(bench.group.world, path))


@contextlib.contextmanager
def _probing(bench: Any, path: Path, found: list[Primitive]) -> Iterator[_Probe | None]:
    from arfloor.runtime.timing_gpu import barrier_for

    try:
        probe = _Probe(bench, path, barrier_for(bench, path))
    except SlabError as error:  # on every rank alike
        found.append(
            Primitive(
                kind="stream",
                engine="sm",
                access="write",
                src="cuda:0",
                dst="host" if path == "host" else "cuda:1",
                path=path,
                link="pcie",
                nbytes=0,
                active="one_way",
                estimate=None,
                status="unsupported",
                reason="needs_p2p" if path == "peer" else "memory",
                source=str(error),
            )
        )
        yield None
        return
    try:
        yield probe
    finally:
        bench.group.barrier()  # nobody unmaps what another still uses
        probe.close()


def _launches(bench: Any, barrier: DeviceBarrier) -> list[Primitive]:
    return [
        Primitive(
            kind="launch",
            engine="sm",
            access="empty",
            src=f"cuda:{rank}",
            dst=f"cuda:{rank}",
            path="host",
            link="device",
            nbytes=0,
            active="one_way",
            estimate=median_estimate(values),
        )
        for rank, values in enumerate(launch_us(bench, barrier))
    ]


def _flags(probe: _Probe, link: str) -> list[Primitive]:
    found = []
    for a in range(probe.world):
        for b in range(a + 1, probe.world):
            for relaxed in (True, False):
                values = probe.flag_us(a, b, relaxed=relaxed)
                found.append(
                    Primitive(
                        kind="pingpong",
                        engine="sm",
                        access="relaxed" if relaxed else "acquire_release",
                        src=f"cuda:{a}",
                        dst=f"cuda:{b}",
                        path=probe.path,
                        link=link,
                        nbytes=4,
                        active="one_way",
                        estimate=median_estimate(values) if values else None,
                        status="ok" if values else "timeout",
                        reason=None if values else "worker_hung",
                    )
                )
    return found


def _rates(probe: _Probe, link: str, in_time: Callable[[], bool]) -> list[Primitive]:
    found: list[Primitive] = []
    for nbytes, engine, pattern in in_order_of_need(probe.path, probe.world):
        if not in_time():
            return found
        tried = [
            rates_gbps(probe.stream_us(pattern, nbytes, grid), nbytes) for grid in probe.grids(engine, nbytes)
        ]
        rates = max(tried, key=lambda r: statistics.median(r) if r else 0.0)
        found += [_rate(probe, link, pattern, s, nbytes, rates) for s in pattern.streams]
    return found


def in_order_of_need(path: Path, world: int) -> list[tuple[int, str, Pattern]]:
    """(bytes, engine, pattern) of every stream probe: what is dropped for lack of time is the least needed.

    The patterns of a reduce before single streams, of which there are many from three ranks on; then the
    largest and the decode size first. Pure, equal on all ranks.
    """
    jobs = [(n, e, p) for n in SIZES for e in ("sm", "ce") for p in patterns(path, world, e)]

    def need(job: tuple[int, str, Pattern]) -> tuple[bool, bool, bool, int]:
        nbytes, _, pattern = job
        alone = pattern.active == "one_way" and world > 2
        return alone, nbytes != max(SIZES), nbytes != 256 << 10, nbytes

    return sorted(jobs, key=need)


def _rate(
    probe: _Probe, link: str, pattern: Pattern, stream: Stream, nbytes: int, rates: Sequence[float]
) -> Primitive:
    src, dst = ends(stream)
    return Primitive(
        kind="stream",
        engine=stream.engine,
        access=stream.access,
        src=src,
        dst=dst,
        path=probe.path,
        link=link,
        nbytes=nbytes,
        active=pattern.active,
        estimate=median_estimate(rates, unit="GB/s") if rates else None,
        status="ok" if rates else "failed",
        reason=None if rates else "device_error",
    )
