"""Virtual ranks: several ranks on one GPU in one process, to verify 4 and 8 ranks without as many GPUs.

Every rank has a stream, counters and slab region of its own; their kernels run at the same time, so all
blocks must be resident at once (checked) and the code loaded beforehand (`jit.Function` does). It shows
that a protocol is right with ranks apart in time; it says nothing about how fast real ones are.

More than eight streams at once need CUDA_DEVICE_MAX_CONNECTIONS=32 in the environment, set before CUDA
starts: streams that share a queue wait for each other, and kernels that wait for each other must not.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

from arfloor.backends.ours import Endpoint, Operation, OursError, check_world, kernel
from arfloor.core.cases import Path
from arfloor.core.plans import DeviceError, Plan, layout
from arfloor.runtime import jit


class VirtualRanks:
    """`world` ranks of one plan on one device. `path` chooses where the slabs lie: GPU or host memory.

    Raises OursError when the plan fits no kernel or not all blocks fit on the device at once.
    """

    def __init__(
        self,
        *,
        plan: Plan,
        path: Path,
        dtype: str,
        world: int,
        device: int,
        max_nbytes: int,
        spin_s: float = 2.0,
        extra: dict[str, Any] | None = None,
        end_type: type[Endpoint] = Endpoint,
    ) -> None:
        from cuda.bindings import runtime

        check_world(plan, world, path, max_nbytes)
        jit.checked(runtime.cudaSetDevice(device))
        function = kernel(plan, world, dtype, path, device, extra)
        _check_resident(function, plan, world, device)
        self._free: list[Callable[[], Any]] = []
        self._nbytes = layout(plan, world, path, max_nbytes).nbytes
        self._host = path == "host"
        self.slabs = tuple(self._allocate() for _ in range(world))
        self.clear()
        self.ends = [
            end_type(
                plan=plan,
                path=path,
                dtype=dtype,
                rank=rank,
                pointers=self.slabs,
                max_nbytes=max_nbytes,
                spin_s=spin_s,
                function=function,
            )
            for rank in range(world)
        ]
        flags = runtime.cudaStreamNonBlocking
        self.streams = [int(jit.checked(runtime.cudaStreamCreateWithFlags(flags))) for _ in range(world)]

    def _allocate(self) -> int:
        from cuda.bindings import runtime

        if self._host:
            pointer = int(jit.checked(runtime.cudaHostAlloc(self._nbytes, 0)))
            self._free.append(lambda: runtime.cudaFreeHost(pointer))
        else:
            pointer = int(jit.checked(runtime.cudaMalloc(self._nbytes)))
            self._free.append(lambda: runtime.cudaFree(pointer))
        return pointer

    def clear(self) -> None:
        """Zero all slabs; nothing may be running."""
        from cuda.bindings import runtime

        for pointer in self.slabs:
            if self._host:
                ctypes.memset(pointer, 0, self._nbytes)
            else:
                jit.checked(runtime.cudaMemset(pointer, 0, self._nbytes))
        jit.checked(runtime.cudaDeviceSynchronize())

    def set_sequence(self, last: int) -> None:
        """Clear errors and set every counter of every rank."""
        for end in self.ends:
            end.set_sequence(last)

    def set_stall(self, ns: int) -> None:
        """The longest stall of operations bound from now on, in a build with ARF_STALL or ARF_TEAR."""
        for end in self.ends:
            end.stall_ns = ns

    def new_epoch(self) -> None:
        """After an error: clear everything and go on in the next epoch. Bind operations anew."""
        self.clear()
        for end in self.ends:
            end.set_sequence(0)
            end.epoch += 1

    def bind(
        self, sources: Sequence[int], targets: Sequence[int], nbytes: int, *, blocks: int | None = None
    ) -> list[Operation]:
        """An operation a rank, on that rank's buffers."""
        return [
            end.bind(source, target, nbytes, blocks=blocks)
            for end, source, target in zip(self.ends, sources, targets, strict=True)
        ]

    def launch(self, operations: Sequence[Operation], ranks: Sequence[int] | None = None) -> None:
        """Enqueue the operations of some ranks (all by default), each on its rank's stream."""
        for rank in range(len(self.ends)) if ranks is None else ranks:
            operations[rank].launch(self.streams[rank])

    def errors(self) -> list[DeviceError | None]:
        """Every rank's error word; synchronise first."""
        return [end.error() for end in self.ends]

    def close(self) -> None:
        """Free everything; waits for the device."""
        from cuda.bindings import runtime

        runtime.cudaDeviceSynchronize()
        for stream in self.streams:
            runtime.cudaStreamDestroy(stream)
        for end in self.ends:
            end.close()
        while self._free:
            self._free.pop()()


def _check_resident(function: jit.Function, plan: Plan, world: int, device: int) -> None:
    from cuda.bindings import runtime

    attribute = runtime.cudaDeviceAttr.cudaDevAttrMultiProcessorCount
    multiprocessors = int(jit.checked(runtime.cudaDeviceGetAttribute(attribute, device)))
    room = multiprocessors * function.blocks_per_multiprocessor(plan.threads)
    if plan.blocks * world > room:
        raise OursError(
            f"{plan.blocks * world} blocks of {plan.threads} threads must be resident at once, "
            f"the GPU holds {room}; use fewer blocks or ranks"
        )
