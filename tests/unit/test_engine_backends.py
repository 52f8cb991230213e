"""Engine kernels: the gates that refuse them, by name, and the backends against stand-ins of their API."""

from __future__ import annotations

import sys
import types
from typing import ClassVar

import numpy as np
import pytest

from arfloor.backends.base import Backend
from arfloor.backends.engine_gates import B12x, TensorRtLlm
from arfloor.backends.flashinfer import FlashInfer, rows_of, version_of
from arfloor.backends.vllm_custom import _SESSIONS, SglangCustom, VllmCustom
from arfloor.core import engine_rows, engines
from arfloor.core.cases import Case, Machine
from arfloor.core.reasons import REASONS

torch = pytest.importorskip("torch")

ALL = {
    "vllm": "0.20.0",
    "sglang": "0.6.0",
    "flashinfer-python": "0.6.18",
    "tensorrt-llm": "1.2.0",
    "b12x": "0.1.0",
}


def case(backend="vllm", variant="registered", world=2, **changes):
    fields = {
        "backend": backend,
        "variant": variant,
        "path": "peer",
        "devices": tuple(f"cpu:{r}" for r in range(world)),
        "numel": 4096,
        "dtype": "bfloat16",
        "mode": "graph",
        "inplace": False,
    }
    return Case(**(fields | changes))


def machine(versions=ALL, capability=(9, 0), **facts):
    return Machine(
        world=2,
        device_kind="cuda",
        device_name="test",
        compute_capability=capability,
        versions=dict(versions),
        facts={"p2p": True, "nvlink": True, "multicast_forbidden": True} | facts,
    )


@pytest.mark.parametrize(
    ("backend", "variant", "changes", "facts", "reason"),
    [
        (VllmCustom(), "registered", {"world": 4}, {"nvlink": False}, "needs_nvlink"),
        (VllmCustom(), "registered", {"world": 3}, {}, "world_size"),
        (VllmCustom(), "registered", {}, {"p2p": False}, "needs_p2p"),
        (VllmCustom(), "registered", {"path": "host"}, {}, "needs_p2p"),
        (VllmCustom(), "registered", {"numel": 4 << 20}, {}, "size"),
        (VllmCustom(), "copied", {"numel": 4}, {}, "size"),
        (VllmCustom(), "copied", {}, {"versions": {}}, "not_installed"),
        (SglangCustom(), "copied", {"world": 8}, {"nvlink": False}, "needs_nvlink"),
        (FlashInfer(), "oneshot", {}, {"p2p": False}, "needs_p2p"),
        (FlashInfer(), "oneshot", {}, {"versions": {"flashinfer-python": "0.6.2"}}, "needs_multicast"),
        (FlashInfer(), "oneshot", {"numel": 1000}, {}, "size"),
        (FlashInfer(), "twoshot", {"world": 4}, {}, "size"),
        (FlashInfer(), "pcie_ipc", {"dtype": "float32"}, {}, "dtype"),
        (FlashInfer(), "pcie_ipc", {"world": 6}, {}, "world_size"),
        (FlashInfer(), "pcie_ipc", {}, {"versions": {}}, "not_installed"),
        (TensorRtLlm(), "default", {}, {"nvlink": False}, "needs_nvlink"),
        (TensorRtLlm(), "default", {}, {}, "not_measured"),
        (B12x(), "default", {}, {}, "compute_capability"),
        (B12x(), "default", {}, {"capability": (12, 0)}, "not_measured"),
        (B12x(), "default", {}, {"capability": (12, 0), "versions": {}}, "not_installed"),
    ],
)
def test_the_gate_that_refuses_is_named(backend, variant, changes, facts, reason):
    answer = backend.support(machine(**facts), case(backend.name, variant, **changes))
    assert (answer.ok, answer.reason) == (False, reason), answer
    assert reason in REASONS
    assert answer.detail


def test_what_passes_the_gates_is_supported_and_nothing_is_a_default():
    for backend in (VllmCustom(), SglangCustom(), FlashInfer()):
        assert isinstance(backend, Backend)
        offered = backend.variants(machine())
        assert not any(v.default or "mnnvl" in v.name for v in offered)
        numel = 16384  # a row a rank for two-shot
        assert all(backend.support(machine(), case(backend.name, v.name, numel=numel)).ok for v in offered)
    # four PCIe-only GPUs: FlashInfer's PCIe kernels are what is left
    assert FlashInfer().support(machine(nvlink=False), case("flashinfer", "pcie_ipc", world=4)).ok


def test_every_gate_has_a_reason_of_the_table():
    for row in engine_rows.IMPLEMENTATIONS:
        assert all(gate.code in REASONS for gate in row.gates)
    with pytest.raises(KeyError, match="not in the table"):
        engines.refusal("vLLM", "nothing", machine(), 2)


