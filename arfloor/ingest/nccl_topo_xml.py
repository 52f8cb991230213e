"""An NCCL or RCCL topology XML (`NCCL_TOPO_DUMP_FILE`, or the files that clouds ship) -> a `Box`.

Both write `system > cpu > pci > ... > pci > gpu`, with `nvlink`, `c2c` (NCCL) or `xgmi` (RCCL) under a
GPU. A `pci` that holds others is one switch; root ports are left out by the writer, so two GPUs that
meet at a `cpu` are written as `PHB`, which stands for PHB or NODE.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from arfloor.core import pci
from arfloor.core.box import Box, GpuFacts, Pair, PciLink, Place, relation_in_tree
from arfloor.ingest.outside import IngestError, Warned, one_line
from arfloor.ingest.xml_elements import Element, read_elements

WHAT = "an NCCL topology XML"
MAX_GPUS = 128


@dataclass(slots=True)
class _Found:
    places: dict[str, Place] = field(default_factory=dict)
    gpus: list[GpuFacts] = field(default_factory=list)
    elements: dict[str, Element] = field(default_factory=dict)
    warned: list[Warned] = field(default_factory=list)
    sockets: int = 0
    nics: int = 0

    def warn(self, element: Element, text: str) -> None:
        self.warned.append(Warned(line=element.line, text=text))


def read_nccl_topo_xml(text: str) -> tuple[Box, tuple[Warned, ...]]:
    """The box that the XML describes, and what in it could not be read.

    Raises IngestError when it holds neither `system`, `cpu` nor `pci`.
    """
    root, warned = read_elements(text, WHAT)
    if not (root.find("cpu") or root.find("pci")):
        tags = ", ".join(dict.fromkeys(one_line(e.tag, 20) for e in root.children[:3]))
        raise IngestError(f"not {WHAT}: expected <system> with <cpu> and <pci>, found <{tags}>")
    found = _Found(warned=warned)
    for cpu in _first_host(root, found):
        _read_cpu(cpu, found)
    if not found.gpus:
        found.warned.append(
            Warned(line=0, text="no <gpu> and no PCI device of a GPU's class: no GPU is known")
        )
    box = Box(source="NCCL topology XML", places=tuple(found.places.values()), gpus=tuple(found.gpus))
    box = replace(box, pairs=tuple(_pairs(box, found)))
    unknown = [
        ("p2p", "a topology XML does not say it"),
        ("links", "the XML says what a link is now, not at most"),
    ]
    if any(p.relation == "PHB" for p in box.pairs):
        unknown.append(("tree", "NCCL writes no host bridges: PHB here is PHB or NODE"))
    return replace(box, unknown=tuple(unknown)), tuple(found.warned)


def _first_host(root: Element, found: _Found) -> list[Element]:
    """The `cpu` elements of the first machine; a fused file of several hosts tells them by `host_hash`.

    A file without `cpu` is read as one socket.
    """
    cpus = [e for e in root.walk() if e.tag == "cpu"]
    if not cpus:
        found.warned.append(Warned(line=0, text="no <cpu>: everything is put under one socket"))
        return [
            Element("cpu", {}, 0, [c for s in root.children for c in (s.children if s.tag != "pci" else [s])])
        ]
    first = cpus[0].get("host_hash")
    others = [c for c in cpus if c.get("host_hash") != first]
    if others:
        found.warn(others[0], "a second machine (another host_hash): only the first is read")
    return [c for c in cpus if c.get("host_hash") == first]


def _read_cpu(cpu: Element, found: _Found) -> None:
    numa_text = cpu.get("numaid")
    numa = int(numa_text) if numa_text.isdecimal() and len(numa_text) < 5 else None
    if numa is None and cpu.line:
        said = f"numaid {one_line(numa_text)!r}" if numa_text else "no numaid"
        found.warn(cpu, f"<cpu> has {said}: its NUMA node is unknown")
    name = f"numa{numa}" if numa is not None else f"socket{found.sockets}"
    found.sockets += 1
    while name in found.places:
        name += "b"
    label = " ".join(w for w in (cpu.get("vendor"), cpu.get("arch")) if w)
    found.places[name] = Place(id=name, kind="socket", numa=numa, name=one_line(label))
    for child in cpu.children:
        _read_pci_tree(child, name, numa, found)


def _read_pci_tree(top: Element, parent: str, numa: int | None, found: _Found) -> None:
    stack = [(top, parent)]
    while stack:
        element, above = stack.pop()
        if element.tag == "nic":
            _read_nic(element, above, numa, found)
        elif element.tag == "gpu":
            found.warn(element, "<gpu> outside a <pci>: left out")
        if element.tag != "pci":
            continue
        here = _read_pci(element, above, numa, found)
        stack.extend((c, here) for c in reversed(element.children) if c.tag in ("pci", "nic"))


def _read_pci(element: Element, above: str, numa: int | None, found: _Found) -> str:
    """Add one `pci` element; the id under which its children go."""
    bus = pci.bus_id(element.get("busid"))
    if bus is None:
        said = f"busid {one_line(element.get('busid'))!r}" if element.get("busid") else "no busid"
        found.warn(element, f"<pci> has {said}")
    gpu = next((c for c in element.children if c.tag == "gpu"), None)
    code = element.get("class")
    has_below = any(c.tag == "pci" for c in element.children)
    if gpu is None and not has_below and not pci.is_gpu_class(code):
        if not code and not any(c.tag == "nic" for c in element.children):
            found.warn(element, "<pci> has neither class nor device: left out")
        return above
    link = _link(element, found)
    if gpu is not None or (pci.is_gpu_class(code) and not has_below):
        return _read_gpu(
            element, gpu, Place(id="", kind="gpu", parent=above, numa=numa, bus_id=bus, link=link), found
        )
    name = bus or f"switch-line{element.line}"
    if name in found.places:
        found.warn(element, f"bus id {name} stands twice")
        return name
    found.places[name] = Place(id=name, kind="switch", parent=above, numa=numa, bus_id=bus, link=link)
    return name


def _link(element: Element, found: _Found) -> PciLink | None:
    generation, lanes = pci.generation(element.get("link_speed")), pci.width(element.get("link_width"))
    if (
        generation is None
        and lanes is None
        and not element.get("link_speed")
        and not element.get("link_width")
    ):
        if element.get("class"):
            found.warn(element, "<pci> has no link_speed and no link_width: its link is unknown")
        return None
    if generation is None:
        found.warn(element, f"link_speed {one_line(element.get('link_speed'))!r}: its generation is unknown")
    if lanes is None:
        found.warn(element, f"link_width {one_line(element.get('link_width'))!r}: its lanes are unknown")
    return PciLink(gen=generation, width=lanes)


def _read_gpu(element: Element, gpu: Element | None, place: Place, found: _Found) -> str:
    if len(found.gpus) >= MAX_GPUS:
        raise IngestError(f"line {element.line}: more than {MAX_GPUS} GPUs; give the topology of one machine")
    number = gpu.get("dev") if gpu is not None else ""
    if gpu is not None and not number.isdecimal():
        found.warn(gpu, "<gpu> has no dev: numbered in the order of the file")
    name = f"GPU{int(number)}" if number.isdecimal() and len(number) < 5 else f"GPU{len(found.gpus)}"
    while name in found.places:
        found.warn(gpu or element, f"{name} stands twice: the second is renamed")
        name += "b"
    facts = GpuFacts(id=name, bus_id=place.bus_id, numa=place.numa)
    if gpu is not None:
        sm = gpu.get("sm")
        amd = bool(gpu.get("gcn"))
        capability = (int(sm[:-1]), int(sm[-1])) if sm.isdecimal() and 2 <= len(sm) <= 3 and not amd else None
        facts = replace(
            facts, compute_capability=capability, name=one_line(f"gcn {gpu.get('gcn')}") if amd else ""
        )
        found.elements[name] = gpu
    found.gpus.append(facts)
    found.places[name] = replace(place, id=name)
    return name


def _read_nic(element: Element, above: str, numa: int | None, found: _Found) -> None:
    for net in (c for c in element.children if c.tag == "net"):
        name = f"NIC{found.nics}"
        found.nics += 1
        label = one_line(net.get("name"))
        found.places[name] = Place(id=name, kind="nic", parent=above, numa=numa, name=label)


def _pairs(box: Box, found: _Found) -> Iterator[Pair]:
    by_bus = {g.bus_id: g.id for g in box.gpus if g.bus_id}
    direct: dict[tuple[str, str], tuple[int, str]] = {}
    switched: dict[str, int] = {}
    for name, gpu in found.elements.items():
        for link in (c for c in gpu.children if c.tag in ("nvlink", "xgmi")):
            count = (
                int(link.get("count"))
                if link.get("count").isdecimal() and len(link.get("count")) < 4
                else None
            )
            if count is None:
                found.warn(link, f"<{link.tag}> has no count: left out")
                continue
            fabric = "XGMI" if link.tag == "xgmi" else "NVLink"
            target = by_bus.get(pci.bus_id(link.get("target")))
            if target is not None and target != name:
                direct[name, target] = (direct.get((name, target), (0, fabric))[0] + count, fabric)
            elif link.get("tclass").lower().startswith("0x0680"):
                switched[name] = switched.get(name, 0) + count
            else:
                found.warn(
                    link, f"<{link.tag}> leads to {one_line(link.get('target'))!r}, which is no GPU here"
                )
    for a in box.gpus:
        for b in box.gpus:
            if a.id == b.id:
                continue
            count, fabric = direct.get((a.id, b.id)) or direct.get((b.id, a.id)) or (0, "NVLink")
            if not count and a.id in switched and b.id in switched:
                count = min(switched[a.id], switched[b.id])
            relation = relation_in_tree(box, a.id, b.id)
            relation = "PHB" if relation == "NODE" else relation
            yield Pair(a=a.id, b=b.id, relation=relation, nvlinks=count, fabric=fabric)
