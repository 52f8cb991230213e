"""NCCL's symmetric kernels: buffers registered as windows through torch's memory pool.

NCCL takes its symmetric kernels when both buffers lie in symmetric windows; off NVLink it refuses
them (from 2.29 it says so in its log). What ran is therefore read from the log of a probe worker.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from arfloor.backends import nccl
from arfloor.backends.base import SUPPORTED, Group, Support, Variant
from arfloor.backends.slots import TorchSlots
from arfloor.core.cases import Case, Machine, Ran


class NcclSymm:
    """`torch.distributed.all_reduce` on tensors of a pool that is registered with `symm=True`."""

    name = "nccl_symm"

    def support(self, machine: Machine, case: Case) -> Support:
        """GPUs with peer access and NCCL 2.27 or newer."""
        if machine.device_kind != "cuda":
            return Support(ok=False, reason="needs_gpu", detail="windows are GPU memory")
        if case.path != "peer" or machine.facts.get("p2p") is False:
            return Support(ok=False, reason="needs_p2p", detail="symmetric kernels map the peers' memory")
        if machine.facts.get("nvlink") is False:
            return Support(ok=False, reason="needs_nvlink", detail="NCCL refuses its symmetric kernels here")
        if len(case.groups) > 1:
            return Support(ok=False, reason="world_size", detail="one group of all ranks only")
        return SUPPORTED

    def variants(self, machine: Machine) -> Sequence[Variant]:
        """One: NCCL chooses the kernel."""
        return [Variant(name="window", path="peer")] if machine.device_kind == "cuda" else ()

    def prepare(self, case: Case, group: Group, slots: int) -> NcclSymmOp:
        """Collective: every rank registers its windows."""
        return NcclSymmOp(case, group, slots)


class NcclSymmOp(TorchSlots):
    """See `PreparedOp`."""

    def __init__(self, case: Case, group: Group, slots: int) -> None:
        import torch
        import torch.distributed as dist

        device = torch.device("cuda", torch.cuda.current_device())
        self._communicator = nccl.default_communicator(case, group)
        self._backend = self._communicator._get_backend(device)
        self._pool: Any = torch.cuda.MemPool(self._backend.mem_allocator)
        self._all_reduce = dist.all_reduce

        def allocate(numel: int, dtype: Any) -> Any:
            with torch.cuda.use_mem_pool(self._pool):
                return torch.zeros(numel, dtype=dtype, device=device)

        super().__init__(case, slots, device="cuda", allocate=allocate)
        self._backend.register_mem_pool(self._pool, symm=True)
        self._registered = True

    def run(self, slot: int) -> None:
        """Enqueue one reduce, in place: torch's all_reduce knows no other."""
        source, target = self.inputs[slot], self.outputs[slot]
        if target is not source:
            target.copy_(source)
        self._all_reduce(target, group=self._communicator)

    def ran(self) -> Ran:
        """Library only: which kernel NCCL took stands in its log."""
        return Ran(transport="window", library=f"NCCL {nccl.loaded_version()}", source="api")

    def close(self) -> None:
        """Deregister before the memory goes."""
        if self._registered:
            self._backend.deregister_mem_pool(self._pool)
            self._registered = False
        super().close()
        self._pool = None
