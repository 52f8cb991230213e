"""The table of fast all-reduces that serving engines have, with the gates that their sources state."""

from __future__ import annotations

from arfloor.core.cases import record
from arfloor.core.gates import (
    GPU_DIRECT_RDMA,
    HANDLES,
    MULTICAST,
    NVLINK,
    NVLINK_OVER_TWO,
    P2P,
    TORCH_MULTICAST,
    Gate,
    nccl_p2p_level,
    nccl_p2p_remedy,
    not_off,
    worlds,
)


@record
class Implementation:
    """One all-reduce of one engine: its gates in the order that the engine asks them.

    `then` is what runs when a gate refuses, `enable` how a user turns it on; `source` names repository,
    file and version that the gates were read from.
    """

    engine: str
    name: str
    gates: tuple[Gate, ...]
    then: str
    enable: str
    source: str


_NCCL = "NCCL through pinned host memory (SHM)"
IMPLEMENTATIONS: tuple[Implementation, ...] = (
    Implementation(
        engine="NCCL",
        name="P2P transport",
        gates=(
            P2P,
            Gate(
                holds=nccl_p2p_level,
                needs="GPUs no farther than NCCL_P2P_LEVEL (PXB by default; SYS for two GPUs on AMD)",
                remedy=nccl_p2p_remedy,
            ),
        ),
        then=_NCCL,
        enable="on by default; where P2P works across host bridges, NCCL_P2P_LEVEL=SYS",
        source="NVIDIA/nccl src/graph/paths.cc ncclTopoCheckP2p, v2.30.7-1",
    ),
    Implementation(
        engine="NCCL",
        name="symmetric kernels, 2.28",
        gates=(P2P, not_off("NCCL_CUMEM_ENABLE"), not_off("NCCL_WIN_ENABLE"), HANDLES),
        then="NCCL's other kernels",
        enable="register buffers with ncclCommWindowRegister (torch: a symmetric memory pool)",
        source="NVIDIA/nccl src/init.cc symmetricSupport, v2.28.9-1",
    ),
    Implementation(
        engine="NCCL",
        name="symmetric kernels, 2.29 and later",
        gates=(P2P, NVLINK, not_off("NCCL_CUMEM_ENABLE"), not_off("NCCL_WIN_ENABLE"), HANDLES),
        then="NCCL's other kernels",
        enable="register buffers with ncclCommWindowRegister (torch: a symmetric memory pool)",
        source="NVIDIA/nccl src/sym_kernels.cc ncclSymkAvailable, v2.29.2-1 to v2.30.7-1",
    ),
    Implementation(
        engine="NCCL",
        name="NVLS",
        gates=(MULTICAST, not_off("NCCL_NVLS_ENABLE")),
        then="NCCL ring or tree",
        enable="on by default",
        source="NVIDIA/nccl src/transport/nvls.cc ncclNvlsInit, v2.30.7-1",
    ),
    Implementation(
        engine="vLLM",
        name="custom all-reduce",
        gates=(worlds(2, 4, 6, 8), NVLINK_OVER_TWO, P2P),
        then="NCCL",
        enable="on by default, below 8 MiB",
        source="vllm-project/vllm vllm/distributed/device_communicators/custom_all_reduce.py, 00d618aa",
    ),
    Implementation(
        engine="vLLM",
        name="torch symmetric memory",
        gates=(
            worlds(2, 4, 6, 8),
            Gate(
                holds=lambda v: v.capability((9, 0), (10, 0), (10, 3), (10, 7)),
                needs="compute capability 9.0, 10.0, 10.3 or 10.7",
                code="compute_capability",
            ),
            MULTICAST,
            TORCH_MULTICAST,
        ),
        then="custom all-reduce or NCCL",
        enable="on by default, bf16 (VLLM_ALLREDUCE_USE_SYMM_MEM)",
        source="vllm-project/vllm vllm/distributed/device_communicators/symm_mem.py, 00859a52",
    ),
    Implementation(
        engine="vLLM",
        name="FlashInfer all-reduce + RMSNorm",
        gates=(
            worlds(2, 4, 8, 16),
            Gate(
                holds=lambda v: v.capability((9, 0), (10, 0), (10, 3), (10, 7)),
                needs="compute capability 9.0, 10.0, 10.3 or 10.7",
                code="compute_capability",
            ),
            HANDLES,
            GPU_DIRECT_RDMA,
        ),
        then="unfused all-reduce",
        enable="compilation pass fuse_allreduce_rms",
        source="vllm-project/vllm vllm/compilation/passes/fusion/allreduce_rms_fusion.py, 0052812d",
    ),
    Implementation(
        engine="SGLang",
        name="custom all-reduce",
        gates=(worlds(2, 4, 6, 8), NVLINK_OVER_TWO, P2P),
        then="NCCL",
        enable="on by default, below 8 MiB",
        source="sgl-project/sglang python/sglang/srt/distributed/device_communicators/custom_all_reduce.py, "
        "004e6561",
    ),
    Implementation(
        engine="SGLang",
        name="MSCCL++",
        gates=(worlds(8, 16, 32), P2P),
        then="what ran before: NCCL or custom all-reduce",
        enable="--enable-mscclpp (versions before 32 was added take 8 or 16)",
        source="sgl-project/sglang python/sglang/srt/distributed/device_communicators/pymscclpp.py, 01521680",
    ),
    Implementation(
        engine="SGLang",
        name="torch symmetric memory",
        gates=(
            worlds(2, 4, 6, 8),
            Gate(
                holds=lambda v: v.every_gpu(
                    lambda g: None if g.compute_capability is None else g.compute_capability[0] in (9, 10)
                ),
                needs="compute capability 9.x or 10.x",
                code="compute_capability",
            ),
            MULTICAST,
            TORCH_MULTICAST,
        ),
        then="custom all-reduce or NCCL",
        enable="--enable-torch-symm-mem",
        source="sgl-project/sglang python/sglang/srt/distributed/device_communicators/torch_symm_mem.py, "
        "5a7255c6",
    ),
    Implementation(
        engine="SGLang",
        name="FlashInfer PCIe IPC",
        gates=(worlds(2, 4, 8), P2P),
        then="NCCL",
        enable="SGLANG_ENABLE_PCIE_IPC_ALLREDUCE=1, bf16",
        source="sgl-project/sglang python/sglang/srt/distributed/device_communicators/pcie_ipc_ar.py, "
        "08a72bac",
    ),
    Implementation(
        engine="FlashInfer",
        name="all-reduce fusion (trtllm)",
        gates=(
            Gate(holds=lambda v: v.world <= 16, needs="at most 16 ranks"),
            P2P,
            HANDLES,
            GPU_DIRECT_RDMA,
        ),
        then="whatever the engine falls back to",
        enable="flashinfer.comm.create_allreduce_fusion_workspace",
        source="flashinfer-ai/flashinfer flashinfer/comm/trtllm_ar.py and mnnvl.py, 0.6.18",
    ),
    Implementation(
        engine="FlashInfer",
        name="all-reduce fusion (mnnvl)",
        gates=(MULTICAST, HANDLES),
        then="the trtllm workspace",
        enable='flashinfer.comm.create_allreduce_fusion_workspace(backend="mnnvl")',
        source="flashinfer-ai/flashinfer flashinfer/comm/mnnvl.py SymmDeviceMemory, 0.6.18",
    ),
    Implementation(
        engine="FlashInfer",
        name="PCIe IPC",
        gates=(worlds(2, 4, 8), P2P),
        then="whatever the engine falls back to",
        enable="flashinfer.comm.PcieIpcAllReduceWorkspace, then tune()",
        source="flashinfer-ai/flashinfer flashinfer/comm/pcie_ipc_ar.py, 0.6.18",
    ),
    Implementation(
        engine="TensorRT-LLM",
        name="one-shot, two-shot, fused",
        gates=(P2P, NVLINK),
        then="NCCL (without NVLink only LOWPRECISION stays, from 2 MiB on)",
        enable="AUTO",
        source="NVIDIA/TensorRT-LLM cpp/tensorrt_llm/thop/allreduceOp.cpp ifFallbackToNCCL, 01e2c361",
    ),
    Implementation(
        engine="b12x",
        name="PCIe all-reduce",
        gates=(
            worlds(2, 4, 6, 8, 12, 16),
            P2P,
            Gate(
                holds=lambda v: v.capability((12, 0)),
                needs="compute capability 12.0 (the package is for SM120)",
                code="compute_capability",
            ),
        ),
        then="whatever the engine falls back to",
        enable="b12x.comm.pcie.pcie_allreduce.PCIeAllReduce.from_process_group",
        source="lukealonso/b12x b12x/comm/pcie/pcie_allreduce.py, 22418b69",
    ),
    Implementation(
        engine="MSCCL++",
        name="packet and all-pair kernels",
        gates=(P2P,),
        then="nothing: it fails to connect",
        enable="mscclpp.ext algorithms; tune blocks and threads",
        source="microsoft/mscclpp src/core/connection.cc and src/ext/collectives/allreduce, 0.9.0",
    ),
    Implementation(
        engine="MSCCL++",
        name="NVLS kernels",
        gates=(
            MULTICAST,
            Gate(
                holds=lambda v: v.env("MSCCLPP_FORCE_DISABLE_NVLS") not in ("1", "true", "TRUE"),
                needs="MSCCLPP_FORCE_DISABLE_NVLS not set",
            ),
        ),
        then="its packet kernels",
        enable="on by default",
        source="microsoft/mscclpp src/core/gpu_utils.cc isNvlsSupported, 0.9.0",
    ),
)
