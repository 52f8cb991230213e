"""Child process: move checked data between the GPUs named by bus id, and print what it showed as JSON.

For each ordered pair: a kernel on one GPU writes the other's memory, which checks it, and reads back what
the other wrote; then rates of kernel stores to the peer and to pinned host memory, and of a driver copy.
A driver copy far below both is staged through system memory. Buffers are 32 MiB; nothing is multicast.
"""

from __future__ import annotations

import ctypes
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from arfloor.core.box import LinkUnderLoad, PathProbe
from arfloor.core.peer_verdict import path_probe

NBYTES = 32 << 20
_PAIRS = NBYTES // 16
_THREADS = 512
_TIMED_BYTES = 1 << 30
_SLOW_BYTES = 1 << 28


class Device:
    """One GPU: its buffer, its kernels, its stream and its events. Raises JitError when any fails."""

    def __init__(self, bus_id: str) -> None:
        from cuda.bindings import runtime

        from arfloor.runtime.jit import checked, load_function, read_sources

        self.bus_id = bus_id
        self.ordinal = int(checked(runtime.cudaDeviceGetByPCIBusId(bus_id.encode())))
        self.enter()
        attribute = runtime.cudaDeviceAttr.cudaDevAttrMultiProcessorCount
        self.blocks = 2 * int(checked(runtime.cudaDeviceGetAttribute(attribute, self.ordinal)))
        source = read_sources("peer_check.cu")
        self.fill = load_function(source, "fill", device=self.ordinal)
        self.count_wrong = load_function(source, "count_wrong", device=self.ordinal)
        self.buffer = int(checked(runtime.cudaMalloc(NBYTES)))
        self.wrong = int(checked(runtime.cudaMalloc(4)))
        self.stream = checked(runtime.cudaStreamCreate())
        self.begin = checked(runtime.cudaEventCreate())
        self.end = checked(runtime.cudaEventCreate())

    def enter(self) -> None:
        """Make this the current device."""
        from cuda.bindings import runtime

        from arfloor.runtime.jit import checked

        checked(runtime.cudaSetDevice(self.ordinal))

    def write(self, address: int, seed: int, passes: int = 1) -> None:
        """Enqueue stores of the words of `seed` (+ pass) over NBYTES at `address`."""
        self.enter()
        words = (ctypes.c_void_p(address), ctypes.c_uint64(_PAIRS), ctypes.c_uint64(seed))
        self.fill.launch(self.blocks, _THREADS, int(self.stream), *words, ctypes.c_int(passes))

    def wrong_words(self, address: int, seed: int) -> int:
        """How many 8-byte words at `address` differ from those of `seed`, as this GPU reads them."""
        from cuda.bindings import runtime

        from arfloor.runtime.jit import checked

        self.enter()
        checked(runtime.cudaMemsetAsync(self.wrong, 0, 4, self.stream))
        words = (ctypes.c_void_p(address), ctypes.c_uint64(_PAIRS), ctypes.c_uint64(seed))
        self.count_wrong.launch(self.blocks, _THREADS, int(self.stream), *words, ctypes.c_void_p(self.wrong))
        found = ctypes.c_uint32(0)
        self.wait()
        kind = runtime.cudaMemcpyKind.cudaMemcpyDeviceToHost
        checked(runtime.cudaMemcpy(ctypes.addressof(found), self.wrong, 4, kind))
        return found.value

    def wait(self) -> None:
        """Wait for what was enqueued."""
        from cuda.bindings import runtime

        from arfloor.runtime.jit import checked

        self.enter()
        checked(runtime.cudaStreamSynchronize(self.stream))

    def gbps(self, enqueue: Callable[[], None], nbytes: int) -> float:
        """Rate of `nbytes` that `enqueue` moves on this device's stream, by device events."""
        from cuda.bindings import runtime

        from arfloor.runtime.jit import checked

        self.enter()
        checked(runtime.cudaEventRecord(self.begin, self.stream))
        enqueue()
        checked(runtime.cudaEventRecord(self.end, self.stream))
        self.wait()
        milliseconds = float(checked(runtime.cudaEventElapsedTime(self.begin, self.end)))
        return nbytes / (milliseconds * 1e6)


@contextmanager
def pinned() -> Iterator[int]:
    """Pinned host memory of NBYTES that every GPU can address (its address is the same for all)."""
    from cuda.bindings import runtime

    from arfloor.runtime.jit import checked

    address = int(checked(runtime.cudaHostAlloc(NBYTES, runtime.cudaHostAllocPortable)))
    try:
        yield address
    finally:
        runtime.cudaFreeHost(address)


def reaches(one: Device, other: Device) -> bool:
    """Whether the driver grants `one` access to `other`'s memory; turns it on when it does."""
    from cuda.bindings import runtime

    from arfloor.runtime.jit import checked

    if not checked(runtime.cudaDeviceCanAccessPeer(one.ordinal, other.ordinal)):
        return False
    one.enter()
    status = runtime.cudaDeviceEnablePeerAccess(other.ordinal, 0)[0]
    if status == runtime.cudaError_t.cudaErrorPeerAccessAlreadyEnabled:
        runtime.cudaGetLastError()
    else:
        checked((status,))
    return True


