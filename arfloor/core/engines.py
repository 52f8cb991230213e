"""Which fast all-reduce each serving engine can use on a box, and the gate that refuses it.

Every gate is a condition that an engine's own source states; `source` names repository, file and
version (a release or the commit read). Engines change: a row speaks of that version and no other.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import permutations
from typing import Literal

from arfloor.core.box import Box, GpuFacts, Pair
from arfloor.core.cases import Machine, record

Outcome = Literal["usable", "refused", "unknown"]


@record
class EngineUse:
    """Whether `implementation` of `engine` runs for the first `world` GPUs of a box.

    `gate` is the condition that decided (refused, or unknown for want of a fact); `then` is what runs
    instead, `enable` how to turn it on when usable.
    """

    engine: str
    implementation: str
    world: int
    outcome: Outcome
    gate: str
    then: str
    enable: str
    source: str


class _View:
    """The first `world` GPUs of a box: three-valued facts, None where the box does not know."""

    def __init__(self, box: Box, world: int) -> None:
        self.box = box
        self.world = world
        self.gpus: tuple[GpuFacts, ...] = box.gpus[:world]
        ids = [g.id for g in self.gpus]
        self.pairs = [box.pair(a, b) for a, b in permutations(ids, 2)]

    def every_pair(self, told: Callable[[Pair], bool | None]) -> bool | None:
        return _all([None if p is None else told(p) for p in self.pairs])

    def every_gpu(self, told: Callable[[GpuFacts], bool | None]) -> bool | None:
        return _all([told(g) for g in self.gpus])

    @property
    def nvlink(self) -> bool | None:
        return self.every_pair(lambda p: True if p.nvlinks else (False if p.relation else None))

    @property
    def p2p(self) -> bool | None:
        # who pastes `topo -p2p r` alone says nothing of writes: they are taken to be alike
        return self.every_pair(lambda p: _all([_ok(p.read), _ok(p.write or p.read)]))

    @property
    def multicast(self) -> bool | None:
        return False if self.nvlink is False else self.every_gpu(lambda g: g.multicast)

    def capability(self, *allowed: tuple[int, int]) -> bool | None:
        return self.every_gpu(
            lambda g: None if g.compute_capability is None else g.compute_capability in allowed
        )

    def handle(self, *names: str) -> bool | None:
        return self.every_gpu(
            lambda g: None if g.handle_types is None else any(n in g.handle_types for n in names)
        )

    def env(self, name: str) -> str | None:
        return dict(self.box.env).get(name)


def _all(values: list[bool | None]) -> bool | None:
    """Three-valued and: False decides, then None."""
    if False in values:
        return False
    return None if None in values else True


def _ok(status: str | None) -> bool | None:
    return None if status in (None, "U") else status == "OK"


@record
class _Gate:
    """`code`: the reason (`arfloor.core.reasons`) of a case that it refuses."""

    holds: Callable[[_View], bool | None]
    needs: str
    code: str = "prepare_failed"


@record
class _Implementation:
    engine: str
    name: str
    gates: tuple[_Gate, ...]
    then: str
    enable: str
    source: str


def _worlds(*allowed: int) -> _Gate:
    listed = ", ".join(map(str, allowed[:-1])) + f" or {allowed[-1]}" if len(allowed) > 1 else str(allowed[0])
    return _Gate(holds=lambda v: v.world in allowed, needs=f"{listed} ranks", code="world_size")


_P2P = _Gate(holds=lambda v: v.p2p, needs="peer access (read and write) between all GPUs", code="needs_p2p")
_NVLINK = _Gate(holds=lambda v: v.nvlink, needs="NVLink between all GPUs", code="needs_nvlink")
_NVLINK_OVER_TWO = _Gate(
    holds=lambda v: True if v.world == 2 else v.nvlink,
    needs="NVLink between all GPUs when there are more than two",
    code="needs_nvlink",
)
_MULTICAST = _Gate(holds=lambda v: v.multicast, needs="NVLink multicast", code="needs_multicast")
_TORCH_MULTICAST = _Gate(
    holds=lambda v: v.env("TORCH_SYMM_MEM_DISABLE_MULTICAST") not in ("1", "true", "TRUE"),
    needs="TORCH_SYMM_MEM_DISABLE_MULTICAST not set",
)
_HANDLES = _Gate(
    holds=lambda v: v.handle("posix_fd", "fabric"),
    needs="cuMemCreate memory that can be shared (file descriptor or fabric handle)",
)
_GDR = _Gate(
    holds=lambda v: v.handle("gpu_direct_rdma_vmm"),
    needs="cuMemCreate memory capable of GPUDirect RDMA",
)


def _not_off(variable: str) -> _Gate:
    return _Gate(holds=lambda v: v.env(variable) != "0", needs=f"{variable} not set to 0")


# NCCL's own distances: it knows no NODE, and takes the numbers of old versions
_NCCL_DISTANCE = {"LOC": 0, "NVL": 1, "PIX": 2, "PXB": 3, "PHB": 4, "NODE": 4, "SYS": 5}
_NCCL_OLD_LEVELS = ("LOC", "PIX", "PXB", "PHB", "SYS", "SYS")


def _nccl_p2p_level(view: _View) -> bool | None:
    """Whether NCCL's default (PXB; SYS for at most two GPUs under an AMD CPU) lets every pair use P2P."""
    if view.env("NCCL_P2P_DISABLE") == "1":
        return False
    level = (view.env("NCCL_P2P_LEVEL") or "").upper()
    level = _NCCL_OLD_LEVELS[int(level)] if level in ("0", "1", "2", "3", "4", "5") else level
    vendor, few = view.box.limits.cpu_vendor, len(view.box.gpus) <= 2
    open_question = level not in _NCCL_DISTANCE and few and vendor is None
    if level not in _NCCL_DISTANCE:
        level = "SYS" if few and vendor == "AuthenticAMD" else "PXB"

    def near(pair: Pair) -> bool | None:
        name = "NVL" if pair.nvlinks else pair.relation
        if name is None:
            return None
        within = _NCCL_DISTANCE[name] <= _NCCL_DISTANCE[level]
        return None if open_question and not within else within

    return view.every_pair(near)


