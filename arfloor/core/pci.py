"""How PCI facts are written in sysfs, XML and tools: bus ids, link speeds, link widths, classes."""

from __future__ import annotations

import re

_BUS_ID = re.compile(r"(?:([0-9a-f]{4,8}):)?([0-9a-f]{2}):([0-9a-f]{2})\.([0-7])", re.IGNORECASE)
_WIDTHS = (1, 2, 4, 8, 12, 16, 32)
# transfer rate of a lane in GT/s by generation (PCI Express Base Specification)
_GENERATIONS = {2.5: 1, 5.0: 2, 8.0: 3, 16.0: 4, 32.0: 5, 64.0: 6}


def bus_id(text: str) -> str | None:
    """`0000:3b:00.0` in lower case with a four-digit domain where it fits, None when it is no bus id."""
    match = _BUS_ID.fullmatch(text.strip())
    if match is None:
        return None
    domain = int(match[1] or "0", 16)
    return f"{domain:04x}:{match[2]}:{match[3]}.{match[4]}".lower()


def generation(speed: str) -> int | None:
    """The generation of a speed such as `16.0 GT/s PCIe` or `8 GT/s`; None when it says nothing."""
    match = re.match(r"\s*(\d{1,3}(?:\.\d{1,3})?)\s*GT/s", speed, re.IGNORECASE)
    return _GENERATIONS.get(float(match[1])) if match else None


def width(text: str) -> int | None:
    """The lanes of a width such as `16` or `x16`; None when it is 0, 255 (link down) or says nothing."""
    match = re.fullmatch(r"\s*x?(\d{1,3})\s*", text, re.IGNORECASE)
    return int(match[1]) if match and int(match[1]) in _WIDTHS else None


def is_gpu_class(code: str) -> bool:
    """Whether a PCI class is a display controller (`0x0300`, `0x0302`) or an accelerator (`0x1200`)."""
    return re.match(r"(?:0x)?(?:0300|0302|0380|1200)", code.strip(), re.IGNORECASE) is not None


def is_network_class(code: str) -> bool:
    """Whether a PCI class is a network controller (`0x0200`, InfiniBand `0x0207`, `0x0280`)."""
    return re.match(r"(?:0x)?02", code.strip(), re.IGNORECASE) is not None
