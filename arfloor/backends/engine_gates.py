"""What every engine's backend refuses alike, and engines whose conditions are known but that are not run.

The conditions are those of `arfloor.core.engines`, where each names its source. A report then says why an
engine's fast all-reduce would not run on a box, which its log, at most, says once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn

from arfloor.backends.base import SUPPORTED, Group, Support, Variant
from arfloor.core import engines
from arfloor.core.cases import Case, Machine


def gates(
    machine: Machine, case: Case, *, engine: str, implementation: str, package: str, install: str
) -> Support:
    """Whether `engine` would take a case, apart from its own limits of size and dtype. Pure.

    The gates of the box come first: a package that is missing would not help where they refuse it.
    """
    if machine.device_kind != "cuda":
        return Support(ok=False, reason="needs_gpu", detail=f"{engine} reduces GPU memory")
    if case.path != "peer":
        return Support(ok=False, reason="needs_p2p", detail=f"{engine} writes to the other GPUs' memory")
    if len(case.groups) > 1:
        return Support(ok=False, reason="world_size", detail="one group of all ranks only")
    refused = engines.refusal(engine, implementation, machine, case.world)
    if refused is not None:
        return Support(ok=False, reason=refused[0], detail=refused[1])
    if package not in machine.versions:
        return Support(
            ok=False, reason="not_installed", detail=f"the package {package} is not installed; {install}"
        )
    return SUPPORTED


class _GatesOnly:
    """A backend that says whether an engine would run, and does not run it."""

    name: str
    engine: str
    implementation: str
    package: str
    install: str

    def support(self, machine: Machine, case: Case) -> Support:
        """Never ok: the gate that refuses it, or that arfloor does not run it."""
        answer = gates(
            machine,
            case,
            engine=self.engine,
            implementation=self.implementation,
            package=self.package,
            install=self.install,
        )
        if not answer.ok:
            return answer
        detail = f"nothing refuses {self.engine} here, but arfloor does not run it: measure it in the engine"
        return Support(ok=False, reason="not_measured", detail=detail)

    def variants(self, machine: Machine) -> Sequence[Variant]:
        """One, for grids: a run that asks for nothing special says nothing of it."""
        if machine.device_kind != "cuda":
            return ()
        return [Variant(name="default", path="peer", contender=False)]

    def prepare(self, case: Case, group: Group, slots: int) -> NoReturn:
        """Raises RuntimeError: `support` takes no case."""
        raise RuntimeError(f"{self.engine} is not run by arfloor; its support() says why")


class TensorRtLlm(_GatesOnly):
    """TensorRT-LLM's own kernels: without NVLink it falls back to NCCL."""

    name = "tensorrt_llm"
    engine = "TensorRT-LLM"
    implementation = "one-shot, two-shot, fused"
    package = "tensorrt-llm"
    install = "pip install tensorrt-llm"


class B12x(_GatesOnly):
    """b12x's PCIe all-reduce, for compute capability 12.0."""

    name = "b12x"
    engine = "b12x"
    implementation = "PCIe all-reduce"
    package = "b12x"
    install = "pip install b12x"
