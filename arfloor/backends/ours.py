"""The machinery of our own kernels: a `Reducer` is one plan with its slab, counters and launches.

A reducer belongs to one stream at a time: its buffers alternate by the parity of the sequence, which is
safe because an operation starts after the one before it has ended. Operations of two reducers are
independent of each other: every reducer has a region of its own, so nothing it sends can land where
another polls.

The kernels themselves are described in docs/kernels.md.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from arfloor.core import fused
from arfloor.core.cases import ITEMSIZE, Path
from arfloor.core.plans import (
    MAX_WORLD,
    STATE_COUNTERS,
    DeviceError,
    Plan,
    decode_error,
    defines,
    extent,
    flaw,
    layout,
    sources,
)
from arfloor.runtime import agree, jit, slabs

T = TypeVar("T")
SWEEP_SPIN_S = 3.0
"""How long a kernel waits for a peer in a sweep before it gives up and poisons its output."""


class OursError(Exception):
    """A reducer misused or failed; the message says what was expected, found, and what to do."""


class PeerTimeout(OursError):
    """A peer did not arrive in time. `error` names the block and the rank waited for."""

    def __init__(self, message: str, error: DeviceError) -> None:
        super().__init__(message)
        self.error = error


def args_type(world: int, *, epilogue: bool = False) -> type[ctypes.Structure]:
    """`Args` of arfloor/kernels/common.cuh for a number of ranks; `epilogue`: with ARF_FUSED."""
    more = (
        *((name, ctypes.c_uint64) for name in ("residual", "weight", "partials")),
        *((name, ctypes.c_uint32) for name in ("row", "pieces")),
        *((name, ctypes.c_float) for name in ("eps", "inverse")),
    )

    class Args(ctypes.Structure):
        _fields_ = [
            *((name, ctypes.c_uint64) for name in ("input", "output", "nbytes", "state")),
            *((name, ctypes.c_uint64) for name in ("phase2", "phase3", "spin_ns")),
            *((name, ctypes.c_uint32) for name in ("units", "chunk", "tiles", "capacity", "rank")),
            *((name, ctypes.c_uint32) for name in ("epoch", "lookahead", "alignment", "stall_ns")),
            *((name, ctypes.c_uint32) for name in ("pace", "lag", "window")),
            *(more if epilogue else ()),
            ("slab", ctypes.c_uint64 * world),
        ]

    return Args


def kernel(
    plan: Plan, world: int, dtype: str, path: Path, device: int, extra: dict[str, Any] | None = None
) -> jit.Function:
    """The loaded kernel of a plan; `extra` macros are for tests (stalls, removed safeguards)."""
    macros = defines(plan, world, dtype, path) | (extra or {})
    if plan.wire and ITEMSIZE[dtype] != 2:
        raise OursError(f"{plan.name}: 8 bits an element are for 16-bit dtypes, not {dtype}")
    files = fused.SOURCES[plan.protocol] if "ARF_FUSED" in macros else sources(plan)
    source = jit.read_sources(*files)
    return jit.load_function(source, "all_reduce", device=device, defines=macros, name=f"{plan.name}.cu")


def alignment_of(*addresses: int) -> int:
    """The largest power of two up to 16 that divides all addresses."""
    joined = 16
    for address in addresses:
        joined |= address
    return joined & -joined


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One launch with fixed buffers: `launch(stream)` any number of times, also under capture."""

    bound: jit.Launch
    nbytes: int

    def launch(self, stream: int) -> None:
        self.bound.launch(stream)


