"""PyTorch's gloo on CPU ranks: what a user of torch.distributed gets there without touching anything."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from arfloor.backends.base import SUPPORTED, Group, Support, Variant
from arfloor.backends.slots import TorchSlots
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


class GlooOp(TorchSlots):
    """Slots of one allocation, reduced in place."""

    def __init__(self, case: Case, process_group: Any, slots: int) -> None:
        import torch.distributed as dist

        super().__init__(case, slots, device="cpu")
        self._group = process_group
        self._all_reduce = dist.all_reduce

    def run(self, slot: int) -> None:
        """Reduce the slot."""
        self._all_reduce(self.inputs[slot], group=self._group)

    def ran(self) -> Ran:
        """gloo says nothing about its algorithm; the library's version is torch's."""
        import torch

        return Ran(transport="tcp", link="tcp", library=f"gloo of torch {torch.__version__}", source="api")
