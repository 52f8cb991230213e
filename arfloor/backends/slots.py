"""The buffers of a prepared operation as torch tensors: what most backends reduce."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from arfloor.core.cases import Case

Allocate = Callable[[int, Any], Any]
"""(elements, torch dtype) -> a flat tensor of them; for libraries that reduce only memory of their own."""


class TorchSlots:
    """`slots` inputs cut from one allocation, and outputs from another unless the case is in place.

    One allocation each keeps what a library must register (IPC handles, windows) to two ranges.
    Slots start 256 bytes apart at least, so that vector accesses stay aligned at every size. `apart`: an
    allocation a slot, for libraries that know a buffer by its allocation.
    """

    def __init__(
        self, case: Case, slots: int, *, device: str, allocate: Allocate | None = None, apart: bool = False
    ) -> None:
        import torch

        self.slots = slots
        self._dtype = getattr(torch, case.dtype)
        self._numel = case.numel
        stride = -(-case.nbytes // 256) * 256 * case.numel // case.nbytes
        make = allocate or (lambda numel, dtype: torch.zeros(numel, dtype=dtype, device=device))

        def cut() -> list[Any]:
            if apart:
                return [make(self._numel, self._dtype) for _ in range(slots)]
            return self._cut(make(slots * stride, self._dtype), stride)

        self.inputs = cut()
        self.outputs = self.inputs if case.inplace else cut()

    def _cut(self, flat: Any, stride: int) -> list[Any]:
        return [flat[slot * stride : slot * stride + self._numel] for slot in range(self.slots)]

    def write(self, slot: int, values: np.ndarray) -> None:
        """Set the slot's input, shape (numel,), float64, rounded to the case's dtype."""
        import torch

        self.inputs[slot].copy_(torch.from_numpy(np.ascontiguousarray(values)))

    def poison(self, slot: int) -> None:
        """Fill the output with NaN, so that an element nobody wrote is seen; in place there is none."""
        if self.outputs is not self.inputs:
            self.outputs[slot].fill_(float("nan"))

    def read(self, slot: int) -> np.ndarray:
        """The slot's output, shape (numel,), float64, after waiting for the device."""
        values: np.ndarray = self.outputs[slot].double().cpu().numpy()
        return values

    def close(self) -> None:
        """Let go of the buffers."""
        self.inputs = []
        self.outputs = []


class ForeignMemory:
    """Device memory that someone else owns, as an array of bytes that torch can view."""

    def __init__(self, pointer: int, nbytes: int) -> None:
        self.__cuda_array_interface__: dict[str, Any] = {
            "shape": (nbytes,),
            "typestr": "|u1",
            "data": (pointer, False),
            "version": 3,
        }
