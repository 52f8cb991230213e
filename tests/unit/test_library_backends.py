"""MSCCL++, symmetric memory and NCCL windows: what they refuse and why, and MSCCL++ against a stand-in."""

from __future__ import annotations

import types

import numpy as np
import pytest

from arfloor.backends import mscclpp
from arfloor.backends.mscclpp import Mscclpp, MscclppOp, parse_variant
from arfloor.backends.nccl_symm import NcclSymm
from arfloor.backends.slots import TorchSlots
from arfloor.backends.torch_symm import TorchSymm
from arfloor.core.cases import Case, Machine
from arfloor.core.reasons import REASONS

pytest.importorskip("torch")


def case(**changes):
    fields = {
        "backend": "mscclpp",
        "variant": "packet",
        "path": "peer",
        "devices": ("cpu:0", "cpu:1"),
        "numel": 1024,
        "dtype": "bfloat16",
        "mode": "graph",
    }
    return Case(**(fields | changes))


def machine(**facts):
    return Machine(
        world=2,
        device_kind="cuda",
        device_name="test",
        versions={"mscclpp": "0.9.0"},
        facts={"p2p": True, "nvlink": True, "peer_atomics": True} | facts,
    )


@pytest.mark.parametrize(
    ("backend", "changes", "facts", "reason"),
    [
        (Mscclpp(), {"path": "host"}, {}, "needs_p2p"),
        (Mscclpp(), {}, {"p2p": False}, "needs_p2p"),
        (Mscclpp(), {"variant": "rsag"}, {"peer_atomics": False}, "needs_peer_atomics"),
        (Mscclpp(), {"numel": 1023}, {}, "size"),
        (Mscclpp(), {"groups": ((0,), (1,))}, {}, "world_size"),
        (TorchSymm(), {"dtype": "float16"}, {}, "dtype"),
        (TorchSymm(), {"numel": 8}, {}, "size"),
        (TorchSymm(), {"path": "host"}, {}, "needs_p2p"),
        (NcclSymm(), {}, {"nvlink": False}, "needs_nvlink"),
    ],
)
def test_each_refusal_has_its_code_and_a_sentence(backend, changes, facts, reason):
    answer = backend.support(machine(**facts), case(**changes))
    assert (answer.ok, answer.reason) == (False, reason)
    assert reason in REASONS
    assert answer.detail


def test_what_the_libraries_take_is_supported():
    for backend in (Mscclpp(), TorchSymm(), NcclSymm()):
        assert backend.support(machine(), case()).ok
        offered = [v.name for v in backend.variants(machine())]
        assert offered
        assert not any(v.default for v in backend.variants(machine()))
        assert not any("nvls" in name or "multimem" in name for name in offered)


def test_a_missing_package_is_named_with_its_origin():
    bare = Machine(world=2, device_kind="cuda", device_name="test", facts={"p2p": True})
    answer = Mscclpp().support(bare, case())
    assert answer.reason == "not_installed"
    assert "not on PyPI" in answer.detail


def test_variant_names_are_taken_apart_and_unknown_ones_refused():
    assert parse_variant("packet") == ("packet", 0, 0)
    assert parse_variant("packet-32x512") == ("packet", 32, 512)
    for name in ("nvls", "packet-1x1", "packet-", "", "packet-32x512x2"):
        with pytest.raises(ValueError, match="variant"):
            parse_variant(name)


def test_slots_are_apart_aligned_and_poisoned():
    slots = TorchSlots(case(numel=5, inplace=False), 3, device="cpu")
    for slot in range(3):
        slots.write(slot, np.full(5, float(slot)))
        slots.poison(slot)
    assert [t.tolist() for t in slots.inputs] == [[0.0] * 5, [1.0] * 5, [2.0] * 5]
    assert all(t.data_ptr() % 16 == slots.inputs[0].data_ptr() % 16 for t in slots.inputs)
    assert np.isnan(slots.read(1)).all()


class Algorithm:
    """Stands in for a native algorithm: records what it was asked for and answers with a code."""

    def __init__(self, code=0):
        self.code, self.calls = code, []

    def execute(self, **arguments):
        self.calls.append(arguments)
        return self.code


@pytest.fixture
def no_gpu_stream(monkeypatch):
    import torch

    monkeypatch.setattr(torch.cuda, "current_stream", lambda: types.SimpleNamespace(cuda_stream=7))


def session(algorithm):
    return types.SimpleNamespace(
        algorithms={"packet": algorithm},
        comm=types.SimpleNamespace(communicator="comm"),
        dtypes={"bfloat16": "bf16"},
        sum="sum",
        version="0.9.0",
    )


def test_every_slot_is_connected_before_a_capture_and_the_grid_is_passed(no_gpu_stream):
    algorithm = Algorithm()
    op = MscclppOp(case(variant="packet-32x512"), session(algorithm), 3, device="cpu")
    assert len({call["input_buffer"] for call in algorithm.calls}) == 3
    first = algorithm.calls[0]
    assert (first["nblocks"], first["nthreads_per_block"], first["stream"]) == (32, 512, 7)
    assert first["input_size"] == first["output_size"] == 2048
    assert op.ran().algorithm == "packet"


def test_a_refusal_of_the_library_raises_with_its_code(no_gpu_stream):
    with pytest.raises(RuntimeError, match="code 3"):
        MscclppOp(case(), session(Algorithm(code=3)), 1, device="cpu")


def test_an_algorithm_that_this_build_lacks_is_named(no_gpu_stream):
    with pytest.raises(RuntimeError, match="has packet"):
        MscclppOp(case(variant="fullmesh"), session(Algorithm()), 1, device="cpu")


def test_no_variant_uses_multicast():
    assert not any("nvls" in name for name in mscclpp.names())
