"""Memory that every rank can address: GPU memory of each rank (`peer`) or pinned host memory (`host`).

A slab has one region a rank, created by that rank. Peer regions are cudaMalloc plus cudaIpc handles;
host regions are POSIX shared memory that every process registers with CUDA, first touched on the NUMA
node of the GPU, where the system tells it. Handles travel through a `Group` as JSON.

Everything is freed on every exit path: `close`, the end of a `with`, or the interpreter's exit; host
segments are unlinked as soon as all ranks have mapped them, so that even a kill leaves none behind.
A rank that fails tells the others: all raise or none does.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import mmap
import os
import secrets
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

from arfloor.runtime.agree import told
from arfloor.runtime.jit import checked

ALIGNMENT = 2 << 20
"""Regions are multiples of this: cudaMalloc's own granularity, so that an IPC handle maps exactly one."""

_SHM = Path("/dev/shm")
_PREFIX = "arfloor-"
_STALE_AFTER_S = 600.0
_HANDLE_BYTES = 64  # CUDA_IPC_HANDLE_SIZE


class SlabError(Exception):
    """Shared memory that could not be set up; raised on every rank, naming the rank that failed."""


class Exchange(Protocol):
    """What a slab needs of `arfloor.backends.base.Group`."""

    rank: int
    world: int

    def barrier(self) -> None: ...
    def all_gather(self, value: Any) -> list[Any]: ...


class Slab:
    """Memory of all ranks. `pointers[r]` is the device address, in this process, of rank r's region."""

    def __init__(
        self, path: str, nbytes: int, rank: int, pointers: tuple[int, ...], release: Callable[[], None]
    ) -> None:
        self.path = path
        self.nbytes = nbytes
        self.rank = rank
        self.pointers = pointers
        self._release: Callable[[], None] | None = release
        atexit.register(self.close)

    @property
    def own(self) -> int:
        """Device address of this rank's region."""
        return self.pointers[self.rank]

    def clear(self) -> None:
        """Zero this rank's region and wait for it. Collective callers put a barrier on both sides."""
        from cuda.bindings import runtime

        checked(runtime.cudaMemset(self.own, 0, self.nbytes))
        checked(runtime.cudaDeviceSynchronize())

    def close(self) -> None:
        """Unmap and free; idempotent, never raises. Other ranks may still hold their mappings."""
        release, self._release = self._release, None
        if release is not None:
            atexit.unregister(self.close)
            release()

    def __enter__(self) -> Slab:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def peer_slab(group: Exchange, nbytes: int) -> Slab:
    """`nbytes` of zeroed GPU memory on every rank's current device, mapped into all of them.

    Collective. Raises SlabError on every rank when any of them fails: no peer access, or no memory.
    """
    size = _rounded(nbytes)
    release = _Releases()
    with release.on_error(), _joint(group, "peer slab") as step:
        own = step.run(lambda: _allocate(size, release))
        handle = step.run(lambda: _export(own))
        handles = step.all_gather(handle)
        pointers = step.run(lambda: _import(handles, group.rank, own, release))
        step.agree()
    return Slab("peer", size, group.rank, pointers, release)


def host_slab(group: Exchange, nbytes: int, *, numa: int | None = None) -> Slab:
    """`nbytes` of zeroed pinned host memory a rank, registered with CUDA in all of them.

    `numa`: the node to place this rank's region on; by default that of the current device, where known.
    Collective. Raises SlabError on every rank when any of them fails.
    """
    size = _rounded(nbytes)
    release = _Releases()
    name = f"{_PREFIX}{os.getpid()}-{secrets.token_hex(8)}"
    with release.on_error(), _joint(group, "host slab") as step:
        try:
            step.run(lambda: _create_segment(name, size, numa if numa is not None else device_numa_node()))
            names = step.all_gather(name)
            pointers = step.run(lambda: tuple(_register(other, size, release) for other in names))
            step.agree()
        finally:  # all have mapped it, or all give up: either way nobody needs the name
            with contextlib.suppress(OSError):
                (_SHM / name).unlink()
    return Slab("host", size, group.rank, pointers, release)


def slab(path: str, group: Exchange, nbytes: int) -> Slab:
    """A slab for a path, `peer` or `host`."""
    if path == "peer":
        return peer_slab(group, nbytes)
    if path == "host":
        return host_slab(group, nbytes)
    raise ValueError(f"expected path 'peer' or 'host', got {path!r}")


def _rounded(nbytes: int) -> int:
    if nbytes <= 0:
        raise ValueError(f"expected a positive slab size, got {nbytes}")
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


class _Releases:
    """Undo steps in reverse order; one that fails (context gone, driver shut down) stops no other."""

    def __init__(self) -> None:
        self._steps: list[Callable[[], Any]] = []

    def add(self, step: Callable[[], Any]) -> None:
        self._steps.append(step)

    def __call__(self) -> None:
        while self._steps:
            with contextlib.suppress(Exception):
                self._steps.pop()()

    @contextlib.contextmanager
    def on_error(self) -> Iterator[None]:
        try:
            yield
        except BaseException:
            self()
            raise


