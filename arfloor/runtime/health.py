"""The state of the GPUs while something is timed, and the bytes their links carried, from NVML.

Every reading may be missing (no driver, a virtual machine, a consumer card): a missing value is None
and makes no claim. Needs nvidia-ml-py; without it everything is None.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, TypeVar

from arfloor.core.cases import record

T = TypeVar("T")

# reasons that take speed away from a GPU that works; idling and set clocks do not count
THROTTLES = {
    "SwPowerCap": "power cap",
    "HwSlowdown": "hardware slowdown",
    "SwThermalSlowdown": "temperature",
    "HwThermalSlowdown": "temperature (hardware)",
    "HwPowerBrakeSlowdown": "power brake",
}
# clocks that move by more than this between two readings under load disturb a comparison
CLOCK_SPREAD = 0.05


@record
class Reading:
    """One look at a GPU, right after it worked."""

    sm_mhz: int | None = None
    memory_mhz: int | None = None
    power_w: float | None = None
    temperature_c: int | None = None
    throttles: tuple[str, ...] = ()
    pcie_generation: int | None = None
    pcie_width: int | None = None
    pcie_generation_max: int | None = None
    pcie_width_max: int | None = None


@record
class LinkBytes:
    """Totals since some moment in the past, in bytes; None where NVML does not count."""

    pcie_tx: int | None = None
    pcie_rx: int | None = None
    nvlink_tx: int | None = None
    nvlink_rx: int | None = None


def marks_of(readings: Sequence[Reading]) -> tuple[str, ...]:
    """What disturbed a measurement, in words; empty when nothing is known to have. Pure."""
    marks: list[str] = []
    for name in dict.fromkeys(t for r in readings for t in r.throttles):
        marks.append(f"throttled: {THROTTLES.get(name, name)}")
    clocks = [r.sm_mhz for r in readings if r.sm_mhz]
    if clocks and max(clocks) - min(clocks) > CLOCK_SPREAD * max(clocks):
        marks.append(f"clocks moved: {min(clocks)} to {max(clocks)} MHz")
    widths = {r.pcie_width for r in readings if r.pcie_width}
    generations = {r.pcie_generation for r in readings if r.pcie_generation}
    if len(widths) > 1 or len(generations) > 1:
        marks.append("link changed while measuring")
    for r in readings[-1:]:
        if r.pcie_width and r.pcie_width_max and r.pcie_width < r.pcie_width_max:
            marks.append(f"link x{r.pcie_width} of x{r.pcie_width_max}")
    return tuple(marks)


def moved(before: LinkBytes, after: LinkBytes, operations: int) -> dict[str, float]:
    """Bytes an operation by counter, for the counters present in both. Pure.

    NVML says of the PCIe counters that they may wrap; they do at 2^32, after which a reading is the
    smaller one. So at most 4 GiB may pass between the two readings.
    """
    if operations < 1:
        raise ValueError(f"moved: expected at least one operation, got {operations}")
    names = ("pcie_tx", "pcie_rx", "nvlink_tx", "nvlink_rx")
    pairs = {name: (getattr(before, name), getattr(after, name)) for name in names}
    return {
        n: (b - a if b >= a or not n.startswith("pcie") else b - a + 2**32) / operations
        for n, (a, b) in pairs.items()
        if a is not None and b is not None
    }


@lru_cache(maxsize=1)
def _nvml() -> Any | None:
    try:
        import pynvml
    except ImportError:
        return None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return None
    return pynvml


@lru_cache(maxsize=64)
def _handle(ordinal: int) -> Any | None:
    """NVML's handle of a visible CUDA device, found by its PCI address (the orders may differ)."""
    nvml = _nvml()
    if nvml is None:
        return None
    try:
        from cuda.bindings import driver

        from arfloor.runtime.jit import checked

        checked(driver.cuInit(0))  # of the driver alone: asking must not make a context
        raw = checked(driver.cuDeviceGetPCIBusId(32, checked(driver.cuDeviceGet(ordinal))))
        bus = (raw if isinstance(raw, bytes) else str(raw).encode()).split(b"\0")[0]
        return nvml.nvmlDeviceGetHandleByPciBusId(bus)
    except Exception:  # noqa: BLE001 - whatever is missing, there is no handle
        return None


