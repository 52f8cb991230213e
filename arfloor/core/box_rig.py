"""A box that was looked at -> a rig of figures: what `arfloor doctor --write` puts into topology.toml.

The graph is what was found. Rates follow from generation and width (predicted), from what a probe measured,
or are assumed where the box does not say; each figure says which.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from arfloor.core.box import Box, PciLink, Place, ancestors, pcie_gbps
from arfloor.core.cases import Node
from arfloor.core.doctor_paths import listed
from arfloor.core.gates import View
from arfloor.core.nccl_model import pci_graph_gbps
from arfloor.core.pcie import FLAG_ROOT_PORTS_US, FLAG_SOCKETS_US, FLAG_SWITCH_US, write_figure
from arfloor.core.rig import RIG_SCHEMA, Derate, Figure, Link, NcclFacts, Rig

# GB/s of one NVLink and direction by the major compute capability (NVIDIA's data sheets: NVLink 2 to 4 carry
# 50 GB/s both ways, NVLink 5 carries 100)
_NVLINK_GBPS = {7: 25.0, 8: 25.0, 9: 25.0, 10: 50.0, 12: 50.0}
_NVLINK_FLAG_US = 0.6


class BoxRigError(ValueError):
    """A box too little known to describe: what is missing, in one line."""


@dataclass(slots=True)
class _Draft:
    nodes: dict[str, Node] = field(default_factory=dict)
    links: list[Link] = field(default_factory=list)
    figures: dict[str, Figure] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def link(self, a: str, b: str, kind: str, write: str, latency: str, shared: str | None = None) -> None:
        self.links.append(Link(a=a, b=b, kind=kind, write=write, latency=latency, shared=shared))


def rig_of(box: Box, name: str) -> Rig:
    """The rig of a box. Raises BoxRigError when it has fewer than two GPUs or no tree."""
    gpus = [g for g in box.gpus if (p := box.place(g.id)) is not None and p.parent is not None]
    if len(gpus) < 2 or len(gpus) < len(box.gpus):
        raise BoxRigError(
            f"expected two or more GPUs with a place in the tree, found {len(gpus)} of {len(box.gpus)}; "
            "paste `nvidia-smi topo -m` or an NCCL topology XML of the whole box"
        )
    draft = _Draft(figures=_common_figures())
    for gpu in gpus:
        _add_chain(draft, box, gpu.id)
    _join_sockets(draft)
    _add_nvlinks(draft, box)
    reached = _peer_access(box)
    draft.notes += _some_pairs(box)
    models = sorted({g.name for g in gpus if g.name})
    capability = next((g.compute_capability for g in gpus if g.compute_capability), None)
    if capability is None:
        draft.notes.append("compute capability is not known: 0.0 stands for it")
    used = {n for k in draft.links for n in (k.write, k.latency)} | {"launch", "dense", "staged", "host"}
    nccl = _nccl(draft, box)
    used |= {nccl.bus, nccl.error}
    return Rig(
        schema=RIG_SCHEMA,
        name=name,
        title=f"{len(gpus)}x {models[0] if len(models) == 1 else 'GPU'}, from {box.source}",
        gpu=", ".join(models) or "not known",
        compute_capability=capability or (0, 0),
        p2p=reached,
        launch="launch",
        nodes=tuple(draft.nodes.values()),
        gpus=tuple(_name(g.id) for g in gpus),
        links=tuple(draft.links),
        figures={k: v for k, v in draft.figures.items() if k in used},
        derates=(
            Derate(pattern="dense", kind="pcie", share="dense"),
            Derate(pattern="staged", kind="pcie", share="staged"),
            Derate(pattern="host", kind="pcie", share="host"),
        ),
        nccl=nccl,
        notes=tuple(draft.notes + [f"{what}: {why}" for what, why in box.unknown]),
    )


def _peer_access(box: Box) -> bool | None:
    """Whether all GPUs reach each other's memory: what moved data showed, else the driver's status words.

    A transfer that failed (for want of memory, say) leaves what the driver reports unproven.
    """
    if any(p.correct is False for p in box.probes):
        return False
    reported = View(box, len(box.gpus)).p2p
    return None if reported and any(p.status == "failed" for p in box.probes) else reported


def _some_pairs(box: Box) -> list[str]:
    """A note where some pairs reach each other and others do not: one word for the whole box hides it."""
    some = [p for p in box.pairs if p.read == "OK" and p.write in (None, "OK")]
    if View(box, len(box.gpus)).p2p is not False or not some:
        return []
    only = f"some pairs have it, not all ({listed(some)})"
    return [f"peer access: {only}: p2p = false speaks of all; describe GPUs that have it apart"]


def _nccl(draft: _Draft, box: Box) -> NcclFacts:
    """What NCCL's own model takes the slowest GPU's link for; a wide guess where no source says its rate."""
    places = [box.place(g.id) for g in box.gpus]
    seen = [_graph_gbps(place.link) if place and place.link else None for place in places]
    known = [gbps for gbps in seen if gbps is not None]
    if len(known) == len(seen):
        bus = min(known)
        draft.figures["nccl_bus"] = Figure(
            value=bus, lo=bus * 0.75, hi=bus * 1.1, unit="GB/s", origin="predicted",
            source="what NCCL's topology takes the slowest GPU's link for (docs/floor.md)",
        )  # fmt: skip
    else:
        low, bus, high = (pci_graph_gbps(gen) for gen in (3, 4, 5))
        draft.figures["nccl_bus"] = Figure(
            value=bus, lo=low * 0.75, hi=high * 1.1, unit="GB/s", origin="assumed",
            source=f"{box.source} states no PCIe generation and width: what NCCL's topology takes Gen4 x16 "
            "for, Gen3 to Gen5 possible (docs/floor.md)",
        )  # fmt: skip
    draft.figures["nccl_error"] = Figure(
        value=1.4, lo=0.95, hi=2.0, unit="ratio", origin="assumed", source="as on boxes with known series"
    )
    return NcclFacts(bus="nccl_bus", error="nccl_error")


def _graph_gbps(link: PciLink) -> float | None:
    """GB/s that NCCL's graph gives a link of known generation and width, or of a rate stated outright."""
    gen, width = link.gen_max or link.gen, link.width_max or link.width
    if gen and width:
        return pci_graph_gbps(gen, width)
    raw = pcie_gbps(3, 16)
    return pci_graph_gbps(3) * link.stated_gbps / raw if link.stated_gbps and raw else None


