"""A case of the `peer` or `host` backend, ready to run: reducers and the torch tensors they reduce."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from arfloor.backends.ours import Operation, Reducer, jointly
from arfloor.core.cases import Case, Ran
from arfloor.core.plans import Plan


class PreparedReduce:
    """A case of the `peer` or `host` backend, ready to run: reducers and `slots` pairs of torch tensors.

    Collective to make. `device` is this rank's, which must be the current one. `reducers`: the plan's, where
    it is set up already, as many on every rank; slots use them in turn, so that what one set-up has of luck
    is not taken for the plan's. They are closed with this, also when this cannot be made.
    """

    def __init__(
        self,
        case: Case,
        group: Any,
        slots: int,
        plan: Plan,
        device: int,
        reducers: Sequence[Reducer] = (),
    ) -> None:
        import torch

        self.slots, self.case, self.plan = slots, case, plan
        self._torch, self._device = torch, device
        self.reducers = list(reducers)
        try:
            self._inputs, self._outputs = jointly(group, f"buffers of {case.label}", self._allocate)
            if not self.reducers:
                self.reducers = [
                    Reducer(
                        plan=plan,
                        path=case.path,
                        dtype=case.dtype,
                        group=group,
                        device=device,
                        max_nbytes=case.nbytes,
                    )
                ]
            # nobody starts before all have come here: everything is cleared and mapped
            self._operations = jointly(group, f"operations of {case.label}", self._bind)
        except BaseException:
            self._close_reducers()
            raise

    def _allocate(self) -> tuple[list[Any], list[Any]]:
        dtype, device = getattr(self._torch, self.case.dtype), f"cuda:{self._device}"
        inputs = [self._torch.zeros(self.case.numel, dtype=dtype, device=device) for _ in range(self.slots)]
        return inputs, inputs if self.case.inplace else [self._torch.empty_like(x) for x in inputs]

    def _bind(self) -> list[Operation]:
        return [
            reducer.bind(source.data_ptr(), target.data_ptr(), self.case.nbytes)
            for reducer, source, target in zip(itertools.cycle(self.reducers), self._inputs, self._outputs)
        ]

    def write(self, slot: int, values: np.ndarray) -> None:
        """Set a slot's input from float64 values, shape (numel,)."""
        source = self._torch.from_numpy(np.ascontiguousarray(values, dtype=np.float64))
        self._inputs[slot].copy_(source)  # rounds once, on the host, from float64

    def poison(self, slot: int) -> None:
        """NaN into a slot's output, when it has one of its own."""
        if not self.case.inplace:
            self._outputs[slot].fill_(float("nan"))

    def run(self, slot: int) -> None:
        """Enqueue a slot's reduction on torch's current stream."""
        self._operations[slot].launch(self._torch.cuda.current_stream(self._device).cuda_stream)

    def read(self, slot: int) -> np.ndarray:
        """A slot's output as float64, after waiting. Raises PeerTimeout when a kernel gave up."""
        self._torch.cuda.synchronize(self._device)
        for reducer in self.reducers:
            reducer.check()
        return self._outputs[slot].double().cpu().numpy()

    def ran(self) -> Ran:
        """The plan's name and parts; our kernels choose nothing at run time."""
        plan = self.plan
        return Ran(
            algorithm=plan.name,
            protocol=plan.packets,
            channels=plan.blocks,
            transport="pinned host memory" if self.case.path == "host" else "peer memory",
            library="arfloor",
            source="self",
        )

    def close(self) -> None:
        """Free everything; idempotent."""
        self._close_reducers()
        self._operations = []
        self._inputs = self._outputs = []

    def _close_reducers(self) -> None:
        for reducer in self.reducers:
            reducer.close()
