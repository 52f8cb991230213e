"""Helpers: operations of virtual ranks with a payload of their own each, and what they must give."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from arfloor.backends.virtual import VirtualRanks
from arfloor.core.plans import Plan, parse


def virtual(plan: str | Plan, world: int, *, path: str = "peer", dtype: str = "bfloat16", **more: Any):
    """Virtual ranks on GPU 0 for messages of up to 256 KiB."""
    made = parse(plan) if isinstance(plan, str) else plan
    options = {"max_nbytes": 1 << 18, "spin_s": 1.0} | more
    return VirtualRanks(plan=made, path=path, dtype=dtype, world=world, device=0, **options)


class Operation:
    """One reduction over virtual ranks. `offset`: elements before the buffers, to misalign them."""

    def __init__(
        self,
        ranks: VirtualRanks,
        numel: int,
        seed: int,
        *,
        inplace: bool = False,
        offset: int = 0,
        blocks: int | None = None,
    ) -> None:
        world = len(ranks.ends)
        dtype = getattr(torch, ranks.ends[0].dtype)
        random = torch.Generator(device="cuda").manual_seed(seed)
        room = (numel + offset + 8,)
        self._numel, self._offset, self._ranks = numel, offset, ranks
        self._inputs = [torch.randn(room, generator=random, device="cuda").to(dtype) for _ in range(world)]
        self.expected = self._reference()
        self._outputs = self._inputs if inplace else [torch.full_like(x, float("nan")) for x in self._inputs]
        self._guards = [x[numel + offset :].clone() for x in self._outputs]
        skip = offset * dtype.itemsize
        self._bound = ranks.bind(
            [x.data_ptr() + skip for x in self._inputs],
            [x.data_ptr() + skip for x in self._outputs],
            numel * dtype.itemsize,
            blocks=blocks,
        )
        torch.cuda.synchronize()

    def _part(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor[self._offset : self._offset + self._numel]

    def _reference(self) -> torch.Tensor:
        """float32 sums in rank order, rounded once; islands are summed on their own first."""
        terms = [self._part(x).float() for x in self._inputs]
        halves = 2 if self._ranks.ends[0].plan.shot == 4 else 1
        size = len(terms) // halves
        partial = [_in_order(terms[h * size : (h + 1) * size]) for h in range(halves)]
        return _in_order(partial).to(self._inputs[0].dtype)

    def launch(self, ranks: Sequence[int] | None = None) -> None:
        self._ranks.launch(self._bound, ranks)

    def wrong(self) -> int:
        """Elements, over all ranks, that are not bit for bit what they must be; writes past the end count."""
        torch.cuda.synchronize()
        bad = sum(int((self._part(x) != self.expected).sum()) for x in self._outputs)
        for x, guard in zip(self._outputs, self._guards, strict=True):
            tail = x[self._numel + self._offset :]
            bad += int((tail.view(torch.uint8) != guard.view(torch.uint8)).sum())
        return bad

    def output(self, rank: int) -> torch.Tensor:
        torch.cuda.synchronize()
        return self._part(self._outputs[rank])


def _in_order(terms: Sequence[torch.Tensor]) -> torch.Tensor:
    total = terms[0]
    for term in terms[1:]:
        total = total + term
    return total
