"""vLLM's custom all-reduce, and SGLang's, which descends from it: the class that each engine itself uses.

`registered` reads inputs where they lie, as in an engine's CUDA graphs; `copied` copies them to a shared
buffer first, as without graphs. Both write to another tensor than they read. The object decides for itself
whether it works on a box and says so in a log line; here that is an error, so that NCCL is never timed in
its name. It must be attached to a group that is not NCCL's.
"""

from __future__ import annotations

import atexit
import importlib
from collections.abc import Sequence

from arfloor.backends.base import SUPPORTED, Group, Support, Variant
from arfloor.backends.engine_gates import gates
from arfloor.backends.slots import ForeignMemory, TorchSlots
from arfloor.core.cases import Case, Machine, Ran

MAX_NBYTES = 8 << 20  # the engines' own; the largest message is smaller


class VllmCustom:
    """The backend; see `arfloor.backends.base.Backend`."""

    name = "vllm"
    engine = "vLLM"
    package = "vllm"
    module = "vllm.distributed.device_communicators.custom_all_reduce"
    ops = "vllm._custom_ops"
    names: tuple[str, ...] = ("registered", "copied")

    def support(self, machine: Machine, case: Case) -> Support:
        """The engine's own gates, then its limits of size."""
        answer = gates(
            machine,
            case,
            engine=self.engine,
            implementation="custom all-reduce",
            package=self.package,
            install=f"pip install {self.package}",
        )
        if not answer.ok:
            return answer
        if case.nbytes % 16 or not 0 < case.nbytes < MAX_NBYTES:
            detail = f"multiples of 16 bytes below {MAX_NBYTES}, not {case.nbytes}"
            return Support(ok=False, reason="size", detail=detail)
        return SUPPORTED

    def variants(self, machine: Machine) -> Sequence[Variant]:
        """The way of its CUDA graphs is the contender."""
        if machine.device_kind != "cuda":
            return ()
        return [
            Variant(name=name, path="peer", contender=name == self.names[0], inplace=False)
            for name in self.names
        ]

    def prepare(self, case: Case, group: Group, slots: int) -> CustomOp:
        """Collective. Raises RuntimeError on every rank when the engine's object switched itself off."""
        if case.variant not in self.names:
            raise ValueError(f"{self.name} variant {case.variant!r}: expected one of {', '.join(self.names)}")
        session = _session(self, group, case.devices[group.rank])
        return CustomOp(case, session, group, slots, device=case.devices[group.rank])


class SglangCustom(VllmCustom):
    """SGLang's copy of it, on its own kernels."""

    name = "sglang"
    engine = "SGLang"
    package = "sglang"
    module = "sglang.srt.distributed.device_communicators.custom_all_reduce"
    ops = "sglang.srt.distributed.device_communicators.custom_all_reduce_ops"
    names = ("copied",)


class Session:
    """What a process holds once an engine: the communicator object, attached to a gloo group."""

    def __init__(self, backend: VllmCustom, group: Group, device: str) -> None:
        import torch
        import torch.distributed as dist

        module = importlib.import_module(backend.module)
        self.ops = importlib.import_module(backend.ops)
        self.library = backend.engine
        control = dist.new_group(list(range(group.world)), backend="gloo")
        self.communicator = module.CustomAllreduce(control, torch.device(device), max_size=MAX_NBYTES)
        finish = getattr(self.communicator, "finalize_p2p", None)  # vLLM checks peer access late
        if finish is not None:
            finish()
        disabled = group.all_gather(bool(self.communicator.disabled))
        if any(disabled):
            raise RuntimeError(
                f"{backend.engine}'s custom all-reduce switched itself off on ranks "
                f"{[r for r, off in enumerate(disabled) if off]}; its log says why"
            )

    def close(self) -> None:
        """Free the engine's shared buffers."""
        self.communicator.close()


_SESSIONS: dict[str, Session] = {}


def _session(backend: VllmCustom, group: Group, device: str) -> Session:
    if backend.name not in _SESSIONS:
        _SESSIONS[backend.name] = Session(backend, group, device)
        atexit.register(_close, backend.name)
    return _SESSIONS[backend.name]


def _close(name: str) -> None:
    session = _SESSIONS.pop(name, None)
    if session is not None:
        session.close()


class CustomOp(TorchSlots):
    """See `PreparedOp`. Registered inputs lie in a buffer that the engine's own class shares."""

    def __init__(self, case: Case, session: Session, group: Group, slots: int, *, device: str) -> None:
        self._session, self._registered = session, case.variant == "registered"
        self._rank = group.rank
        self._shared: list[int] = []
        super().__init__(case, slots, device=device)
        if self._registered:
            self._share_inputs(case, slots)

    def _share_inputs(self, case: Case, slots: int) -> None:
        import torch

        custom = self._session.communicator
        stride = -(-case.nbytes // 256) * 256
        self._shared = custom.create_shared_buffer(slots * stride, group=custom.group)
        flat = torch.as_tensor(
            ForeignMemory(self._shared[self._rank], slots * stride), device=self.inputs[0].device
        )
        self.inputs = [flat[i * stride : i * stride + case.nbytes].view(self._dtype) for i in range(slots)]
        for i in range(slots):  # the kernel looks an input's address up among those registered
            self._session.ops.register_buffer(custom._ptr, [pointer + i * stride for pointer in self._shared])

    def run(self, slot: int) -> None:
        """Enqueue one reduce on torch's current stream."""
        self._session.communicator.all_reduce(
            self.inputs[slot], out=self.outputs[slot], registered=self._registered
        )

    def ran(self) -> Ran:
        """The class was called by name: no engine chose for us."""
        return Ran(
            algorithm="registered" if self._registered else "copied",
            transport="peer memory",
            library=self._session.library,
            source="api",
        )

    def close(self) -> None:
        """Let go of the buffers. Registrations stay with the communicator, which has no way to drop one, and
        so do the shared buffers that they name."""
        super().close()
