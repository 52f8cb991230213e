"""What a box's facts mean for an all-reduce: facts in, findings out, nothing measured here."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from arfloor.core.box import Box, GpuFacts, Pair, Place, ancestors
from arfloor.core.doctor_host import cpu_ranks, cpu_set, host_findings
from arfloor.core.doctor_paths import path_findings
from arfloor.core.findings import LEVELS, Finding
from arfloor.core.gates import View


def diagnose(box: Box) -> tuple[Finding, ...]:
    """All findings of a box, gravest first, in a stable order."""
    checks: tuple[Callable[[Box], Iterator[Finding]], ...] = (
        _gpus_present,
        _mig,
        path_findings,
        _sharing,
        _acs,
        _iommu,
        _bar1,
        _links,
        _numa,
        _throttle,
        _processes,
        host_findings,
        _not_known,
    )
    found = [finding for check in checks for finding in check(box)]
    return tuple(sorted(found, key=lambda f: LEVELS.index(f.level)))


def _gpus_present(box: Box) -> Iterator[Finding]:
    count = len(box.gpus)
    if count == 0:
        yield Finding(
            code="no_gpu",
            level="note",
            subject="GPUs",
            says="no GPU is visible: only CPU ranks can be measured here",
            evidence=next((why for what, why in box.unknown if what == "gpus"), box.source),
        )
        yield from cpu_ranks(box)
        return
    names = sorted({g.name for g in box.gpus if g.name})
    if len(names) > 1:
        yield Finding(
            code="mixed_gpus",
            level="warning",
            subject="GPUs",
            says="the GPUs differ: a reduce runs at the pace of the slowest",
            evidence=", ".join(names),
            remedy="put ranks that reduce together on equal GPUs (CUDA_VISIBLE_DEVICES)",
        )


def _mig(box: Box) -> Iterator[Finding]:
    for gpu in box.gpus:
        if gpu.mig:
            yield Finding(
                code="mig",
                level="problem",
                subject=gpu.id,
                says="MIG is on: its instances have neither P2P nor NVLink",
                evidence="NVML: MIG mode enabled",
                remedy="measure on whole GPUs; turning MIG off is the administrator's decision",
            )


_HANDLE_WORDS = {
    "posix_fd": "file descriptor",
    "fabric": "fabric handle",
    "gpu_direct_rdma_vmm": "GPUDirect RDMA",
}


def _sharing(box: Box) -> Iterator[Finding]:
    """How memory of a GPU can be shared: what symmetric memory and fused kernels need."""
    groups: dict[tuple[bool | None, tuple[str, ...] | None], list[str]] = {}
    for gpu in box.gpus:
        groups.setdefault((gpu.multicast, gpu.handle_types), []).append(gpu.id)
    for (multicast, handles), ids in groups.items():
        if handles is None:
            continue
        ways = ", ".join(_HANDLE_WORDS.get(h, h) for h in handles) or "no handle"
        cast = {True: "supported", False: "not supported", None: "not known"}[multicast]
        yield Finding(
            code="memory_sharing",
            level="ok" if "posix_fd" in handles or "fabric" in handles else "warning",
            subject=", ".join(ids),
            says=f"cuMemCreate memory is shared by {ways}; NVLink multicast is {cast}",
            evidence="CUDA device attributes; nothing was created",
        )


def _bridges_between(box: Box, a: str, b: str) -> list[Place]:
    """Switches that a transfer between the two could cross without going up to the root complex."""
    above_b = {p.id for p in ancestors(box, b)}
    return [p for p in ancestors(box, a) if p.kind == "switch" and p.id in above_b]


def _acs(box: Box) -> Iterator[Finding]:
    read = [p for p in box.places if p.acs_redirect is not None]
    bad: dict[str, set[str]] = {}
    ids = [g.id for g in box.gpus]
    for i, a in enumerate(ids):
        for b in ids[i + 1 :]:
            for switch in _bridges_between(box, a, b):
                if switch.acs_redirect:
                    bad.setdefault(switch.id, set()).update((a, b))
    for switch_id, gpus in bad.items():
        yield Finding(
            code="acs_redirect",
            level="problem",
            subject=" ".join(sorted(gpus)),
            says="ACS sends what crosses this switch up to the root complex, so that peers share its uplink",
            evidence=f"{switch_id}: ACS P2P request redirect is on",
            remedy="turn ACS off in the firmware, or boot with pci=disable_acs_redir=, on a machine without "
            "untrusted virtual machines",
        )
    if read and not bad and len(ids) > 1:
        yield Finding(
            code="acs_redirect",
            level="ok",
            subject="ACS",
            says="no switch between GPUs redirects peer traffic",
            evidence=f"ACS control read on {len(read)} bridges",
        )


def _iommu(box: Box) -> Iterator[Finding]:
    if not box.live or box.limits.iommu is None or not box.gpus:
        return
    if box.limits.iommu == "translating":
        yield Finding(
            code="iommu",
            level="warning" if len(box.gpus) > 1 else "note",  # one GPU has no peer
            subject="IOMMU",
            says="the IOMMU translates: peer transfers detour through the root complex, or arrive wrong",
            evidence="an IOMMU group of type DMA in sysfs",
            remedy="boot with iommu=pt (passthrough), unless devices are given to virtual machines",
        )
    elif box.limits.virtual_machine:
        yield Finding(
            code="iommu",
            level="note",
            subject="IOMMU",
            says="a virtual machine: the host's IOMMU and ACS cannot be seen from inside",
            evidence="CPU flag hypervisor",
            remedy="let the checked transfer decide whether P2P works",
        )
    else:
        yield Finding(
            code="iommu",
            level="ok",
            subject="IOMMU",
            says=f"the IOMMU is {box.limits.iommu}",
            evidence="IOMMU groups in sysfs",
        )


def _bar1(box: Box) -> Iterator[Finding]:
    if len(box.gpus) < 2:
        return
    for gpu in box.gpus:
        if gpu.bar1_mib is None or not gpu.memory_mib or _all_nvlink(box, gpu):
            continue
        evidence = f"BAR1 {gpu.bar1_mib} MiB, memory {gpu.memory_mib} MiB"
        if gpu.bar1_mib < gpu.memory_mib:
            small = gpu.bar1_mib <= 256
            yield Finding(
                code="bar1",
                level="problem" if small else "warning",
                subject=gpu.id,
                says="peers reach its memory over PCIe only through BAR1, which is smaller than the memory",
                evidence=evidence,
                remedy="turn on Above 4G decoding and Resizable BAR in the firmware",
            )
        else:
            yield Finding(
                code="bar1", level="ok", subject=gpu.id, says="BAR1 covers the memory", evidence=evidence
            )


def _all_nvlink(box: Box, gpu: GpuFacts) -> bool:
    pairs: list[Pair] = [p for p in box.pairs if p.a == gpu.id]
    return bool(pairs) and all(p.nvlinks for p in pairs)


def _links(box: Box) -> Iterator[Finding]:
    loaded = {u.gpu: u for u in box.under_load}
    for gpu in box.gpus:
        place = box.place(gpu.id)
        link = place.link if place else None
        if link is None or (link.gen is None and link.width is None):
            continue
        most = f"{_gen(link.gen_max)} x{link.width_max or '?'}"
        now = f"{_gen(link.gen)} x{link.width or '?'}"
        load = loaded.get(gpu.id)
        if load is not None and load.gen is not None:
            now = f"{_gen(load.gen)} x{load.width or link.width or '?'} under load"
        slow_now = load.gen if load is not None and load.gen is not None else link.gen
        narrow = link.narrow or (
            load is not None and load.width is not None and link.width_max is not None
            and load.width < link.width_max
        )  # fmt: skip
        slow = slow_now is not None and link.gen_max is not None and slow_now < link.gen_max
        if narrow or (slow and load is not None):
            yield Finding(
                code="link_below_maximum",
                level="problem",
                subject=gpu.id,
                says=f"its PCIe link runs at {now}, both ends can do {most}",
                evidence="NVML and sysfs, link status and capability",
                remedy="reseat card or riser, look for AER errors in dmesg, check bifurcation in firmware",
            )
        elif slow:
            yield Finding(
                code="link_idle",
                level="note",
                subject=gpu.id,
                says=f"its PCIe link idles at {now} of {most}: idle GPUs lower it, a load tells",
                evidence="NVML and sysfs, no load was put on it",
                remedy="run without --no-probe",
            )
        elif link.gen_max is not None and link.width_max is not None:
            yield Finding(
                code="link_below_maximum",
                level="ok",
                subject=gpu.id,
                says=f"its PCIe link runs at its maximum, {now}",
                evidence="NVML and sysfs, link status and capability",
            )


def _gen(generation: int | None) -> str:
    return f"Gen{generation}" if generation else "Gen?"


def _numa(box: Box) -> Iterator[Finding]:
    nodes = {g.numa for g in box.gpus if g.numa is not None}
    if len(nodes) > 1:
        placed = ", ".join(f"{g.id} on {g.numa}" for g in box.gpus if g.numa is not None)
        yield Finding(
            code="numa_split",
            level="note",
            subject="NUMA",
            says="the GPUs hang off several NUMA nodes: traffic between these crosses the sockets' link",
            evidence=placed,
            remedy=_one_node(box),
        )
    several = (box.limits.numa_nodes or 0) > 1
    for gpu in box.gpus if box.live else ():
        if gpu.numa is None and several:
            yield Finding(
                code="numa_unknown",
                level="note",
                subject=gpu.id,
                says="its NUMA node is unknown: pinned host memory may land on the far one",
                evidence="sysfs numa_node is -1 or missing",
                remedy="bind ranks by hand (numactl), or fix the firmware's tables",
            )
    allowed = cpu_set(box.limits.cpus_allowed)
    for gpu in box.gpus if box.live and several else ():
        local = cpu_set(gpu.cpus)
        if allowed and local and not allowed & local:
            yield Finding(
                code="numa_misplaced",
                level="warning",
                subject=gpu.id,
                says="this process may run on none of its CPUs: launches and pinned memory are remote",
                evidence=f"allowed CPUs {box.limits.cpus_allowed}, the GPU's CPUs {gpu.cpus}",
                remedy=f"start its rank with numactl --cpunodebind={gpu.numa} --membind={gpu.numa}"
                if gpu.numa is not None
                else "start its rank on the GPU's CPUs",
            )


def _one_node(box: Box) -> str:
    """Which GPUs a group should have: peers are nearest on one node, but those behind one switch share its
    uplink to host memory."""
    near = "give one tensor-parallel group the GPUs of one node where they suffice"
    reached = View(box, len(box.gpus)).p2p
    some = any(p.read == "OK" for p in box.pairs)
    if reached or not any(p.relation in ("PIX", "PXB") for p in box.pairs):
        return near
    spread = (
        "GPUs behind one switch share its uplink to host memory: a group spread over the nodes may be faster"
    )
    compare = "`arfloor report --topology` on what --write wrote compares"
    if reached is None or some:
        return f"{near}; without peer access, {spread} ({compare})"
    return f"{spread}, alone; {compare}"


def _throttle(box: Box) -> Iterator[Finding]:
    for gpu in box.gpus:
        if gpu.throttle:
            yield Finding(
                code="throttled",
                level="warning",
                subject=gpu.id,
                says="something lowers its clocks now",
                evidence="NVML clocks event reasons: " + ", ".join(gpu.throttle),
                remedy="let it cool, or see its power limit (nvidia-smi -q -d PERFORMANCE,POWER)",
            )


def _processes(box: Box) -> Iterator[Finding]:
    for gpu in box.gpus:
        if gpu.processes:
            yield Finding(
                code="other_processes",
                level="warning",
                subject=gpu.id,
                says="other processes use it",
                evidence=f"NVML: {gpu.processes} compute processes besides this one",
                remedy="stop them before you measure (nvidia-smi lists them)",
            )


def _not_known(box: Box) -> Iterator[Finding]:
    for what, why in box.unknown:
        if not (what == "gpus" and not box.gpus):
            yield Finding(code="not_checked", level="unknown", subject=what, says="not checked", evidence=why)
