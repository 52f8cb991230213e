"""The ranks of a worker talking to each other about what to do: control traffic, never timed.

Two implementations of `arfloor.backends.base.Group`: over a gloo process group of torch, and over
mpi4py's world communicator. Values travel as JSON, so both carry the same things. `SubGroup` is a part of
either.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import timedelta
from typing import Any


class ProcessGroupExchange:
    """Control traffic over a process group of torch that carries CPU tensors (gloo)."""

    def __init__(self, process_group: Any = None) -> None:
        import torch.distributed as dist

        self._process_group = process_group
        self.rank, self.world = dist.get_rank(process_group), dist.get_world_size(process_group)

    def barrier(self) -> None:
        import torch.distributed as dist

        dist.barrier(group=self._process_group)

    def all_gather(self, value: Any) -> list[Any]:
        """Every rank's JSON-able value, in rank order."""
        import torch
        import torch.distributed as dist

        group = self._process_group
        data = torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8)
        lengths = [torch.zeros(1, dtype=torch.int64) for _ in range(self.world)]
        dist.all_gather(lengths, torch.tensor([data.numel()], dtype=torch.int64), group=group)
        longest = int(max(int(length) for length in lengths))
        padded = torch.zeros(longest, dtype=torch.uint8)
        padded[: data.numel()] = data
        rows = [torch.empty(longest, dtype=torch.uint8) for _ in range(self.world)]
        dist.all_gather(rows, padded, group=group)
        return [
            json.loads(bytes(row[: int(length)].numpy())) for row, length in zip(rows, lengths, strict=True)
        ]

    def broadcast(self, value: Any) -> Any:
        """Rank 0's JSON-able value on every rank."""
        return self.all_gather(value if self.rank == 0 else None)[0]


class TorchGroup(ProcessGroupExchange):
    """A gloo process group of its own, met over a `TCPStore` under a prefix used once.

    Raises RuntimeError when the others do not arrive within `timeout_s`.
    """

    def __init__(self, *, host: str, port: int, prefix: str, rank: int, world: int, timeout_s: float) -> None:
        import torch.distributed as dist

        store = dist.TCPStore(
            host, port, is_master=False, wait_for_workers=False, timeout=timedelta(seconds=timeout_s)
        )
        self._store = dist.PrefixStore(prefix, store)
        # the default group carries control traffic only; a backend makes its own groups beside it.
        # The supervisor ends a worker that waits too long, so this timeout is generous.
        dist.init_process_group(
            "gloo", store=self._store, rank=rank, world_size=world, timeout=timedelta(seconds=600)
        )
        super().__init__()

    def close(self) -> None:
        """Meet the others once more and leave; a rank that left early would fail theirs."""
        import torch.distributed as dist

        dist.barrier()
        dist.destroy_process_group()


class MpiGroup:
    """mpi4py's world communicator, duplicated: control messages cannot meet a backend's."""

    def __init__(self) -> None:
        import mpi4py

        # What a C program gets from MPI_Init. mpi4py asks for MPI_THREAD_MULTIPLE, whose locks cost time
        # at small sizes.
        mpi4py.rc.threads = False
        from mpi4py import MPI

        self._comm = MPI.COMM_WORLD.Dup()
        self.rank, self.world = self._comm.Get_rank(), self._comm.Get_size()

    def barrier(self) -> None:
        self._comm.Barrier()

    def all_gather(self, value: Any) -> list[Any]:
        """Every rank's JSON-able value, in rank order."""
        return [json.loads(text) for text in self._comm.allgather(json.dumps(value))]

    def broadcast(self, value: Any) -> Any:
        """Rank 0's JSON-able value on every rank."""
        return json.loads(self._comm.bcast(json.dumps(value) if self.rank == 0 else None, root=0))

    def close(self) -> None:
        """Meet the others once more; mpi4py finalises MPI when the interpreter ends."""
        self._comm.Barrier()


class SubGroup:
    """The ranks of one reducing group within a worker's, numbered from 0.

    Its exchanges are the worker's: all groups of the worker must make the same ones, in step. What went
    wrong in one of them is therefore told to all (`arfloor.runtime.agree.jointly`).
    """

    def __init__(self, whole: Any, members: Sequence[int]) -> None:
        self.whole, self.members = whole, tuple(members)
        self.rank, self.world = self.members.index(whole.rank), len(self.members)

    def barrier(self) -> None:
        self.whole.barrier()

    def all_gather(self, value: Any) -> list[Any]:
        """Every member's value."""
        everyone = self.whole.all_gather(value)
        return [everyone[rank] for rank in self.members]


def whole_of(group: Any) -> Any:
    """The worker's group that `group` is a part of, or itself where it is none."""
    return group.whole if isinstance(group, SubGroup) else group