_NCCL = "NCCL through pinned host memory (SHM)"
_IMPLEMENTATIONS: tuple[_Implementation, ...] = (
    _Implementation(
        engine="NCCL",
        name="P2P transport",
        gates=(
            _P2P,
            _Gate(
                holds=_nccl_p2p_level,
                needs="GPUs no farther than NCCL_P2P_LEVEL (PXB by default; SYS for two GPUs on AMD)",
            ),
        ),
        then=_NCCL,
        enable="on by default; where P2P works across host bridges, NCCL_P2P_LEVEL=SYS",
        source="NVIDIA/nccl src/graph/paths.cc ncclTopoCheckP2p, v2.30.7-1",
    ),
    _Implementation(
        engine="NCCL",
        name="symmetric kernels, 2.28",
        gates=(_P2P, _not_off("NCCL_CUMEM_ENABLE"), _not_off("NCCL_WIN_ENABLE"), _HANDLES),
        then="NCCL's other kernels",
        enable="register buffers with ncclCommWindowRegister (torch: a symmetric memory pool)",
        source="NVIDIA/nccl src/init.cc symmetricSupport, v2.28.9-1",
    ),
    _Implementation(
        engine="NCCL",
        name="symmetric kernels, 2.29 and later",
        gates=(_P2P, _NVLINK, _not_off("NCCL_CUMEM_ENABLE"), _not_off("NCCL_WIN_ENABLE"), _HANDLES),
        then="NCCL's other kernels",
        enable="register buffers with ncclCommWindowRegister (torch: a symmetric memory pool)",
        source="NVIDIA/nccl src/sym_kernels.cc ncclSymkAvailable, v2.29.2-1 to v2.30.7-1",
    ),
    _Implementation(
        engine="NCCL",
        name="NVLS",
        gates=(_MULTICAST, _not_off("NCCL_NVLS_ENABLE")),
        then="NCCL ring or tree",
        enable="on by default",
        source="NVIDIA/nccl src/transport/nvls.cc ncclNvlsInit, v2.30.7-1",
    ),
    _Implementation(
        engine="vLLM",
        name="custom all-reduce",
        gates=(_worlds(2, 4, 6, 8), _NVLINK_OVER_TWO, _P2P),
        then="NCCL",
        enable="on by default, below 8 MiB",
        source="vllm-project/vllm vllm/distributed/device_communicators/custom_all_reduce.py, 00d618aa",
    ),
    _Implementation(
        engine="vLLM",
        name="torch symmetric memory",
        gates=(
            _worlds(2, 4, 6, 8),
            _Gate(
                holds=lambda v: v.capability((9, 0), (10, 0), (10, 3), (10, 7)),
                needs="compute capability 9.0, 10.0, 10.3 or 10.7",
                code="compute_capability",
            ),
            _MULTICAST,
            _TORCH_MULTICAST,
        ),
        then="custom all-reduce or NCCL",
        enable="on by default, bf16 (VLLM_ALLREDUCE_USE_SYMM_MEM)",
        source="vllm-project/vllm vllm/distributed/device_communicators/symm_mem.py, 00859a52",
    ),
    _Implementation(
        engine="vLLM",
        name="FlashInfer all-reduce + RMSNorm",
        gates=(
            _worlds(2, 4, 8, 16),
            _Gate(
                holds=lambda v: v.capability((9, 0), (10, 0), (10, 3), (10, 7)),
                needs="compute capability 9.0, 10.0, 10.3 or 10.7",
                code="compute_capability",
            ),
            _HANDLES,
            _GDR,
        ),
        then="unfused all-reduce",
        enable="compilation pass fuse_allreduce_rms",
        source="vllm-project/vllm vllm/compilation/passes/fusion/allreduce_rms_fusion.py, 0052812d",
    ),
    _Implementation(
        engine="SGLang",
        name="custom all-reduce",
        gates=(_worlds(2, 4, 6, 8), _NVLINK_OVER_TWO, _P2P),
        then="NCCL",
        enable="on by default, below 8 MiB",
        source="sgl-project/sglang python/sglang/srt/distributed/device_communicators/custom_all_reduce.py, "
        "004e6561",
    ),
    _Implementation(
        engine="SGLang",
        name="MSCCL++",
        gates=(_worlds(8, 16, 32), _P2P),
        then="what ran before: NCCL or custom all-reduce",
        enable="--enable-mscclpp (versions before 32 was added take 8 or 16)",
        source="sgl-project/sglang python/sglang/srt/distributed/device_communicators/pymscclpp.py, 01521680",
    ),
    _Implementation(
        engine="SGLang",
        name="torch symmetric memory",
        gates=(
            _worlds(2, 4, 6, 8),
            _Gate(
                holds=lambda v: v.every_gpu(
                    lambda g: None if g.compute_capability is None else g.compute_capability[0] in (9, 10)
                ),
                needs="compute capability 9.x or 10.x",
                code="compute_capability",
            ),
            _MULTICAST,
            _TORCH_MULTICAST,
        ),
        then="custom all-reduce or NCCL",
        enable="--enable-torch-symm-mem",
        source="sgl-project/sglang python/sglang/srt/distributed/device_communicators/torch_symm_mem.py, "
        "5a7255c6",
    ),
    _Implementation(
        engine="SGLang",
        name="FlashInfer PCIe IPC",
        gates=(_worlds(2, 4, 8), _P2P),
        then="NCCL",
        enable="SGLANG_ENABLE_PCIE_IPC_ALLREDUCE=1, bf16",
        source="sgl-project/sglang python/sglang/srt/distributed/device_communicators/pcie_ipc_ar.py, "
        "08a72bac",
    ),
    _Implementation(
        engine="FlashInfer",
        name="all-reduce fusion (trtllm)",
        gates=(
            _Gate(holds=lambda v: v.world <= 16, needs="at most 16 ranks"),
            _P2P,
            _HANDLES,
            _GDR,
        ),
        then="whatever the engine falls back to",
        enable="flashinfer.comm.create_allreduce_fusion_workspace",
        source="flashinfer-ai/flashinfer flashinfer/comm/trtllm_ar.py and mnnvl.py, 0.6.18",
    ),
    _Implementation(
        engine="FlashInfer",
        name="all-reduce fusion (mnnvl)",
        gates=(_MULTICAST, _HANDLES),
        then="the trtllm workspace",
        enable='flashinfer.comm.create_allreduce_fusion_workspace(backend="mnnvl")',
        source="flashinfer-ai/flashinfer flashinfer/comm/mnnvl.py SymmDeviceMemory, 0.6.18",
    ),
    _Implementation(
        engine="FlashInfer",
        name="PCIe IPC",
        gates=(_worlds(2, 4, 8), _P2P),
        then="whatever the engine falls back to",
        enable="flashinfer.comm.PcieIpcAllReduceWorkspace, then tune()",
        source="flashinfer-ai/flashinfer flashinfer/comm/pcie_ipc_ar.py, 0.6.18",
    ),
    _Implementation(
        engine="TensorRT-LLM",
        name="one-shot, two-shot, fused",
        gates=(_P2P, _NVLINK),
        then="NCCL (without NVLink only LOWPRECISION stays, from 2 MiB on)",
        enable="AUTO",
        source="NVIDIA/TensorRT-LLM cpp/tensorrt_llm/thop/allreduceOp.cpp ifFallbackToNCCL, 01e2c361",
    ),
    _Implementation(
        engine="b12x",
        name="PCIe all-reduce",
        gates=(
            _worlds(2, 4, 6, 8, 12, 16),
            _P2P,
            _Gate(
                holds=lambda v: v.capability((12, 0)),
                needs="compute capability 12.0 (the package is for SM120)",
                code="compute_capability",
            ),
        ),
        then="whatever the engine falls back to",
        enable="b12x.comm.pcie.pcie_allreduce.PCIeAllReduce.from_process_group",
        source="lukealonso/b12x b12x/comm/pcie/pcie_allreduce.py, 22418b69",
    ),
    _Implementation(
        engine="MSCCL++",
        name="packet and all-pair kernels",
        gates=(_P2P,),
        then="nothing: it fails to connect",
        enable="mscclpp.ext algorithms; tune blocks and threads",
        source="microsoft/mscclpp src/core/connection.cc and src/ext/collectives/allreduce, 0.9.0",
    ),
    _Implementation(
        engine="MSCCL++",
        name="NVLS kernels",
        gates=(
            _MULTICAST,
            _Gate(
                holds=lambda v: v.env("MSCCLPP_FORCE_DISABLE_NVLS") not in ("1", "true", "TRUE"),
                needs="MSCCLPP_FORCE_DISABLE_NVLS not set",
            ),
        ),
        then="its packet kernels",
        enable="on by default",
        source="microsoft/mscclpp src/core/gpu_utils.cc isNvlsSupported, 0.9.0",
    ),
)


