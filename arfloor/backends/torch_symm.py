"""PyTorch's symmetric memory: its one-shot and two-shot all-reduce over peer memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from arfloor.backends.base import SUPPORTED, Group, Support, Variant
from arfloor.backends.slots import TorchSlots
from arfloor.core.cases import Case, Machine, Ran

VARIANTS = ("one_shot", "two_shot")


class TorchSymm:
    """`torch.ops.symm_mem.one_shot_all_reduce` and `two_shot_all_reduce_`; never the multimem ops.

    The multimem operations need NVLink multicast; they are not offered, because on a shared host a
    program that uses it can put the fabric out of service.
    """

    name = "torch_symm"

    def support(self, machine: Machine, case: Case) -> Support:
        """GPUs with peer access, bf16 or fp32, sizes of a multiple of 16 bytes a rank."""
        if machine.device_kind != "cuda":
            return Support(ok=False, reason="needs_gpu", detail="symmetric memory is GPU memory")
        if case.path != "peer" or machine.facts.get("p2p") is False:
            return Support(ok=False, reason="needs_p2p", detail="it maps the other GPUs' memory")
        if case.dtype not in ("float32", "bfloat16"):
            return Support(ok=False, reason="dtype", detail="its kernels take float32 and bfloat16")
        if case.nbytes % (16 * case.world):
            return Support(ok=False, reason="size", detail="it moves 16 bytes at a time on every rank's part")
        if len(case.groups) > 1:
            return Support(ok=False, reason="world_size", detail="one group of all ranks only")
        return SUPPORTED

    def variants(self, machine: Machine) -> Sequence[Variant]:
        """Both shots."""
        if machine.device_kind != "cuda":
            return ()
        return [Variant(name=n, path="peer", inplace=n == "two_shot") for n in VARIANTS]

    def prepare(self, case: Case, group: Group, slots: int) -> TorchSymmOp:
        """Collective: the ranks exchange handles to the arena."""
        if case.variant not in VARIANTS:
            raise ValueError(f"torch_symm variant {case.variant!r}: expected one of {', '.join(VARIANTS)}")
        return TorchSymmOp(case, slots)


class TorchSymmOp(TorchSlots):
    """See `PreparedOp`. One-shot writes to a tensor of its own; two-shot works in place."""

    def __init__(self, case: Case, slots: int) -> None:
        import torch
        import torch.distributed as dist
        import torch.distributed._symmetric_memory as symm_mem

        self._group_name = dist.group.WORLD.group_name
        arena: list[Any] = []

        def allocate(numel: int, dtype: Any) -> Any:
            flat = symm_mem.empty(
                numel, dtype=dtype, device=torch.device("cuda", torch.cuda.current_device())
            )
            flat.zero_()
            arena.append(symm_mem.rendezvous(flat, self._group_name))
            return flat

        super().__init__(case, slots, device="cuda", allocate=allocate)
        self._arena = arena
        self._one_shot = case.variant == "one_shot"
        self._ops = torch.ops.symm_mem

    def run(self, slot: int) -> None:
        """Enqueue one reduce on torch's current stream."""
        source, target = self.inputs[slot], self.outputs[slot]
        if self._one_shot:
            self._ops.one_shot_all_reduce_out(source, "sum", self._group_name, target)
            return
        if target is not source:
            target.copy_(source)
        self._ops.two_shot_all_reduce_(target, "sum", self._group_name)

    def ran(self) -> Ran:
        """The operation was called by name."""
        import torch

        name = "one_shot" if self._one_shot else "two_shot"
        return Ran(algorithm=name, transport="symmetric", library=f"torch {torch.__version__}", source="api")

    def close(self) -> None:
        """Let go of the arena."""
        super().close()
        self._arena = []
