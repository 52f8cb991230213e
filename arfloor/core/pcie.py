"""PCIe from first principles, for a box nobody has measured.

Payload rate = raw rate x payload / (payload + header). Raw rates are those of the PCI Express Base
Specification after line coding. The header of a posted write takes 24 bytes: framing, sequence number,
four header words, CRC.
"""

from __future__ import annotations

from arfloor.core.box import pcie_gbps
from arfloor.core.rig import Figure

WRITE_HEADER_BYTES = 24

# One-way flag from one GPU's store to another GPU's load, in us: behind one switch, across root ports
# of one socket, across sockets.
FLAG_SWITCH_US = 0.65
FLAG_ROOT_PORTS_US = 1.07
FLAG_SOCKETS_US = 1.3


def payload_gbps(gen: int, width: int, *, payload_bytes: int) -> float:
    """Rate of posted writes in GB/s one way.

    Raises ValueError for an unknown generation, width or payload.
    """
    raw = pcie_gbps(gen, width)
    if raw is None or payload_bytes <= 0 or width <= 0:
        raise ValueError(
            f"payload_gbps: expected PCIe generation 1 to 6, lanes and payload > 0, "
            f"found gen {gen} x{width}, {payload_bytes} bytes"
        )
    return raw * payload_bytes / (payload_bytes + WRITE_HEADER_BYTES)


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
