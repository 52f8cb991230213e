"""MSCCL++, symmetric memory and NCCL windows: what they refuse and why, and MSCCL++ against a stand-in."""

from __future__ import annotations

import sys
import types

import numpy as np
import pytest

from arfloor.backends import kept, mscclpp
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
        (Mscclpp(), {"variant": "rsag_zero_copy"}, {}, "world_size"),
        (Mscclpp(), {"variant": "packet-tuned", "numel": 7 << 20}, {}, "size"),
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
    assert parse_variant("rsag_zero_copy-tuned") == ("rsag_zero_copy", 0, 0)
    for name in ("nvls", "packet-1x1", "packet-", "", "packet-32x512x2", "packet-tuned-tuned"):
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

    def __init__(self, code=lambda call: 0):
        self.code, self.calls = code, []

    def execute(self, **arguments):
        self.calls.append(arguments)
        return self.code(arguments)


class Session:
    """Stands in for what a process holds; buffers are used again, as on a GPU."""

    def __init__(self, algorithm):
        self.algorithms = {"packet": algorithm}
        self.comm = types.SimpleNamespace(communicator="comm")
        self.dtypes, self.sum, self.version = {"bfloat16": "bf16"}, "sum", "0.9.0"
        self.free = []

    def take(self, nbytes, device):
        import torch

        made = types.SimpleNamespace(view=torch.zeros(max(nbytes, 4096), dtype=torch.uint8, device=device))
        return self.free.pop() if self.free else made

    def give(self, buffers):
        self.free.extend(buffers)


@pytest.fixture
def no_gpu_stream(monkeypatch):
    import torch

    monkeypatch.setattr(torch.cuda, "current_stream", lambda: types.SimpleNamespace(cuda_stream=7))


def test_every_slot_is_connected_before_a_capture_and_the_grid_is_passed(no_gpu_stream):
    algorithm = Algorithm()
    op = MscclppOp(case(variant="packet-32x512"), Session(algorithm), 3, device="cpu")
    assert len({call["input_buffer"] for call in algorithm.calls}) == 3
    assert all(call["input_buffer"] == call["output_buffer"] for call in algorithm.calls)
    first = algorithm.calls[0]
    assert (first["nblocks"], first["nthreads_per_block"], first["stream"]) == (32, 512, 7)
    assert first["input_size"] == first["output_size"] == 2048
    assert op.ran().algorithm == "packet 32x512"


def test_out_of_place_buffers_differ_and_all_are_given_back(no_gpu_stream):
    algorithm, held = Algorithm(), Session(Algorithm())
    held.algorithms["packet"] = algorithm
    op = MscclppOp(case(inplace=False), held, 2, device="cpu")
    assert len({c[k] for c in algorithm.calls for k in ("input_buffer", "output_buffer")}) == 4
    op.close()
    assert len(held.free) == 4


class Alone:
    """The group of one rank."""

    rank, world = 0, 1

    def all_gather(self, value):
        return [value]

    def broadcast(self, value):
        return value


def test_tuning_takes_the_fastest_grid_that_the_library_accepts_and_keeps_it(
    no_gpu_stream, monkeypatch, tmp_path
):
    monkeypatch.setenv(kept.PLANS_DIR, str(tmp_path))
    refused = {(64, 1024), (112, 512)}
    algorithm = Algorithm(lambda call: 4 if (call["nblocks"], call["nthreads_per_block"]) in refused else 0)
    wanted = case(variant="packet-tuned")
    op = MscclppOp(wanted, Session(algorithm), 2, device="cpu")
    seen = []

    def times(op, case, group, grids):
        seen.append(grids)
        return {f"{b}x{t}": abs(b - 16) + t / 1024 for b, t in grids}

    monkeypatch.setattr(mscclpp, "_times", times)
    assert mscclpp.tuned(op, wanted, Alone()) == (16, 512)
    assert not refused & set(seen[0])
    assert mscclpp.tuned(op, wanted, Alone()) == (16, 512)
    assert len(seen) == 1, "a later launch of the run does not tune again"


