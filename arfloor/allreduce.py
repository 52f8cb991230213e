"""The tuned kernels as a callable for other people's programs.

    reduce = arfloor.allreduce.AllReduce(tp_group)      # collective; tunes, or reads a run's plans
    reduce(x)                                           # in place, on torch's current stream
    y = reduce.traced(x)                                # out of place; torch.compile keeps it
    y = reduce.fused(x, residual, weight, 1e-6)         # with the residual add and RMSNorm that follow

An object belongs to one stream: its buffers alternate from one operation to the next, which holds only
if operations follow each other. What it does not cover (another dtype, a larger message, a box where
the kernels cannot be set up) goes to the process group's own all-reduce, by a rule every rank computes
from the same facts, so ranks never disagree.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Literal

import torch
import torch.distributed as dist

from arfloor import rundir
from arfloor.backends import tune
from arfloor.backends.fused import AddRmsNorm, FusedReducer, Rows
from arfloor.backends.ours import Operation, OursError, PeerTimeout, Reducer
from arfloor.core import dispatch
from arfloor.core import fused as shapes
from arfloor.core.cases import Path
from arfloor.core.plans import MAX_WORLD, parse
from arfloor.core.tuning import Tuned
from arfloor.runtime.group import ProcessGroupExchange
from arfloor.runtime.slabs import SlabError

__all__ = ["AllReduce", "OursError", "PeerTimeout", "route"]

TUNED_SIZES = (8 << 10, 32 << 10, 64 << 10, 128 << 10, 256 << 10, 512 << 10, 1 << 20, 2 << 20, 4 << 20)
NAMES = {torch.float32: "float32", torch.float16: "float16", torch.bfloat16: "bfloat16"}
_HANDLES = itertools.count(1)
_OBJECTS: weakref.WeakValueDictionary[int, AllReduce] = weakref.WeakValueDictionary()
_BOUND_MOST = 4096  # bound operations kept; a program that reduces ever new addresses binds them anew


class AllReduce:
    """Sum over the ranks of a process group. Collective to make and to close.

    `group`: a torch process group with one GPU a rank, this rank's being the current device; None: all
    ranks. `run`: a run directory whose plans to use; None: tune now, a quarter of a second to two a size.
    `strict`: only the protocols that rest on the memory model alone (LL, flag). `path`: `peer`, `host`,
    or `auto`: peer where every GPU can address every other. `max_nbytes`: the largest message reduced
    here. `spin_s`: how long a kernel waits for a late rank before it gives up and poisons its output.
    `fused`: also set up the kernels that `fused` uses; without, it does the same in two.

    `why_not` is empty, or says why everything goes to the process group. Raises RunDirError for a
    `run` that is none, ValueError for one that holds no plan for this world, path and dtype.
    """

    def __init__(
        self,
        group: Any = None,
        run: str | os.PathLike[str] | None = None,
        *,
        strict: bool = False,
        path: Path | Literal["auto"] = "auto",
        dtypes: Sequence[torch.dtype] = (torch.bfloat16,),
        max_nbytes: int = 1 << 20,
        spin_s: float = 300.0,
        fused: bool = False,
    ) -> None:
        self._group = group if group is not None else dist.group.WORLD
        ranks = dist.get_process_group_ranks(self._group)
        self._control = dist.new_group(ranks, backend="gloo", use_local_synchronization=True)
        self._exchange = ProcessGroupExchange(self._control)
        self.world, self.max_nbytes, self.spin_s = len(ranks), max_nbytes, spin_s
        self._device = torch.cuda.current_device() if torch.cuda.is_available() else -1
        self.path: Path = self._common_path() if path == "auto" else path
        self.tables: dict[torch.dtype, Tuned] = {}
        self.why_not = ""
        self._reducers: dict[tuple[torch.dtype, str], Reducer] = {}
        self._fused: dict[tuple[torch.dtype, str], FusedReducer] = {}
        self._norms: dict[torch.dtype, AddRmsNorm] = {}
        self._bound: dict[tuple[Any, ...], Operation] = {}
        self._stream: int | None = None
        self.handle = next(_HANDLES)
        _OBJECTS[self.handle] = self
        try:
            self._set_up(run, strict, dtypes)
            if fused:
                self._set_up_fused()
        except (OursError, SlabError) as error:  # both are raised on every rank or on none
            self._release()
            self.tables, self.why_not = {}, str(error)

    def _common_path(self) -> Path:
        everyone = self._exchange.all_gather(self._device)
        mine = all(
            other == self._device or torch.cuda.can_device_access_peer(self._device, other)
            for other in everyone
            if self._device >= 0
        )
        return "peer" if all(self._exchange.all_gather(mine)) else "host"

    def _set_up(self, run: Any, strict: bool, dtypes: Sequence[torch.dtype]) -> None:
        if self._device < 0:
            raise OursError("no GPU: the process group reduces everything")
        if not 2 <= self.world <= MAX_WORLD:
            raise OursError(f"2 to {MAX_WORLD} ranks, not {self.world}: the process group reduces everything")
        for dtype in dtypes:
            if dtype not in NAMES:
                raise ValueError(f"expected dtypes among {', '.join(NAMES.values())}, got {dtype}")
            self.tables[dtype] = dispatch.up_to(self._table(run, strict, NAMES[dtype]), self.max_nbytes)
            for nbytes, name in self.tables[dtype].plans:
                if (dtype, name) not in self._reducers:
                    [self._reducers[dtype, name]] = tune.settle(
                        self._exchange,
                        plan=parse(name),
                        path=self.path,
                        device=self._device,
                        dtype=NAMES[dtype],
                        nbytes=min(nbytes, self.max_nbytes),
                        max_nbytes=self.max_nbytes,
                        spin_s=self.spin_s,
                    )
        self._exchange.barrier()

    def _set_up_fused(self) -> None:
        """The fused form of every plan that has one and whose grid still fits the GPU with it."""
        for dtype, name in list(self._reducers):
            with contextlib.suppress(OursError):  # raised on every rank: its messages take two kernels
                self._fused[dtype, name] = FusedReducer(
                    plan=parse(name),
                    path=self.path,
                    dtype=NAMES[dtype],
                    group=self._exchange,
                    device=self._device,
                    max_nbytes=self.max_nbytes,
                    spin_s=self.spin_s,
                )
        self._exchange.barrier()

    def _table(self, run: Any, strict: bool, dtype: str) -> Tuned:
        sizes = [size for size in TUNED_SIZES if size <= self.max_nbytes] or [self.max_nbytes]
        if strict:
            facts = tune.facts_of(self.path, self.world, self._device)
            return dispatch.strict(facts, dtype, sizes)
        if run is not None:
            results = rundir.load(run).results
            table = dispatch.from_results(results, path=self.path, world=self.world, dtype=dtype)
            if not table.plans:
                raise ValueError(
                    f"{os.fspath(run)}: no tuned plan for {dtype} on {self.world} ranks over {self.path}; "
                    f"measure it with `torchrun -m arfloor.sweep --backends {self.path} --dtypes {dtype}`"
                )
            return table
        barrier = tune.barrier_of(self._exchange, self.path, self._device)
        try:
            return tune.tune(
                self._exchange, path=self.path, device=self._device, dtype=dtype, sizes=sizes, barrier=barrier
            )
        finally:
            barrier.close()

    def takes(self, tensor: torch.Tensor) -> bool:
        """Whether our kernels reduce it. Decided from shape and dtype alone: equal on all ranks."""
        nbytes = tensor.numel() * tensor.element_size()
        return tensor.dtype in self.tables and 0 < nbytes <= self.max_nbytes

    def __call__(self, tensor: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        """Sum `tensor` over the ranks into `out` (default: in place) on the current stream; returns it.

        Capturable. Raises ValueError on a tensor that is not contiguous or not on this object's GPU,
        RuntimeError when called on another stream than before (while capturing, any stream is taken:
        the graph orders its own operations, and its replays must not overlap other uses).
        """
        target = tensor if out is None else out
        if not self.takes(tensor):
            if target is not tensor:
                target.copy_(tensor)
            dist.all_reduce(target, group=self._group)
            return target
        self._check_buffers(tensor, target)
        stream = torch.cuda.current_stream(self._device).cuda_stream
        self._check_stream(stream)
        nbytes = tensor.numel() * tensor.element_size()
        self._bind(tensor.data_ptr(), target.data_ptr(), nbytes, tensor.dtype).launch(stream)
        return target

    def fused(
        self,
        tensor: torch.Tensor,
        residual: torch.Tensor,
        weight: torch.Tensor,
        eps: float = 1e-6,
        out: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Sum `tensor` (..., hidden) over the ranks, add it to `residual` in place, and return the RMSNorm
        of that times `weight` (hidden,), in `out` (default: in place of `tensor`). Capturable.

        The sum is rounded to the dtype before the residual is added. All ranks' results are equal bit for
        bit where our kernels run. Raises ValueError on buffers of unlike shapes, dtypes or devices, not
        contiguous or not aligned to 16 bytes; RuntimeError when called on another stream than before.
        """
        target = tensor if out is None else out
        self._check_rows(tensor, residual, weight, target)
        hidden = tensor.shape[-1]
        if not self.takes(tensor) or shapes.row_flaw(hidden * tensor.element_size()):
            residual.add_(self(tensor, out=out))
            return target.copy_(torch.nn.functional.rms_norm(residual, (hidden,), weight, eps))
        self._check_buffers(tensor, target)
        rows = Rows(
            source=tensor.data_ptr(),
            residual=residual.data_ptr(),
            weight=weight.data_ptr(),
            out=target.data_ptr(),
            rows=tensor.numel() // hidden,
            hidden=hidden,
            eps=eps,
        )
        stream = torch.cuda.current_stream(self._device).cuda_stream
        self._check_stream(stream)
        for operation in self._fused_operations(rows, tensor.dtype):
            operation.launch(stream)
        return target

    def _check_rows(
        self, tensor: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, out: torch.Tensor
    ) -> None:
        hidden = tensor.shape[-1] if tensor.dim() else 0
        if weight.shape != (hidden,) or residual.shape != tensor.shape or out.shape != tensor.shape:
            raise ValueError(
                f"expected residual and out of shape {tuple(tensor.shape)} and weight of ({hidden},), got "
                f"{tuple(residual.shape)}, {tuple(out.shape)} and {tuple(weight.shape)}"
            )
        for other in (residual, weight, out):
            if other.dtype != tensor.dtype or other.device != tensor.device or not other.is_contiguous():
                raise ValueError(
                    f"expected residual, weight and out contiguous, of {tensor.dtype} on {tensor.device}, "
                    f"got one of {other.dtype} on {other.device} with strides {tuple(other.stride())}"
                )
            if other.is_cuda and other.data_ptr() % shapes.ALIGNMENT:
                raise ValueError(f"expected buffers aligned to {shapes.ALIGNMENT} bytes; clone the view")
        if tensor.is_cuda and tensor.data_ptr() % shapes.ALIGNMENT:
            raise ValueError(f"expected buffers aligned to {shapes.ALIGNMENT} bytes; clone the view")

    def _fused_operations(self, rows: Rows, dtype: torch.dtype) -> Sequence[Operation]:
        """One kernel where the plan has a fused form, else the reduce and the norm."""
        nbytes = rows.rows * rows.hidden * dtype.itemsize
        name = str(self.tables[dtype].pick(nbytes))
        reducer = self._fused.get((dtype, name))
        if reducer is not None:
            return (self._remembered((rows, dtype), lambda: reducer.bind_rows(rows)),)
        norm = self._norms.get(dtype)
        if norm is None:
            norm = self._norms[dtype] = AddRmsNorm(NAMES[dtype], self._device)
        after = replace(rows, source=rows.out)
        return (
            self._bind(rows.source, rows.out, nbytes, dtype),
            self._remembered((after, dtype), lambda: Operation(bound=norm.bind(after), nbytes=nbytes)),
        )

    def traced_fused(
        self, tensor: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float = 1e-6
    ) -> torch.Tensor:
        """`fused` into a new tensor, through an operator that torch.compile keeps; `residual` is updated."""
        made: torch.Tensor = torch.ops.arfloor.all_reduce_rmsnorm(tensor, residual, weight, eps, self.handle)
        return made

    def traced(self, tensor: torch.Tensor) -> torch.Tensor:
        """The sum as a new tensor, through an operator that torch.compile keeps as it is."""
        made: torch.Tensor = torch.ops.arfloor.all_reduce(tensor, self.handle)
        return made

    def _check_buffers(self, *tensors: torch.Tensor) -> None:
        for tensor in tensors:
            if not tensor.is_contiguous():
                raise ValueError(
                    f"expected a contiguous tensor, got strides {tuple(tensor.stride())} of shape "
                    f"{tuple(tensor.shape)}; call .contiguous() first"
                )
            if tensor.device.index != self._device or tensor.device.type != "cuda":
                raise ValueError(f"expected a tensor on cuda:{self._device}, got one on {tensor.device}")
        first, last = tensors
        if (first.dtype, first.numel()) != (last.dtype, last.numel()):
            raise ValueError(
                f"expected out of {first.numel()} elements of {first.dtype}, "
                f"got {last.numel()} of {last.dtype}"
            )

    def _check_stream(self, stream: int) -> None:
        if torch.cuda.is_current_stream_capturing():
            return
        if self._stream is None:
            self._stream = stream
        if stream != self._stream:
            raise RuntimeError(
                "this AllReduce was used on another stream before; operations of one object must follow "
                "each other, so make one object a stream"
            )

    def _bind(self, source: int, target: int, nbytes: int, dtype: torch.dtype) -> Operation:
        name = str(self.tables[dtype].pick(nbytes))
        reducer = self._reducers[dtype, name]
        key = (source, target, nbytes, dtype)
        return self._remembered(key, lambda: reducer.bind(source, target, nbytes))

    def _remembered(self, key: tuple[Any, ...], make: Callable[[], Operation]) -> Operation:
        found = self._bound.get(key)
        if found is None:
            if len(self._bound) >= _BOUND_MOST:
                self._bound.clear()
            found = self._bound[key] = make()
        return found

    def check(self) -> None:
        """Wait for the device; raises PeerTimeout when a kernel gave up on a rank since the start."""
        torch.cuda.synchronize(self._device)
        for reducer in (*self._reducers.values(), *self._fused.values()):
            reducer.check()

    def close(self) -> None:
        """Collective: wait for everyone, then free slabs and counters. Idempotent."""
        if self._reducers:
            torch.cuda.synchronize(self._device)
            self._exchange.barrier()
            self._release()
            self.tables, self.why_not = {}, "closed"

    def _release(self) -> None:
        self._bound.clear()
        reducers = (*self._reducers.values(), *self._fused.values())
        self._reducers, self._fused = {}, {}
        for reducer in reducers:
            reducer.close()