def probe_pair(one: Device, other: Device, host_gbps: float | None, seed: int) -> PathProbe:
    """Checked transfers and rates from `one` to `other`. Raises JitError when the driver fails."""
    from cuda.bindings import runtime

    from arfloor.runtime.jit import checked

    if not reaches(one, other):
        return PathProbe(
            a=one.bus_id, b=other.bus_id, status="skipped", detail="the driver reports no peer access"
        )
    one.write(other.buffer, seed)
    one.wait()
    written = other.wrong_words(other.buffer, seed)
    other.write(other.buffer, seed + 1000)
    other.wait()
    read = one.wrong_words(other.buffer, seed + 1000)
    first = one.gbps(lambda: one.write(other.buffer, seed, 4), 4 * NBYTES)
    passes = (_TIMED_BYTES if first > 100 else _SLOW_BYTES) // NBYTES
    peer = one.gbps(lambda: one.write(other.buffer, seed, passes), passes * NBYTES)

    def copies() -> None:
        for _ in range(8):
            answer = runtime.cudaMemcpyPeerAsync(
                other.buffer, other.ordinal, one.buffer, one.ordinal, NBYTES, one.stream
            )
            checked(answer)

    copies()
    copied = one.gbps(copies, 8 * NBYTES)
    return path_probe(
        one.bus_id,
        other.bus_id,
        wrong_written=written,
        wrong_read=read,
        words=NBYTES // 8,
        peer_gbps=peer,
        host_gbps=host_gbps,
        copy_gbps=copied,
    )


def load_link(device: Device, host: int) -> tuple[float, LinkUnderLoad]:
    """Rate of stores to pinned host memory, and the device's PCIe link while they run."""
    first = device.gbps(lambda: device.write(host, 1, 2), 2 * NBYTES)
    passes = max(4, min(512, int(first * 1e9 * 0.15 / NBYTES)))  # about 0.15 s: a link wakes within that
    device.write(host, 1, passes)
    seen = link_now(device.bus_id)
    device.wait()
    rate = device.gbps(lambda: device.write(host, 1, 16), 16 * NBYTES)
    return rate, LinkUnderLoad(gpu=device.bus_id, gen=seen[0], width=seen[1])


def link_now(bus_id: str) -> tuple[int | None, int | None]:
    """(generation, lanes) of a device's PCIe link at this moment, from NVML or else from sysfs."""
    try:
        import pynvml as nvml

        nvml.nvmlInit()
        handle = nvml.nvmlDeviceGetHandleByPciBusId(bus_id.encode())
        gen = int(nvml.nvmlDeviceGetCurrPcieLinkGeneration(handle))
        return gen, int(nvml.nvmlDeviceGetCurrPcieLinkWidth(handle))
    except Exception:  # noqa: BLE001 - NVML raises one class an error; sysfs answers as well
        from arfloor.runtime import sysfs

        link = sysfs.link(Path("/sys/bus/pci/devices") / bus_id)
        return (link.gen, link.width) if link is not None else (None, None)


def run(bus_ids: list[str]) -> dict[str, Any]:
    """All pairs of these GPUs. A failure ends the probing: a context that failed proves nothing more."""
    from arfloor.runtime.jit import JitError

    paths: list[PathProbe] = []
    links: list[LinkUnderLoad] = []
    current = ("", "")
    devices, hidden = _open(bus_ids)
    if not devices:
        return _answer(paths, links, hidden)
    try:
        rates: dict[str, float] = {}
        with pinned() as host:
            for device in devices:
                rates[device.bus_id], seen = load_link(device, host)
                links.append(seen)
            seed = 1
            for one in devices:
                for other in devices:
                    if one is not other:
                        current = (one.bus_id, other.bus_id)
                        seed += 10_000
                        paths.append(probe_pair(one, other, rates.get(one.bus_id), seed))
    except (JitError, RuntimeError, OSError) as error:
        if not current[0]:
            return _answer(paths, links, str(error))
        paths.append(PathProbe(a=current[0], b=current[1], status="failed", detail=str(error)[:200]))
        return _answer(paths, links, "ended after a failure")
    return _answer(paths, links, hidden)


def _open(bus_ids: list[str]) -> tuple[list[Device], str]:
    """The devices that CUDA shows this process, and what it says of one that it does not."""
    from arfloor.runtime.jit import JitError

    devices: list[Device] = []
    why = ""
    for bus in bus_ids:
        try:
            devices.append(Device(bus))
        except (JitError, RuntimeError, OSError) as error:
            why = f"{bus} cannot be used ({error}): hidden by CUDA_VISIBLE_DEVICES, or in exclusive use"
    return devices, why


def _answer(paths: list[PathProbe], links: list[LinkUnderLoad], why: str) -> dict[str, Any]:
    return {"paths": [asdict(p) for p in paths], "links": [asdict(u) for u in links], "why": why}


def main() -> int:
    """Probe the GPUs whose bus ids are the arguments."""
    try:
        from cuda.bindings import runtime  # noqa: F401
    except ImportError:
        why = "the package cuda-core is not installed: pip install 'arfloor[cuda]'"
        json.dump(_answer([], [], why), sys.stdout)
        return 0
    json.dump(run(sys.argv[1:]), sys.stdout)
    return 0


if __name__ == "__main__":
    sys.exit(main())