def _name(place_id: str) -> str:
    return place_id.lower()


def _add_chain(draft: _Draft, box: Box, gpu_id: str) -> None:
    """Nodes and links from a GPU up to its socket and memory; a place already there ends the walk."""
    above = [p for p in ancestors(box, gpu_id) if p.kind != "host_bridge"]
    bridges = [p for p in ancestors(box, gpu_id) if p.kind == "host_bridge"]
    sockets = [p for p in above if p.kind == "socket"]
    socket = sockets[0] if sockets else Place(id="socket", kind="socket", numa=0)
    _add_socket(draft, socket)
    chain = [p for p in above if p.kind in ("switch", "root_port")]
    if not any(p.kind == "root_port" for p in chain):
        # a matrix or NCCL names no root ports: a GPU or switch under the host bridge has one of its own
        top = chain[-1].id if chain else gpu_id
        chain.append(Place(id=f"port-{top}", kind="root_port", parent=bridges[0].id if bridges else None))
    at: Place = box.place(gpu_id) or Place(id=gpu_id, kind="gpu")
    draft.nodes[_name(gpu_id)] = Node(id=_name(gpu_id), kind="gpu", numa=at.numa)
    for place in chain:
        fresh = _name(place.id) not in draft.nodes
        draft.nodes.setdefault(_name(place.id), Node(id=_name(place.id), kind=place.kind, numa=socket.numa))
        kind = "uplink" if at.kind == "switch" else "pcie"
        draft.link(_name(at.id), _name(place.id), kind, _pcie(draft, box, at), "flag_gpu_hop")
        if not fresh:
            return
        at = place
    draft.link(_name(at.id), _name(socket.id), "root-complex", "root_complex", "flag_port_hop")


def _add_socket(draft: _Draft, socket: Place) -> None:
    name = _name(socket.id)
    if name in draft.nodes:
        return
    draft.nodes[name] = Node(id=name, kind="socket", numa=socket.numa)
    draft.nodes[f"memory-{name}"] = Node(id=f"memory-{name}", kind="memory", numa=socket.numa)
    draft.link(name, f"memory-{name}", "memory", "dram", "flag_memory_hop", shared=f"dram-{name}")


def _join_sockets(draft: _Draft) -> None:
    sockets = [n.id for n in draft.nodes.values() if n.kind == "socket"]
    for i, a in enumerate(sockets):
        for b in sockets[i + 1 :]:
            draft.link(a, b, "inter-socket", "inter_socket", "flag_socket_hop")


def _pcie(draft: _Draft, box: Box, place: Place) -> str:
    """The name of the figure for a place's link up: measured by a probe, from its link, or assumed."""
    measured = [p.host_gbps for p in box.probes if p.a == place.id and p.host_gbps]
    if measured:
        name = f"pcie_{_name(place.id)}"
        source = f"arfloor doctor: stores of {place.id} to pinned host memory"
        draft.figures[name] = Figure(value=max(measured), unit="GB/s", origin="measured", source=source)
        return name
    link = place.link
    gen = (link.gen_max or link.gen) if link else None
    width = (link.width_max or link.width) if link else None
    if gen is not None and width is not None:
        name = f"pcie_gen{gen}_x{width}"
        draft.figures.setdefault(name, write_figure(gen, width))
        return name
    stated = link.stated_gbps if link else None
    if stated:
        name = f"pcie_{stated:.0f}".replace(".", "_")
        source = f"{box.source} states a raw rate of {stated:.1f} GB/s: x 256 / (256 + 24)"
        figure = Figure(value=stated * 256 / 280, unit="GB/s", origin="predicted", source=source)
        draft.figures.setdefault(name, figure)
        return name
    source = f"{box.source} states no PCIe generation and width: Gen4 x16 assumed, Gen3 to Gen5 possible"
    base = write_figure(4, 16).value
    figure = Figure(value=base, lo=base / 2.3, hi=base * 2.3, unit="GB/s", origin="assumed", source=source)
    draft.figures.setdefault("pcie_assumed", figure)
    return "pcie_assumed"


