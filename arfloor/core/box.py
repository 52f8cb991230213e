"""What is known of one machine: where its GPUs sit, what the links say of themselves, and what is unknown.

Every reader (live discovery, a pasted `nvidia-smi topo -m`, an NCCL or hwloc XML) yields a `Box`.
Nothing in it is guessed: what a source does not say is None and, where a reader of a report would
miss it, named in `unknown` with the reason.
"""

from __future__ import annotations

from arfloor.core.cases import record

# nvidia-smi's words for the closest connection of two devices over PCIe, nearest first
RELATIONS: tuple[str, ...] = ("PIX", "PXB", "PHB", "NODE", "SYS")

RELATION_MEANING: dict[str, str] = {
    "PIX": "one PCIe switch",
    "PXB": "several PCIe switches, no host bridge",
    "PHB": "a PCIe host bridge",
    "NODE": "several host bridges of one NUMA node",
    "SYS": "the link between NUMA nodes",
}

# raw gigabytes a second of one PCIe lane and direction, after line coding (8b/10b up to gen 2, 128b/130b
# from gen 3; PCI Express Base Specification, and 242/256 FLIT coding taken as 1 for gen 6)
PCIE_LANE_GBPS: dict[int, float] = {
    1: 0.25,
    2: 0.5,
    3: 8 * 128 / 130 / 8,
    4: 16 * 128 / 130 / 8,
    5: 32 * 128 / 130 / 8,
    6: 8.0,
}


@record
class PciLink:
    """One PCIe link: generation and lanes now, and the most that both of its ends can do.

    `stated_gbps` is what a source says outright when it names neither (hwloc).
    """

    gen: int | None = None
    width: int | None = None
    gen_max: int | None = None
    width_max: int | None = None
    stated_gbps: float | None = None

    @property
    def gbps(self) -> float | None:
        """Raw GB/s of one direction at the most both ends can do, or as it is now when that is unknown."""
        return pcie_gbps(self.gen_max or self.gen, self.width_max or self.width) or self.stated_gbps

    @property
    def narrow(self) -> bool:
        """Whether fewer lanes are in use than both ends have (lanes never change with load)."""
        return self.width is not None and self.width_max is not None and self.width < self.width_max

    @property
    def slow(self) -> bool:
        """Whether the generation is below what both ends can do (an idle GPU may lower it to save power)."""
        return self.gen is not None and self.gen_max is not None and self.gen < self.gen_max


def pcie_gbps(gen: int | None, width: int | None) -> float | None:
    """Raw GB/s of one direction of a PCIe link, None when generation or width is unknown."""
    if gen is None or width is None or gen not in PCIE_LANE_GBPS:
        return None
    return PCIE_LANE_GBPS[gen] * width


@record
class Place:
    """A device in the tree: kind is `socket`, `host_bridge`, `root_port`, `switch`, `gpu` or `nic`.

    `parent` is the id of the place above it, None for a socket or when unknown; `link` is the PCIe
    link to the parent. `acs_redirect` says whether this bridge sends peer traffic up to the root
    complex instead of across (None: could not be read).
    """

    id: str
    kind: str
    parent: str | None = None
    numa: int | None = None
    name: str = ""
    bus_id: str | None = None
    link: PciLink | None = None
    acs_redirect: bool | None = None


@record
class GpuFacts:
    """What one GPU says of itself; None where it was not asked or did not answer.

    `handle_types`: what cuMemCreate memory can be shared as (`posix_fd`, `fabric`) and whether it may be
    GPUDirect RDMA capable (`gpu_direct_rdma_vmm`). `throttle`: reasons that lower its clocks now.
    """

    id: str
    name: str = ""
    bus_id: str | None = None
    numa: int | None = None
    cpus: str | None = None
    compute_capability: tuple[int, int] | None = None
    memory_mib: int | None = None
    bar1_mib: int | None = None
    nvlinks: int | None = None
    nvlink_gbps: float | None = None
    throttle: tuple[str, ...] | None = None
    processes: int | None = None
    mig: bool | None = None
    multicast: bool | None = None
    handle_types: tuple[str, ...] | None = None


