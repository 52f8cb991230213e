"""NCCL's own model of an all-reduce inside one box: base latency + steps x hop latency + bytes / bandwidth.

This is the model that NCCL chooses algorithm and protocol by, and that it prints with
NCCL_DEBUG_SUBSYS=TUNING; constants and corrections are those of NCCL 2.25 to 2.29 (src/graph/tuning.cc
and topo.h of github.com/NVIDIA/nccl; older versions give LL half as much). It describes what NCCL
believes, which a measurement may refute.
"""

from __future__ import annotations

from typing import Literal

from arfloor.core.nccl_log import Cell, TuningTable

Hardware = Literal["nvlink", "pci"]
PROTOCOLS = ("LL", "LL128", "SIMPLE")

# us; base of an operation, then each hop, by algorithm, in the order LL, LL128, Simple
_BASE_US = {"TREE": (6.8, 14.0, 8.4), "RING": (6.6, 14.0, 8.4)}
_HOP_US: dict[Hardware, dict[str, tuple[float, float, float]]] = {
    "nvlink": {"TREE": (0.6, 1.25, 4.0), "RING": (0.6, 1.9, 3.4)},
    "pci": {"TREE": (1.0, 1.9, 4.0), "RING": (1.0, 2.5, 5.7)},
}
# GB/s in one box, by generation (Volta, Ampere, Hopper, Blackwell)
_LL_MAX = (39.0, 87.7, 141.0, 282.0)
_RING_LL128_PER_CHANNEL = (20.0, 20.0, 36.7, 40.0)
_TREE_LL128_PER_CHANNEL = (20.0, 20.0, 36.7, 55.6)
_TREE_PER_CHANNEL = (26.5, 24.0, 38.7, 70.0)

# What part of its bandwidth NCCL gives Tree, by power of two from 64 B
_TREE_EFFICIENCY = {
    "LL": "1 1 1 1 .9 .8 .7 .7 .7 .7 .6 .5 .4 .4 .5 .6 .7 .8 .9 1 1 1 1",
    "LL128": "1 1 1 1 1 .9 .8 .8 .8 .7 .6 .6 .6 .6 .6 .6 .8 .9 .9 .9 .9 1 1",
    "SIMPLE": ".9 .9 .9 .9 .9 .9 .9 .8 .7 .6 .6 .5 .5 .5 .5 .6 .7 .8 .7 .7 .8 .9 .9",
}
_EFFICIENCY = {p: tuple(float(f) for f in text.split()) for p, text in _TREE_EFFICIENCY.items()}

# GB/s that NCCL's topology assumes of an x16 link one way: 12 for Gen3, doubled by generation
PCI_GEN3_X16_GBPS = 12.0


def pci_graph_gbps(gen: int, width: int = 16) -> float:
    """What NCCL's graph takes a PCIe link to carry, GB/s one way. Raises ValueError below generation 1."""
    if gen < 1 or width < 1:
        raise ValueError(
            f"pci_graph_gbps: expected a generation and width of at least 1, found {gen} x{width}"
        )
    return PCI_GEN3_X16_GBPS * 2.0 ** (gen - 3) * width / 16


def nccl_table(
    *,
    world: int,
    hardware: Hardware,
    channels: int,
    channel_gbps: float,
    compute_capability: tuple[int, int],
    tree_channel_gbps: float | None = None,
    ll128: bool = False,
) -> TuningTable:
    """The table NCCL computes for all-reduce on one node of `world` ranks.

    `channels` x `channel_gbps` is the bandwidth of the ring graph it found; the tree graph has as many
    channels, of `tree_channel_gbps` where that differs. LL128 is on by default only over NVLink on
    Volta to Hopper. Raises ValueError for fewer than two ranks.
    """
    if world < 2:
        raise ValueError(f"nccl_table: expected at least 2 ranks, found {world}")
    generation = sum(compute_capability >= first for first in ((8, 0), (9, 0), (10, 0)))
    each = {"RING": channel_gbps, "TREE": tree_channel_gbps or channel_gbps}
    cells: dict[tuple[str, str, str], Cell] = {}
    for algorithm in ("TREE", "RING"):
        for index, protocol in enumerate(PROTOCOLS):
            if protocol == "LL128" and not ll128:
                continue
            bus = _bus_gbps(algorithm, protocol, channels, each[algorithm], generation)
            steps = 2 * (world - 1)
            share = world / steps if algorithm == "RING" else 0.5
            latency = _BASE_US[algorithm][index] + steps * _HOP_US[hardware][algorithm][index]
            cells["AllReduce", algorithm, protocol] = Cell(latency_us=latency, bandwidth_gbps=bus * share)
    return TuningTable(cells=cells)


def _bus_gbps(algorithm: str, protocol: str, channels: int, channel_gbps: float, generation: int) -> float:
    bus = channels * channel_gbps
    if algorithm == "RING":
        if protocol == "LL":
            return min(_LL_MAX[generation], bus / 2)
        if protocol == "LL128":
            return min(bus * 0.92, channels * _RING_LL128_PER_CHANNEL[generation])
        return bus
    bus = min(bus * 0.92, channels * _TREE_PER_CHANNEL[generation])
    if protocol == "LL":
        bus = min(bus / 3.8, _LL_MAX[generation])
    if protocol == "LL128":
        bus = min(bus * 7 / 9, channels * _TREE_LL128_PER_CHANNEL[generation])
    return bus


def nccl_time_us(table: TuningTable, algorithm: str, protocol: str, nbytes: int) -> float | None:
    """NCCL's estimate of one all-reduce in us, Tree's efficiency included; None where it is not allowed."""
    cell = table.cells.get(("AllReduce", algorithm, protocol))
    if cell is None or cell.bandwidth_gbps <= 0:
        return None
    gbps = cell.bandwidth_gbps
    power = max(0, (nbytes >> 6).bit_length() - 1)
    if algorithm == "TREE" and power < len(_EFFICIENCY[protocol]):
        gbps *= _EFFICIENCY[protocol][power]
    return cell.latency_us + nbytes / (1000 * gbps)


def nccl_pick(table: TuningTable, nbytes: int) -> tuple[str, str, float]:
    """Algorithm, protocol and estimate in us that NCCL would choose. Raises ValueError on an empty table."""
    options = [
        (us, algorithm, protocol)
        for _, algorithm, protocol in table.cells
        if (us := nccl_time_us(table, algorithm, protocol, nbytes)) is not None
    ]
    if not options:
        raise ValueError("nccl_pick: expected a table with at least one allowed algorithm, found none")
    us, algorithm, protocol = min(options)
    return algorithm, protocol, us
