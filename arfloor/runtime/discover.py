"""The box this runs on: sysfs for the tree, NVML and the CUDA driver (in a child process) for the GPUs.

Every source can be missing: then its facts are None and the box says why. `root` and `ask` are there so
that a test can hand in a file tree and answers of its own.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from arfloor.core import env_effects
from arfloor.core.box import Box, GpuFacts, Pair, PciLink, Place, relation_in_tree
from arfloor.runtime import sysfs
from arfloor.runtime.child import ChildError, run_module
from arfloor.runtime.cuda_facts import CudaFacts
from arfloor.runtime.nvml_facts import NvmlFacts

FACTS_SECONDS = 20.0

Ask = Callable[[], Mapping[str, Any]]


def ask_libraries() -> Mapping[str, Any]:
    """NVML's and CUDA's facts from a child process. Raises ChildError when it dies or hangs."""
    found: Mapping[str, Any] = json.loads(run_module("arfloor.runtime.gpu_facts", seconds=FACTS_SECONDS))
    return found


def discover(root: Path, environment: Mapping[str, str], ask: Ask = ask_libraries) -> Box:
    """Look at this machine. Never raises: what cannot be known is named in the box."""
    unknown: list[tuple[str, str]] = []
    limits = sysfs.limits(root)
    devices = {d.name: d for d in sysfs.gpu_devices(root)}
    try:
        answers = ask()
        nvml = _valid(NvmlFacts, answers.get("nvml"))
        cuda = _valid(tuple[CudaFacts, ...], answers.get("cuda"))
        why = dict(answers.get("why") or {})
    except (ChildError, ValueError) as error:
        nvml, cuda, why = None, None, {"nvml": str(error), "cuda": str(error)}
    gpus = nvml.gpus if nvml is not None else _listed(devices, cuda, root)
    if nvml is not None and nvml.driver:
        limits = replace(limits, driver=nvml.driver)
    gpus = tuple(_with_cuda(g, cuda) for g in gpus)
    gpus = tuple(_with_sysfs(g, devices, limits.numa_nodes) for g in gpus)
    _explain(unknown, gpus, why, nvml, devices, root)
    tree = _places(root, gpus, devices, nvml.links if nvml else {})
    box = Box(
        source="this machine",
        live=True,
        places=tree,
        gpus=gpus,
        limits=limits,
        env=_environment(root, environment),
        unknown=tuple(unknown),
    )
    return replace(box, pairs=_pairs(box, nvml, cuda))


def _valid(kind: Any, data: Any) -> Any:
    if data is None:
        return None
    try:
        return TypeAdapter(kind).validate_json(json.dumps(data))
    except ValidationError as error:
        raise ValueError(
            f"the GPU libraries answered what was not understood: {error.errors()[0]['msg']}"
        ) from error


def _listed(devices: dict[str, Path], cuda: tuple[CudaFacts, ...] | None, root: Path) -> tuple[GpuFacts, ...]:
    """GPUs as sysfs or CUDA lists them, where NVML does not."""
    buses = list(devices) or [f.bus_id for f in cuda or ()]
    return tuple(
        GpuFacts(id=f"GPU{number}", bus_id=bus, name=_model(root, bus))
        for number, bus in enumerate(sorted(buses))
    )


def _model(root: Path, bus: str) -> str:
    content = sysfs.text(root / "proc/driver/nvidia/gpus" / bus / "information") or ""
    match = re.search(r"^Model:\s*(.+)$", content, re.MULTILINE)
    return match[1].strip() if match else ""


def _with_cuda(gpu: GpuFacts, cuda: tuple[CudaFacts, ...] | None) -> GpuFacts:
    facts = next((f for f in cuda or () if f.bus_id == gpu.bus_id), None)
    if facts is None:
        return gpu
    return replace(
        gpu,
        name=gpu.name or facts.name,
        compute_capability=gpu.compute_capability or facts.compute_capability,
        multicast=facts.multicast,
        handle_types=facts.handle_types,
    )


def _with_sysfs(gpu: GpuFacts, devices: dict[str, Path], numa_nodes: int | None) -> GpuFacts:
    device = devices.get(gpu.bus_id or "")
    if device is None:
        return gpu
    node = sysfs.text(device / "numa_node") or ""
    numa = int(node) if node.isdecimal() else (0 if numa_nodes == 1 else None)
    return replace(gpu, numa=numa, cpus=sysfs.local_cpus(device))


def _places(
    root: Path, gpus: tuple[GpuFacts, ...], devices: dict[str, Path], links: dict[str, PciLink]
) -> tuple[Place, ...]:
    here = {g.id: devices[g.bus_id] for g in gpus if g.bus_id in devices}
    tree = sysfs.places(root, here, sysfs.rdma_devices(root))
    lost = tuple(Place(id=g.id, kind="gpu", bus_id=g.bus_id) for g in gpus if g.id not in here)
    return tuple(_with_link(p, links.get(p.id)) for p in (*tree, *lost))


def _with_link(place: Place, told: PciLink | None) -> Place:
    """NVML's word of a link before sysfs's; sysfs fills what NVML leaves open."""
    if told is None:
        return place
    seen = place.link or PciLink()
    return replace(
        place,
        link=PciLink(
            gen=told.gen or seen.gen,
            width=told.width or seen.width,
            gen_max=told.gen_max or seen.gen_max,
            width_max=told.width_max or seen.width_max,
        ),
    )


def _pairs(box: Box, nvml: NvmlFacts | None, cuda: tuple[CudaFacts, ...] | None) -> tuple[Pair, ...]:
    told = {(p.a, p.b): p for p in nvml.pairs} if nvml is not None else {}
    peers = {f.bus_id: f.peers for f in cuda or ()}
    found = []
    for one in box.gpus:
        for other in box.gpus:
            if one.id == other.id:
                continue
            pair = told.get((one.id, other.id), Pair(a=one.id, b=other.id))
            if pair.relation is None:
                pair = replace(pair, relation=relation_in_tree(box, one.id, other.id))
            if pair.read is None and one.bus_id in peers:
                word = "OK" if other.bus_id in peers[one.bus_id] else "NS"
                pair = replace(pair, read=word, write=word)
            found.append(pair)
    return tuple(found)


def _explain(
    unknown: list[tuple[str, str]],
    gpus: tuple[GpuFacts, ...],
    why: dict[str, str],
    nvml: NvmlFacts | None,
    devices: dict[str, Path],
    root: Path,
) -> None:
    if not gpus:
        seen = len(sysfs.pci_devices(root))
        listed = f"{seen} PCI devices in sysfs, none of them a GPU" if seen else "sysfs lists no PCI device"
        unknown.append(("gpus", "; ".join([listed, *([why["nvml"]] if "nvml" in why else [])])))
        return
    if nvml is None:
        unknown.append(("NVML", why.get("nvml", "no answer")))
    if "cuda" in why:
        unknown.append(("multicast and cuMemCreate", why["cuda"]))
    hidden = [g.id for g in gpus if g.bus_id not in devices]
    if hidden:
        unknown.append(
            ("tree", f"sysfs does not show {', '.join(hidden)}: a container or a virtual machine hides it")
        )
    if any(
        p.acs_redirect is None for p in sysfs.places(root, _shown(gpus, devices), []) if p.kind == "switch"
    ):
        unknown.append(("ACS", "the switches' configuration space can be read by root only: run as root"))


def _shown(gpus: tuple[GpuFacts, ...], devices: dict[str, Path]) -> dict[str, Path]:
    return {g.id: devices[g.bus_id] for g in gpus if g.bus_id in devices}


def _environment(root: Path, environment: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """Variables that matter, with those of NCCL's configuration files, which the environment overrides."""
    merged: dict[str, str] = {}
    files = [root / "etc/nccl.conf"]
    if environment.get("HOME"):
        files.append(root / environment["HOME"].lstrip("/") / ".nccl.conf")
    for file in files:
        for line in (sysfs.text(file) or "").splitlines():
            name, separator, value = line.partition("=")
            if separator and re.fullmatch(r"[A-Z][A-Z0-9_]{1,60}", name.strip()):
                merged[name.strip()] = value.strip()
    merged.update(environment)
    return tuple((name, merged[name][:200]) for name in env_effects.relevant(merged))
