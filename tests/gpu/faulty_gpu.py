"""Third-party GPU backends with one fault each, loaded by `--backends tests.gpu.faulty_gpu:Name`."""

from __future__ import annotations

import ctypes
from typing import Any

from arfloor.backends.base import Variant
from arfloor.backends.nccl import Nccl
from arfloor.runtime.jit import load_function

# the size and the rank at which the fault shows; elsewhere the backend is NCCL
FAULTY_BYTES = 65536
FAULTY_RANK = 1

SOURCE = r"""
extern "C" __global__ void illegal(int* nowhere) { *(volatile int*)nowhere = 1; }
extern "C" __global__ void endless(int* word) { while (*(volatile int*)word == 0) {} }
"""


class Faulty(Nccl):
    """NCCL's default under another name, with `fault` enqueued before each operation at one size and rank."""

    name = "faulty"
    symbol = ""
    # what ran is not asked of these: a fault in a probe is another test
    probe = property()  # type: ignore[assignment]

    def variants(self, machine: Any) -> list[Variant]:
        return [Variant(name="default", path="peer", modes=("graph",))]

    def prepare(self, case: Any, group: Any, slots: int) -> Any:
        import torch

        op: Any = super().prepare(case, group, slots)
        if case.nbytes != FAULTY_BYTES or group.rank != FAULTY_RANK:
            return op
        kernel = load_function(SOURCE, self.symbol, device=torch.cuda.current_device())
        word = torch.zeros(1, dtype=torch.int32, device="cuda")
        address = 16 if self.symbol == "illegal" else word.data_ptr()
        run = op.run

        def faulty(slot: int) -> None:
            stream = torch.cuda.current_stream().cuda_stream
            kernel.launch(1, 1, stream, ctypes.c_uint64(address))
            run(slot)

        op.run, op.word = faulty, word
        return op


class Illegal(Faulty):
    """Its kernel writes where nothing is mapped: the device's context is lost."""

    name = "illegal"
    symbol = "illegal"


class Endless(Faulty):
    """Its kernel never ends."""

    name = "endless"
    symbol = "endless"
