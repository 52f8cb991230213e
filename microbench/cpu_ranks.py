"""Two ways to be one of several CPU ranks, behind one small face.

Started by torchrun, ranks talk through PyTorch's gloo; started by mpirun, through MPI.
"""

from __future__ import annotations

import argparse
import os
import sys

import numpy as np


class Gloo:
    """torch.distributed on CPU tensors that share memory with the arrays."""

    name = "gloo"

    def __init__(self) -> None:
        import torch
        import torch.distributed as dist

        dist.init_process_group("gloo")
        self._dist, self._tensor = dist, torch.from_numpy
        self.rank, self.world = dist.get_rank(), dist.get_world_size()

    def barrier(self) -> None:
        self._dist.barrier()

    def all_reduce(self, data: np.ndarray) -> None:
        self._dist.all_reduce(self._tensor(data))

    def send(self, data: np.ndarray, to: int) -> None:
        self._dist.send(self._tensor(data), to)

    def receive(self, data: np.ndarray, source: int) -> None:
        self._dist.recv(self._tensor(data), source)

    def slowest(self, us: np.ndarray) -> np.ndarray:
        """Per replay, the time of the slowest rank."""
        worst = self._tensor(us.copy())
        self._dist.all_reduce(worst, op=self._dist.ReduceOp.MAX)
        return np.asarray(worst.numpy())

    def close(self) -> None:
        self._dist.barrier()
        self._dist.destroy_process_group()


class Mpi:
    """mpi4py on the arrays themselves."""

    name = "mpi"

    def __init__(self) -> None:
        from mpi4py import MPI

        self._mpi, self._comm = MPI, MPI.COMM_WORLD
        sys.excepthook = self._abort
        self.rank, self.world = self._comm.rank, self._comm.size

    def _abort(self, kind: type[BaseException], error: BaseException, trace: object) -> None:
        """An exception on one rank ends the job: the others would wait for it for ever."""
        sys.__excepthook__(kind, error, trace)  # type: ignore[arg-type]
        self._comm.Abort(1)

    def barrier(self) -> None:
        self._comm.Barrier()

    def all_reduce(self, data: np.ndarray) -> None:
        self._comm.Allreduce(self._mpi.IN_PLACE, data)

    def send(self, data: np.ndarray, to: int) -> None:
        self._comm.Send(data, to)

    def receive(self, data: np.ndarray, source: int) -> None:
        self._comm.Recv(data, source)

    def slowest(self, us: np.ndarray) -> np.ndarray:
        """Per replay, the time of the slowest rank."""
        worst = np.empty_like(us)
        self._comm.Allreduce(us, worst, op=self._mpi.MAX)
        return worst

    def close(self) -> None:
        self._comm.Barrier()


Ranks = Gloo | Mpi


def help_only(doc: str | None) -> None:
    """The command line of a script without options: `doc` is its help."""
    argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    ).parse_args()


def say(ranks: Ranks, text: str) -> None:
    """Print on rank 0, at once."""
    if ranks.rank == 0:
        print(text, flush=True)


def join() -> Ranks:
    """Whichever launcher started this process. Raises SystemExit with what to type when none did."""
    if "OMPI_COMM_WORLD_RANK" in os.environ or "PMI_RANK" in os.environ:
        return Mpi()
    if "RANK" in os.environ:
        return Gloo()
    raise SystemExit(
        "start this with: torchrun --standalone --nproc-per-node=2 SCRIPT, or mpirun -n 2 python SCRIPT"
    )
