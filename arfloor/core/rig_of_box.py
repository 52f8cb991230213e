"""From what a box says of itself to a described box: every rate predicted from PCIe, none measured.

`doctor` sees places and link widths; this turns them into figures that `predict` can reason with.
"""

from __future__ import annotations

import itertools

from arfloor.core.box import Box, GpuFacts, PciLink, Place
from arfloor.core.cases import Node
from arfloor.core.nccl_model import pci_graph_gbps
from arfloor.core.pcie import FLAG_ROOT_PORTS_US, FLAG_SOCKETS_US, FLAG_SWITCH_US, read_figure, write_figure
from arfloor.core.rig import RIG_SCHEMA, Derate, Figure, Link, NcclFacts, Rig

# what the boxes with published measurements kept of a link's rate (docs/floor.md)
_SHARES = {"dense": (0.605, 0.57, 0.64), "staged": (0.93, 0.88, 0.96), "host": (0.67, 0.5, 0.75)}
_DEFAULT = PciLink(gen=4, width=16)


def common_figures() -> dict[str, Figure]:
    """Latencies, shares and the launch that no description of a box states."""

    def us(value: float, lo: float, hi: float, source: str) -> Figure:
        return Figure(value=value, lo=lo, hi=hi, unit="us", origin="predicted", source=source)

    ports, sockets = FLAG_ROOT_PORTS_US - FLAG_SWITCH_US, FLAG_SOCKETS_US - FLAG_ROOT_PORTS_US
    figures = {
        "flag_gpu_hop": us(FLAG_SWITCH_US / 2, 0.27, 0.38, "half of a flag behind one switch"),
        "flag_port_hop": us(round(ports / 2, 3), 0.15, 0.28, "half of what root ports add to a flag"),
        "flag_switch_hop": us(0.1, 0.05, 0.2, "a store through one more switch"),
        "flag_socket_hop": us(round(sockets, 3), 0.15, 0.6, "what crossing sockets adds to a flag"),
        "flag_memory_hop": us(0.215, 0.12, 0.33, "a third of a flag through host memory, less the hops"),
        "launch": us(0.5, 0.4, 1.3, "an empty graph node on an H200"),
    }
    for name, (value, lo, hi) in _SHARES.items():
        source = f"{name} traffic on boxes with published or measured rates (docs/floor.md)"
        figures[name] = Figure(value=value, lo=lo, hi=hi, unit="ratio", origin="predicted", source=source)
    for name, rate, what in (
        ("root_complex", 200.0, "inside one CPU"),
        ("dram", 200.0, "mixed reads and writes of one socket's memory"),
        ("inter_socket", 50.0, "between two sockets"),
    ):
        source = f"{what}: nothing states it"
        figures[name] = Figure(
            value=rate, lo=rate / 2, hi=rate * 2, unit="GB/s", origin="assumed", source=source
        )
    return figures


def rig_of_box(box: Box, *, name: str, title: str = "") -> Rig:
    """A described box from what `doctor` or a pasted matrix saw; what was not stated is in `notes`.

    A GPU whose place is unknown gets a root port of its own on its NUMA node. Raises ValueError when
    the box has fewer than two GPUs.
    """
    gpus = tuple(g.id for g in box.gpus) or tuple(p.id for p in box.places if p.kind == "gpu")
    if len(gpus) < 2:
        raise ValueError(f"rig_of_box: expected a box of at least two GPUs, found {len(gpus)}")
    facts = {g.id: g for g in box.gpus}
    build = _Builder(box, gpus, facts)
    build.places()
    build.nvlinks()
    p2p, said = _peer_access(box, gpus, facts)
    build.notes += [said] if said else []
    first = facts.get(gpus[0])
    gen, width = build.slowest()
    bus = pci_graph_gbps(gen, width)
    build.figures["nccl_bus"] = Figure(
        value=bus, lo=bus * 0.75, hi=bus * 1.1, unit="GB/s", origin="predicted",
        source=f"what NCCL's topology takes Gen{gen} x{width} for",
    )  # fmt: skip
    build.figures["nccl_error"] = Figure(
        value=1.15, lo=0.9, hi=1.6, unit="ratio", origin="assumed", source="as on boxes with published series"
    )
    return Rig(
        schema=RIG_SCHEMA,
        name=name,
        title=title or f"{len(gpus)}x {(first.name if first else '') or 'GPU'}",
        gpu=(first.name if first else "") or "unknown GPU",
        compute_capability=(first.compute_capability if first else None) or (8, 0),
        p2p=p2p,
        launch="launch",
        nodes=tuple(build.nodes.values()),
        gpus=gpus,
        links=tuple(build.links),
        figures=build.used(),
        derates=tuple(
            Derate(pattern=pattern, kind="pcie", share=pattern) for pattern in ("dense", "staged", "host")
        ),
        nccl=NcclFacts(bus="nccl_bus", error="nccl_error"),
        notes=tuple(build.notes),
    )


def _peer_access(box: Box, gpus: tuple[str, ...], facts: dict[str, GpuFacts]) -> tuple[bool, str]:
    states = [s for p in box.pairs if p.a in gpus and p.b in gpus for s in (p.read, p.write) if s]
    if states:
        return all(s == "OK" for s in states), ""
    consumer = any("GeForce" in g.name for g in facts.values())
    what = "refused, as the driver does on GeForce" if consumer else "granted"
    return not consumer, f"peer access was not stated; taken for {what}"


