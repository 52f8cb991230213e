"""PyTorch's gloo on CPU ranks: what a user of torch.distributed gets there without touching anything."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from arfloor.backends.base import SUPPORTED, Group, Support, Variant
from arfloor.core.cases import Case, Machine, Ran


class Gloo:
    """`torch.distributed.all_reduce` over a gloo group, in place on CPU tensors, over TCP."""

    name = "gloo"

    def support(self, machine: Machine, case: Case) -> Support:
        """CPU ranks only; every dtype that arfloor knows."""
        if machine.device_kind != "cpu":
            return Support(ok=False, reason="mode", detail="gloo is measured on CPU ranks")
        return SUPPORTED

    def variants(self, machine: Machine) -> Sequence[Variant]:
        """One: gloo offers no choice per call."""
        return [Variant(name="default", path="cpu", default=True, modes=("eager",))]

    def prepare(self, case: Case, group: Group, slots: int) -> GlooOp:
        """Collective. Makes (once a process) a gloo group apart from the control group."""
        return GlooOp(case, _process_group(case, group), slots)


_GROUPS: dict[tuple[tuple[int, ...], ...], Any] = {}


def _process_group(case: Case, group: Group) -> Any:
    import torch.distributed as dist

    parts = case.groups or (tuple(range(group.world)),)
    if parts not in _GROUPS:
        # every rank makes every group, in one order, as torch asks
        made = [dist.new_group(list(part), backend="gloo") for part in parts]
        _GROUPS[parts] = next(g for g, part in zip(made, parts, strict=True) if group.rank in part)
    return _GROUPS[parts]


class GlooOp:
    """See `PreparedOp`. In place: input and output of a slot are one tensor."""

    def __init__(self, case: Case, process_group: Any, slots: int) -> None:
        import torch
        import torch.distributed as dist

        self.slots = slots
        self._group = process_group
        self._all_reduce = dist.all_reduce
        self._tensors = [torch.zeros(case.numel, dtype=getattr(torch, case.dtype)) for _ in range(slots)]

    def write(self, slot: int, values: np.ndarray) -> None:
        """Set the slot's input."""
        import torch

        self._tensors[slot].copy_(torch.from_numpy(np.ascontiguousarray(values)))

    def poison(self, slot: int) -> None:
        """In place: nothing to poison."""

    def run(self, slot: int) -> None:
        """Reduce the slot."""
        self._all_reduce(self._tensors[slot], group=self._group)

    def read(self, slot: int) -> np.ndarray:
        """The slot's output as float64."""
        import torch

        return self._tensors[slot].to(torch.float64).numpy()

    def ran(self) -> Ran:
        """gloo says nothing about its algorithm; the library's version is torch's."""
        import torch

        return Ran(transport="tcp", link="tcp", library=f"gloo of torch {torch.__version__}", source="api")

    def close(self) -> None:
        """Tensors go with the object; the process group is kept for the next case."""
        self._tensors = []
