"""Findings about the host that the ranks run on: CPUs, environment, shared and locked memory."""

from __future__ import annotations

from collections.abc import Iterator

from arfloor.core.box import Box
from arfloor.core.env_effects import effects
from arfloor.core.findings import Finding

_MIB = 1 << 20


def host_findings(box: Box) -> Iterator[Finding]:
    """The environment, /dev/shm and RLIMIT_MEMLOCK, where the box is the one we run on."""
    yield from _environment(box)
    yield from _shared_memory(box)
    yield from _memlock(box)


def cpu_ranks(box: Box) -> Iterator[Finding]:
    """How many CPU ranks have a CPU each, where the box is the one we run on."""
    allowed = len(cpu_set(box.limits.cpus_allowed))
    if box.live and allowed:
        yield Finding(
            code="cpu_ranks",
            level="note",
            subject="CPUs",
            says=f"more than {allowed} ranks share CPUs here, which widens every interval",
            evidence=f"this process may run on CPUs {box.limits.cpus_allowed}",
        )


def cpu_set(text: str | None) -> frozenset[int]:
    """The CPUs of a list such as `0-15,32-47`; what does not parse, or goes past 65535, is left out."""
    found: set[int] = set()
    for part in (text or "").split(","):
        first, _, last = part.strip().partition("-")
        last = last or first
        if first.isdecimal() and last.isdecimal() and len(first) < 6 and len(last) < 6:
            found.update(range(int(first), min(int(last), 65_535) + 1))
    return frozenset(found)


def _environment(box: Box) -> Iterator[Finding]:
    if not box.live:
        return
    for effect, value in effects(box.env):
        yield Finding(
            code="environment",
            level=effect.severity,
            subject=effect.name,
            says=effect.effect,
            evidence=f"{effect.name}={value}",
            remedy=f"unset {effect.name} to measure what a user gets by default",
        )
    if not box.env:
        yield Finding(
            code="environment",
            level="ok",
            subject="environment",
            says="no variable that changes NCCL, MPI or torch's allocator is set",
            evidence="the environment and NCCL's configuration files",
        )


def _shared_memory(box: Box) -> Iterator[Finding]:
    if not box.live or box.limits.shm_bytes is None:
        return
    free = box.limits.shm_free_bytes if box.limits.shm_free_bytes is not None else box.limits.shm_bytes
    evidence = f"/dev/shm {box.limits.shm_bytes // _MIB} MiB, {free // _MIB} MiB free"
    if free < 256 * _MIB:
        yield Finding(
            code="dev_shm",
            level="problem" if box.limits.shm_bytes <= 64 * _MIB or free < 32 * _MIB else "warning",
            subject="/dev/shm",
            says="too little shared memory: NCCL, MPI and host slabs keep their buffers there",
            evidence=evidence,
            remedy="start the container with --ipc=host or --shm-size=8g",
        )
    else:
        yield Finding(
            code="dev_shm", level="ok", subject="/dev/shm", says="shared memory suffices", evidence=evidence
        )


def _memlock(box: Box) -> Iterator[Finding]:
    limit = box.limits.memlock_bytes
    if not box.live or limit is None:
        return
    nics = [p for p in box.places if p.kind == "nic"]
    if limit == -1:
        yield Finding(
            code="memlock", level="ok", subject="memlock", says="unlimited", evidence="RLIMIT_MEMLOCK"
        )
    elif limit < 1 << 30 and nics:
        yield Finding(
            code="memlock",
            level="warning",
            subject="memlock",
            says="RDMA can register little memory under this limit",
            evidence=f"RLIMIT_MEMLOCK {limit // 1024} KiB; RDMA devices: {', '.join(n.name for n in nics)}",
            remedy="ulimit -l unlimited, or --ulimit memlock=-1 for a container",
        )
    else:
        says = (
            "enough may be locked" if nics else "limited, which matters to RDMA alone, and there is none here"
        )
        yield Finding(
            code="memlock", level="ok", subject="memlock", says=says,
            evidence=f"RLIMIT_MEMLOCK {limit // 1024} KiB",
        )  # fmt: skip
