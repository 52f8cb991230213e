"""The conditions on which engines gate their fast all-reduces, asked of a box's facts.

Answers are three-valued: None where the box does not know.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import permutations

from arfloor.core.box import Box, GpuFacts, Pair
from arfloor.core.cases import record


class View:
    """The first `world` GPUs of a box: three-valued facts, None where the box does not know."""

    def __init__(self, box: Box, world: int) -> None:
        self.box = box
        self.world = world
        self.gpus: tuple[GpuFacts, ...] = box.gpus[:world]
        ids = [g.id for g in self.gpus]
        self.pairs = [box.pair(a, b) for a, b in permutations(ids, 2)]

    def every_pair(self, told: Callable[[Pair], bool | None]) -> bool | None:
        return _all([None if p is None else told(p) for p in self.pairs])

    def every_gpu(self, told: Callable[[GpuFacts], bool | None]) -> bool | None:
        return _all([told(g) for g in self.gpus])

    @property
    def nvlink(self) -> bool | None:
        return self.every_pair(lambda p: True if p.nvlinks else (False if p.relation else None))

    @property
    def p2p(self) -> bool | None:
        # who pastes `topo -p2p r` alone says nothing of writes: they are taken to be alike
        return self.every_pair(lambda p: _all([_ok(p.read), _ok(p.write or p.read)]))

    @property
    def multicast(self) -> bool | None:
        return False if self.nvlink is False else self.every_gpu(lambda g: g.multicast)

    def capability(self, *allowed: tuple[int, int]) -> bool | None:
        return self.every_gpu(
            lambda g: None if g.compute_capability is None else g.compute_capability in allowed
        )

    def handle(self, *names: str) -> bool | None:
        return self.every_gpu(
            lambda g: None if g.handle_types is None else any(n in g.handle_types for n in names)
        )

    def env(self, name: str) -> str | None:
        return dict(self.box.env).get(name)


def _all(values: list[bool | None]) -> bool | None:
    """Three-valued and: False decides, then None."""
    if False in values:
        return False
    return None if None in values else True


def _ok(status: str | None) -> bool | None:
    return None if status in (None, "U") else status == "OK"


@record
class Gate:
    """A condition on a box, and in words what it `needs`; None from `holds`: the box does not know.

    `code` is the reason (`arfloor.core.reasons`) of a case that it refuses; `remedy` says what a user can set
    where it does not hold, or nothing.
    """

    holds: Callable[[View], bool | None]
    needs: str
    code: str = "prepare_failed"
    remedy: Callable[[View], str] = lambda view: ""


def worlds(*allowed: int) -> Gate:
    """Only these numbers of ranks."""
    listed = ", ".join(map(str, allowed[:-1])) + f" or {allowed[-1]}" if len(allowed) > 1 else str(allowed[0])
    return Gate(holds=lambda v: v.world in allowed, needs=f"{listed} ranks", code="world_size")


P2P = Gate(holds=lambda v: v.p2p, needs="peer access (read and write) between all GPUs", code="needs_p2p")
NVLINK = Gate(holds=lambda v: v.nvlink, needs="NVLink between all GPUs", code="needs_nvlink")
NVLINK_OVER_TWO = Gate(
    holds=lambda v: True if v.world == 2 else v.nvlink,
    needs="NVLink between all GPUs when there are more than two",
    code="needs_nvlink",
)
MULTICAST = Gate(holds=lambda v: v.multicast, needs="NVLink multicast", code="needs_multicast")
TORCH_MULTICAST = Gate(
    holds=lambda v: v.env("TORCH_SYMM_MEM_DISABLE_MULTICAST") not in ("1", "true", "TRUE"),
    needs="TORCH_SYMM_MEM_DISABLE_MULTICAST not set",
)
HANDLES = Gate(
    holds=lambda v: v.handle("posix_fd", "fabric"),
    needs="cuMemCreate memory that can be shared (file descriptor or fabric handle)",
)
GPU_DIRECT_RDMA = Gate(
    holds=lambda v: v.handle("gpu_direct_rdma_vmm"),
    needs="cuMemCreate memory capable of GPUDirect RDMA",
)


def not_off(variable: str) -> Gate:
    """The environment must not set the variable to 0."""
    return Gate(holds=lambda v: v.env(variable) != "0", needs=f"{variable} not set to 0")


# NCCL's own distances: it knows no NODE, and takes the numbers of old versions
_NCCL_DISTANCE = {"LOC": 0, "NVL": 1, "PIX": 2, "PXB": 3, "PHB": 4, "NODE": 4, "SYS": 5}
_NCCL_OLD_LEVELS = ("LOC", "PIX", "PXB", "PHB", "SYS", "SYS")


def nccl_p2p_level(view: View) -> bool | None:
    """Whether NCCL's default (PXB; SYS for at most two GPUs under an AMD CPU) lets every pair use P2P.

    The GPUs that count are the communicator's: each process adds its own to NCCL's topology, and branches
    without one are cut (src/graph/topo.cc ncclTopoGetSystem, v2.30.7-1).
    """
    if view.env("NCCL_P2P_DISABLE") == "1":
        return False
    level = (view.env("NCCL_P2P_LEVEL") or "").upper()
    level = _NCCL_OLD_LEVELS[int(level)] if level in ("0", "1", "2", "3", "4", "5") else level
    vendor, few = view.box.limits.cpu_vendor, view.world <= 2
    open_question = level not in _NCCL_DISTANCE and few and vendor is None
    if level not in _NCCL_DISTANCE:
        level = "SYS" if few and vendor == "AuthenticAMD" else "PXB"

    def near(pair: Pair) -> bool | None:
        name = "NVL" if pair.nvlinks else pair.relation
        if name is None:
            return None
        within = _NCCL_DISTANCE[name] <= _NCCL_DISTANCE[level]
        return None if open_question and not within else within

    return view.every_pair(near)


def nccl_p2p_remedy(view: View) -> str:
    """The setting with which NCCL uses P2P however far apart the GPUs are, and what is known of P2P there."""
    setting = "unset NCCL_P2P_DISABLE" if view.env("NCCL_P2P_DISABLE") == "1" else "NCCL_P2P_LEVEL=SYS"
    if view.p2p is None:
        return f"{setting} (whether P2P works between these GPUs is not known here)"
    return f"{setting} (the driver reports P2P for every pair)" if view.p2p else ""
