"""Findings about the ways between GPUs: peer access by the driver's word, and by moving data."""

from __future__ import annotations

from collections.abc import Iterator

from arfloor.core.box import Box, Pair, PathProbe
from arfloor.core.findings import Finding

# the driver's status words, as `nvidia-smi topo -p2p` explains them
_STATUS_MEANING = {
    "CNS": "the chipset does not support it",
    "GNS": "the GPU does not support it",
    "TNS": "the topology does not support it",
    "DR": "a registry key disables it",
    "NS": "it is not supported",
    "U": "the driver does not know",
}
_STATUS_REMEDY = {
    "CNS": "P2P needs a CPU or switch that forwards between root ports; the host path is what remains",
    "GNS": "GeForce drivers withhold P2P; the host path is what remains",
    "TNS": "put the GPUs under one root complex; the host path is what remains",
    "DR": "see the driver's registry keys (NVreg_RegistryDwords)",
}


def path_findings(box: Box) -> Iterator[Finding]:
    """Peer access reported, absent or partial, and what a checked transfer showed of it."""
    if len(box.gpus) < 2:
        return
    yield from _reported(box)
    yield from _atomics(box)
    for probe in box.probes:
        yield from _probed(probe)


def _bad_word(pair: Pair) -> str | None:
    return next((w for w in (pair.read, pair.write) if w is not None and w != "OK"), None)


def _reported(box: Box) -> Iterator[Finding]:
    known = [p for p in box.pairs if p.read is not None]
    refused: dict[str, list[Pair]] = {}
    for pair in known:
        word = _bad_word(pair)
        if word is not None:
            refused.setdefault(word, []).append(pair)
    for word, pairs in refused.items():
        yield Finding(
            code="no_p2p",
            level="warning",
            subject=listed(pairs),
            says=f"no peer access: {_STATUS_MEANING.get(word, 'the driver refuses it')}",
            evidence=f"driver status {word} for {len(pairs)} of {len(box.pairs)} directed pairs",
            remedy=_STATUS_REMEDY.get(word, "the host path is what remains"),
        )
    if known and not refused:
        way = "NVLink" if all(p.nvlinks for p in known) else "PCIe or NVLink"
        yield Finding(
            code="p2p_reported",
            level="ok",
            subject="P2P",
            says=f"the driver reports peer access for every pair, over {way}",
            evidence=f"driver status OK ({_asked(known)}) for {len(known)} directed pairs",
        )


def _asked(pairs: list[Pair]) -> str:
    told = sum(p.write is not None for p in pairs)
    if told == len(pairs):
        return "read and write"
    return "read; writes were not asked" if not told else f"read; write for {told} of them"


def _atomics(box: Box) -> Iterator[Finding]:
    without = [p for p in box.pairs if p.read == "OK" and p.atomics not in (None, "OK")]
    if without:
        yield Finding(
            code="no_peer_atomics",
            level="note",
            subject=listed(without),
            says="no atomics on peer memory: kernels that need them do not run, those of loads and stores do",
            evidence=f"driver status {without[0].atomics} for atomics",
        )


def listed(pairs: list[Pair]) -> str:
    """`GPU0-GPU1, GPU0-GPU2 and 4 more`: pairs without their direction."""
    ends = sorted({f"{min(p.a, p.b)}-{max(p.a, p.b)}" for p in pairs})
    return ", ".join(ends[:6]) + (f" and {len(ends) - 6} more" if len(ends) > 6 else "")


def _probed(probe: PathProbe) -> Iterator[Finding]:
    subject = f"{probe.a} > {probe.b}"
    if probe.status == "skipped":
        yield Finding(
            code="p2p_checked", level="unknown", subject=subject, says="not checked", evidence=probe.detail
        )
        return
    if probe.status != "ok":
        yield Finding(
            code="p2p_failed",
            level="problem",
            subject=subject,
            says="a checked kernel transfer failed although peer access is reported",
            evidence=probe.detail,
            remedy="measure the host path (NCCL_P2P_DISABLE=1); look at ACS, IOMMU and the driver's log",
        )
        return
    yield from _transferred(probe, subject)
    if probe.peer_gbps and probe.host_gbps and probe.peer_gbps < probe.host_gbps:
        yield Finding(
            code="p2p_slower_than_host",
            level="warning",
            subject=subject,
            says="peer writes are slower than writes to host memory: the host path may win",
            evidence=_rates(probe),
            remedy="compare both paths in a sweep; look at ACS and at the link between the root ports",
        )


def _transferred(probe: PathProbe, subject: str) -> Iterator[Finding]:
    """What arrived of a checked transfer, and by which way."""
    if probe.correct is False:
        yield Finding(
            code="p2p_wrong",
            level="problem",
            subject=subject,
            says="peer access is reported, but the data that arrived were wrong",
            evidence=probe.detail or "a checked kernel transfer",
            remedy="set NCCL_P2P_DISABLE=1 until ACS and IOMMU are off; nothing that uses P2P can be trusted",
        )
    elif probe.staged:
        yield Finding(
            code="p2p_staged",
            level="problem",
            subject=subject,
            says="peer copies go through system memory",
            evidence=probe.detail,
            remedy="measure the host path; peer kernels do not run on this pair",
        )
    else:
        yield Finding(
            code="p2p_checked",
            level="ok",
            subject=subject,
            says="a kernel wrote to the peer and read it back, every word right",
            evidence=_rates(probe),
        )


def _rates(probe: PathProbe) -> str:
    parts = [
        f"{name} {rate:.1f} GB/s"
        for name, rate in (("peer", probe.peer_gbps), ("host", probe.host_gbps))
        if rate
    ]
    return ", ".join(parts) or probe.detail or "a checked kernel transfer"