class Endpoint:
    """One rank's end of a plan: its counters on the device, and launches against given slab regions.

    `pointers[r]`: device address, here, of rank r's region, zeroed. `spin_s`: how long a kernel waits.
    """

    def __init__(
        self,
        *,
        plan: Plan,
        path: Path,
        dtype: str,
        rank: int,
        pointers: tuple[int, ...],
        max_nbytes: int,
        spin_s: float,
        function: jit.Function,
    ) -> None:
        from cuda.bindings import runtime

        self.plan, self.path, self.dtype = plan, path, dtype
        self.rank, self.world, self.pointers = rank, len(pointers), pointers
        self.max_nbytes, self.spin_s = max_nbytes, spin_s
        self.function = function
        self.layout = layout(plan, self.world, path, max_nbytes)
        self.epoch, self.stall_ns = 0, 0
        self._args = args_type(self.world)
        self._state = int(jit.checked(runtime.cudaMalloc(self.layout.state_nbytes)))
        self.set_sequence(0)

    def set_sequence(self, last: int) -> None:
        """Clear the error and set every counter to `last`, the sequence of the last operation."""
        state = np.zeros(self.layout.state_nbytes // 4, np.uint32)
        state[STATE_COUNTERS // 4 :] = last
        _to_device(self._state, state)

    def bind(self, source: int, target: int, nbytes: int, *, blocks: int | None = None) -> Operation:
        """An operation on device buffers of `nbytes` at addresses `source` and `target`, which may be equal.

        `blocks` other than the plan's break the grid rule: for the test that shows why it is one.
        Raises OursError on a size or an address that no kernel can take.
        """
        args = self._args(**self._arguments(source, target, nbytes))
        bound = self.function.bind(blocks or self.plan.blocks, self.plan.threads, args)
        return Operation(bound=bound, nbytes=nbytes)

    def _arguments(self, source: int, target: int, nbytes: int) -> dict[str, Any]:
        check_message(self.dtype, nbytes, self.max_nbytes, source, target)
        units, chunk, tiles = extent(self.plan, self.world, nbytes)
        return {
            "input": source,
            "output": target,
            "nbytes": nbytes,
            "state": self._state,
            "phase2": self.layout.phase2,
            "phase3": self.layout.phase3,
            "spin_ns": int(self.spin_s * 1e9),
            "units": units,
            "chunk": chunk,
            "tiles": tiles,
            "capacity": self.layout.capacity,
            "rank": self.rank,
            "epoch": self.epoch,
            "lookahead": self.plan.lookahead,
            "alignment": alignment_of(source, target),
            "stall_ns": self.stall_ns,
            "pace": self.plan.pace,
            "lag": self.plan.lag,
            "window": self.plan.window,
            "slab": (ctypes.c_uint64 * self.world)(*self.pointers),
        }

    def error(self) -> DeviceError | None:
        """The device's error word; waits for nothing, so synchronise first."""
        return decode_error(int(_from_device(self._state, 8).view(np.uint64)[0]))

    def torn_lines(self) -> int:
        """Torn lines seen so far, in a build with ARF_COUNT_TEARS."""
        return int(_from_device(self._state + 8, 8).view(np.uint64)[0])

    def check(self) -> None:
        """Raise PeerTimeout when a kernel gave up."""
        error = self.error()
        if error is not None:
            raise PeerTimeout(error.sentence(self.rank, self.spin_s), error)

    def close(self) -> None:
        """Free the counters; idempotent."""
        from cuda.bindings import runtime

        pointer, self._state = self._state, 0
        if pointer:
            runtime.cudaFree(pointer)


class Reducer:
    """One plan, set up on every rank. Collective to make, to `reset` and to `close`.

    `max_nbytes`: the largest message. `spin_s`: how long a kernel waits for a peer. `extra`: test macros.
    Raises OursError or SlabError on every rank when any rank fails.
    """

    end_type: type[Endpoint] = Endpoint

    def __init__(
        self,
        *,
        plan: Plan,
        path: Path,
        dtype: str,
        group: slabs.Exchange,
        device: int,
        max_nbytes: int,
        spin_s: float = SWEEP_SPIN_S,
        extra: dict[str, Any] | None = None,
    ) -> None:
        check_world(plan, group.world, path, max_nbytes)
        function = jointly(
            group,
            f"{plan.name} over {path}",
            lambda: self._load(plan, group.world, dtype, path, device, extra),
        )
        self._group = group
        self.slab = slabs.slab(path, group, layout(plan, group.world, path, max_nbytes).nbytes)
        with contextlib.ExitStack() as undo:
            undo.callback(self.slab.close)

            def make_end() -> Endpoint:
                end = self.end_type(
                    plan=plan,
                    path=path,
                    dtype=dtype,
                    rank=group.rank,
                    pointers=self.slab.pointers,
                    max_nbytes=max_nbytes,
                    spin_s=spin_s,
                    function=function,
                )
                undo.callback(end.close)  # another rank may fail
                return end

            self.end = jointly(group, f"counters of {plan.name}", make_end)
            undo.pop_all()

    @classmethod
    def _load(
        cls, plan: Plan, world: int, dtype: str, path: Path, device: int, extra: dict[str, Any] | None
    ) -> jit.Function:
        return kernel(plan, world, dtype, path, device, extra)

    def bind(self, source: int, target: int, nbytes: int) -> Operation:
        """See `Endpoint.bind`."""
        return self.end.bind(source, target, nbytes)

    def error(self) -> DeviceError | None:
        """See `Endpoint.error`."""
        return self.end.error()

    def check(self) -> None:
        """See `Endpoint.check`."""
        self.end.check()

    def reset(self) -> None:
        """Collective: after an error, meet, clear slab and counters, and go on in a new epoch.

        Operations bound before carry the old epoch: bind them anew.
        """
        from cuda.bindings import runtime

        jit.checked(runtime.cudaDeviceSynchronize())
        epochs = self._group.all_gather(self.end.epoch)
        self.slab.clear()
        self.end.set_sequence(0)
        self.end.epoch = max(epochs) + 1
        self._group.barrier()

    def close(self) -> None:
        """Free slab and counters; idempotent."""
        self.slab.close()
        self.end.close()


def check_message(dtype: str, nbytes: int, max_nbytes: int, *addresses: int) -> None:
    """Raise OursError on a message that a kernel cannot take."""
    item = ITEMSIZE[dtype]
    if nbytes > max_nbytes:
        raise OursError(
            f"message of {nbytes} bytes, but the slab holds {max_nbytes}; make it with a larger max_nbytes"
        )
    if nbytes <= 0 or nbytes % item:
        raise OursError(f"expected a positive multiple of {item} bytes ({dtype}), got {nbytes}")
    if alignment_of(*addresses) < item:
        raise OursError(f"expected buffers aligned to their {item}-byte elements, got addresses {addresses}")


def check_world(plan: Plan, world: int, path: Path, max_nbytes: int) -> None:
    """Raise OursError on a plan that no kernel exists for."""
    if not 2 <= world <= MAX_WORLD:
        raise OursError(f"expected 2 to {MAX_WORLD} ranks, got {world}")
    if not 0 < max_nbytes < 1 << 31:
        raise OursError(f"expected a slab for 1 byte to 2 GiB, got {max_nbytes}")
    problem = flaw(plan, world, path)
    if problem:
        raise OursError(f"{plan.name} with {world} ranks over {path}: {problem}")


def jointly(group: slabs.Exchange, what: str, step: Callable[[], T]) -> T:
    """Take a step on every rank; all raise OursError when any failed."""
    return agree.jointly(group, what, step, OursError)


def _to_device(pointer: int, values: np.ndarray) -> None:
    from cuda.bindings import runtime

    kind = runtime.cudaMemcpyKind.cudaMemcpyHostToDevice
    jit.checked(runtime.cudaMemcpy(pointer, values.ctypes.data, values.nbytes, kind))
    jit.checked(runtime.cudaDeviceSynchronize())


def _from_device(pointer: int, nbytes: int) -> np.ndarray:
    from cuda.bindings import runtime

    values = np.zeros(nbytes, np.uint8)
    kind = runtime.cudaMemcpyKind.cudaMemcpyDeviceToHost
    jit.checked(runtime.cudaMemcpy(values.ctypes.data, pointer, nbytes, kind))
    return values
