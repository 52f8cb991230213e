"""A synthetic tensor-parallel decode step: what a faster all-reduce is worth inside one CUDA graph.

Each layer is what a dense decoder computes for a batch of single tokens, without the attention over the
cache (which does not communicate and would only dilute the comparison): QKV projection, output projection,
reduce, residual and norm; gate and up projections, SiLU, down projection, reduce, residual and norm. What
is element-wise is fused as serving engines fuse it (kernels/decode.cu). Weights are split as in Megatron:
columns of the first projection of a pair, rows of the second.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from arfloor.core.step_shape import Shape
from arfloor.runtime import jit

if TYPE_CHECKING:
    import torch

Reduce = Callable[["torch.Tensor"], None]
"""Sums a tensor over the ranks in place, on the current stream; must allow capture."""

Tail = Callable[["torch.Tensor", "torch.Tensor", "torch.Tensor"], None]
"""(partial sum, residual, normed): the reduce with what follows it. The sum over the ranks is rounded and
added to the residual, which is rounded; its RMSNorm with EPS and weights of one goes to `normed`. All of
shape (batch, hidden), on the current stream; must allow capture."""

EPS = 1e-5  # as in kernels/decode.cu


class Weights:
    """One rank's bfloat16 weights, random, scaled to keep activations near one. Shared by all steps."""

    def __init__(self, shape: Shape, rank: int, world: int, device: int) -> None:
        import torch

        shape.check(world)
        random = torch.Generator(device=f"cuda:{device}").manual_seed(1000 + rank)

        def matrix(rows: int, columns: int) -> torch.Tensor:
            made = torch.empty(rows, columns, dtype=torch.bfloat16, device=f"cuda:{device}")
            return made.normal_(0.0, columns**-0.5, generator=random)

        self.shape, self.rank, self.world = shape, rank, world
        self.place = f"cuda:{device}"
        self.layers = [
            (
                matrix(shape.qkv // world, shape.hidden),
                matrix(shape.hidden, shape.hidden // world),
                matrix(2 * shape.ffn // world, shape.hidden),
                matrix(shape.hidden, shape.ffn // world),
            )
            for _ in range(shape.layers)
        ]
        source = jit.read_sources("decode.cu")
        self.add_rms_norm = jit.load_function(source, "add_rms_norm", device=device)
        self.silu_mul = jit.load_function(source, "silu_mul", device=device)


class DecodeStep:
    """One step of `batch` tokens as a CUDA graph. Reduces work on `buffers`, two tensors (batch, hidden)."""

    def __init__(self, weights: Weights, batch: int) -> None:
        import torch

        shape, world = weights.shape, weights.world
        options: dict[str, Any] = {"dtype": torch.bfloat16, "device": weights.place}

        def rows(columns: int) -> torch.Tensor:
            return torch.zeros(batch, columns, **options)

        self._torch, self._weights, self._batch = torch, weights, batch
        random = torch.Generator(device=weights.place).manual_seed(7)  # alike on all ranks
        self.input = rows(shape.hidden).normal_(generator=random)
        self.output, self._normed, self._nothing = (rows(shape.hidden) for _ in range(3))
        self.buffers = (rows(shape.hidden), rows(shape.hidden))
        self._qkv, self._both = rows(shape.qkv // world), rows(2 * shape.ffn // world)
        self._gated = rows(shape.ffn // world)
        self._graph: Any = None

    def _norm(self, delta: torch.Tensor) -> None:
        """output += delta, then the norm of it."""
        pointers = (ctypes.c_void_p(t.data_ptr()) for t in (delta, self.output, self._normed))
        width = ctypes.c_uint32(self._weights.shape.hidden // 2)
        self._weights.add_rms_norm.launch(self._batch, 512, self._stream(), *pointers, width)

    def _silu(self) -> None:
        width = self._gated.shape[1] // 2
        pointers = (ctypes.c_void_p(t.data_ptr()) for t in (self._both, self._gated))
        grid = (self._batch, max(1, min(8, 64 // self._batch)))
        self._weights.silu_mul.launch(grid, 512, self._stream(), *pointers, ctypes.c_uint32(width))

    def _stream(self) -> int:
        return int(self._torch.cuda.current_stream().cuda_stream)

    def run(self, reduce: Reduce | None, tail: Tail | None = None) -> None:
        """Enqueue the step on the current stream; the result lands in `output`. `tail` takes the place of
        the reduce and of the residual and norm after it. Neither: no reduces, which bounds what any
        all-reduce can give."""
        mm = self._torch.mm
        attended = self._qkv[:, : self._weights.shape.hidden // self._weights.world]
        self.output.copy_(self.input)
        self._norm(self._nothing)
        for qkv, out, up, down in self._weights.layers:
            mm(self._normed, qkv.t(), out=self._qkv)
            self._reduced(attended, out, self.buffers[0], reduce, tail)
            mm(self._normed, up.t(), out=self._both)
            self._silu()
            self._reduced(self._gated, down, self.buffers[1], reduce, tail)

    def _reduced(
        self,
        inner: torch.Tensor,
        weight: torch.Tensor,
        buffer: torch.Tensor,
        reduce: Reduce | None,
        tail: Tail | None,
    ) -> None:
        """The second projection of a pair, its reduce, residual and norm."""
        self._torch.mm(inner, weight.t(), out=buffer)
        if tail is not None:
            tail(buffer, self.output, self._normed)
            return
        if reduce is not None:
            reduce(buffer)
        self._norm(buffer)

    def capture(self, reduce: Reduce | None, tail: Tail | None = None) -> None:
        """Warm up, then capture. Collective, as `reduce` and `tail` are."""
        for _ in range(2):
            self.run(reduce, tail)
        self._torch.cuda.synchronize()
        graph = self._torch.cuda.CUDAGraph()
        with self._torch.cuda.graph(graph, capture_error_mode="thread_local"):
            self.run(reduce, tail)
        self._graph = graph

    def replay(self) -> None:
        """Enqueue the captured step."""
        self._graph.replay()

    def step_us(self, steps: int) -> float:
        """Mean time of `steps` replays in a row on this rank, in us."""
        begin = self._torch.cuda.Event(enable_timing=True)
        end = self._torch.cuda.Event(enable_timing=True)
        begin.record()
        for _ in range(steps):
            self._graph.replay()
        end.record()
        end.synchronize()
        return float(begin.elapsed_time(end)) * 1e3 / steps
