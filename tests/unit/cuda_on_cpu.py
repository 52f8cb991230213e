"""CUDA as far as the scripts of microbench/ touch it, on the CPU: for what they do around the kernels.

Ranks are threads. Real are torch's arithmetic, plans, endpoints, timers, tuning and checks. In place of the
device stand memory of the process, graphs that do again what was recorded, streams that are all one, and a
clock a rank that goes on by what each launch is said to take; in place of our kernels a sum over the threads.

A graph that holds nothing but launches and events only takes time: what it computes nobody looks at.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import threading
import time
from collections import UserDict
from collections.abc import Callable, Iterator
from functools import reduce
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch.overrides import TorchFunctionMode

from arfloor.backends import own_backend
from arfloor.runtime import barrier, chains, health, jit, slabs, timing_gpu
from tests.unit.threads import ThreadGroup, on_all_ranks

DTYPES = (torch.float32, torch.float16, torch.bfloat16)  # by ARF_DTYPE
TORCH_US = 1.0
"""What a call of torch takes on the clock."""


class Left(Exception):
    """A script came to its end."""


class Failed(Exception):
    """A script ended all ranks with a reason."""


class PerThread(threading.local, UserDict):
    """A dictionary that every rank has for itself, as if it were a process."""


class SetPerThread(threading.local):
    """A set that every rank has for itself."""

    def __init__(self) -> None:
        self._kept: set[Any] = set()

    def add(self, value: Any) -> None:
        self._kept.add(value)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._kept)


class Here(threading.local):
    """What a rank's device is doing: its clock, and the graph that it records, if any."""

    group: ThreadGroup

    def __init__(self) -> None:
        self.now_us = 0.0
        self.capture: list[tuple[str, Callable[..., None]]] | None = None
        self.stream: Stream | None = None

    def enqueue(self, kind: str, step: Callable[..., None]) -> None:
        """Take a step now, or record it."""
        if self.capture is None:
            step()
        else:
            self.capture.append((kind, step))


class Stream:
    """A stream; all of them are one."""

    _numbers = itertools.count(1)

    def __init__(self) -> None:
        self.cuda_stream = next(self._numbers)

    def wait_stream(self, other: Stream) -> None:
        assert isinstance(other, Stream)


class Graph:
    """In place of `torch.cuda.CUDAGraph`."""

    def __init__(self, here: Here) -> None:
        self._here = here
        self._steps: list[tuple[str, Callable[..., None]]] = []

    def capture_begin(self, *, capture_error_mode: str) -> None:
        assert capture_error_mode == "thread_local"
        assert self._here.capture is None
        self._here.capture = self._steps

    def capture_end(self) -> None:
        self._here.capture = None

    def replay(self) -> None:
        assert self._here.capture is None
        assert self._steps, "an empty graph"
        computes = any(kind == "torch" for kind, _ in self._steps)
        for kind, step in self._steps:
            if kind == "kernel":
                step(computes)
            else:
                step()


class OnCpu(TorchFunctionMode):
    """Torch's calls for a device go to the CPU; under capture they are recorded.

    A call in place is only recorded; another is made too, for its result, and anew at each replay."""

    def __init__(self, here: Here) -> None:
        super().__init__()
        self._here = here

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if str(kwargs.get("device", "")).startswith("cuda"):
            kwargs["device"] = "cpu"
        name = getattr(func, "__name__", "")
        if name == "cuda":
            return args[0]
        if self._here.capture is None:
            return func(*args, **kwargs)
        in_place = (
            (name.endswith("_") and not name.endswith("__")) or name.startswith("__i") or "out" in kwargs
        )
        made = kwargs.get("out", args[0]) if in_place else func(*args, **kwargs)
        if isinstance(made, torch.Tensor):

            def again() -> None:
                self._here.now_us += TORCH_US
                found = func(*args, **kwargs)
                if not in_place:
                    made.copy_(found)

            self._here.enqueue("torch", again)
        return made


