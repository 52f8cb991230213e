"""FlashInfer's all-reduce kernels: those of its fusion (from TensorRT-LLM), and its PCIe IPC kernels.

`oneshot`, `twoshot`: `allreduce_fusion` with the pattern that only reduces, on a `trtllm` workspace. The
`mnnvl` workspace needs NVLink multicast and is not offered.
`pcie_ipc`: `PcieIpcAllReduceWorkspace` at its seed configuration, what a user gets who does not tune;
`pcie_ipc-tuned`: after its own `tune`, which it keeps in a cache file of its own.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import re
from collections.abc import Callable, Sequence
from typing import Any

from arfloor.backends.base import SUPPORTED, Group, Support, Variant
from arfloor.backends.engine_gates import gates
from arfloor.backends.slots import TorchSlots
from arfloor.core.cases import Case, Machine, Ran

FUSION = ("oneshot", "twoshot")
PCIE = ("pcie_ipc", "pcie_ipc-tuned")
PACKAGE = "flashinfer-python"
IMPLEMENTATION = dict.fromkeys(FUSION, "all-reduce fusion (trtllm)") | dict.fromkeys(PCIE, "PCIe IPC")
# from here on the trtllm workspace is made without multicast
WITHOUT_MULTICAST = (0, 6, 18)
HIDDEN = (4096, 2048, 1024, 512)


def rows_of(numel: int) -> tuple[int, int] | None:
    """(rows, width) that a message of `numel` elements is passed as; None when no width divides it."""
    width = next((h for h in HIDDEN if numel % h == 0), None)
    return None if width is None else (numel // width, width)


def version_of(text: str) -> tuple[int, ...]:
    """`0.6.18.post1` as (0, 6, 18)."""
    return tuple(int(n) for n in re.findall(r"\d+", text)[:3])


class FlashInfer:
    """The backend; see `arfloor.backends.base.Backend`."""

    name = "flashinfer"

    def support(self, machine: Machine, case: Case) -> Support:
        """FlashInfer's gates, then the limits of its kernels."""
        if case.variant not in IMPLEMENTATION:
            raise ValueError(
                f"flashinfer variant {case.variant!r}: expected one of {', '.join(IMPLEMENTATION)}"
            )
        answer = gates(
            machine,
            case,
            engine="FlashInfer",
            implementation=IMPLEMENTATION[case.variant],
            package=PACKAGE,
            install=f"pip install {PACKAGE}",
        )
        if not answer.ok:
            return answer
        if case.variant in FUSION and version_of(machine.versions[PACKAGE]) < WITHOUT_MULTICAST:
            wanted = ".".join(map(str, WITHOUT_MULTICAST))
            detail = f"before {wanted} its workspace may use NVLink multicast, which arfloor does not touch"
            return Support(ok=False, reason="needs_multicast", detail=detail)
        return _limits(case)

    def variants(self, machine: Machine) -> Sequence[Variant]:
        """All; tuning takes FlashInfer minutes, so `pcie_ipc-tuned` is for grids."""
        if machine.device_kind != "cuda":
            return ()
        return [
            Variant(name=name, path="peer", contender=name != "pcie_ipc-tuned", inplace=False)
            for name in (*FUSION, *PCIE)
        ]

    def prepare(self, case: Case, group: Group, slots: int) -> FlashInferOp:
        """Collective: FlashInfer exchanges handles among the ranks."""
        return FlashInferOp(case, group, slots, device=case.devices[group.rank])


def _limits(case: Case) -> Support:
    if case.dtype == "float32" and case.variant in PCIE:
        return Support(ok=False, reason="dtype", detail="its PCIe kernels take float16 and bfloat16")
    rows = rows_of(case.numel)
    if rows is None:
        detail = f"rows of {', '.join(map(str, HIDDEN))} elements, not {case.numel} elements"
        return Support(ok=False, reason="size", detail=detail)
    if case.variant == "twoshot" and rows[0] < case.world:
        detail = f"two-shot takes a row a rank at least, not {rows[0]} rows on {case.world} ranks"
        return Support(ok=False, reason="size", detail=detail)
    return SUPPORTED


class FlashInferOp(TorchSlots):
    """See `PreparedOp`. One workspace an operation, freed with it."""

    def __init__(self, case: Case, group: Group, slots: int, *, device: str) -> None:
        super().__init__(case, slots, device=device)
        shape = rows_of(case.numel)
        assert shape is not None  # `support` refuses other sizes
        self._variant = case.variant
        self._shaped = [[t.view(*shape) for t in tensors] for tensors in (self.inputs, self.outputs)]
        comm = importlib.import_module("flashinfer.comm")
        self._version = str(getattr(importlib.import_module("flashinfer"), "__version__", "unknown"))
        self._workspace: Any = None
        make = self._pcie if case.variant in PCIE else self._fusion
        self._call = make(comm, case, group, shape)

    def _pcie(self, comm: Any, case: Case, group: Group, shape: tuple[int, int]) -> Callable[..., Any]:
        import torch.distributed as dist

        # agreeing on a configuration reduces a GPU tensor, so this group is NCCL's
        exchange = dist.new_group(list(range(group.world)), backend="nccl")
        self._workspace = comm.PcieIpcAllReduceWorkspace(
            group=exchange, max_numel=case.numel, dtype=self._dtype
        )
        if not self._workspace.supports(self._shaped[0][0]):
            raise RuntimeError(f"flashinfer {self._version}: PCIe IPC does not support {shape} {case.dtype}")
        if case.variant == "pcie_ipc-tuned":
            self._workspace.tune([shape[1]])
        self._workspace.prepare([shape], dtype=self._dtype)  # a capture must not resolve it
        return lambda x, out: self._workspace.all_reduce(x, out=out)

    def _fusion(self, comm: Any, case: Case, group: Group, shape: tuple[int, int]) -> Callable[..., Any]:
        with contextlib.redirect_stdout(io.StringIO()):  # it prints addresses
            self._workspace = comm.create_allreduce_fusion_workspace(
                backend="trtllm",
                world_size=group.world,
                rank=group.rank,
                max_token_num=shape[0],
                hidden_dim=shape[1],
                dtype=self._dtype,
            )
        pattern = comm.AllReduceFusionPattern.kAllReduce
        oneshot = case.variant == "oneshot"
        return lambda x, out: comm.allreduce_fusion(
            input=x, workspace=self._workspace, pattern=pattern, output=out, use_oneshot=oneshot
        )

    def run(self, slot: int) -> None:
        """Enqueue one reduce on torch's current stream."""
        self._call(self._shaped[0][slot], self._shaped[1][slot])

    def ran(self) -> Ran:
        """The kernel was called by name: nothing chose for us."""
        return Ran(
            algorithm=self._variant,
            transport="peer memory",
            library=f"flashinfer {self._version}",
            source="api",
        )

    def close(self) -> None:
        """Free the workspace."""
        workspace, self._workspace = self._workspace, None
        if workspace is not None:
            workspace.destroy()
        super().close()
