"""The supervisors' common ground: who is there, and a store of keys with a deadline each.

Started by torchrun, the store is the one of torchrun's agent. Started by `mpirun -n N python -m
arfloor.sweep`, rank and world come from the MPI launcher's variables, and rank 0 serves the store at
MASTER_ADDR:MASTER_PORT (or a port derived from the job's name).
"""

from __future__ import annotations

import json
import os
import time
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from arfloor.core.recipe import BadInput

# launchers and the variables that name a rank, its world and the job
_LAUNCHERS = (
    ("torchrun", "RANK", "WORLD_SIZE", "TORCHELASTIC_RUN_ID"),
    ("mpirun", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "PMIX_NAMESPACE"),
    ("mpirun", "PMI_RANK", "PMI_SIZE", "PMI_JOBID"),
    ("mpirun", "PMIX_RANK", "PMIX_SIZE", "PMIX_NAMESPACE"),
)
HOW_TO = (
    "start it with `torchrun --standalone --nproc-per-node=N -m arfloor.sweep` "
    "or `mpirun -n N python -m arfloor.sweep`"
)


class StoreLost(Exception):
    """The store does not answer: the job is being torn down."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where this supervisor stands in the job."""

    launcher: str
    rank: int
    world: int
    host: str
    port: int
    serves: bool
    job: str


def place(env: Mapping[str, str]) -> Place:
    """Read the launcher's variables. Raises BadInput when there are none."""
    found = next((row for row in _LAUNCHERS if row[1] in env and row[2] in env), None)
    if found is None:
        raise BadInput(f"ranks: expected a launcher's RANK and WORLD_SIZE, found none; {HOW_TO}")
    launcher, rank, world, job = found
    name = env.get(job, "") + env.get("TORCHELASTIC_RESTART_COUNT", "")
    # a port of the job's own where none is given: two jobs on one host then rarely meet
    port = int(env.get("MASTER_PORT") or 20000 + zlib.crc32(name.encode()) % 12000)
    served = env.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    return Place(
        launcher=launcher,
        rank=int(env[rank]),
        world=int(env[world]),
        host=env.get("MASTER_ADDR", "127.0.0.1"),
        port=port,
        serves=not served and int(env[rank]) == 0,
        job=name,
    )


class Ranks:
    """Keys and values that all supervisors see. Every wait has a deadline; nothing is collective."""

    def __init__(self, where: Place, timeout_s: float = 60.0) -> None:
        import torch.distributed as dist

        self.place, self.rank, self.world = where, where.rank, where.world
        try:
            store = dist.TCPStore(
                where.host,
                where.port,
                is_master=where.serves,
                wait_for_workers=False,
                timeout=timedelta(seconds=timeout_s),
            )
        except (RuntimeError, ValueError) as error:
            raise BadInput(
                f"ranks: rank {where.rank} found no store at {where.host}:{where.port} "
                f"({type(error).__name__}); set MASTER_ADDR and a free MASTER_PORT"
            ) from error
        self._store = dist.PrefixStore(f"arfloor/{where.job}", store)

    def set(self, key: str, value: Any) -> None:
        """Publish a JSON-able value. Raises StoreLost."""
        try:
            self._store.set(key, json.dumps(value))
        except RuntimeError as error:
            raise StoreLost(str(error)) from error

    def peek(self, key: str) -> Any | None:
        """The value of a key, or None where it is not set yet. Raises StoreLost."""
        try:
            if not self._store.check([key]):
                return None
            return json.loads(self._store.get(key))
        except RuntimeError as error:
            raise StoreLost(str(error)) from error

    def wait(self, key: str, timeout_s: float = 60.0) -> Any:
        """The value of a key. Raises TimeoutError after `timeout_s`, and StoreLost."""
        end = time.monotonic() + timeout_s
        while (value := self.peek(key)) is None:
            if time.monotonic() > end:
                raise TimeoutError(f"no rank set {key!r} within {timeout_s:.0f} s")
            time.sleep(0.02)
        return value

    def exchange(self, name: str, value: Any, timeout_s: float = 60.0) -> list[Any]:
        """Every rank's value under a name used once, in rank order. Raises TimeoutError, StoreLost."""
        self.set(f"{name}/{self.rank}", [value])
        return [self.wait(f"{name}/{rank}", timeout_s)[0] for rank in range(self.world)]

    def from_first(self, name: str, value: Any = None, timeout_s: float = 60.0) -> Any:
        """Rank 0's value on every rank. Raises TimeoutError, StoreLost."""
        if self.rank == 0:
            self.set(name, [value])
        return self.wait(name, timeout_s)[0]


_PLACE = ("OMPI_", "PMIX_", "PRTE_", "PMI_", "HYDRA_", "MPIEXEC_")


def launcher_variables(env: Mapping[str, str]) -> frozenset[str]:
    """Variables by which an MPI launcher tells a process its place in a job.

    A process of another job must not see them. OMPI_MCA_* are the user's own choices and stay.
    """
    return frozenset(k for k in env if k.startswith(_PLACE) and not k.startswith("OMPI_MCA_"))


# NVLink multicast stays off in whatever we start: a library must not choose it behind our back
NO_MULTICAST = {
    "NCCL_NVLS_ENABLE": "0",
    "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1",
    "NVSHMEM_DISABLE_NVLS": "1",
    "MSCCLPP_FORCE_DISABLE_NVLS": "1",
}


def own_environment(settings: tuple[tuple[str, str], ...]) -> dict[str, str]:
    """This process's environment for a worker: less the launcher's place, plus a launch's settings."""
    hidden = launcher_variables(os.environ)
    env = {key: value for key, value in os.environ.items() if key not in hidden}
    return env | launch_environment(settings)


def launch_environment(settings: Iterable[Sequence[str]]) -> dict[str, str]:
    """The variables that a launch's settings, pairs of name and value, put into a worker's environment."""
    # `launcher` says how ranks are started and is no variable
    return {name: value for name, value in settings if name != "launcher"} | NO_MULTICAST