def _read(query: Callable[[], T]) -> T | None:
    try:
        return query()
    except Exception:  # noqa: BLE001 - NVML raises one class an error, and a field may not exist
        return None


def read(ordinal: int) -> Reading:
    """Look at a device now; fields that NVML does not give are None."""
    nvml, gpu = _nvml(), _handle(ordinal)
    if nvml is None or gpu is None:
        return Reading()
    bits = _read(lambda: int(nvml.nvmlDeviceGetCurrentClocksThrottleReasons(gpu))) or 0
    power = _read(lambda: float(nvml.nvmlDeviceGetPowerUsage(gpu)))
    return Reading(
        sm_mhz=_read(lambda: int(nvml.nvmlDeviceGetClockInfo(gpu, nvml.NVML_CLOCK_SM))),
        memory_mhz=_read(lambda: int(nvml.nvmlDeviceGetClockInfo(gpu, nvml.NVML_CLOCK_MEM))),
        power_w=None if power is None else power / 1e3,
        temperature_c=_read(lambda: int(nvml.nvmlDeviceGetTemperature(gpu, nvml.NVML_TEMPERATURE_GPU))),
        throttles=tuple(
            name for name in THROTTLES if bits & int(getattr(nvml, f"nvmlClocksThrottleReason{name}", 0))
        ),
        pcie_generation=_read(lambda: int(nvml.nvmlDeviceGetCurrPcieLinkGeneration(gpu))),
        pcie_width=_read(lambda: int(nvml.nvmlDeviceGetCurrPcieLinkWidth(gpu))),
        pcie_generation_max=_read(lambda: int(nvml.nvmlDeviceGetMaxPcieLinkGeneration(gpu))),
        pcie_width_max=_read(lambda: int(nvml.nvmlDeviceGetMaxPcieLinkWidth(gpu))),
    )


def link_bytes(ordinal: int) -> LinkBytes:
    """Byte counters of a device's links; None where a card has none."""
    nvml, gpu = _nvml(), _handle(ordinal)
    if nvml is None or gpu is None:
        return LinkBytes()

    def field(name: str, scale: int, scope: int = 0) -> int | None:
        number = getattr(nvml, name, None)
        if number is None:
            return None
        values = _read(lambda: nvml.nvmlDeviceGetFieldValues(gpu, [(number, scope)]))
        if not values or values[0].nvmlReturn != 0:
            return None
        return int(values[0].value.ullVal) * scale

    every_link = 0xFFFFFFFF
    return LinkBytes(
        pcie_tx=field("NVML_FI_DEV_PCIE_COUNT_TX_BYTES", 1),
        pcie_rx=field("NVML_FI_DEV_PCIE_COUNT_RX_BYTES", 1),
        nvlink_tx=field("NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX", 1024, every_link),
        nvlink_rx=field("NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX", 1024, every_link),
    )


def driver_version() -> str | None:
    """The driver's version, or None."""
    nvml = _nvml()
    if nvml is None:
        return None
    found = _read(nvml.nvmlSystemGetDriverVersion)
    return found.decode() if isinstance(found, bytes) else found


def nvlink_between_all(world: int) -> bool:
    """Whether every pair of the first `world` visible devices is joined by NVLink, as NVML says."""
    nvml = _nvml()
    handles = [_handle(i) for i in range(world)]
    if nvml is None or any(h is None for h in handles):
        return False
    for a in range(world):
        for b in range(a + 1, world):
            status = _read(
                lambda x=a, y=b: nvml.nvmlDeviceGetP2PStatus(  # type: ignore[misc]
                    handles[x], handles[y], nvml.NVML_P2P_CAPS_INDEX_NVLINK
                )
            )
            if status != 0:
                return False
    return True


def link_of(world: int, path: str) -> str:
    """`nvlink` or `pcie`: what carries a path between the first `world` devices."""
    return "nvlink" if path == "peer" and nvlink_between_all(world) else "pcie"


def close() -> None:
    """Forget handles and shut NVML down; a later call starts it again."""
    nvml = _nvml()
    _handle.cache_clear()
    _nvml.cache_clear()
    if nvml is not None:
        with contextlib.suppress(Exception):
            nvml.nvmlShutdown()
