"""All-reduce, residual add and RMSNorm as one operation: in one kernel, or as the two that it replaces.

For a message of rows (tokens x hidden), over the ranks of a group:

    reduced  = round(sum over the ranks)                            to the dtype
    residual = round(reduced + residual)                            in place
    out      = round(residual / sqrt(mean(residual^2) + eps) * weight)

with float32 in between and the mean taken over a row. All ranks' results are equal bit for bit. The two
forms add the squares of a row up in different orders, so they may differ in the last place of `out`.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any, ClassVar

from arfloor.backends.ours import (
    Endpoint,
    Operation,
    OursError,
    Reducer,
    alignment_of,
    args_type,
    kernel,
)
from arfloor.core import fused
from arfloor.core.cases import ITEMSIZE, Path
from arfloor.core.plans import DTYPE_NUMBER, Plan
from arfloor.runtime import jit, slabs

MACROS = {"ARF_FUSED": 1}
BY_ROW = {"ARF_FUSED": 2}
_NORM_VECTORS, _NORM_THREADS = 4, 512  # VECTORS of rmsnorm.cu


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """The buffers of one operation: device addresses of `rows` x `hidden` elements (`weight`: `hidden`).

    `out` may be `source`; `residual` is read and written.
    """

    source: int
    residual: int
    weight: int
    out: int
    rows: int
    hidden: int
    eps: float

    def check(self, dtype: str) -> None:
        """Raise OursError on buffers that the kernels cannot take."""
        problem = fused.row_flaw(self.hidden * ITEMSIZE[dtype])
        if not problem and self.rows < 1:
            problem = f"at least one row, not {self.rows}"
        if not problem and alignment_of(self.source, self.residual, self.weight, self.out) < fused.ALIGNMENT:
            problem = f"buffers aligned to {fused.ALIGNMENT} bytes"
        if not problem and self.residual in (self.source, self.out):
            problem = "a residual apart from input and output"
        if problem:
            raise OursError(f"all-reduce + RMSNorm: expected {problem}")


class FusedEndpoint(Endpoint):
    """`Endpoint` of a kernel with the epilogue: `bind_rows` instead of `bind`."""

    def __init__(self, **options: Any) -> None:
        from cuda.bindings import runtime

        plan: Plan = options["plan"]
        self._slots_nbytes = 8 * fused.most_slots(plan, options["max_nbytes"])
        self._partials = 0
        self._partials = int(jit.checked(runtime.cudaMalloc(self._slots_nbytes)))
        super().__init__(**options)
        self._args = args_type(self.world, epilogue=True)

    def set_sequence(self, last: int) -> None:
        """Also forgets all sums: a sequence that comes again must not find its own of before."""
        from cuda.bindings import runtime

        jit.checked(runtime.cudaMemset(self._partials, 0, self._slots_nbytes))
        super().set_sequence(last)

    def bind_rows(self, rows: Rows) -> Operation:
        """An operation on fixed buffers. Raises OursError on shapes or addresses no kernel can take."""
        rows.check(self.dtype)
        row = rows.hidden * ITEMSIZE[self.dtype]
        fields = self._arguments(rows.source, rows.out, rows.rows * row) | {
            "residual": rows.residual,
            "weight": rows.weight,
            "partials": self._partials,
            "row": row,
            "pieces": fused.pieces(self.plan, row),
            "eps": rows.eps,
            "inverse": 1.0 / rows.hidden,
        }
        args = self._args(**fields | self._geometry(row, rows.rows))
        bound = self.function.bind(self.plan.blocks, self.plan.threads, args)
        return Operation(bound=bound, nbytes=rows.rows * row)

    def _geometry(self, row_nbytes: int, rows: int) -> dict[str, int]:
        """Fields that the form by rows has otherwise."""
        return {}

    def close(self) -> None:
        """Free counters and sums; idempotent."""
        from cuda.bindings import runtime

        pointer, self._partials = self._partials, 0
        if pointer:
            runtime.cudaFree(pointer)
        super().close()


class RowEndpoint(FusedEndpoint):
    """The form by rows (ARF_FUSED 2): a block has whole rows."""

    def _geometry(self, row_nbytes: int, rows: int) -> dict[str, int]:
        problem = fused.by_row_flaw(self.plan, row_nbytes, rows)
        if problem:
            raise OursError(f"all-reduce + RMSNorm by rows: expected {problem}")
        tiles = fused.row_tiles(self.plan, row_nbytes)
        lines = fused.span(self.plan) // self.plan.payload
        return {"pieces": tiles, "tiles": rows * tiles, "units": rows * tiles * lines}


class FusedReducer(Reducer):
    """`Reducer` with the epilogue. Collective to make; raises OursError for a plan that has no fused form."""

    end_type: type[FusedEndpoint] = FusedEndpoint
    end: FusedEndpoint
    macros: ClassVar[dict[str, Any]] = MACROS

    @classmethod
    def _load(
        cls, plan: Plan, world: int, dtype: str, path: Path, device: int, extra: dict[str, Any] | None
    ) -> jit.Function:
        function = kernel(plan, world, dtype, path, device, cls.macros | (extra or {}))
        _check_resident(plan, function)
        return function

    def __init__(
        self,
        *,
        plan: Plan,
        path: Path,
        dtype: str,
        group: slabs.Exchange,
        **options: Any,
    ) -> None:
        problem = fused.flaw(plan)
        if problem:
            raise OursError(f"{plan.name}: {problem}")
        super().__init__(plan=plan, path=path, dtype=dtype, group=group, **options)

    def bind_rows(self, rows: Rows) -> Operation:
        """See `FusedEndpoint.bind_rows`."""
        return self.end.bind_rows(rows)


class RowReducer(FusedReducer):
    """The form by rows: see `arfloor.core.fused.by_row` for its plan. It need not be resident, but is."""

    end_type = RowEndpoint
    macros: ClassVar[dict[str, Any]] = BY_ROW

    def __init__(self, *, plan: Plan, max_nbytes: int, **options: Any) -> None:
        super().__init__(plan=plan, max_nbytes=fused.padded(plan, max_nbytes), **options)

    def takes(self, row_nbytes: int, rows: int) -> bool:
        """Whether rows of a shape fit its grid. Equal on all ranks."""
        return not fused.by_row_flaw(self.end.plan, row_nbytes, rows)


class AddRmsNorm:
    """The residual add and RMSNorm alone, as one kernel: what follows a reduce that is not fused."""

    def __init__(self, dtype: str, device: int) -> None:
        source = jit.read_sources("common.cuh", "rmsnorm.cu")
        macros = {"ARF_DTYPE": DTYPE_NUMBER[dtype], "ARF_WORLD": 2, "ARF_HOST": 0, "ARF_SHOT": 1}
        self.dtype = dtype
        self._function = jit.load_function(source, "add_rmsnorm", device=device, defines=macros)

    def bind(self, rows: Rows) -> jit.Launch:
        """A launch on fixed buffers, `source` being the reduced rows.

        Raises OursError on shapes or addresses the kernel cannot take.
        """
        rows.check(self.dtype)
        row = rows.hidden * ITEMSIZE[self.dtype]
        vectors = -(-row // 16)
        threads = min(_NORM_THREADS, -(-vectors // 32) * 32)
        if vectors > 1024 * _NORM_VECTORS:
            raise OursError(f"RMSNorm: expected rows of at most {1024 * _NORM_VECTORS * 16} bytes, got {row}")
        if vectors > threads * _NORM_VECTORS:
            threads = 1024
        addresses = (rows.source, rows.residual, rows.weight, rows.out)
        return self._function.bind(
            rows.rows,
            threads,
            *(ctypes.c_uint64(address) for address in addresses),
            ctypes.c_uint32(row),
            ctypes.c_float(1.0 / rows.hidden),
            ctypes.c_float(rows.eps),
        )


def _check_resident(plan: Plan, function: jit.Function) -> None:
    """Warps wait for warps of their own grid, so all of it must run at once. Raises OursError."""
    from cuda.bindings import runtime

    device = jit.checked(runtime.cudaGetDevice())
    attribute = runtime.cudaDeviceAttr.cudaDevAttrMultiProcessorCount
    count = int(jit.checked(runtime.cudaDeviceGetAttribute(attribute, device)))
    room = count * function.blocks_per_multiprocessor(plan.threads)
    if plan.blocks > room:
        raise OursError(
            f"{plan.name}, fused: expected at most {room} blocks, which run at once; "
            "take a plan with fewer blocks or threads"
        )
