"""What the CUDA driver says of devices: attributes only, no context, no memory, no multicast object."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from arfloor.core import pci

_HANDLES = {
    "posix_fd": "CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED",
    "fabric": "CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED",
    "gpu_direct_rdma_vmm": "CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED",
}
_MANAGED = "CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED"


@dataclass(frozen=True, slots=True, kw_only=True)
class CudaFacts:
    """One device: its bus id, whether NVLink multicast is supported, and how cuMemCreate memory is shared."""

    bus_id: str
    name: str
    compute_capability: tuple[int, int] | None
    multicast: bool | None
    handle_types: tuple[str, ...] | None
    peers: tuple[str, ...]


class CudaFactsError(Exception):
    """The driver could not be asked; the message says why."""


def read(driver: Any) -> tuple[CudaFacts, ...]:
    """Ask `driver` (the module `cuda.bindings.driver`). Raises CudaFactsError when there is no driver."""
    try:
        _value(driver.cuInit(0))
        count = int(_value(driver.cuDeviceGetCount()))
        devices = [_value(driver.cuDeviceGet(i)) for i in range(count)]
        buses = [_bus(driver, d) for d in devices]
    except (RuntimeError, OSError) as error:
        raise CudaFactsError(str(error)) from error
    return tuple(_facts(driver, device, devices, buses) for device in devices)


def _value(answer: Any) -> Any:
    status, *values = answer if isinstance(answer, tuple) else (answer,)
    if int(status) != 0:
        raise RuntimeError(f"CUDA says {getattr(status, 'name', status)}")
    return values[0] if values else None


def _bus(driver: Any, device: Any) -> str:
    raw = _value(driver.cuDeviceGetPCIBusId(32, device))
    text = raw.split(b"\0")[0].decode() if isinstance(raw, bytes) else str(raw)
    return pci.bus_id(text) or text


def _flag(driver: Any, name: str, device: Any) -> bool | None:
    attribute = getattr(driver.CUdevice_attribute, name, None)
    if attribute is None:
        return None
    try:
        return bool(_value(driver.cuDeviceGetAttribute(attribute, device)))
    except RuntimeError:
        return None


def _facts(driver: Any, device: Any, devices: list[Any], buses: list[str]) -> CudaFacts:
    handles = {name: _flag(driver, attribute, device) for name, attribute in _HANDLES.items()}
    managed = _flag(driver, _MANAGED, device)
    known = managed is not None and any(v is not None for v in handles.values())
    peers = []
    for other, bus in zip(devices, buses, strict=True):
        try:
            if other is not device and _value(driver.cuDeviceCanAccessPeer(device, other)):
                peers.append(bus)
        except RuntimeError:
            continue
    return CudaFacts(
        bus_id=_bus(driver, device),
        name=_name(driver, device),
        compute_capability=_capability(driver, device),
        multicast=_flag(driver, "CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED", device),
        handle_types=tuple(n for n, v in handles.items() if v and managed) if known else None,
        peers=tuple(peers),
    )


def _name(driver: Any, device: Any) -> str:
    raw = _value(driver.cuDeviceGetName(128, device))
    return raw.split(b"\0")[0].decode(errors="replace") if isinstance(raw, bytes) else str(raw)


def _capability(driver: Any, device: Any) -> tuple[int, int] | None:
    kinds = driver.CUdevice_attribute
    try:
        major = _value(
            driver.cuDeviceGetAttribute(kinds.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, device)
        )
        minor = _value(
            driver.cuDeviceGetAttribute(kinds.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, device)
        )
    except RuntimeError:
        return None
    return int(major), int(minor)
