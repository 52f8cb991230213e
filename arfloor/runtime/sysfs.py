"""The PCI tree and the operating system's limits as /sys, /proc and /dev tell them, under any root.

Only files are read, so that a test can hand in a tree of its own. What cannot be read is None.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from arfloor.core import pci
from arfloor.core.box import Limits, PciLink, Place

_BUS_ID = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_HOST_BRIDGE = re.compile(r"pci[0-9a-f]{4,8}:[0-9a-f]{2}")
_ACS_CAPABILITY = 0x000D  # PCI Express Base Specification, extended capabilities
_ACS_REQUEST_REDIRECT = 0x4  # bit 2 of the ACS control register


def text(path: Path) -> str | None:
    """A small file's text without surrounding space, None when it cannot be read."""
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return None


def _number(path: Path) -> int | None:
    value = text(path)
    return int(value) if value is not None and re.fullmatch(r"-?\d{1,9}", value) else None


def pci_devices(root: Path) -> list[Path]:
    """The real directories of all PCI devices, in the order of their bus ids; [] without a PCI sysfs."""
    folder = root / "sys/bus/pci/devices"
    if not folder.is_dir():
        return []
    return [p.resolve() for p in sorted(folder.iterdir()) if _BUS_ID.fullmatch(p.name)]


def gpu_devices(root: Path) -> list[Path]:
    """PCI devices that are NVIDIA or AMD display controllers or accelerators (not their audio functions)."""
    return [
        d
        for d in pci_devices(root)
        if (text(d / "vendor") or "") in ("0x10de", "0x1002") and pci.is_gpu_class(text(d / "class") or "")
    ]


def rdma_devices(root: Path) -> list[tuple[str, Path]]:
    """(name, PCI device) of RDMA adapters, as `nvidia-smi topo` lists them."""
    folder = root / "sys/class/infiniband"
    entries = sorted(folder.iterdir()) if folder.is_dir() else []
    found = [(entry.name, (entry / "device").resolve()) for entry in entries]
    return [(name, device) for name, device in found if _BUS_ID.fullmatch(device.name)]


def places(root: Path, gpus: dict[str, Path], nics: list[tuple[str, Path]]) -> tuple[Place, ...]:
    """The tree above these GPUs (id -> device directory) and RDMA adapters.

    A switch is one place although it is an upstream and several downstream ports: its id is the bus id
    of the upstream port, and it redirects when any port of it that leads to a device does.
    """
    found: dict[str, Place] = {}
    nodes = numa_nodes(root)
    for gpu_id, device in gpus.items():
        _add(found, device, Place(id=gpu_id, kind="gpu"), nodes)
    for number, (name, device) in enumerate(nics):
        _add(found, device, Place(id=f"NIC{number}", kind="nic", name=name), nodes)
    return tuple(found.values())


def _add(found: dict[str, Place], device: Path, leaf: Place, nodes: list[int]) -> None:
    numa = _number(device / "numa_node")
    if numa is None or numa < 0:
        numa = nodes[0] if len(nodes) == 1 else None
    parent: str | None = f"numa{numa}" if numa is not None else None
    if parent is not None:
        found.setdefault(parent, Place(id=parent, kind="socket", numa=numa))
    depth = 0
    for bridge in _bridges(device):
        if _HOST_BRIDGE.fullmatch(bridge.name):
            found.setdefault(bridge.name, Place(id=bridge.name, kind="host_bridge", parent=parent, numa=numa))
            parent = bridge.name
            continue
        depth += 1
        redirect = acs_redirect(bridge)
        if depth > 1 and depth % 2 == 1 and parent in found:  # a downstream port of the switch above
            known = found[parent].acs_redirect
            merged = redirect if known is None else (known or bool(redirect))
            found[parent] = replace(found[parent], acs_redirect=merged)
            continue
        kind = "root_port" if depth == 1 else "switch"
        place = Place(id=bridge.name, kind=kind, parent=parent, numa=numa, bus_id=bridge.name)
        found.setdefault(bridge.name, replace(place, link=link(bridge), acs_redirect=redirect))
        parent = bridge.name
    found[leaf.id] = replace(leaf, parent=parent, numa=numa, bus_id=device.name, link=link(device))


def _bridges(device: Path) -> Iterator[Path]:
    """The host bridge and the PCI bridges above a device, from the top down."""
    above = [p for p in device.parents if _BUS_ID.fullmatch(p.name) or _HOST_BRIDGE.fullmatch(p.name)]
    yield from reversed(above)