class _Builder:
    """Collects nodes, links and figures of one box."""

    def __init__(self, box: Box, gpus: tuple[str, ...], facts: dict[str, GpuFacts]) -> None:
        self.box, self.gpus, self.facts = box, gpus, facts
        self.nodes: dict[str, Node] = {}
        self.links: list[Link] = []
        self.figures = common_figures()
        self.notes: list[str] = []
        self._pci: list[tuple[int, int]] = []

    def used(self) -> dict[str, Figure]:
        names = {n for link in self.links for n in (link.write, link.read, link.latency)}
        names |= {"launch", "dense", "staged", "host", "nccl_bus", "nccl_error"}
        return {name: figure for name, figure in self.figures.items() if name in names}

    def slowest(self) -> tuple[int, int]:
        return min(self._pci, key=lambda p: pci_graph_gbps(*p))

    def places(self) -> None:
        known = {p.id: p for p in self.box.places}
        for gpu in self.gpus:
            self._climb(known.get(gpu) or Place(id=gpu, kind="gpu", numa=self._numa(gpu)), known)
        sockets = [n.id for n in self.nodes.values() if n.kind == "socket"]
        for a, b in itertools.pairwise(sockets):
            self._link(a, b, "inter-socket", "inter_socket", "flag_socket_hop")

    def _numa(self, gpu: str) -> int | None:
        return self.facts[gpu].numa if gpu in self.facts else None

    def _climb(self, place: Place, known: dict[str, Place]) -> None:
        """Add a place and everything above it, up to a socket with its memory."""
        if place.id in self.nodes:
            return
        numa = place.numa if place.numa is not None and place.numa >= 0 else None
        self.nodes[place.id] = Node(id=place.id, kind=place.kind, numa=numa)
        if place.kind == "socket":
            memory = f"memory-{place.id}"
            self.nodes[memory] = Node(id=memory, kind="memory", numa=numa)
            self._link(place.id, memory, "memory", "dram", "flag_memory_hop", shared=f"dram-{place.id}")
            return
        above = known.get(place.parent or "") or self._missing(place, numa)
        self._climb(above, known)
        if place.kind in ("gpu", "switch"):
            kind = "pcie" if place.kind == "gpu" else "uplink"
            hop = "flag_gpu_hop" if place.kind == "gpu" else "flag_switch_hop"
            self._link(place.id, above.id, kind, self._rate(place), hop, read=True)
        else:
            self._link(place.id, above.id, "root-complex", "root_complex", "flag_port_hop")

    def _missing(self, place: Place, numa: int | None) -> Place:
        """What must lie above a place whose parent nothing states."""
        if place.kind == "gpu":
            self.notes.append(f"{place.id}: its place was not stated; taken for a root port of its own")
        if place.kind in ("gpu", "switch"):
            return Place(id=f"port-{place.id}", kind="root_port", numa=numa)
        return Place(id=f"socket{numa or 0}", kind="socket", numa=numa or 0)

    def _rate(self, place: Place) -> str:
        link = place.link or PciLink()
        gen, width = link.gen_max or link.gen, link.width_max or link.width
        if gen is None or width is None:
            if place.kind == "gpu":
                self.notes.append(f"{place.id}: generation and width were not stated; taken for Gen4 x16")
            gen, width = gen or _DEFAULT.gen or 4, width or _DEFAULT.width or 16
        name = f"gen{gen}_x{width}"
        self.figures.setdefault(f"{name}_write", write_figure(gen, width))
        self.figures.setdefault(f"{name}_read", read_figure(gen, width))
        self._pci.append((gen, width))
        return name

    def _link(
        self,
        a: str,
        b: str,
        kind: str,
        rate: str,
        latency: str,
        *,
        shared: str | None = None,
        read: bool = False,
    ) -> None:
        write = f"{rate}_write" if read else rate
        self.links.append(
            Link(
                a=a,
                b=b,
                kind=kind,
                write=write,
                read=f"{rate}_read" if read else None,
                latency=latency,
                shared=shared,
            )
        )

    def nvlinks(self) -> None:
        done: set[frozenset[str]] = set()
        for pair in self.box.pairs:
            ends = frozenset((pair.a, pair.b))
            if pair.nvlinks < 1 or ends in done or not ends <= set(self.gpus):
                continue
            done.add(ends)
            each = self.facts[pair.a].nvlink_gbps if pair.a in self.facts else None
            rate = (each or 25.0) * pair.nvlinks
            name = f"nvlink_x{pair.nvlinks}"
            said = f"{pair.nvlinks} links of {each or 25.0:g} GB/s each way"
            self.figures[name] = Figure(
                value=rate * 0.9,
                lo=rate * 0.8,
                hi=rate,
                unit="GB/s",
                origin="predicted" if each else "assumed",
                source=said + ", 80 to 100 % of it for payload",
            )
            self.figures["flag_nvlink"] = Figure(
                value=0.7,
                lo=0.5,
                hi=1.0,
                unit="us",
                origin="assumed",
                source="a store over NVLink and a poll",
            )
            self._link(pair.a, pair.b, "nvlink", name, "flag_nvlink")
