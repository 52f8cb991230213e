"""A barrier that GPUs hold among themselves: what every GPU timing starts behind (kernels/barrier.cu)."""

from __future__ import annotations

import ctypes
from typing import Any

from arfloor.runtime.agree import jointly
from arfloor.runtime.jit import Function, Launch, checked, compile_cubin, device_arch, read_sources
from arfloor.runtime.slabs import Exchange, Slab, SlabError, slab

_LINE_BYTES = 128
MAX_WORLD = 32
SETTLE_US = 150.0
"""Between the barrier's two meetings: how long a host may go on launching a graph whose first nodes run
already, 130 us for 40 of NCCL's operations. With 50, a launch skew moved them by 1 to 3 %."""


class BarrierTimeout(Exception):
    """A rank waited at the device barrier for longer than its limit: the others never came."""


class DeviceBarrier:
    """Collective to make and to close. `enqueue` puts it on a stream, also inside a capture.

    `path` is where the flags lie: `peer` memory where GPUs can address each other, else `host`.
    `limit_s` bounds a rank's wait on the device; `settle_us` passes between the ranks' two meetings.
    Raises SlabError on every rank when any fails.
    """

    def __init__(
        self,
        group: Exchange,
        path: str,
        *,
        device: int,
        limit_s: float = 5.0,
        settle_us: float = SETTLE_US,
    ) -> None:
        if not 2 <= group.world <= MAX_WORLD:
            raise ValueError(f"a device barrier needs 2 to {MAX_WORLD} ranks, got {group.world}")
        self.path = path
        self._memory = 0
        self._slab: Slab = slab(path, group, group.world * _LINE_BYTES)
        try:
            # no rank arrives before all have come here: all areas are zero
            jointly(
                group, "device barrier", lambda: self._set_up(group, device, limit_s, settle_us), SlabError
            )
        except BaseException:
            self.close()
            raise

    def _set_up(self, group: Exchange, device: int, limit_s: float, settle_us: float) -> None:
        from cuda.bindings import runtime

        source = read_sources("barrier.cu")
        cubin = compile_cubin(source, arch=device_arch(device), name="barrier.cu")
        self._delay = Function(cubin, "delay")
        table = (ctypes.c_uint64 * group.world)(*self._slab.pointers)
        words = ctypes.sizeof(table)
        self._memory = int(checked(runtime.cudaMalloc(words + 2 * _LINE_BYTES)))
        checked(runtime.cudaMemset(self._memory, 0, words + 2 * _LINE_BYTES))
        kind = runtime.cudaMemcpyKind.cudaMemcpyHostToDevice
        checked(runtime.cudaMemcpy(self._memory, ctypes.addressof(table), words, kind))
        self._error = self._memory + words + _LINE_BYTES
        self._launch: Launch = Function(cubin, "device_barrier").bind(
            1,
            32,
            ctypes.c_uint64(self._memory),
            ctypes.c_uint64(self._memory + words),
            ctypes.c_uint64(self._error),
            ctypes.c_int(group.rank),
            ctypes.c_int(group.world),
            ctypes.c_uint64(int(limit_s * 1e9)),
            ctypes.c_uint64(int(settle_us * 1e3)),
        )

    def enqueue(self, stream: int) -> None:
        """Put the barrier on `stream` (a handle as an integer)."""
        self._launch.launch(stream)

    def enqueue_delay(self, stream: int, us: float) -> None:
        """Busy `stream` for `us` microseconds: skew, for tests and for contention studies."""
        self._delay.launch(1, 1, stream, ctypes.c_uint64(int(us * 1e3)))

    def check(self) -> None:
        """Raise BarrierTimeout when a wait ran out since the last check. Waits for the device."""
        from cuda.bindings import runtime

        word = ctypes.c_uint32(0)
        kind = runtime.cudaMemcpyKind.cudaMemcpyDeviceToHost
        checked(runtime.cudaMemcpy(ctypes.addressof(word), self._error, 4, kind))
        if word.value:
            checked(runtime.cudaMemset(self._error, 0, 4))
            raise BarrierTimeout("a rank did not reach the device barrier in time; its timing is discarded")

    def close(self) -> None:
        """Free everything; the stream must be idle. Idempotent."""
        from cuda.bindings import runtime

        memory, self._memory = self._memory, 0
        if memory:
            runtime.cudaFree(memory)
        self._slab.close()


def empty_kernel(device: int) -> Any:
    """The kernel that does nothing, for the cost of a graph node."""
    source = read_sources("barrier.cu")
    return Function(compile_cubin(source, arch=device_arch(device), name="barrier.cu"), "empty")
