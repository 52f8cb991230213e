"""A synthetic tensor-parallel decode step: what a faster all-reduce is worth inside one CUDA graph.

Each layer is what a dense decoder computes for a batch of single tokens, without the attention over the
cache (which does not communicate and would only dilute the comparison): norm, QKV projection, output
projection, reduce, residual; norm, gate and up projections, SiLU, down projection, reduce, residual.
Weights are split as in Megatron: columns of the first projection of a pair, rows of the second.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

Reduce = Callable[["torch.Tensor"], None]
"""Sums a tensor over the ranks in place, on the current stream; must allow capture."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """A dense decoder. `qkv`: columns of the fused query, key and value projection, all ranks together."""

    layers: int = 32
    hidden: int = 4096
    ffn: int = 14336
    qkv: int = 6144

    def weight_nbytes(self, world: int) -> int:
        """Bytes of bfloat16 weights a rank holds and, at small batches, reads every step."""
        columns = self.qkv + self.hidden + 3 * self.ffn
        return 2 * self.layers * self.hidden * columns // world

    def message_nbytes(self, batch: int) -> int:
        """Bytes of one reduce."""
        return 2 * batch * self.hidden


class Weights:
    """One rank's bfloat16 weights, random, scaled to keep activations near one. Shared by all steps."""

    def __init__(self, shape: Shape, rank: int, world: int, device: int) -> None:
        import torch

        random = torch.Generator(device=f"cuda:{device}").manual_seed(1000 + rank)

        def matrix(rows: int, columns: int) -> torch.Tensor:
            made = torch.empty(rows, columns, dtype=torch.bfloat16, device=f"cuda:{device}")
            return made.normal_(0.0, columns**-0.5, generator=random)

        self.shape, self.rank, self.world, self.device = shape, rank, world, device
        self.layers = [
            (
                matrix(shape.qkv // world, shape.hidden),
                matrix(shape.hidden, shape.hidden // world),
                matrix(2 * shape.ffn // world, shape.hidden),
                matrix(shape.hidden, shape.ffn // world),
            )
            for _ in range(shape.layers)
        ]
        self.norm = torch.ones(shape.hidden, dtype=torch.bfloat16, device=f"cuda:{device}")


class DecodeStep:
    """One step of `batch` tokens as a CUDA graph. `reduce=None` leaves the reduces out: the Amdahl bound.

    `buffers`: the two tensors of (batch, hidden) that are reduced, for reduces bound to addresses.
    """

    def __init__(self, weights: Weights, batch: int) -> None:
        import torch

        shape = weights.shape
        options: dict[str, Any] = {"dtype": torch.bfloat16, "device": f"cuda:{weights.device}"}
        self._torch, self._weights = torch, weights
        random = torch.Generator(device=f"cuda:{weights.device}").manual_seed(7)  # alike on all ranks
        self.input = torch.empty(batch, shape.hidden, **options).normal_(generator=random)
        self.buffers = tuple(torch.empty(batch, shape.hidden, **options) for _ in range(2))
        self.output = torch.empty(batch, shape.hidden, **options)
        self._graph: Any = None

    def run(self, reduce: Reduce | None) -> None:
        """Enqueue the step on the current stream; the result lands in `output`."""
        linear = self._torch.nn.functional.linear
        silu = self._torch.nn.functional.silu
        norm = self._torch.nn.functional.rms_norm
        shape, weights = self._weights.shape, self._weights
        width = shape.hidden // weights.world
        hidden = self.input.clone()
        for qkv, out, up, down in weights.layers:
            for first, second, gated in ((qkv, out, False), (up, down, True)):
                inner = linear(norm(hidden, (shape.hidden,), weights.norm, 1e-5), first)
                if gated:
                    gate, value = inner.chunk(2, dim=-1)
                    inner = silu(gate) * value
                else:
                    inner = inner[:, :width]
                buffer = self.buffers[gated]
                self._torch.mm(inner, second.t(), out=buffer)
                if reduce is not None:
                    reduce(buffer)
                hidden = hidden + buffer
        self.output.copy_(hidden)

    def capture(self, reduce: Reduce | None) -> None:
        """Warm up, then capture. Collective, as `reduce` is."""
        for _ in range(2):
            self.run(reduce)
        self._torch.cuda.synchronize()
        graph = self._torch.cuda.CUDAGraph()
        with self._torch.cuda.graph(graph, capture_error_mode="thread_local"):
            self.run(reduce)
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