def gate_rows() -> tuple[tuple[str, str, str, str, str], ...]:
    """(engine, implementation, its gates, what runs otherwise, source): the table of docs/doctor.md."""
    return tuple(
        (i.engine, i.name, "; ".join(g.needs for g in i.gates), i.then, i.source) for i in _IMPLEMENTATIONS
    )


def engine_table(box: Box) -> tuple[EngineUse, ...]:
    """One row per implementation and each world of 2, 4, 8 and all GPUs that fits; () below two GPUs."""
    count = len(box.gpus)
    worlds = sorted({w for w in (2, 4, 8, count) if 2 <= w <= count})
    return tuple(_use(i, _View(box, w)) for w in worlds for i in _IMPLEMENTATIONS)


def refusal(engine: str, implementation: str, machine: Machine, world: int) -> tuple[str, str] | None:
    """(reason code, sentence) of the gate that refuses an implementation on a run's machine; None: usable as
    far as the run knows. Gates on what a run does not know (handle types, say) refuse nothing here.

    Raises KeyError on a name that the table does not have.
    """
    row = next((i for i in _IMPLEMENTATIONS if (i.engine, i.name) == (engine, implementation)), None)
    if row is None:
        raise KeyError(f"{engine} {implementation}: not in the table of engines")
    view = _View(_box_of(machine, world), world)
    for gate in row.gates:
        if gate.holds(view) is False:
            return gate.code, f"{engine} {implementation} needs {gate.needs} ({row.source})"
    return None


