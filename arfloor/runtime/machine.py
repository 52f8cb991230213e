"""Facts about the machine and its software, each rank's own, and what they must agree on."""

from __future__ import annotations

import contextlib
import getpass
import importlib.metadata
import importlib.util
import os
import platform
import re
import shutil
import socket
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from arfloor import __version__
from arfloor.core.cases import Machine
from arfloor.core.recipe import BadInput
from arfloor.runtime import mpi_launch

_PACKAGES = (
    "torch",
    "numpy",
    "mpi4py",
    "openmpi",
    "mpich",
    "cuda-core",
    "nvidia-nccl-cu12",
    "nvidia-nccl-cu13",
    "mscclpp",
    "vllm",
    "sglang",
    "flashinfer-python",
    "tensorrt-llm",
    "b12x",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What one rank sees. Only `versions`, `host` and `gpus` must agree; memory is checked by the least."""

    versions: dict[str, str]
    host: str
    gpus: int
    cpu: str
    cores: int
    free_memory: int
    free_shm: int
    gpu: dict[str, Any] = field(default_factory=dict)


def versions() -> dict[str, str]:
    """Versions of what measures; backends add what they loaded to `Ran.library`."""
    found = {
        "arfloor": __version__,
        "python": platform.python_version(),
        "kernel": kernel_version(platform.release()),
    }
    for name in _PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def forget_binding(launcher: str) -> None:
    """Under mpirun: give this supervisor, and what it starts, all cores again.

    mpirun binds each supervisor to a core, which every worker would inherit: all ranks of an `mpiexec`
    that rank 0 starts would then meet on rank 0's core. Under torchrun nothing was bound by us.
    """
    if launcher == "mpirun":
        with contextlib.suppress(OSError):  # the system narrows it to what this job may use
            os.sched_setaffinity(0, range(os.cpu_count() or 1))


def kernel_version(release: str) -> str:
    """`6.1.0` of `6.1.0-28-cloud-amd64`: what follows can name the place a machine was built for."""
    found = re.match(r"\d+(\.\d+)*", release)
    return found[0] if found else "unknown"


def facts() -> Facts:
    """Look around. Touches no GPU: the count comes from the driver's management library."""
    gpus = _gpus()
    return Facts(
        versions=versions(),
        host=_boot_id(),
        gpus=gpus,
        cpu=_cpu_name(),
        cores=len(os.sched_getaffinity(0)),
        free_memory=_free_memory(),
        free_shm=shutil.disk_usage("/dev/shm").free if Path("/dev/shm").is_dir() else 0,
        gpu=_gpu(gpus),
    )


def _gpu(gpus: int) -> dict[str, Any]:
    if not gpus:
        return {}
    from arfloor.runtime.gpu_query import gpu_facts

    return gpu_facts(min(gpus, int(os.environ.get("WORLD_SIZE", gpus))))


def private_names() -> list[str]:
    """Names that must not reach a run directory."""
    names = [socket.gethostname(), socket.gethostname().partition(".")[0]]
    with contextlib.suppress(KeyError, OSError):
        names.append(getpass.getuser())
    return [n for n in names if n not in ("localhost", "root")]


def _boot_id() -> str:
    file = Path("/proc/sys/kernel/random/boot_id")
    return file.read_text(encoding="utf-8").strip() if file.is_file() else socket.gethostname()


def _gpus() -> int:
    if importlib.util.find_spec("torch") is None:
        return 0
    import torch

    return torch.cuda.device_count() if torch.cuda.is_available() else 0


def _cpu_name() -> str:
    file = Path("/proc/cpuinfo")
    if file.is_file():
        for line in file.read_text(encoding="utf-8").splitlines():
            key, _, value = line.partition(":")
            if key.strip() in ("model name", "Model"):
                return value.strip()
    return platform.machine()


def _free_memory() -> int:
    file = Path("/proc/meminfo")
    if file.is_file():
        for line in file.read_text(encoding="utf-8").splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return 1 << 62  # not Linux: unknown, so no reason to refuse


def agreed(all_facts: Sequence[dict[str, Any]]) -> None:
    """Raises BadInput unless all ranks run the same software on one host."""
    first = all_facts[0]
    for rank, other in enumerate(all_facts):
        if other["host"] != first["host"]:
            raise BadInput(
                f"ranks: rank {rank} runs on another host than rank 0; arfloor measures one box, "
                "so start all ranks on one host"
            )
        for name in sorted({*first["versions"], *other["versions"]}):
            mine, theirs = first["versions"].get(name, "none"), other["versions"].get(name, "none")
            if mine != theirs:
                raise BadInput(
                    f"ranks: rank {rank} has {name} {theirs}, rank 0 has {mine}; "
                    "start all ranks from one Python environment"
                )


def device_kind(wanted: str, world: int, all_facts: Sequence[dict[str, Any]]) -> str:
    """`cpu` or `cuda`. Raises BadInput when GPUs are asked for and there is not one a rank."""
    gpus = min(f["gpus"] for f in all_facts)
    if wanted == "cuda" and gpus < world:
        raise BadInput(
            f"devices: 'cuda' needs one GPU a rank, found {gpus} for {world} ranks; "
            "start fewer ranks, or choose cpu"
        )
    if wanted == "auto":
        return "cuda" if gpus >= world else "cpu"
    return wanted


def check_memory(
    nbytes: int, world: int, slots: int, cases: int, all_facts: Sequence[dict[str, Any]]
) -> None:
    """Raises BadInput when the largest block would not fit into free memory or /dev/shm."""
    # per case and slot: input and output; per rank: float64 payloads of two kinds and references
    need = world * nbytes * (2 * slots * cases + 12)
    free = min(f["free_memory"] for f in all_facts)
    if need > free:
        raise BadInput(
            f"memory: the largest block needs about {need >> 20} MiB, {free >> 20} MiB are free; "
            "choose smaller sizes or fewer backends"
        )
    shm = min(f["free_shm"] for f in all_facts)
    wanted = 16 << 20
    if shm < wanted:
        raise BadInput(
            f"memory: /dev/shm has {shm >> 20} MiB free, {wanted >> 20} MiB are needed; "
            "enlarge it (containers: --shm-size=1g)"
        )


def machine(kind: str, world: int, mine: Facts) -> Machine:
    """The facts that backends decide from, equal on all ranks."""
    if kind == "cuda":
        return _gpu_machine(world, mine)
    return Machine(
        world=world,
        device_kind=kind,  # type: ignore[arg-type]
        device_name=mine.cpu,
        versions=mine.versions,
        facts={
            "cores": mine.cores,
            "mpi4py": "mpi4py" in mine.versions,
            "mpiexec": mpi_launch.mpiexec() is not None,
            "multicast_forbidden": True,
        },
    )


def _gpu_machine(world: int, mine: Facts) -> Machine:
    gpu = dict(mine.gpu)
    if not gpu:
        raise BadInput(
            "devices: the GPUs' driver could not be asked (is cuda-bindings installed?); "
            "pip install 'arfloor[cuda]'"
        )
    major, minor = gpu["capability"]
    versions = {**mine.versions, "driver": gpu["driver"]} if gpu["driver"] else dict(mine.versions)
    return Machine(
        world=world,
        device_kind="cuda",
        device_name=gpu["name"],
        compute_capability=(major, minor),
        multiprocessors=gpu["multiprocessors"],
        versions=versions,
        facts={
            "cores": mine.cores,
            "cpu": mine.cpu,
            "p2p": gpu["p2p"],
            "peer_atomics": gpu["peer_atomics"],
            "nvlink": gpu["nvlink"],
            "nccl": any(name.startswith("nvidia-nccl") for name in mine.versions) or _torch_has_nccl(),
            "multicast_forbidden": True,
        },
    )


def _torch_has_nccl() -> bool:
    import torch

    return bool(torch.distributed.is_available() and torch.distributed.is_nccl_available())
