"""What a run directory may say about where it was made: pure rules, applied before anything is written."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

# variables that change how an all-reduce runs; nothing else of the environment is kept
_KEPT = (
    "NCCL_",
    "RCCL_",
    "MSCCLPP_",
    "NVSHMEM_",
    "TORCH_NCCL_",
    "TORCH_SYMM_MEM_",
    "TORCH_CUDA_ARCH_LIST",
    "CUDA_DEVICE_",
    "CUDA_LAUNCH_BLOCKING",
    "CUDA_MODULE_LOADING",
    "CUDA_VISIBLE_DEVICES",
    "NVIDIA_VISIBLE_DEVICES",
    "GLOO_",
    "OMPI_MCA_",
    "MPICH_",
    "I_MPI_",
    "UCX_",
    "FI_",
    "OMP_",
    "MKL_NUM_THREADS",
    "SGLANG_",
    "VLLM_",
)
_SECRET_NAME = re.compile(r"(?i)key|token|secret|passw|credential|auth|cookie|sign(ature)?$")
_SECRET_VALUE = re.compile(
    r"(?i)\b(?:sk|pk|ghp|gho|hf|xox[abp]|glpat|AKIA)[-_]?[A-Za-z0-9_-]{12,}"  # prefixes of common tokens
    r"|\b[A-Za-z0-9+/_-]{40,}={0,2}(?![A-Za-z0-9/])"  # long random-looking words
    r"|(?<=://)[^/@\s]+:[^/@\s]+(?=@)"  # user:password in an address
)
_UUID = re.compile(r"(?i)\b(?:GPU-|MIG-)?[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b")
_SERIAL = re.compile(r"(?i)\b(serial(?:[ _-]?(?:number|no\.?))?\s*[:=]\s*)\S+")
_ADDRESS = re.compile(r"\b(?!127\.0\.0\.1\b)(?:\d{1,3}\.){3}\d{1,3}\b")
_HOME = re.compile(r"/(?:home|Users)/[^/\s:]+")


def redact_text(text: str, *, names: Sequence[str] = ()) -> str:
    """Text without secrets, serials, UUIDs, addresses, home folders and the given host or user names."""
    text = _UUID.sub("<uuid>", text)
    text = _SERIAL.sub(r"\1<serial>", text)
    text = _SECRET_VALUE.sub("<secret>", text)
    text = _ADDRESS.sub("<address>", text)
    text = _HOME.sub("<home>", text)
    for name in sorted({n for n in names if len(n) > 2}, key=len, reverse=True):
        text = re.sub(rf"(?i)(?<![A-Za-z0-9]){re.escape(name)}(?![A-Za-z0-9])", "<host>", text)
    return text


def redact_env(env: Mapping[str, str], *, names: Sequence[str] = ()) -> dict[str, str]:
    """The variables that bear on all-reduce, redacted; of one named like a secret only the name is kept."""
    kept = {}
    for key in sorted(env):
        if not key.startswith(_KEPT):
            continue
        kept[key] = "<secret>" if _SECRET_NAME.search(key) else redact_text(env[key], names=names)
    return kept