def _box_of(machine: Machine, world: int) -> Box:
    """A machine's facts as a box: GPUs alike, every pair alike."""
    told = machine.facts.get("p2p")
    status = None if told is None else "OK" if told else "NS"
    nvlink = machine.facts.get("nvlink")
    forbidden = machine.facts.get("multicast_forbidden")
    ids = [f"gpu{rank}" for rank in range(world)]
    return Box(
        source="run",
        gpus=tuple(
            GpuFacts(
                id=name,
                compute_capability=machine.compute_capability,
                multicast=False if forbidden else None,
            )
            for name in ids
        ),
        pairs=tuple(
            Pair(
                a=a,
                b=b,
                nvlinks=1 if nvlink else 0,
                relation=None if nvlink is None else "SYS",
                read=status,
                write=status,
            )
            for a, b in permutations(ids, 2)
        ),
    )


def _use(implementation: _Implementation, view: _View) -> EngineUse:
    outcome: Outcome = "usable"
    gate = ""
    for candidate in implementation.gates:
        held = candidate.holds(view)
        if held is False:
            outcome, gate = "refused", f"needs {candidate.needs}"
            break
        if held is None and outcome == "usable":
            outcome, gate = "unknown", f"needs {candidate.needs}, which is not known here"
    return EngineUse(
        engine=implementation.engine,
        implementation=implementation.name,
        world=view.world,
        outcome=outcome,
        gate=gate,
        then=implementation.then if outcome == "refused" else "",
        enable=implementation.enable if outcome == "usable" else "",
        source=implementation.source,
    )
