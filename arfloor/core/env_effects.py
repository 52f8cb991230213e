"""Environment variables that change what an all-reduce does or how fast it is, with what to do about each.

NCCL: docs.nvidia.com, NCCL user guide, environment variables. CUDA: CUDA programming guide. torch:
pytorch.org, CUDA semantics and torch.distributed.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from arfloor.core.cases import record
from arfloor.core.demands import GRAPH_MIXING

Severity = Literal["problem", "warning", "note"]


@record
class Effect:
    """What a variable does, for values that `when` lists (empty: any value), and how grave it is."""

    name: str
    severity: Severity
    effect: str
    when: tuple[str, ...] = ()


_ON = ("1", "true", "TRUE", "True", "yes", "on")

_EFFECTS: tuple[Effect, ...] = (
    Effect(name="NCCL_ALGO", severity="warning", effect="NCCL may not choose its algorithm"),
    Effect(name="NCCL_PROTO", severity="warning", effect="NCCL may not choose its protocol"),
    Effect(
        name="NCCL_P2P_DISABLE",
        severity="warning",
        effect="NCCL sends everything through host memory",
        when=_ON,
    ),
    Effect(
        name="NCCL_P2P_LEVEL", severity="note", effect="sets how far apart GPUs may be for NCCL to use P2P"
    ),
    Effect(
        name="NCCL_P2P_DIRECT_DISABLE",
        severity="warning",
        effect="NCCL copies between the GPUs of one process through a buffer",
        when=_ON,
    ),
    Effect(
        name="NCCL_P2P_USE_CUDA_MEMCPY",
        severity="warning",
        effect="NCCL uses copy engines for P2P, slow for small messages",
        when=_ON,
    ),
    Effect(
        name="NCCL_IGNORE_DISABLED_P2P",
        severity="warning",
        effect="NCCL goes on when the driver says that P2P between NVLinked GPUs is off",
    ),
    Effect(
        name="NCCL_SHM_DISABLE",
        severity="problem",
        effect="without P2P, NCCL falls back to sockets inside one machine",
        when=_ON,
    ),
    Effect(
        name="NCCL_SHM_USE_CUDA_MEMCPY",
        severity="warning",
        effect="NCCL uses copy engines for host memory, slow for small messages",
        when=_ON,
    ),
    Effect(name="NCCL_MIN_NCHANNELS", severity="note", effect="raises the number of NCCL's channels"),
    Effect(name="NCCL_MAX_NCHANNELS", severity="warning", effect="caps the number of NCCL's channels"),
    Effect(name="NCCL_MIN_CTAS", severity="note", effect="raises the number of NCCL's blocks"),
    Effect(name="NCCL_MAX_CTAS", severity="warning", effect="caps the number of NCCL's blocks"),
    Effect(name="NCCL_NTHREADS", severity="warning", effect="sets the threads of NCCL's blocks"),
    Effect(name="NCCL_BUFFSIZE", severity="warning", effect="sets NCCL's buffer, and with it its steps"),
    Effect(name="NCCL_LL128_BUFFSIZE", severity="warning", effect="sets NCCL's LL128 buffer"),
    Effect(name="NCCL_NVLS_ENABLE", severity="note", effect="turns NVLink multicast on or off in NCCL"),
    Effect(
        name="NCCL_CUMEM_ENABLE",
        severity="note",
        effect="chooses cuMem or legacy IPC memory; 0 also turns symmetric kernels off",
    ),
    Effect(name="NCCL_CUMEM_HOST_ENABLE", severity="note", effect="chooses how NCCL allocates host memory"),
    Effect(
        name="NCCL_WIN_ENABLE", severity="note", effect="0 turns NCCL's symmetric kernels off", when=("0",)
    ),
    Effect(name="NCCL_TOPO_FILE", severity="warning", effect="NCCL believes this file over the machine"),
    Effect(
        name="NCCL_GRAPH_FILE", severity="warning", effect="NCCL takes its rings and trees from this file"
    ),
    Effect(name="NCCL_TUNER_PLUGIN", severity="warning", effect="a plugin overrides NCCL's choices"),
    Effect(name="NCCL_CONF_FILE", severity="warning", effect="NCCL reads further variables from this file"),
    Effect(
        name="NCCL_NET_DISABLE_INTRA", severity="note", effect="keeps NCCL off the network inside a machine"
    ),
    Effect(
        name="NCCL_GRAPH_MIXING_SUPPORT",
        severity="warning",
        effect=f"all-reduces in graphs are faster; supported {GRAPH_MIXING.condition}",
        when=("0",),
    ),
    Effect(name="NCCL_LAUNCH_MODE", severity="note", effect="sets how NCCL launches kernels of several GPUs"),
    Effect(
        name="NCCL_DEBUG",
        severity="warning",
        effect="NCCL writes its log while it runs, which disturbs timings",
        when=("INFO", "TRACE", "info", "trace"),
    ),
    Effect(
        name="CUDA_LAUNCH_BLOCKING",
        severity="problem",
        effect="every kernel launch waits, so that no timing means anything",
        when=_ON,
    ),
    Effect(
        name="CUDA_VISIBLE_DEVICES",
        severity="note",
        effect="hides or renumbers GPUs: GPU numbers here are NVML's, not CUDA's",
    ),
    Effect(
        name="CUDA_DEVICE_ORDER",
        severity="note",
        effect="numbers CUDA's GPUs; only PCI_BUS_ID agrees with NVML for sure",
    ),
    Effect(
        name="CUDA_DEVICE_MAX_CONNECTIONS",
        severity="note",
        effect="limits hardware queues: 1 serialises streams that should overlap",
    ),
    Effect(
        name="PYTORCH_NO_CUDA_MEMORY_CACHING",
        severity="problem",
        effect="torch calls cudaMalloc for every tensor, which synchronises",
        when=_ON,
    ),
    Effect(
        name="PYTORCH_CUDA_ALLOC_CONF",
        severity="note",
        effect="changes torch's allocator; expandable_segments:True makes memory that cudaIpc cannot share, "
        "so custom all-reduce kernels fail to register graph buffers",
    ),
    Effect(
        name="PYTORCH_ALLOC_CONF",
        severity="note",
        effect="changes torch's allocator, as PYTORCH_CUDA_ALLOC_CONF",
    ),
    Effect(
        name="TORCH_NCCL_BLOCKING_WAIT",
        severity="warning",
        effect="torch blocks the host in every collective",
        when=_ON,
    ),
    Effect(
        name="TORCH_SYMM_MEM_DISABLE_MULTICAST",
        severity="note",
        effect="torch symmetric memory does without NVLink multicast",
        when=_ON,
    ),
    Effect(name="NVSHMEM_DISABLE_NVLS", severity="note", effect="NVSHMEM does without multicast", when=_ON),
    Effect(
        name="MSCCLPP_FORCE_DISABLE_NVLS", severity="note", effect="MSCCL++ does without multicast", when=_ON
    ),
    Effect(name="OMP_NUM_THREADS", severity="note", effect="sets the threads of each CPU rank's arithmetic"),
)

_BY_NAME = {e.name: e for e in _EFFECTS}
_FAMILIES = ("NCCL_", "RCCL_", "OMPI_MCA_", "UCX_", "GLOO_", "VLLM_ALLREDUCE_", "SGLANG_MSCCLPP_")
# variables that only say where things are or what to print
_HARMLESS = frozenset({"NCCL_DEBUG_FILE", "NCCL_DEBUG_SUBSYS", "NCCL_ROOT", "NCCL_HOME", "NCCL_VERSION"})


def relevant(names: Iterable[str]) -> tuple[str, ...]:
    """The variables of an environment that this table or its families speak of, sorted."""
    return tuple(
        sorted(n for n in names if n in _BY_NAME or (n.startswith(_FAMILIES) and n not in _HARMLESS))
    )


def effects(env: Iterable[tuple[str, str]]) -> tuple[tuple[Effect, str], ...]:
    """(effect, value) for each variable whose value has one; a family's unknown member is a note."""
    found = []
    for name, value in env:
        known = _BY_NAME.get(name)
        if known is None:
            text = "tunes a communication library; what it does is not in this table"
            found.append((Effect(name=name, severity="note", effect=text), value))
        elif not known.when or value in known.when:
            severe = name.startswith("PYTORCH_") and "expandable_segments:True" in value.replace(" ", "")
            severity: Severity = "warning" if severe else known.severity
            found.append((Effect(name=name, severity=severity, effect=known.effect), value))
    return tuple(found)
