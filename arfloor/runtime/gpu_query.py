"""What the GPUs are, asked of the driver without making a context: a supervisor must stay off them."""

from __future__ import annotations

from typing import Any

from arfloor.runtime import health
from arfloor.runtime.jit import JitError, checked


def gpu_facts(world: int) -> dict[str, Any]:
    """Facts about the first `world` visible GPUs, JSON-able; empty when there are fewer, or no driver.

    name, capability [major, minor], multiprocessors; `p2p` and `peer_atomics`: every pair can address
    each other's memory, and with atomics; `nvlink`: every pair is joined by NVLink; `driver`: version.
    """
    try:
        from cuda.bindings import driver
    except (ImportError, RuntimeError, OSError):
        return {}
    try:
        checked(driver.cuInit(0))
        if int(checked(driver.cuDeviceGetCount())) < world:
            return {}
        gpus = [checked(driver.cuDeviceGet(i)) for i in range(world)]
        return _facts(driver, gpus)
    except (JitError, RuntimeError):
        return {}


def _facts(driver: Any, gpus: list[Any]) -> dict[str, Any]:
    of = driver.CUdevice_attribute
    pair = driver.CUdevice_P2PAttribute

    def attribute(name: str) -> int:
        return int(checked(driver.cuDeviceGetAttribute(getattr(of, f"CU_DEVICE_ATTRIBUTE_{name}"), gpus[0])))

    def every_pair(name: str) -> bool:
        which = getattr(pair, f"CU_DEVICE_P2P_ATTRIBUTE_{name}")
        return all(
            bool(checked(driver.cuDeviceGetP2PAttribute(which, a, b)))
            for a in gpus
            for b in gpus
            if a is not b
        )

    raw = checked(driver.cuDeviceGetName(128, gpus[0]))
    name = raw.split(b"\0")[0].decode() if isinstance(raw, bytes) else str(raw)
    return {
        "name": name.strip("\0"),
        "capability": [attribute("COMPUTE_CAPABILITY_MAJOR"), attribute("COMPUTE_CAPABILITY_MINOR")],
        "multiprocessors": attribute("MULTIPROCESSOR_COUNT"),
        "p2p": every_pair("ACCESS_SUPPORTED"),
        "peer_atomics": every_pair("NATIVE_ATOMIC_SUPPORTED"),
        "nvlink": health.nvlink_between_all(len(gpus)),
        "driver": health.driver_version() or "",
    }