class Cuda:
    """The stand-in. `us_of`: by a kernel's name, what a launch takes.

    `tears`: whether lines of more than 64 bytes tear over the host, one a launch: without the safeguard a
    wrong element. `spoiled`: a part of the names of kernels whose every result is wrong."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, us_of: Callable[[str], float]) -> None:
        self.here, self.us_of, self.tears, self.spoiled = Here(), us_of, True, ""
        self._memory: dict[int, np.ndarray] = {}
        self.launched: set[str] = set()
        self._patch_runtime(monkeypatch)
        self._patch_torch(monkeypatch)
        self._patch_ours(monkeypatch)

    def run(self, world: int, action: Callable[[ThreadGroup], Any]) -> list[Any]:
        """[action(group) of each rank], on threads."""

        def on_device(group: ThreadGroup) -> Any:
            self.here.group = group
            with OnCpu(self.here):
                return action(group)

        return on_all_ranks(world, on_device)

    @property
    def allocated(self) -> int:
        """How many pieces of device memory nobody freed."""
        return len(self._memory)

    def allocate(self, nbytes: int) -> int:
        """Zeroed memory at an address that is a multiple of 256."""
        raw = np.zeros(nbytes + 256, np.uint8)
        address = int(raw.ctypes.data) + -int(raw.ctypes.data) % 256
        self._memory[address] = raw
        return address

    def free(self, address: int) -> tuple[int]:
        del self._memory[address]
        return (0,)

    def function(self, name: str, macros: dict[str, Any]) -> Any:
        """In place of `jit.Function`."""

        def bind(blocks: int, threads: int, *values: Any) -> Any:
            assert blocks >= 1
            assert 1 <= threads <= 1024
            return SimpleNamespace(launch=lambda stream: self._launch(name, macros, values))

        def launch(blocks: int, threads: int, stream: int, *values: Any) -> None:
            bind(blocks, threads, *values).launch(stream)

        return SimpleNamespace(bind=bind, launch=launch, blocks_per_multiprocessor=lambda threads: 2)

    def _launch(self, name: str, macros: dict[str, Any], values: Any) -> None:
        self.launched.add(name)

        def step(computes: bool = True) -> None:
            self.here.now_us += self.us_of(name)
            if computes and "ARF_SHOT" in macros:
                self._reduce(macros, values[0], wrong=bool(self.spoiled) and self.spoiled in name)

        self.here.enqueue("kernel", step)

    def _reduce(self, macros: dict[str, Any], args: Any, *, wrong: bool) -> None:
        """The sum in float32 in rank order, rounded once: what every kernel of ours gives."""
        dtype, group = DTYPES[macros["ARF_DTYPE"]], self.here.group
        mine, result = (_tensor(address, args.nbytes, dtype) for address in (args.input, args.output))
        row = group.shared.slots["kernel", tuple(args.slab)]  # groups side by side have slabs of their own
        row[args.rank] = mine.clone()
        group.barrier()
        parts = 2 if macros["ARF_SHOT"] == 4 else 1  # islands are summed on their own first
        each = macros["ARF_WORLD"] // parts
        sums = [_in_order([t.float() for t in row[p * each : (p + 1) * each]]) for p in range(parts)]
        total = _in_order(sums).to(dtype)
        group.barrier()
        torn = self.tears and macros["ARF_HOST"] and macros.get("ARF_LINE", 0) > 64
        if wrong or (torn and "ARF_UNSAFE_HASH" in macros):
            total[0] += 1
        if torn and "ARF_COUNT_TEARS" in macros:
            _tensor(args.state + 8, 8, torch.int64)[0] += 1
        result.copy_(total)

    def _patch_runtime(self, monkeypatch: pytest.MonkeyPatch) -> None:
        runtime = pytest.importorskip("cuda.bindings.runtime", reason="needs cuda-core")

        def record(event: Any, stream: int, flags: Any) -> tuple[int]:
            self.here.enqueue("event", lambda: setattr(event, "at", self.here.now_us))
            return (0,)

        def copy(target: int, source: int, nbytes: int, kind: Any) -> tuple[int]:
            ctypes.memmove(target, source, nbytes)
            return (0,)

        def fill(target: int, value: int, nbytes: int) -> tuple[int]:
            ctypes.memset(target, value, nbytes)
            return (0,)

        for name, stand_in in {
            "cudaMalloc": lambda nbytes: (0, self.allocate(nbytes)),
            "cudaFree": self.free,
            "cudaMemcpy": copy,
            "cudaMemset": fill,
            "cudaDeviceSynchronize": lambda: (0,),
            "cudaEventCreate": lambda: (0, SimpleNamespace(at=0.0)),
            "cudaEventDestroy": lambda event: (0,),
            "cudaEventRecordWithFlags": record,
            "cudaEventSynchronize": lambda event: (0,),
            "cudaEventElapsedTime": lambda begin, end: (0, (end.at - begin.at) / 1e3),
        }.items():
            monkeypatch.setattr(runtime, name, stand_in)

    def _patch_torch(self, monkeypatch: pytest.MonkeyPatch) -> None:
        here, generator, default = self.here, torch.Generator, Stream()

        @contextlib.contextmanager
        def on(stream: Stream) -> Iterator[None]:
            before, here.stream = here.stream, stream
            yield
            here.stream = before

        @contextlib.contextmanager
        def graph(into: Graph, *, capture_error_mode: str) -> Iterator[None]:
            into.capture_begin(capture_error_mode=capture_error_mode)
            yield
            into.capture_end()

        for name, stand_in in {
            "synchronize": lambda device=None: None,
            "current_stream": lambda device=None: here.stream or default,
            "Stream": Stream,
            "stream": on,
            "CUDAGraph": lambda: Graph(here),
            "graph": graph,
            "device": lambda ordinal: contextlib.nullcontext(),
            "get_device_properties": lambda device: SimpleNamespace(multi_processor_count=132),
        }.items():
            monkeypatch.setattr(torch.cuda, name, stand_in)
        monkeypatch.setattr(torch, "Generator", lambda device="cpu": generator())

    def _patch_ours(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def load(source: str, symbol: str, *, device: int, defines: Any = None, name: str = "") -> Any:
            assert source
            if not isinstance((defines or {}).get("ARF_WORLD", 2), int):
                raise jit.JitError(f"{name} does not compile")
            return self.function(name.removesuffix(".cu") or symbol, dict(defines or {}))

        def slab(path: str, group: ThreadGroup, nbytes: int) -> slabs.Slab:
            own = self.allocate(nbytes)
            pointers = tuple(group.all_gather(own))
            return slabs.Slab(path, nbytes, group.rank, pointers, lambda: self.free(own))

        def nodes(stream: int) -> int:
            return len(self.here.capture or ())

        monkeypatch.setattr(jit, "load_function", load)
        monkeypatch.setattr(slabs, "slab", slab)
        monkeypatch.setattr(barrier, "slab", slab)
        monkeypatch.setattr(barrier, "compile_cubin", lambda source, **_: b"")
        monkeypatch.setattr(barrier, "device_arch", lambda ordinal: "sm_90")
        monkeypatch.setattr(barrier, "Function", lambda cubin, symbol: self.function(symbol, {}))
        monkeypatch.setattr(chains, "captured_nodes", nodes)
        forget_streams()
        monkeypatch.setattr(timing_gpu, "_BARRIERS", PerThread())
        monkeypatch.setattr(own_backend, "_CHOSEN", PerThread())
        monkeypatch.setattr(own_backend, "_SEARCHED", SetPerThread())
        monkeypatch.setattr(health, "read", lambda ordinal: health.Reading())


def _in_order(terms: list[torch.Tensor]) -> torch.Tensor:
    return reduce(torch.add, terms)


def forget_streams() -> None:
    """Before and after: streams of the stand-in are of no use elsewhere, nor others to it."""
    chains.capture_stream.cache_clear()
    chains.side_stream.cache_clear()


def _tensor(address: int, nbytes: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.frombuffer((ctypes.c_uint8 * nbytes).from_address(address), dtype=dtype)


class TimedOp:
    """In place of a library's operation: takes time and reduces nothing."""

    def __init__(self, cuda: Cuda, case: Any, slots: int) -> None:
        self.slots, self._cuda, self._name = slots, cuda, f"nccl {case.variant}"

    def run(self, slot: int) -> None:
        self._cuda._launch(self._name, {}, ())

    def close(self) -> None:
        pass


def rank_of(gpu_ranks: Any, group: ThreadGroup, path: str, limit_s: float) -> Any:
    """A `GpuRank` over a thread's group."""
    rank = object.__new__(gpu_ranks.GpuRank)
    rank._begun, rank._limit_s = time.monotonic(), limit_s
    rank.rank, rank.world, rank.group, rank.path = group.rank, group.world, group, path
    rank.device = f"cuda:{group.rank}"
    return rank
