"""Does a case move the bytes that its path says, on the link that its path says?"""

from __future__ import annotations

from collections.abc import Mapping

from arfloor.core.cases import Path

# payload out of one rank, an operation, as multiples of the message: from the least that any schedule
# needs to one-shot with doubled packets (2), headers of 24 bytes on each 128 (1.19), and as much again of
# requests for what is read from the host (0.38), all of which PCIe counters count: 2.75 measured with LL
_SLACK = 0.9
_OVERHEAD = 3.2
# what else a launch moves over PCIe (its arguments, its completion), in bytes
_LAUNCH_NBYTES = 16384


def expected_nbytes(path: Path, world: int, nbytes: int) -> tuple[float, float]:
    """(least, most) bytes out of one rank that an all-reduce of `nbytes` explains.

    Least: 2 (n-1)/n S between peers; S through host memory, which all others read. Most: every
    message to every peer, in packets that are half flags.
    """
    least = nbytes if path == "host" else 2 * (world - 1) / world * nbytes
    return _SLACK * least, _OVERHEAD * max(world - 1, 1) * nbytes


def link_of(path: Path, nvlink: bool) -> str:
    """The counter that a path's bytes must show up in."""
    return "nvlink" if path == "peer" and nvlink else "pcie"


def traffic_mark(
    observed: Mapping[str, float], *, path: Path, nvlink: bool, world: int, nbytes: int
) -> str | None:
    """A mark when the links carried other traffic than the path claims, else None.

    `observed`: bytes an operation by counter (`pcie_tx`, `nvlink_tx`). What was not counted makes no
    claim. Headers count on some counters, so only a factor is judged, not a per cent.
    """
    least, most = expected_nbytes(path, world, nbytes)
    claimed = link_of(path, nvlink)
    out = observed.get(f"{claimed}_tx")
    if out is not None and not least <= out <= most + _LAUNCH_NBYTES:
        return f"traffic: {out:.0f} B out a rank over {claimed}, {least:.0f} to {most:.0f} expected"
    other = "pcie" if claimed == "nvlink" else "nvlink"
    stray = observed.get(f"{other}_tx")
    if stray is not None and stray > 0.25 * nbytes + _LAUNCH_NBYTES:
        return f"traffic: {stray:.0f} B out a rank over {other}, where the path is {path}/{claimed}"
    return None


def path_mark(path: Path, transport: str | None) -> str | None:
    """A mark when what ran did not go the way that the path claims, by the library's own log."""
    if transport is None:
        return None
    used = "peer" if transport.startswith("P2P") else "host" if transport.startswith("SHM") else None
    if used is None or used == path or path == "cpu":
        return None
    hint = "; NCCL_P2P_LEVEL=SYS may change it" if path == "peer" else ""
    return f"not on path {path}: it ran over {transport}{hint}"


def sentence(observed: Mapping[str, float]) -> str:
    """What the counters saw, or that there are none."""
    if not observed:
        return "link counters: none on this machine"
    parts = ", ".join(f"{name.replace('_', ' ')} {value:.0f} B" for name, value in observed.items())
    return f"link counters, an operation: {parts}"