def _object(handle: int) -> AllReduce:
    if handle not in _OBJECTS:
        raise RuntimeError("the AllReduce of this operator is gone; keep the object as long as its graphs")
    return _OBJECTS[handle]


@torch.library.custom_op("arfloor::all_reduce", mutates_args=())
def _all_reduce(tensor: torch.Tensor, handle: int) -> torch.Tensor:
    source = tensor.contiguous()
    return _object(handle)(source, out=torch.empty_like(source))


@_all_reduce.register_fake
def _(tensor: torch.Tensor, handle: int) -> torch.Tensor:
    return torch.empty_like(tensor, memory_format=torch.contiguous_format)


@torch.library.custom_op("arfloor::all_reduce_rmsnorm", mutates_args=("residual",))
def _all_reduce_rmsnorm(
    tensor: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float, handle: int
) -> torch.Tensor:
    source = tensor.contiguous()
    return _object(handle).fused(source, residual, weight, eps, out=torch.empty_like(source))


@_all_reduce_rmsnorm.register_fake
def _(
    tensor: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float, handle: int
) -> torch.Tensor:
    return torch.empty_like(tensor, memory_format=torch.contiguous_format)


@contextlib.contextmanager
def route(coordinator: Any, all_reduce: AllReduce) -> Iterator[None]:
    """Send an engine's tensor-parallel all-reduce through `all_reduce` while the context lasts.

    `coordinator` is the engine's tensor-parallel group object (`get_tp_group()` in vLLM and SGLang): its
    out-of-place reduce is replaced on this one object. Tensors that `all_reduce` does not take go the
    engine's own way. Raises AttributeError when the object has no reduce to replace.
    """
    # the engines' custom operator calls the former, so that torch.compile keeps working
    names = [n for n in ("_all_reduce_out_place", "all_reduce") if hasattr(coordinator, n)]
    if not names:
        raise AttributeError(f"{type(coordinator).__name__} has no all_reduce to route")
    own = getattr(coordinator, names[0])

    def reduce(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if not all_reduce.takes(tensor):
            return own(tensor, *args, **kwargs)
        return all_reduce.traced(tensor)

    setattr(coordinator, names[0], reduce)
    try:
        yield
    finally:
        delattr(coordinator, names[0])