@record
class Pair:
    """How GPU `a` reaches GPU `b` (directed). `relation` is one of `RELATIONS`; `nvlinks`: bonded links.

    `fabric` is what those links are (`NVLink`, `XGMI`).
    read, write, atomics, p2p_nvlink, p2p_pcie: the driver's own status word (`OK`, `CNS`, `GNS`, `TNS`,
    `NS`, `DR`, `U`).
    """

    a: str
    b: str
    relation: str | None = None
    nvlinks: int = 0
    fabric: str = "NVLink"
    read: str | None = None
    write: str | None = None
    atomics: str | None = None
    p2p_nvlink: str | None = None
    p2p_pcie: str | None = None


@record
class Limits:
    """What the operating system grants; None where it could not be read."""

    cpus: int | None = None
    cpu_vendor: str | None = None
    cpus_allowed: str | None = None
    numa_nodes: int | None = None
    iommu: str | None = None  # `off`, `passthrough`, `translating`
    shm_bytes: int | None = None
    shm_free_bytes: int | None = None
    memlock_bytes: int | None = None  # -1: unlimited
    container: bool | None = None
    virtual_machine: bool | None = None
    driver: str | None = None
    kernel: str | None = None


@record
class PathProbe:
    """What moving data from GPU `a` to GPU `b` showed.

    `correct`: every word arrived; `staged`: the driver copied through system memory although peer
    access is reported; rates in GB/s; `status` is `ok`, `skipped` or `failed`, `detail` why.
    """

    a: str
    b: str
    status: str
    detail: str = ""
    correct: bool | None = None
    staged: bool | None = None
    peer_gbps: float | None = None
    host_gbps: float | None = None


@record
class LinkUnderLoad:
    """One GPU's PCIe link while data moved over it."""

    gpu: str
    gen: int | None = None
    width: int | None = None


@record
class Box:
    """One machine as one source saw it.

    `live`: it is the machine this runs on, so that limits and environment speak of it. `env` holds only
    variables that change how reduces behave. `unknown` pairs a subject with why nothing is known of it.
    """

    source: str
    live: bool = False
    places: tuple[Place, ...] = ()
    gpus: tuple[GpuFacts, ...] = ()
    pairs: tuple[Pair, ...] = ()
    limits: Limits = Limits()
    env: tuple[tuple[str, str], ...] = ()
    probes: tuple[PathProbe, ...] = ()
    under_load: tuple[LinkUnderLoad, ...] = ()
    unknown: tuple[tuple[str, str], ...] = ()

    def pair(self, a: str, b: str) -> Pair | None:
        """The facts of `a` reaching `b`, None when nothing is known."""
        return next((p for p in self.pairs if p.a == a and p.b == b), None)

    def place(self, place_id: str) -> Place | None:
        """The place of that id."""
        return next((p for p in self.places if p.id == place_id), None)


def ancestors(box: Box, place_id: str) -> tuple[Place, ...]:
    """The places above one, nearest first; a cycle in bad input ends the walk."""
    by_id = {p.id: p for p in box.places}
    found: list[Place] = []
    seen = {place_id}
    current = by_id.get(place_id)
    while current is not None and current.parent is not None and current.parent not in seen:
        seen.add(current.parent)
        current = by_id.get(current.parent)
        if current is not None:
            found.append(current)
    return tuple(found)


def _numa_differs(box: Box, a: str, b: str) -> bool:
    nodes = [place.numa if (place := box.place(i)) else None for i in (a, b)]
    return None not in nodes and nodes[0] != nodes[1]


def relation_in_tree(box: Box, a: str, b: str) -> str | None:
    """The relation that the tree implies for two devices, None when either has no known parent.

    Nearest common place: a switch gives PIX (PXB when another switch lies between), a root port PIX, a
    host bridge PHB, a socket NODE (SYS between its NUMA nodes), none SYS; this follows nvidia-smi's legend.
    """
    above_a, above_b = ancestors(box, a), ancestors(box, b)
    if not above_a or not above_b:
        return None
    ids_b = {p.id: i for i, p in enumerate(above_b)}
    for hops_a, place in enumerate(above_a):
        if place.id in ids_b:
            if place.kind in ("switch", "root_port"):
                return "PIX" if hops_a == 0 and ids_b[place.id] == 0 else "PXB"
            if place.kind == "host_bridge":
                return "PHB"
            return "SYS" if _numa_differs(box, a, b) else "NODE"
    if above_a[-1].kind == "socket" and above_b[-1].kind == "socket":
        return "SYS"
    return None