def link(device: Path) -> PciLink | None:
    """A device's PCIe link now, and the most that the device and the port above it can both do."""
    now = (
        pci.generation(text(device / "current_link_speed") or ""),
        pci.width(text(device / "current_link_width") or ""),
    )
    most = [
        (pci.generation(text(d / "max_link_speed") or ""), pci.width(text(d / "max_link_width") or ""))
        for d in (device, device.parent)
        if _BUS_ID.fullmatch(d.name)
    ]
    gen_max = min((g for g, _ in most if g), default=None)
    width_max = min((w for _, w in most if w), default=None)
    if now == (None, None) and gen_max is None and width_max is None:
        return None
    return PciLink(gen=now[0], width=now[1], gen_max=gen_max, width_max=width_max)


def acs_redirect(bridge: Path) -> bool | None:
    """Whether a bridge redirects peer requests upwards; None when its configuration cannot be read.

    The extended capabilities lie behind byte 256, which only root may read.
    """
    try:
        with (bridge / "config").open("rb") as stream:
            config = stream.read(4096)
    except OSError:
        return None
    if len(config) <= 256:
        return None
    at = 0x100
    for _ in range(96):  # a chain longer than this is a loop
        if at < 0x100 or at + 8 > len(config):
            return False
        header = int.from_bytes(config[at : at + 4], "little")
        if header in (0, 0xFFFFFFFF):
            return False
        if header & 0xFFFF == _ACS_CAPABILITY:
            control = int.from_bytes(config[at + 6 : at + 8], "little")
            return bool(control & _ACS_REQUEST_REDIRECT)
        at = header >> 20
    return False


def numa_nodes(root: Path) -> list[int]:
    """The NUMA nodes that are online; [] when sysfs does not say."""
    listed = text(root / "sys/devices/system/node/online") or ""
    found: list[int] = []
    for part in listed.split(","):
        first, _, last = part.partition("-")
        if first.isdecimal() and (not last or last.isdecimal()):
            found.extend(range(int(first), min(int(last or first), 4096) + 1))
    return found


def local_cpus(device: Path) -> str | None:
    """The CPUs near a device, as a list such as `0-15,32-47`."""
    return text(device / "local_cpulist") or None


def limits(root: Path) -> Limits:
    """What the operating system grants this process."""
    status = text(root / "proc/self/status") or ""
    cpuinfo = text(root / "proc/cpuinfo") or ""
    allowed = _field(status, "Cpus_allowed_list")
    shm = root / "dev/shm"
    usage = shutil.disk_usage(shm) if shm.is_dir() else None
    driver = re.search(r"\s(\d{3,4}\.\d+(?:\.\d+)?)\s", text(root / "proc/driver/nvidia/version") or "")
    container = any((root / name).exists() for name in (".dockerenv", "run/.containerenv"))
    return Limits(
        cpus=len(re.findall(r"^processor\s*:", cpuinfo, re.MULTILINE)) or None,
        cpu_vendor=_field(cpuinfo, "vendor_id"),
        cpus_allowed=allowed,
        numa_nodes=len(numa_nodes(root)) or None,
        iommu=iommu(root),
        shm_bytes=usage.total if usage else None,
        shm_free_bytes=usage.free if usage else None,
        memlock_bytes=_memlock(text(root / "proc/self/limits") or ""),
        container=container,
        virtual_machine=(" hypervisor" in (_field(cpuinfo, "flags") or "")) if cpuinfo else None,
        driver=driver[1] if driver else None,
        kernel=text(root / "proc/sys/kernel/osrelease"),
    )


def iommu(root: Path) -> str | None:
    """`off` (no groups), `passthrough` (all of type identity) or `translating`; None without that sysfs."""
    folder = root / "sys/kernel/iommu_groups"
    if not folder.is_dir():
        return None
    kinds = {text(group / "type") for group in folder.iterdir()}
    if not kinds:
        return "off"
    if None in kinds:
        return None
    return "passthrough" if kinds == {"identity"} else "translating"


def _field(content: str, name: str) -> str | None:
    match = re.search(rf"^{name}\s*:[ \t]*(.*)$", content, re.MULTILINE)
    return match[1].strip() if match else None


def _memlock(content: str) -> int | None:
    match = re.search(r"^Max locked memory\s+(\S+)", content, re.MULTILINE)
    if match is None:
        return None
    if match[1] == "unlimited":
        return -1
    return int(match[1]) if match[1].isdecimal() else None