def test_the_library_takes_every_grid_at_two_ranks():
    most = {"packet": 112, "rsag_zero_copy": 128}
    for algorithm, grids in mscclpp.GRIDS.items():
        for text in grids:
            blocks, threads = map(int, text.split("x"))
            assert blocks <= most.get(algorithm, 64)
            assert threads in range(32, 1025, 32)
            assert (threads if algorithm == "packet" else blocks * threads) >= 128, "all flags advance"


def test_a_refusal_of_the_library_raises_with_its_code(no_gpu_stream):
    with pytest.raises(RuntimeError, match="code 3"):
        MscclppOp(case(), Session(Algorithm(lambda call: 3)), 1, device="cpu")


def test_an_algorithm_that_this_build_lacks_is_named(no_gpu_stream):
    with pytest.raises(RuntimeError, match="has packet"):
        MscclppOp(case(variant="fullmesh"), Session(Algorithm()), 1, device="cpu")


def test_packet_algorithms_have_scratch_memory_that_nobody_else_writes(monkeypatch):
    import torch.distributed as dist

    built = []

    class Buffer:
        def __init__(self, nbytes):
            self.nbytes = nbytes

        def data(self):
            return id(self)

    class Builder:
        def build_default_algorithms(self, *, scratch_buffer, scratch_buffer_size, rank):
            assert scratch_buffer_size == mscclpp.SCRATCH_NBYTES
            built.append(scratch_buffer)
            names = [("allreduce", f"default_allreduce_{n}") for n in mscclpp.ALGORITHMS]
            return [
                types.SimpleNamespace(collective=kind, name=name, scratch=scratch_buffer)
                for kind, name in [*names, ("allgather", "default_allgather_fullmesh")]
            ]

    package = types.SimpleNamespace(
        CommGroup=lambda torch_group: types.SimpleNamespace(communicator="comm"),
        RawGpuBuffer=Buffer,
        DataType=types.SimpleNamespace(float32=1, float16=2, bfloat16=3),
        ReduceOp=types.SimpleNamespace(SUM=0),
        __version__="0.9.0",
    )
    monkeypatch.setitem(sys.modules, "mscclpp", package)
    monkeypatch.setitem(sys.modules, "mscclpp.ext", types.SimpleNamespace(AlgorithmCollectionBuilder=Builder))
    monkeypatch.setattr(dist, "new_group", lambda ranks, backend: None)
    held = mscclpp.Session(Alone())
    assert sorted(held.algorithms) == sorted(mscclpp.ALGORITHMS)
    packets = {a.scratch for name, a in held.algorithms.items() if name in mscclpp.PACKETS}
    copies = {a.scratch for name, a in held.algorithms.items() if name not in mscclpp.PACKETS}
    assert len(packets) == len(copies) == 1
    assert not packets & copies
    assert set(built) == packets | copies


def test_a_library_that_does_not_load_is_tried_once_and_named_on_every_case(monkeypatch):
    tries = []

    def load(group):
        tries.append(group)
        raise ImportError("libnuma.so.1: cannot open shared object file")

    monkeypatch.setattr(mscclpp, "Session", load)
    monkeypatch.setattr(mscclpp, "_FAILED", [])
    for _ in range(2):
        with pytest.raises(RuntimeError, match=r"rank 0: ImportError: libnuma"):
            Mscclpp().prepare(case(), Alone(), 1)
    assert len(tries) == 1


def test_scratch_memory_by_hand():
    # a packet is half flags: two halves, each with a packet of every rank
    assert mscclpp.scratch_nbytes("allpair_packet", 2, 1 << 20) == 8 << 20
    # two halves, each with the message twice and the sum once
    assert mscclpp.scratch_nbytes("packet", 2, 1 << 20) == 12 << 20
    assert mscclpp.scratch_nbytes("fullmesh", 8, 64 << 20) == 128 << 20
    assert mscclpp.scratch_nbytes("rsag_zero_copy", 8, 64 << 20) == 0


def test_no_variant_uses_multicast():
    assert not any("nvls" in name for name in mscclpp.names())
