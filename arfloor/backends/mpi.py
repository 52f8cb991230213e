"""MPI's all-reduce on CPU ranks through mpi4py: what a tuned library does over shared memory.

Ranks are started by `mpiexec` (the pseudo-setting `launcher`), since MPI brings its own start-up.
Open MPI's forced algorithms are contenders: its own choice by size is the default.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from arfloor.backends.base import SUPPORTED, Group, Support, Variant
from arfloor.core.cases import Case, Machine, Ran

LAUNCHER = ("launcher", "mpiexec")
# `coll_tuned_allreduce_algorithm` of Open MPI: name -> value; read once a process
_FORCED = {"recursive-doubling": "recursive_doubling", "rabenseifner": "rabenseifner"}
_MPI_TYPES = {"float32": "FLOAT"}


class Mpi:
    """`MPI_Allreduce` in place on float32 buffers."""

    name = "mpi"

    def support(self, machine: Machine, case: Case) -> Support:
        """float32 only: Open MPI and MPICH have no sum of 16-bit floats that one may rely on."""
        if machine.device_kind != "cpu":
            return Support(ok=False, reason="mode", detail="MPI is measured on CPU ranks")
        if not machine.facts.get("mpi4py"):
            return Support(ok=False, reason="not_installed", detail="install arfloor[mpi] for mpi4py")
        if not machine.facts.get("mpiexec"):
            return Support(ok=False, reason="not_installed", detail="no mpiexec found; install arfloor[mpi]")
        if case.dtype not in _MPI_TYPES:
            return Support(ok=False, reason="dtype", detail=f"MPI has no sum of {case.dtype}")
        return SUPPORTED

    def variants(self, machine: Machine) -> Sequence[Variant]:
        """The library's own choice; with Open MPI also two algorithms forced at every size."""
        found = [Variant(name="default", path="cpu", settings=(LAUNCHER,), modes=("eager",))]
        if machine.versions.get("openmpi") or machine.facts.get("mpi_flavour") == "openmpi":
            found += [
                Variant(name=name, path="cpu", settings=(LAUNCHER, *_forced(value)), modes=("eager",))
                for name, value in _FORCED.items()
            ]
        return found

    def prepare(self, case: Case, group: Group, slots: int) -> MpiOp:
        """Collective. Raises RuntimeError when MPI does not see this run's ranks."""
        return MpiOp(case, _communicator(case, group), slots)


def _forced(value: str) -> tuple[tuple[str, str], ...]:
    return (
        ("OMPI_MCA_coll_tuned_allreduce_algorithm", value),
        ("OMPI_MCA_coll_tuned_use_dynamic_rules", "1"),
    )


_COMMUNICATORS: dict[tuple[tuple[int, ...], ...], Any] = {}


def _communicator(case: Case, group: Group) -> Any:
    from mpi4py import MPI

    if MPI.COMM_WORLD.Get_size() != group.world:
        raise RuntimeError(f"MPI has {MPI.COMM_WORLD.Get_size()} ranks, the run has {group.world}")
    parts = case.groups or (tuple(range(group.world)),)
    if parts not in _COMMUNICATORS:
        colour = next(i for i, part in enumerate(parts) if group.rank in part)
        _COMMUNICATORS[parts] = MPI.COMM_WORLD.Split(colour, group.rank)
    return _COMMUNICATORS[parts]


class MpiOp:
    """See `PreparedOp`. In place: input and output of a slot are one array."""

    def __init__(self, case: Case, communicator: Any, slots: int) -> None:
        from mpi4py import MPI

        self.slots, self._case = slots, case
        self._arrays = [np.zeros(case.numel, dtype=case.dtype) for _ in range(slots)]
        kind = getattr(MPI, _MPI_TYPES[case.dtype])
        self._buffers = [[array, case.numel, kind] for array in self._arrays]
        self._in_place, self._sum = MPI.IN_PLACE, MPI.SUM
        self._all_reduce = communicator.Allreduce

    def write(self, slot: int, values: np.ndarray) -> None:
        """Set the slot's input."""
        self._arrays[slot][:] = values

    def poison(self, slot: int) -> None:
        """In place: nothing to poison."""

    def run(self, slot: int) -> None:
        """Reduce the slot."""
        self._all_reduce(self._in_place, self._buffers[slot], self._sum)

    def read(self, slot: int) -> np.ndarray:
        """The slot's output as float64."""
        return self._arrays[slot].astype(np.float64)

    def ran(self) -> Ran:
        """The library's own words. The forced algorithm is what was asked for; MPI does not confirm it."""
        from mpi4py import MPI

        asked = dict(self._case.settings).get("OMPI_MCA_coll_tuned_allreduce_algorithm")
        library = " ".join(MPI.Get_library_version().split(",")[0].split()[:4])
        return Ran(algorithm=asked, transport="shm", link="shm", library=library, source="api")

    def close(self) -> None:
        """Arrays go with the object; the communicator is kept for the next case."""
        self._buffers, self._arrays = [], []
