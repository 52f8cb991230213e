"""The synthetic decode step on a CPU, its two kernels in torch: what is reduced, and what a tail replaces."""

from __future__ import annotations

import types

import pytest

from arfloor.workload.decode_step import EPS, DecodeStep, Shape

torch = pytest.importorskip("torch")
SHAPE = Shape(layers=3, hidden=32, ffn=48, qkv=64)
BATCH = 2


def norm_into(residual, delta, normed):
    """What kernels/decode.cu does: the residual is rounded before its squares are taken."""
    residual.add_(delta)
    x = residual.float()
    normed.copy_(x * torch.rsqrt(x.square().mean(-1, keepdim=True) + EPS))


class CpuStep(DecodeStep):
    """The same step, its element-wise kernels replaced."""

    def _norm(self, delta):
        norm_into(self.output, delta, self._normed)

    def _silu(self):
        gate, value = self._both.float().chunk(2, dim=-1)
        self._gated.copy_(torch.nn.functional.silu(gate) * value)


@pytest.fixture(scope="module")
def weights():
    random = torch.Generator().manual_seed(1)
    sizes = ((64, 32), (32, 32), (96, 32), (32, 48))
    layers = [
        tuple((torch.randn(*s, generator=random) * s[1] ** -0.5).to(torch.bfloat16) for s in sizes)
        for _ in range(SHAPE.layers)
    ]
    return types.SimpleNamespace(shape=SHAPE, rank=0, world=1, place="cpu", layers=layers)


def double(x):
    """Two ranks that hold the same."""
    x.mul_(2)


def test_a_tail_takes_the_place_of_reduce_residual_and_norm(weights):
    apart, together, seen = CpuStep(weights, BATCH), CpuStep(weights, BATCH), []

    def tail(partial, residual, normed):
        seen.append((tuple(partial.shape), partial.data_ptr(), normed.data_ptr()))
        norm_into(residual, partial * 2, normed)

    apart.run(double)
    together.run(None, tail)
    assert torch.equal(apart.output, together.output)
    assert len(seen) == 2 * SHAPE.layers
    assert {shape for shape, _, _ in seen} == {(BATCH, SHAPE.hidden)}
    assert [at for _, at, _ in seen[:2]] == [b.data_ptr() for b in together.buffers]
    assert all(out not in (b.data_ptr() for b in together.buffers) for _, _, out in seen)


def test_without_reduces_the_result_is_another(weights):
    alone, reduced = CpuStep(weights, BATCH), CpuStep(weights, BATCH)
    alone.run(None)
    reduced.run(double)
    assert torch.isfinite(alone.output).all()
    assert not torch.equal(alone.output, reduced.output)
    assert torch.equal(alone.input, reduced.input)


def test_a_step_run_twice_gives_the_same(weights):
    step = CpuStep(weights, BATCH)
    step.run(double)
    first = step.output.clone()
    step.run(double)
    assert torch.equal(first, step.output)
