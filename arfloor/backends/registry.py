"""Which implementations there are. A new one is one file and one line here; others come by `module:Class`."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from arfloor.core.cases import Case, Machine
from arfloor.core.plan import Offer, Supports
from arfloor.core.recipe import BadInput

# name -> (module:Class, kinds of device). The order is the order of planning: the default comes first.
BUILTIN: dict[str, tuple[str, tuple[str, ...]]] = {
    "gloo": ("arfloor.backends.gloo:Gloo", ("cpu",)),
    "mpi": ("arfloor.backends.mpi:Mpi", ("cpu",)),
    "nccl": ("arfloor.backends.nccl:Nccl", ("cuda",)),
    "peer": ("arfloor.backends.peer:Peer", ("cuda",)),
    "host": ("arfloor.backends.host:Host", ("cuda",)),
    "mscclpp": ("arfloor.backends.mscclpp:Mscclpp", ("cuda",)),
    "torch_symm": ("arfloor.backends.torch_symm:TorchSymm", ("cuda",)),
    "nccl_symm": ("arfloor.backends.nccl_symm:NcclSymm", ("cuda",)),
    "vllm": ("arfloor.backends.vllm_custom:VllmCustom", ("cuda",)),
    "sglang": ("arfloor.backends.vllm_custom:SglangCustom", ("cuda",)),
    "flashinfer": ("arfloor.backends.flashinfer:FlashInfer", ("cuda",)),
    "tensorrt_llm": ("arfloor.backends.engine_gates:TensorRtLlm", ("cuda",)),
    "b12x": ("arfloor.backends.engine_gates:B12x", ("cuda",)),
}

# what a run measures that names no backends: what users get, and ours. The other libraries are in the
# recipe `libraries`: with them at every size, the default recipe would take twice its time
USUAL: dict[str, tuple[str, ...]] = {"cpu": ("gloo", "mpi"), "cuda": ("nccl", "peer", "host")}


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """A backend of this run: its instance, and where a worker loads it from."""

    name: str
    spec: str
    instance: Any


def choose(names: Sequence[str], device_kind: str) -> list[Chosen]:
    """The backends of a run; no names means the usual ones of this kind of device.

    Raises BadInput for a name that is unknown, a module that does not import, or a class that is no
    backend.
    """
    if not names:
        usual = USUAL[device_kind]
        return [_load(name, BUILTIN[name][0]) for name in usual if _present(BUILTIN[name][0])]
    found = []
    for name in names:
        if ":" in name:
            found.append(_load(name, name))
        elif name in BUILTIN and _present(BUILTIN[name][0]):
            found.append(_load(name, BUILTIN[name][0]))
        else:
            known = ", ".join(n for n, (spec, _) in BUILTIN.items() if _present(spec))
            raise BadInput(
                f"backends: {name!r} is not known; choose from {known}, or give package.module:Class"
            )
    twice = {c.name for c in found if sum(d.name == c.name for d in found) > 1}
    if twice:
        raise BadInput(f"backends: {', '.join(sorted(twice))} is given twice; names must differ")
    return found


def _present(spec: str) -> bool:
    return importlib.util.find_spec(spec.partition(":")[0]) is not None


def _load(given: str, spec: str) -> Chosen:
    module, _, name = spec.partition(":")
    try:
        instance = getattr(importlib.import_module(module), name)()
    except Exception as error:
        raise BadInput(
            f"backends: {given!r} does not load ({type(error).__name__}: {' '.join(str(error).split())}); "
            "give package.module:Class of a class that needs no arguments and can be imported here"
        ) from error
    missing = [part for part in ("name", "support", "variants", "prepare") if not hasattr(instance, part)]
    if missing:
        raise BadInput(
            f"backends: {given!r} is no backend, it lacks {', '.join(missing)}; "
            "see arfloor.backends.base.Backend"
        )
    return Chosen(name=instance.name, spec=spec, instance=instance)


def offers(chosen: Sequence[Chosen], machine: Machine) -> list[Offer]:
    """Every variant of every chosen backend."""
    return [
        Offer(
            backend=c.name,
            variant=v.name,
            path=v.path,
            settings=tuple(sorted(v.settings)),
            default=v.default,
            contender=v.contender,
            modes=tuple(v.modes),
            inplace=v.inplace,
            probes=hasattr(c.instance, "probe"),
        )
        for c in chosen
        for v in c.instance.variants(machine)
    ]


def supports(chosen: Sequence[Chosen], machine: Machine) -> Supports:
    """Asks a case's backend; None when it can run, else the reason and a sentence."""
    by_name = {c.name: c.instance for c in chosen}

    def ask(case: Case) -> tuple[str, str] | None:
        answer = by_name[case.backend].support(machine, case)
        return None if answer.ok else (answer.reason or "prepare_failed", answer.detail)

    return ask
