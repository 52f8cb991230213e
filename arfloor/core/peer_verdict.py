"""What a checked transfer between two GPUs says of the way between them."""

from __future__ import annotations

from arfloor.core.box import PathProbe

# a driver copy below this share of what a kernel stores to the peer, and below what it stores to the host,
# went through system memory: on a direct way both engines reach like rates
_STAGED_SHARE = 0.5


def path_probe(
    a: str,
    b: str,
    *,
    wrong_written: int,
    wrong_read: int,
    words: int,
    peer_gbps: float,
    host_gbps: float | None,
    copy_gbps: float,
) -> PathProbe:
    """The probe of `a` reaching `b`, from words counted wrong (of `words`) and rates in GB/s."""
    wrong = [
        f"{count} of {words} words {how} were wrong"
        for count, how in ((wrong_written, "written"), (wrong_read, "read"))
        if count
    ]
    staged = copy_gbps < _STAGED_SHARE * peer_gbps and (host_gbps is None or copy_gbps < host_gbps)
    rates = f"kernel stores {peer_gbps:.1f} GB/s, driver copies {copy_gbps:.1f} GB/s"
    return PathProbe(
        a=a,
        b=b,
        status="ok",
        detail="; ".join([*wrong, rates]),
        correct=not wrong,
        staged=staged,
        peer_gbps=peer_gbps,
        host_gbps=host_gbps,
    )
