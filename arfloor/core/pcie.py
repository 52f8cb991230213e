"""PCIe from first principles, for a box nobody has measured.

Payload rate = raw rate x payload / (payload + header). Raw rates are those of the PCI Express Base
Specification after line coding. Headers: 24 bytes for a posted write (framing, sequence number, four
header words, CRC), 20 for a completion with data.
"""

from __future__ import annotations

from arfloor.core.box import pcie_gbps
from arfloor.core.rig import Figure

WRITE_HEADER_BYTES = 24
COMPLETION_HEADER_BYTES = 20

# One-way flag from one GPU's store to another GPU's load, in us: behind one switch, across root ports
# of one socket, across sockets.
FLAG_SWITCH_US = 0.65
FLAG_ROOT_PORTS_US = 1.07
FLAG_SOCKETS_US = 1.3


def payload_gbps(
    gen: int, width: int, *, payload_bytes: int, header_bytes: int = WRITE_HEADER_BYTES
) -> float:
    """Rate of payload in GB/s one way. Raises ValueError for an unknown generation, width or payload."""
    raw = pcie_gbps(gen, width)
    if raw is None or payload_bytes <= 0 or width <= 0:
        raise ValueError(
            f"payload_gbps: expected PCIe generation 1 to 6, lanes and payload > 0, "
            f"found gen {gen} x{width}, {payload_bytes} bytes"
        )
    return raw * payload_bytes / (payload_bytes + header_bytes)


def write_figure(gen: int, width: int) -> Figure:
    """Posted writes: between a maximum payload of 128 and of 512 bytes, 256 in the middle."""
    low, mid, high = (payload_gbps(gen, width, payload_bytes=p) for p in (128, 256, 512))
    return Figure(
        value=mid,
        lo=low,
        hi=high,
        unit="GB/s",
        origin="predicted",
        source=f"PCIe Gen{gen} x{width} raw x payload / (payload + 24 B), payload 256 B (128 to 512)",
    )


def read_figure(gen: int, width: int) -> Figure:
    """Reads: completions of 64 to 256 bytes, 128 in the middle."""
    low, mid, high = (
        payload_gbps(gen, width, payload_bytes=p, header_bytes=COMPLETION_HEADER_BYTES)
        for p in (64, 128, 256)
    )
    return Figure(
        value=mid,
        lo=low,
        hi=high,
        unit="GB/s",
        origin="predicted",
        source=f"PCIe Gen{gen} x{width} raw x payload / (payload + 20 B), completions of 128 B (64 to 256)",
    )
