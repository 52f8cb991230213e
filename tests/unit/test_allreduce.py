"""AllReduce without a GPU: which plan takes what, falling back together, and routing an engine through it."""

from __future__ import annotations

import types

import pytest

from arfloor.core import dispatch
from arfloor.core.cases import Case, Estimate, Ran, Result
from arfloor.core.plans import parse
from arfloor.core.tuning import Facts

torch = pytest.importorskip("torch")

FACTS = Facts(path="host", world=2, multiprocessors=132)


def result(nbytes, plan, **changes):
    fields = {
        "backend": "host",
        "variant": "auto",
        "path": "host",
        "devices": ("cuda:0", "cuda:1"),
        "numel": nbytes // 2,
        "dtype": "bfloat16",
        "mode": "graph",
    }
    status = changes.pop("status", "ok")
    return Result(
        case=Case(**(fields | changes)),
        status=status,
        latency=Estimate(value=1.0, lo=1.0, hi=1.0, n=1, unit="us"),
        ran=Ran(algorithm=plan),
    )


def test_a_runs_plans_become_a_table_and_others_do_not():
    rows = [
        result(262144, "line512t64-one-66x256-pace27"),
        result(8192, "line128t64-one-9x64"),
        result(8192, "ll-one-4x256", status="wrong", numel=4095),
        result(65536, "ll-one-4x256", dtype="float16"),
        result(65536, "ll-one-4x256", variant="ll"),
    ]
    table = dispatch.from_results(rows, path="host", world=2, dtype="bfloat16")
    assert [size for size, _ in table.plans] == [8192, 262144]
    assert table.pick(1) == "line128t64-one-9x64"
    assert table.pick(8193) == table.pick(1 << 30) == "line512t64-one-66x256-pace27"
    assert dispatch.up_to(table, 4096).plans == table.plans[:1]


def test_strict_tables_hold_only_what_cannot_tear():
    table = dispatch.strict(FACTS, "bfloat16", [1 << 20, 8192, 131072])
    assert {parse(name).protocol for _, name in table.plans} == {"ll", "flag"}
    assert [size for size, _ in table.plans] == [8192, 131072, 1 << 20]


@pytest.fixture
def lone_rank(tmp_path):
    import torch.distributed as dist

    dist.init_process_group("gloo", store=dist.FileStore(str(tmp_path / "store"), 1), rank=0, world_size=1)
    yield dist
    dist.destroy_process_group()


@pytest.mark.skipif(torch.cuda.is_available(), reason="tests what happens without a GPU")
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_without_gpus_the_process_group_reduces_and_says_why(lone_rank):
    from arfloor.allreduce import AllReduce

    reduce = AllReduce()
    assert "no GPU" in reduce.why_not
    tensor = torch.arange(4, dtype=torch.bfloat16)
    assert not reduce.takes(tensor)
    assert reduce(tensor) is tensor
    out = reduce.traced(tensor)
    assert out is not tensor
    assert out.tolist() == [0.0, 1.0, 2.0, 3.0]


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("strict", [False, True])
def test_alone_too_the_process_group_reduces_and_says_why(lone_rank, monkeypatch, strict):
    from arfloor import allreduce

    monkeypatch.setattr(allreduce.torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(allreduce.torch.cuda, "current_device", lambda: 0)
    reduce = allreduce.AllReduce(path="host", strict=strict)
    assert "2 to 8 ranks, not 1" in reduce.why_not
    assert not reduce.takes(torch.zeros(4, dtype=torch.bfloat16))


@pytest.mark.skipif(torch.cuda.is_available(), reason="tests what happens without a GPU")
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_without_gpus_fused_is_torchs_own_sequence(lone_rank):
    from arfloor.allreduce import AllReduce

    reduce = AllReduce()
    x, before = torch.randn(3, 8), torch.randn(3, 8)
    weight, residual, kept = torch.randn(8), before.clone(), x.clone()
    out = reduce.fused(x, residual, weight, 1e-5)
    assert out is x
    assert torch.equal(residual, before + kept)
    assert torch.equal(out, torch.nn.functional.rms_norm(before + kept, (8,), weight, 1e-5))
    again = before.clone()
    assert torch.equal(reduce.traced_fused(kept, again, weight, 1e-5), out)
    assert torch.equal(again, residual)
    with pytest.raises(ValueError, match="weight of"):
        reduce.fused(x, residual, weight[:4])
    with pytest.raises(ValueError, match="contiguous"):
        reduce.fused(x, torch.zeros(8, 3).t(), weight)


def test_the_operator_has_a_fake_so_that_compilation_keeps_it():
    from torch._subclasses.fake_tensor import FakeTensorMode

    import arfloor.allreduce

    assert arfloor.allreduce.AllReduce
    with FakeTensorMode():
        made = torch.ops.arfloor.all_reduce(torch.empty(3, 5, dtype=torch.bfloat16).t(), 1)
    assert made.shape == (5, 3)
    assert made.is_contiguous()


def test_an_operator_whose_object_is_gone_says_so():
    import arfloor.allreduce

    assert arfloor.allreduce.AllReduce
    with pytest.raises(RuntimeError, match="gone"):
        torch.ops.arfloor.all_reduce(torch.zeros(1), -1)


class Coordinator:
    """What vLLM and SGLang call their tensor-parallel group, as far as reducing goes."""

    def all_reduce(self, tensor):
        return self._all_reduce_out_place(tensor)

    def _all_reduce_out_place(self, tensor):
        return tensor + 1


def test_an_engines_reduce_is_routed_for_what_we_take_and_given_back():
    from arfloor.allreduce import route

    ours = types.SimpleNamespace(takes=lambda t: t.numel() < 4, traced=lambda t: t + 100)
    coordinator, other = Coordinator(), Coordinator()
    with route(coordinator, ours):
        assert coordinator.all_reduce(torch.zeros(2)).tolist() == [100.0, 100.0]
        assert coordinator.all_reduce(torch.zeros(4)).tolist() == [1.0] * 4
        assert other.all_reduce(torch.zeros(2)).tolist() == [1.0, 1.0]
    assert coordinator.all_reduce(torch.zeros(2)).tolist() == [1.0, 1.0]
    with pytest.raises(AttributeError, match="no all_reduce"), route(object(), ours):
        pass


def test_the_documented_decode_loop_is_short_and_speaks_of_what_exists():
    import ast
    from pathlib import Path

    from arfloor.allreduce import AllReduce

    text = (Path(__file__).parents[2] / "docs/allreduce.md").read_text()
    loop = text.split("```python\n")[1].split("```")[0]
    assert len([line for line in loop.splitlines() if line.strip()]) <= 30
    called = {
        node.attr
        for block in text.split("```python\n")[1:]
        for node in ast.walk(ast.parse(block.split("```")[0]))
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "reduce"
    }
    assert called >= {"fused", "check", "close"}
    made = vars(AllReduce).keys() | {"path", "why_not", "tables"}
    assert called <= made