def test_messages_become_rows():
    assert rows_of(8192) == (2, 4096)
    assert rows_of(3 * 512) == (3, 512)
    assert rows_of(1000) is None
    assert version_of("0.6.18.post1") == (0, 6, 18)


class Lone:
    rank, world = 0, 1

    def barrier(self):
        pass

    def all_gather(self, value):
        return [value]

    def broadcast(self, value):
        return value


@pytest.fixture
def stand_in(monkeypatch):
    """Modules under an engine's names; `torch.distributed.new_group` makes no group."""
    monkeypatch.setattr("torch.distributed.new_group", lambda ranks, backend: f"{backend} group")

    def put(name, **members):
        parts = name.split(".")
        for i in range(1, len(parts)):
            monkeypatch.setitem(sys.modules, ".".join(parts[:i]), types.ModuleType(parts[i - 1]))
        module = types.ModuleType(name)
        for key, value in members.items():
            setattr(module, key, value)
        monkeypatch.setitem(sys.modules, name, module)
        return module

    yield put
    _SESSIONS.clear()


class Custom:
    """What vLLM's class offers, for a world of one: the sum is the input."""

    off = False

    def __init__(self, group, device, max_size):
        self.group, self.disabled, self.max_size, self._ptr = group, True, max_size, 7
        self.calls, self.closed = [], False

    def finalize_p2p(self):
        self.disabled = self.off

    def all_reduce(self, inp, *, out=None, registered=False):
        self.calls.append(registered)
        out.copy_(inp)
        return out

    def close(self):
        self.closed = True


def test_vllms_class_is_driven_as_vllm_does(stand_in):
    stand_in("vllm.distributed.device_communicators.custom_all_reduce", CustomAllreduce=Custom)
    stand_in("vllm._custom_ops")
    op = VllmCustom().prepare(case(variant="copied", world=1), Lone(), 3)
    values = np.arange(4096.0) % 256
    op.write(1, values)
    op.poison(1)
    op.run(1)
    assert op.read(1).tolist() == values.tolist()
    communicator = _SESSIONS["vllm"].communicator
    assert (communicator.group, communicator.max_size) == ("gloo group", 8 << 20)
    assert communicator.calls == [False]
    assert op.ran().library == "vLLM"
    op.close()
    again = VllmCustom().prepare(case(variant="copied", world=1), Lone(), 3)
    assert _SESSIONS["vllm"].communicator is communicator  # one a process
    again.close()


def test_a_class_that_switched_itself_off_is_an_error_not_a_fallback(stand_in, monkeypatch):
    monkeypatch.setattr(Custom, "off", True)
    stand_in("vllm.distributed.device_communicators.custom_all_reduce", CustomAllreduce=Custom)
    stand_in("vllm._custom_ops")
    with pytest.raises(RuntimeError, match=r"switched itself off on ranks \[0\]"):
        VllmCustom().prepare(case(variant="copied", world=1), Lone(), 2)


class Workspace:
    """What FlashInfer's workspaces offer here."""

    made: ClassVar[list[Workspace]] = []

    def __init__(self, **options):
        self.options, self.log = options, []
        Workspace.made.append(self)

    def supports(self, x):
        return x.dim() == 2

    def tune(self, widths):
        self.log.append(("tune", widths))

    def prepare(self, shapes, dtype):
        self.log.append(("prepare", shapes))

    def all_reduce(self, x, out):
        out.copy_(x)

    def destroy(self):
        self.log.append("destroyed")


@pytest.mark.parametrize("variant", ["oneshot", "pcie_ipc", "pcie_ipc-tuned"])
def test_flashinfers_api_is_driven_as_documented(stand_in, variant):
    calls = []

    def fusion(*, input, workspace, pattern, output, use_oneshot):
        calls.append((pattern, use_oneshot))
        output.copy_(input)

    Workspace.made.clear()
    stand_in(
        "flashinfer.comm",
        PcieIpcAllReduceWorkspace=Workspace,
        create_allreduce_fusion_workspace=lambda **options: Workspace(**options),
        allreduce_fusion=fusion,
        AllReduceFusionPattern=types.SimpleNamespace(kAllReduce=0),
    )
    op = FlashInfer().prepare(case("flashinfer", variant, world=1, numel=8192), Lone(), 2)
    values = np.arange(8192.0) % 256
    op.write(0, values)
    op.poison(0)
    op.run(0)
    assert op.read(0).tolist() == values.tolist()
    workspace = Workspace.made[0]
    if variant == "oneshot":
        assert calls == [(0, True)]
        assert workspace.options["backend"] == "trtllm"
        assert (workspace.options["max_token_num"], workspace.options["hidden_dim"]) == (2, 4096)
    else:
        tuned = [("tune", [4096])] if variant == "pcie_ipc-tuned" else []
        assert workspace.log == [*tuned, ("prepare", [(2, 4096)])]
        assert workspace.options["group"] == "nccl group"
    op.close()
    assert workspace.log[-1] == "destroyed"