def _add_nvlinks(draft: _Draft, box: Box) -> None:
    for i, a in enumerate(box.gpus):
        for b in box.gpus[i + 1 :]:
            pair = box.pair(a.id, b.id)
            if pair is None or not pair.nvlinks:
                continue
            figure, name = _nvlink(box, a.id, b.id, pair.nvlinks, pair.fabric)
            draft.figures.setdefault(name, figure)
            draft.link(_name(a.id), _name(b.id), pair.fabric.lower(), name, "flag_nvlink")


def _nvlink(box: Box, a: str, b: str, count: int, fabric: str) -> tuple[Figure, str]:
    measured = [p.peer_gbps for p in box.probes if p.peer_gbps and {p.a, p.b} == {a, b}]
    if measured:
        source = f"arfloor doctor: stores of {a} to {b}, the slower direction"
        value = min(measured)
        return Figure(value=value, unit="GB/s", origin="measured", source=source), f"nvlink_{a}_{b}".lower()
    capability = next((g.compute_capability for g in box.gpus if g.id == a), None)
    each = _NVLINK_GBPS.get(capability[0] if capability else 0)
    if each is None or fabric != "NVLink":
        source = f"{count} {fabric} links of a generation that is not known: 25 GB/s each assumed"
        value = 25.0 * count
        figure = Figure(value=value, lo=value / 2, hi=value * 2, unit="GB/s", origin="assumed", source=source)
        return figure, f"{fabric.lower()}_{count}_assumed"
    source = f"{count} NVLinks of {each:.0f} GB/s a direction by the data sheet, 0.8 of it reached by kernels"
    value = each * count * 0.8
    figure = Figure(value=value, hi=each * count, unit="GB/s", origin="predicted", source=source)
    return figure, f"nvlink_{count}"


def _common_figures() -> dict[str, Figure]:
    def predicted(value: float, lo: float, hi: float, source: str) -> Figure:
        return Figure(value=value, lo=lo, hi=hi, unit="us", origin="predicted", source=source)

    port = (FLAG_ROOT_PORTS_US - FLAG_SWITCH_US) / 2
    return {
        "launch": predicted(0.5, 0.4, 1.5, "an empty graph node on an H200 (docs/floor.md)"),
        "flag_gpu_hop": predicted(
            FLAG_SWITCH_US / 2, 0.27, 0.38, "half of a one-way flag behind one switch (docs/floor.md)"
        ),
        "flag_port_hop": predicted(
            port, 0.15, 0.28, "what crossing root ports adds to a flag, by two hops (docs/floor.md)"
        ),
        "flag_socket_hop": predicted(
            FLAG_SOCKETS_US - FLAG_ROOT_PORTS_US, 0.15, 0.6, "what crossing sockets adds (docs/floor.md)"
        ),
        "flag_memory_hop": predicted(
            0.04, 0.01, 0.2, "a flag through host memory on two H200s, by hops (docs/floor.md)"
        ),
        "flag_nvlink": predicted(
            _NVLINK_FLAG_US, 0.4, 1.0, "assumed below one PCIe switch; measure it with a sweep"
        ),
        "root_complex": Figure(
            value=200.0, lo=100.0, hi=400.0, unit="GB/s", origin="assumed", source="inside one CPU"
        ),
        "dram": Figure(
            value=150.0, lo=60.0, hi=320.0, unit="GB/s", origin="assumed",
            source="memory channels are not known: 70 % of eight DDR4-3200 to twelve DDR5",
        ),
        "inter_socket": Figure(
            value=30.0, lo=9.0, hi=60.0, unit="GB/s", origin="assumed", source="not known here"
        ),
        "dense": Figure(
            value=0.605, lo=0.57, hi=0.64, unit="ratio", origin="published",
            source="four GPUs all at once over the isolated sum, public boxes (docs/floor.md)",
        ),
        "staged": Figure(
            value=0.93, lo=0.88, hi=0.96, unit="ratio", origin="published",
            source="one stream in and one out, public boxes (docs/floor.md)",
        ),
        "host": Figure(
            value=0.67, lo=0.45, hi=0.75, unit="ratio", origin="predicted",
            source="37 of 55 GB/s when two H200s write and read host memory at once (docs/floor.md)",
        ),
    }  # fmt: skip
