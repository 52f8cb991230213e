"""An hwloc XML (`lstopo --of xml`, versions 1 and 2) -> a `Box`.

hwloc writes every bridge: host bridges (`bridge_type` 0-1), then PCI bridges (1-1) that are root ports,
then the upstream and downstream ports of switches in turn. A switch is kept as one place. A link has
one rate in GB/s and no generation.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace

from arfloor.core import pci
from arfloor.core.box import Box, GpuFacts, Pair, PciLink, Place, relation_in_tree
from arfloor.ingest.outside import IngestError, Warned, one_line
from arfloor.ingest.xml_elements import Element, read_elements

WHAT = "an hwloc XML"
MAX_GPUS = 128


@dataclass(frozen=True, slots=True)
class _At:
    """Where the walk is: the place above, how many PCI bridges lie between it and the host bridge."""

    parent: str | None
    numa: int | None
    bridges: int


@dataclass(slots=True)
class _Found:
    places: dict[str, Place] = field(default_factory=dict)
    gpus: list[GpuFacts] = field(default_factory=list)
    warned: list[Warned] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)

    def warn(self, element: Element, text: str) -> None:
        self.warned.append(Warned(line=element.line, text=text))

    def name(self, stem: str) -> str:
        number = self.counts.get(stem, 0)
        self.counts[stem] = number + 1
        return f"{stem}{number}"

    def add(self, element: Element, place: Place) -> str:
        if place.id in self.places:
            self.warn(element, f"{place.id} stands twice")
            return place.id
        self.places[place.id] = place
        return place.id


def read_hwloc_xml(text: str) -> tuple[Box, tuple[Warned, ...]]:
    """The box that the XML describes, and what in it could not be read.

    Raises IngestError when it is no hwloc topology.
    """
    root, warned = read_elements(text, WHAT)
    if not any(e.tag == "object" and e.get("type") for e in root.walk()):
        tags = ", ".join(dict.fromkeys(one_line(e.tag, 20) for e in root.children[:3]))
        raise IngestError(f"not {WHAT}: expected <topology> with <object type=...>, found <{tags}>")
    found = _Found(warned=warned)
    stack = [(e, _At(None, None, 0)) for e in reversed(root.children)]
    while stack:
        element, at = stack.pop()
        below = _read(element, at, found)
        stack.extend((c, below) for c in reversed(element.children))
    if not found.gpus:
        text = "no PCI device of a GPU's class: lstopo was built or run without I/O, or there is none"
        found.warned.append(Warned(line=0, text=text))
    box = Box(source="hwloc XML", places=tuple(found.places.values()), gpus=tuple(found.gpus))
    ids = [g.id for g in box.gpus]
    pairs = tuple(Pair(a=a, b=b, relation=relation_in_tree(box, a, b)) for a in ids for b in ids if a != b)
    unknown = (
        ("p2p", "an hwloc XML does not say it"),
        ("links", "hwloc says the rate of a link, neither generation nor width, and nothing of NVLink"),
    )
    return replace(box, pairs=pairs, unknown=unknown), tuple(found.warned)


def _read(element: Element, at: _At, found: _Found) -> _At:
    """Read one element; where its children are."""
    kind = element.get("type")
    if element.tag != "object":
        return at
    holds = any(c.tag == "object" for c in element.children)  # in hwloc 1 the package lies in its NUMANode
    if at.parent is None and (kind in ("Package", "Socket") or (kind == "NUMANode" and holds)):
        return _socket(element, found)
    if kind == "Group":
        numa = _numa(element)
        return replace(at, numa=numa) if numa is not None else at
    if kind == "Bridge":
        return _bridge(element, at, found)
    if kind == "PCIDev":
        return _device(element, at, found)
    return at


def _numa(element: Element) -> int | None:
    """The NUMA node of an object: the index of its only NUMANode, or the only bit of its nodeset."""
    indexes = [e.get("os_index") for e in element.walk() if e.get("type") == "NUMANode"]
    if len(indexes) == 1 and indexes[0].isdecimal() and len(indexes[0]) < 5:
        return int(indexes[0])
    words = re.fullmatch(r"(?:0x[0-9a-f]{1,8},?){1,16}", element.get("nodeset"), re.IGNORECASE)
    mask = int(element.get("nodeset").replace("0x", "").replace(",", ""), 16) if words else 0
    return mask.bit_length() - 1 if mask and mask & (mask - 1) == 0 else None


def _socket(element: Element, found: _Found) -> _At:
    numa = _numa(element)
    model = next((c.get("value") for c in element.children if c.get("name") == "CPUModel"), "")
    name = f"numa{numa}" if numa is not None and f"numa{numa}" not in found.places else found.name("socket")
    found.add(element, Place(id=name, kind="socket", numa=numa, name=one_line(model)))
    return _At(name, numa, 0)


def _bridge(element: Element, at: _At, found: _Found) -> _At:
    kind = element.get("bridge_type")
    if kind.startswith("0-"):
        domain = re.match(r"([0-9a-f]{4,8}:\[[0-9a-f]{2})", element.get("bridge_pci"), re.IGNORECASE)
        if domain is None:
            found.warn(element, "host bridge without bridge_pci")
        name = f"pci{domain[1].replace('[', '')}" if domain else found.name("hb")
        above = at.parent or _only_socket(found)
        numa = at.numa if at.parent else (found.places[above].numa if above else None)
        return _At(found.add(element, Place(id=name, kind="host_bridge", parent=above, numa=numa)), numa, 0)
    bus = pci.bus_id(element.get("pci_busid"))
    if bus is None:
        found.warn(element, f"bridge with pci_busid {one_line(element.get('pci_busid'))!r}")
    if at.bridges and at.bridges % 2 == 0:
        return replace(at, bridges=at.bridges + 1)  # a switch's downstream port: the switch is one place
    kind = "switch" if at.bridges else "root_port"
    place = Place(id=bus or found.name(kind), kind=kind, parent=at.parent, numa=at.numa, bus_id=bus)
    return _At(found.add(element, replace(place, link=_link(element, found))), at.numa, at.bridges + 1)


def _only_socket(found: _Found) -> str | None:
    """hwloc 2 puts the I/O of a machine with one package beside it, under the machine."""
    sockets = [p.id for p in found.places.values() if p.kind == "socket"]
    return sockets[0] if len(sockets) == 1 else None


def _link(element: Element, found: _Found) -> PciLink | None:
    text = element.get("pci_link_speed")
    rate = float(text) if re.fullmatch(r"\d{1,4}(?:\.\d{1,12})?", text) else None
    if text and rate is None:
        found.warn(element, f"pci_link_speed {one_line(text)!r}: its rate is unknown")
    return PciLink(stated_gbps=rate) if rate else None  # hwloc writes 0 when it may not read the device


def _device(element: Element, at: _At, found: _Found) -> _At:
    code = element.get("pci_type")
    bus = pci.bus_id(element.get("pci_busid"))
    if not (pci.is_gpu_class(code) or pci.is_network_class(code)):
        return at
    if bus is None:
        found.warn(element, f"PCI device with pci_busid {one_line(element.get('pci_busid'))!r}")
    link = _link(element, found)
    systems = [c.get("name") for c in element.children if c.get("type") == "OSDev"]
    place = Place(id="", kind="nic", parent=at.parent, numa=at.numa, bus_id=bus, link=link)
    if pci.is_network_class(code):
        label = next((n for n in systems if not n.startswith("opencl")), "")
        found.add(element, replace(place, id=found.name("NIC"), name=one_line(label)))
        return at
    if not re.search(r"\[(?:10de|1002|1d94):", code, re.IGNORECASE) and not any(
        n.startswith(("cuda", "nvml", "rsmi", "opencl")) for n in systems
    ):
        found.warn(
            element, "display controller that is no NVIDIA or AMD GPU and has no compute driver: left out"
        )
        return at
    if len(found.gpus) >= MAX_GPUS:
        raise IngestError(f"line {element.line}: more than {MAX_GPUS} GPUs; give the topology of one machine")
    name = found.name("GPU")
    infos = {i.get("name"): i.get("value") for c in [element, *element.children] for i in c.children}
    model = infos.get("GPUModel") or element.get("name") or infos.get("PCIDevice", "")
    found.add(element, replace(place, id=name, kind="gpu", name=one_line(model)))
    found.gpus.append(GpuFacts(id=name, name=one_line(model), bus_id=bus, numa=at.numa))
    return at