class _Joint:
    """Steps that all ranks take together: a rank whose step failed goes on exchanging, doing nothing."""

    def __init__(self, group: Exchange, what: str) -> None:
        self._group = group
        self._what = what
        self._error: str | None = None

    def run(self, step: Callable[[], Any]) -> Any:
        if self._error is not None:
            return None
        try:
            return step()
        except Exception as error:  # noqa: BLE001 - reported on every rank by the next exchange
            self._error = f"{type(error).__name__}: {error}"
            return None

    def all_gather(self, value: Any) -> list[Any]:
        failed, values = told(self._group, self._error, value)
        if failed:
            raise SlabError(f"{self._what} could not be set up: {'; '.join(failed)}")
        return values

    def agree(self) -> None:
        self.all_gather(None)


@contextlib.contextmanager
def _joint(group: Exchange, what: str) -> Iterator[_Joint]:
    yield _Joint(group, what)


def _allocate(size: int, release: _Releases) -> int:
    from cuda.bindings import runtime

    pointer = int(checked(runtime.cudaMalloc(size)))
    release.add(lambda: runtime.cudaFree(pointer))
    checked(runtime.cudaMemset(pointer, 0, size))
    checked(runtime.cudaDeviceSynchronize())
    return pointer


def _export(pointer: int) -> str:
    from cuda.bindings import runtime

    handle = checked(runtime.cudaIpcGetMemHandle(pointer))
    return ctypes.string_at(handle.getPtr(), _HANDLE_BYTES).hex()


def _import(handles: list[str], rank: int, own: int, release: _Releases) -> tuple[int, ...]:
    from cuda.bindings import runtime

    pointers = []
    for other, text in enumerate(handles):
        if other == rank:
            pointers.append(own)
            continue
        handle = runtime.cudaIpcMemHandle_t()
        ctypes.memmove(handle.getPtr(), bytes.fromhex(text), _HANDLE_BYTES)
        flags = runtime.cudaIpcMemLazyEnablePeerAccess
        pointer = int(checked(runtime.cudaIpcOpenMemHandle(handle, flags)))
        release.add(lambda p=pointer: runtime.cudaIpcCloseMemHandle(p))  # type: ignore[misc]
        pointers.append(pointer)
    return tuple(pointers)


def _create_segment(name: str, size: int, node: int | None) -> None:
    """Create and touch a segment, on the CPUs of `node`: the kernel places a page where it is touched."""
    _remove_stale_segments()
    handle = os.open(_SHM / name, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600)
    try:
        with running_on_node(node):
            os.posix_fallocate(handle, 0, size)  # raises when memory is short, where a touch would kill
            with mmap.mmap(handle, size) as view:
                ctypes.memset(ctypes.addressof(ctypes.c_char.from_buffer(view)), 0, size)
    finally:
        os.close(handle)


def _register(name: str, size: int, release: _Releases) -> int:
    from cuda.bindings import runtime

    handle = os.open(_SHM / name, os.O_RDWR)
    try:
        view = mmap.mmap(handle, size)
    finally:
        os.close(handle)
    address = ctypes.addressof(ctypes.c_char.from_buffer(view))
    # The view stays referenced, and so mapped, until it is unregistered.
    release.add(lambda: (runtime.cudaHostUnregister(address), view)[0])
    flags = runtime.cudaHostRegisterPortable | runtime.cudaHostRegisterMapped
    checked(runtime.cudaHostRegister(address, size, flags))
    return int(checked(runtime.cudaHostGetDevicePointer(address, 0)))


def _remove_stale_segments() -> None:
    """Segments live under a name for seconds only; an old name is one whose process was killed just then."""
    with contextlib.suppress(OSError):
        for file in _SHM.glob(f"{_PREFIX}*"):
            with contextlib.suppress(OSError):
                info = file.stat()
                if info.st_uid == os.getuid() and time.time() - info.st_mtime > _STALE_AFTER_S:
                    file.unlink()


def device_numa_node() -> int | None:
    """NUMA node of the current device's PCI function; None where the system does not tell."""
    from cuda.bindings import runtime

    device = checked(runtime.cudaGetDevice())
    raw = checked(runtime.cudaDeviceGetPCIBusId(32, device))
    bus = (raw if isinstance(raw, str) else bytes(raw).split(b"\0")[0].decode()).strip("\0").lower()
    return numa_node_of(Path("/sys/bus/pci/devices") / bus / "numa_node")


def numa_node_of(file: Path) -> int | None:
    """The node that a `numa_node` file of sysfs names; None when absent or -1 (unknown)."""
    try:
        node = int(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return node if node >= 0 else None


def parse_cpulist(text: str) -> frozenset[int]:
    """CPUs of a sysfs list such as `0-3,8`."""
    cpus: set[int] = set()
    for part in text.strip().split(","):
        if part:
            first, _, last = part.partition("-")
            cpus.update(range(int(first), int(last or first) + 1))
    return frozenset(cpus)


@contextlib.contextmanager
def running_on_node(node: int | None) -> Iterator[None]:
    """Run this thread on the CPUs of a NUMA node for a while; does nothing where that is not possible."""
    allowed = os.sched_getaffinity(0)
    wanted: frozenset[int] = frozenset()
    if node is not None:
        with contextlib.suppress(OSError, ValueError):
            wanted = parse_cpulist(
                Path(f"/sys/devices/system/node/node{node}/cpulist").read_text(encoding="utf-8")
            )
    chosen = wanted & allowed
    if not chosen:
        yield
        return
    os.sched_setaffinity(0, chosen)
    try:
        yield
    finally:
        os.sched_setaffinity(0, allowed)
