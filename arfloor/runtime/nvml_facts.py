"""What NVIDIA's management library says of the GPUs and of the ways between them.

`nvml` is the module `pynvml` or one that behaves like it. A question that a GPU or an older driver does
not answer is None, never an error.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from arfloor.core import pci
from arfloor.core.box import GpuFacts, Pair, PciLink

_MAX_NVLINKS = 36
# bits of the clocks event reasons that lower clocks (nvml.h: nvmlClocksEventReason*)
_THROTTLE = {
    0x4: "power cap",
    0x8: "hardware slowdown",
    0x10: "sync boost",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "hardware power brake",
}
_STATUS = {0: "OK", 1: "CNS", 2: "GNS", 3: "TNS", 4: "DR", 5: "NS", 6: "U"}
# nvmlGpuTopologyLevel_t
_LEVELS = {10: "PIX", 20: "PXB", 30: "PHB", 40: "NODE", 50: "SYS"}


@dataclass(frozen=True, slots=True, kw_only=True)
class NvmlFacts:
    """GPUs in NVML's order, their links by id, the directed pairs, and the driver's version."""

    gpus: tuple[GpuFacts, ...]
    links: dict[str, PciLink]
    pairs: tuple[Pair, ...]
    driver: str | None


class NvmlError(Exception):
    """NVML could not be started; the message says why."""


def read(nvml: Any) -> NvmlFacts:
    """Ask NVML everything that a diagnosis needs. Raises NvmlError when it does not start."""
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        raise NvmlError(str(error)) from error
    try:
        count = _ask(nvml, nvml.nvmlDeviceGetCount) or 0
        handles = [_ask(nvml, nvml.nvmlDeviceGetHandleByIndex, i) for i in range(count)]
        present = [(f"GPU{i}", h) for i, h in enumerate(handles) if h is not None]
        gpus = tuple(_gpu(nvml, name, handle) for name, handle in present)
        links = {name: _link(nvml, handle) for name, handle in present}
        wires = {name: _nvlinks(nvml, handle) for name, handle in present}
        pairs = tuple(
            _pair(nvml, (a, ha), (b, hb), wires) for a, ha in present for b, hb in present if a != b
        )
        return NvmlFacts(gpus=gpus, links=links, pairs=pairs, driver=_text(_driver(nvml)))
    finally:
        _ask(nvml, nvml.nvmlShutdown)


def _driver(nvml: Any) -> Any:
    return _ask(nvml, nvml.nvmlSystemGetDriverVersion)


def _ask(nvml: Any, question: Callable[..., Any] | None, *args: Any) -> Any:
    """The answer, or None when NVML knows none (not supported, no permission, an older library)."""
    if question is None:
        return None
    try:
        return question(*args)
    except (nvml.NVMLError, AttributeError, TypeError, ValueError, OSError):
        return None


def _named(nvml: Any, handle: Any, *names: str) -> Any:
    """The first answer among functions that renamed over time."""
    for name in names:
        answer = _ask(nvml, getattr(nvml, name, None), handle)
        if answer is not None:
            return answer
    return None


def _text(value: Any) -> str | None:
    if value is None:
        return None
    return (value.decode(errors="replace") if isinstance(value, bytes) else str(value)).split("\0")[0]


def _gpu(nvml: Any, name: str, handle: Any) -> GpuFacts:
    capability = _named(nvml, handle, "nvmlDeviceGetCudaComputeCapability")
    memory = _named(nvml, handle, "nvmlDeviceGetMemoryInfo")
    bar1 = _named(nvml, handle, "nvmlDeviceGetBAR1MemoryInfo")
    reasons = _named(
        nvml, handle, "nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons"
    )
    processes = _named(nvml, handle, "nvmlDeviceGetComputeRunningProcesses")
    mig = _named(nvml, handle, "nvmlDeviceGetMigMode")
    wires = _nvlinks(nvml, handle)
    return GpuFacts(
        id=name,
        name=_text(_named(nvml, handle, "nvmlDeviceGetName")) or "",
        bus_id=_bus_id(nvml, handle),
        compute_capability=(int(capability[0]), int(capability[1])) if capability else None,
        memory_mib=int(memory.total) >> 20 if memory is not None else None,
        bar1_mib=int(bar1.bar1Total) >> 20 if bar1 is not None else None,
        nvlinks=len(wires),
        throttle=None if reasons is None else tuple(t for bit, t in _THROTTLE.items() if int(reasons) & bit),
        processes=None if processes is None else len(processes),
        mig=None if mig is None else bool(mig[0]),
    )


def _bus_id(nvml: Any, handle: Any) -> str | None:
    info = _named(nvml, handle, "nvmlDeviceGetPciInfo_v3", "nvmlDeviceGetPciInfo")
    return pci.bus_id(_text(info.busId) or "") if info is not None else None


def _link(nvml: Any, handle: Any) -> PciLink:
    def number(name: str) -> int | None:
        value = _named(nvml, handle, name)
        return int(value) if value else None

    return PciLink(
        gen=number("nvmlDeviceGetCurrPcieLinkGeneration"),
        width=number("nvmlDeviceGetCurrPcieLinkWidth"),
        gen_max=number("nvmlDeviceGetMaxPcieLinkGeneration"),
        width_max=number("nvmlDeviceGetMaxPcieLinkWidth"),
    )


def _nvlinks(nvml: Any, handle: Any) -> list[str]:
    """The bus id at the far end of each active NVLink, `switch` where it is a switch or is not told."""
    found = []
    for number in range(_MAX_NVLINKS):
        if _ask(nvml, getattr(nvml, "nvmlDeviceGetNvLinkState", None), handle, number) != 1:
            continue
        kind = _ask(nvml, getattr(nvml, "nvmlDeviceGetNvLinkRemoteDeviceType", None), handle, number)
        far = _ask(nvml, getattr(nvml, "nvmlDeviceGetNvLinkRemotePciInfo", None), handle, number)
        bus = pci.bus_id(_text(far.busId) or "") if far is not None else None
        found.append(bus if bus is not None and kind in (None, 0) else "switch")
    return found


def _pair(nvml: Any, one: tuple[str, Any], other: tuple[str, Any], wires: dict[str, list[str]]) -> Pair:
    a, handle_a = one
    b, handle_b = other

    def status(capability: int) -> str | None:
        question = getattr(nvml, "nvmlDeviceGetP2PStatus", None)
        code = _ask(nvml, question, handle_a, handle_b, capability)
        return None if code is None else _STATUS.get(int(code), "U")

    level = _ask(nvml, getattr(nvml, "nvmlDeviceGetTopologyCommonAncestor", None), handle_a, handle_b)
    over_nvlink = status(2)
    return Pair(
        a=a,
        b=b,
        relation=None if level is None else _LEVELS.get(int(level)),
        nvlinks=_bonded(nvml, wires, (a, handle_a), (b, handle_b), over_nvlink),
        read=status(0),
        write=status(1),
        p2p_nvlink=over_nvlink,
        atomics=status(3),
        p2p_pcie=status(4),
    )


def _bonded(
    nvml: Any,
    wires: dict[str, list[str]],
    one: tuple[str, Any],
    other: tuple[str, Any],
    over_nvlink: str | None,
) -> int:
    """NVLinks that join two GPUs: direct ones, else all of the lesser when both hang off switches.

    In a virtual machine the far end of a direct link may not be told; then the driver's word that the pair
    talks over NVLink lets all links count.
    """
    direct = wires[one[0]].count(_bus_id(nvml, other[1]) or "?")
    if direct:
        return direct
    if over_nvlink not in (None, "OK"):
        return 0
    return min(wires[one[0]].count("switch"), wires[other[0]].count("switch"))
