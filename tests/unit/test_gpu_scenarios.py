"""The scenarios of tests/gpu/two_ranks.py at two to four ranks, on the stand-in of `cuda_on_cpu`.

What they find on GPUs is another matter; here, that they run, and that they see what is wrong."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

pytest.importorskip("cuda.bindings", reason="needs cuda-core: pip install 'arfloor[cuda]'")
pytest.importorskip("torch")

from arfloor.backends import kept, tune
from arfloor.backends.host import Host
from arfloor.backends.ours import Endpoint, OursError
from arfloor.backends.peer import Peer
from arfloor.backends.prepared_reduce import PreparedReduce
from arfloor.core.cases import Case
from arfloor.core.plans import flaw, parse
from arfloor.core.tuning import SETUPS
from arfloor.runtime import barrier, slabs, timing_gpu, verify
from tests.unit.cuda_on_cpu import Cuda, forget_streams

GPU = Path(__file__).parents[1] / "gpu"
SMALL = {
    "SIZES": ((1, 0), (61, 1), (300, 0)),
    "MIXED": (7, 300),
    "STRESSED": (501, 64),
    "TUNED": ((512, "bfloat16"),),
}


class Ranks:
    """Runs a scenario on `world` threads, each with a module of its own, as processes have."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._monkeypatch = monkeypatch
        self.cuda = Cuda(monkeypatch, lambda name: 1.0)
        for module in (timing_gpu, tune):
            monkeypatch.setattr(module, "FEW", 2)
            monkeypatch.setattr(module, "MANY", 5)

    def _module(self, rank: int, world: int) -> ModuleType:
        self._monkeypatch.setenv("RANK", str(rank))
        self._monkeypatch.setenv("WORLD_SIZE", str(world))
        spec = importlib.util.spec_from_file_location(f"two_ranks_{rank}", GPU / "two_ranks.py")
        assert spec is not None
        assert spec.loader is not None
        made = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(made)
        for name, value in SMALL.items():
            setattr(made, name, value)
        return made

    def ask(self, world: int, name: str, *arguments: str) -> list[Any]:
        modules = [self._module(rank, world) for rank in range(world)]

        def scenario(group: Any) -> Any:
            module: Any = modules[group.rank]
            module.group = group
            return getattr(module, name)(*arguments)

        return self.cuda.run(world, scenario)


@pytest.fixture
def ranks(monkeypatch: pytest.MonkeyPatch) -> Iterator[Ranks]:
    yield Ranks(monkeypatch)
    forget_streams()


@pytest.fixture
def of_many(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(GPU))
    import test_many_ranks

    yield test_many_ranks
    sys.modules.pop("test_many_ranks")


@pytest.mark.parametrize("world", [3, 4])
@pytest.mark.parametrize("path", ["peer", "host"])
def test_every_plan_exists_for_its_world_and_is_exact(
    ranks: Ranks, of_many: Any, path: Any, world: int
) -> None:
    plans = of_many.of_world(path, world)
    assert [flaw(parse(p), world, path) for p in plans + of_many.STALLED[path]] == [""] * (
        len(plans) + len(of_many.STALLED[path])
    )
    assert ranks.ask(world, "exact", path, *plans[::6], plans[-1]) == [{"failures": []}] * world
    assert ranks.cuda.allocated == 0


def test_a_wrong_plan_is_a_failure_of_exact_and_mixed(ranks: Ranks) -> None:
    ranks.cuda.spoiled = "ll-one"
    plans = ("line64t32-one-16x256-ahead1", "ll-one-64x512")
    for answer in ranks.ask(2, "exact", "peer", *plans):
        assert {plan for plan, *_ in answer["failures"]} == {"ll-one-64x512"}
        assert {dtype for _, dtype, *_ in answer["failures"]} == {"bfloat16", "float16", "float32"}
    assert all(answer["wrong"] > 0 for answer in ranks.ask(2, "mixed", "peer", *plans))


def test_plans_take_turns_through_the_wrap(ranks: Ranks, of_many: Any) -> None:
    answers = ranks.ask(4, "mixed", "host", *of_many.of_world("host", 4)[-3:])
    assert answers == [{"wrong": 0, "errors": []}] * 4


@pytest.mark.parametrize(
    ("macro", "wrong", "torn"), [("ARF_STALL", 0, 0), ("ARF_COUNT_TEARS", 0, 1), ("ARF_UNSAFE_HASH", 1, 0)]
)
def test_stress_counts_what_is_wrong_and_torn(ranks: Ranks, macro: str, wrong: int, torn: int) -> None:
    for answer in ranks.ask(2, "stress", "host", "line128t64-one-64x256", "0.02", macro):
        assert answer["operations"] > 0
        assert answer["wrong_operations"] == answer["wrong_elements"] == wrong * answer["operations"]
        assert answer["torn_lines"] == torn * answer["operations"]
        assert answer["error"] is None


@pytest.mark.parametrize(("path", "world"), [("peer", 4), ("host", 3)])
def test_the_backend_tunes_itself_at_many_ranks(ranks: Ranks, path: str, world: int) -> None:
    answers = ranks.ask(world, "backend", path)
    assert [a["cases"][0][:4] for a in answers] == [answers[0]["cases"][0][:4]] * world
    numel, dtype, plan, wrong, max_error, _ = answers[0]["cases"][0]
    assert (numel, dtype, wrong) == (512, "bfloat16", 0)
    assert flaw(parse(plan), world, path) == ""  # type: ignore[arg-type]
    assert 0 < max_error <= 1


@pytest.mark.parametrize("variant", ["auto", "line128", "rule"])
@pytest.mark.parametrize("path", ["peer", "host"])
def test_groups_reduce_side_by_side(ranks: Ranks, path: Any, variant: str) -> None:
    """Two pairs of four ranks, each its own sum; a plan that is tuned is one for both."""
    case = Case(
        backend=path,
        variant=variant,
        path=path,
        devices=tuple(f"cuda:{r}" for r in range(4)),
        groups=((0, 1), (2, 3)),
        numel=512,
        dtype="bfloat16",
        mode="graph",
        inplace=False,
    )

    def reduced(group: Any) -> tuple[str, int, tuple[str, ...]]:
        op = (Peer() if path == "peer" else Host()).prepare(case, group, 4)
        check = verify.check_rank(op, case, group.rank, between=group.barrier)
        plan = op.ran().algorithm
        op.close()
        return str(plan), check.wrong, check.digests

    found = ranks.cuda.run(4, reduced)
    assert len({plan for plan, *_ in found}) == 1
    assert [wrong for _, wrong, _ in found] == [0] * 4
    first, second, third, fourth = (digests for *_, digests in found)
    assert first == second
    assert third == fourth
    assert first != third


KNOWN = "line128t64-one-1x64-lag250"


@pytest.fixture
def known(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Case:
    """A small case over the host whose plan an earlier launch tuned."""
    monkeypatch.setenv(kept.PLANS_DIR, str(tmp_path))
    kept.add("host/2/bfloat16/1024", KNOWN)
    devices = ("cuda:0", "cuda:1")
    return Case(
        backend="host",
        variant="auto",
        path="host",
        devices=devices,
        numel=512,
        dtype="bfloat16",
        mode="graph",
        inplace=False,
    )


def fails_at(
    ranks: Ranks, monkeypatch: pytest.MonkeyPatch, owner: type, step: str, number: int
) -> dict[int, int]:
    """Makes a step's `number`-th call fail on rank 1, from 1; 0: none. Calls by rank, as they come."""
    real, calls = getattr(owner, step), {0: 0, 1: 0}

    def counted(self: Any, *arguments: Any, **more: Any) -> Any:
        rank = ranks.cuda.here.group.rank
        calls[rank] += 1
        if (rank, calls[rank]) == (1, number):
            raise MemoryError("no room")
        return real(self, *arguments, **more)

    monkeypatch.setattr(owner, step, counted)
    return calls


def test_a_plan_that_is_known_is_set_up_several_times_a_slot_each_and_named_as_ever(
    ranks: Ranks, monkeypatch: pytest.MonkeyPatch, known: Case
) -> None:
    ends = fails_at(ranks, monkeypatch, Endpoint, "__init__", 0)
    bind, bound = Endpoint.bind, {0: [], 1: []}  # type: ignore[var-annotated]
    monkeypatch.setattr(
        Endpoint, "bind", lambda end, *arguments: (bound[end.rank].append(end), bind(end, *arguments))[1]
    )

    def reduced(group: Any) -> tuple[Any, ...]:
        op: Any = Host().prepare(known, group, 4)
        check = verify.check_rank(op, known, group.rank, between=group.barrier)
        found = op.ran().algorithm, [r.end.spin_s for r in op.reducers], check.wrong
        op.close()
        return found

    assert ranks.cuda.run(2, reduced) == [(KNOWN, 4 * [3.0], 0)] * 2
    assert [len({*map(id, ends[-4:])}) for ends in bound.values()] == [4, 4]  # one a slot
    assert ends == {0: SETUPS, 1: SETUPS}
    assert ranks.cuda.allocated == 0


@pytest.mark.parametrize(
    ("owner", "step", "number"),
    [
        (Endpoint, "__init__", 3),
        (Endpoint, "bind", 2 * tune.SLOTS + 1),
        (Endpoint, "error", SETUPS),
        (tune._Bench, "_chains", 2),
        (tune._Bench, "_replayed", 1),
        (Endpoint, "error", SETUPS + 1),
        (Endpoint, "error", SETUPS + 4),
        (PreparedReduce, "_allocate", 1),
        (PreparedReduce, "_bind", 1),
    ],
)
def test_a_failure_on_one_rank_while_a_plan_is_set_up_several_times_leaves_nothing(
    ranks: Ranks, monkeypatch: pytest.MonkeyPatch, known: Case, owner: type, step: str, number: int
) -> None:
    calls = fails_at(ranks, monkeypatch, owner, step, number)

    def made(group: Any) -> None:
        with pytest.raises(OursError, match="could not be set up: rank 1: MemoryError: no room"):
            Host().prepare(known, group, 4)

    ranks.cuda.run(2, made)
    assert calls[1] == number
    assert ranks.cuda.allocated == 0


def test_one_ranks_mistake_is_said_on_all(ranks: Ranks) -> None:
    answers = ranks.ask(2, "joint_errors", "host")
    assert ["rank 1: JitError" in answer["said"] for answer in answers] == [True, True]


def test_a_barrier_that_one_rank_cannot_make_is_refused_to_all_and_leaves_nothing(
    ranks: Ranks, monkeypatch: pytest.MonkeyPatch
) -> None:
    def arch(ordinal: int) -> str:
        if ordinal == 1:
            raise RuntimeError("no such device")
        return "sm_90"

    monkeypatch.setattr(barrier, "device_arch", arch)

    def made(group: Any) -> None:
        with pytest.raises(
            slabs.SlabError, match=r"^device barrier could not be set up: rank 1: RuntimeError"
        ):
            barrier.DeviceBarrier(group, "peer", device=group.rank)

    ranks.cuda.run(3, made)
    assert ranks.cuda.allocated == 0


@pytest.mark.parametrize(("step", "what"), [("__init__", "counters of"), ("bind", "operations of")])
def test_a_set_up_that_fails_late_on_one_rank_is_refused_to_all_and_leaves_nothing(
    ranks: Ranks, monkeypatch: pytest.MonkeyPatch, step: str, what: str
) -> None:
    real = getattr(Endpoint, step)

    def fails(end: Endpoint, *arguments: Any, **more: Any) -> Any:
        if ranks.cuda.here.group.rank == 1:
            raise MemoryError("no room")
        return real(end, *arguments, **more)

    monkeypatch.setattr(Endpoint, step, fails)
    case = Case(
        backend="peer",
        variant="line128",
        path="peer",
        devices=("cuda:0", "cuda:1", "cuda:2"),
        numel=512,
        dtype="bfloat16",
        mode="graph",
    )

    def made(group: Any) -> None:
        with pytest.raises(OursError, match=f"^{what} .* could not be set up: rank 1: MemoryError: no room"):
            Peer().prepare(case, group, 4)

    ranks.cuda.run(3, made)
    assert ranks.cuda.allocated == 0


def test_programs_too_get_small_plans_set_up_several_times(
    ranks: Ranks, monkeypatch: pytest.MonkeyPatch
) -> None:
    from arfloor import allreduce

    ends = fails_at(ranks, monkeypatch, Endpoint, "__init__", 0)
    monkeypatch.setattr(allreduce, "ProcessGroupExchange", lambda control: ranks.cuda.here.group)
    for name in ("get_process_group_ranks", "new_group"):
        monkeypatch.setattr(allreduce.dist, name, lambda *_, **__: [0, 1])
    monkeypatch.setattr(allreduce.torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(allreduce.torch.cuda, "current_device", lambda: ranks.cuda.here.group.rank)

    def made(_: Any) -> tuple[Any, ...]:
        reduce = allreduce.AllReduce([0, 1], path="host", strict=True, max_nbytes=128 << 10)
        held = [
            (plan, reducer.end.max_nbytes, reducer.end.spin_s)
            for (_, plan), reducer in reduce._reducers.items()
        ]
        tables, why_not = reduce.tables, reduce.why_not
        reduce.close()
        return [name for _, name in tables[allreduce.torch.bfloat16].plans], held, why_not

    (plans, held, why_not), other = ranks.cuda.run(2, made)
    assert (plans, held, why_not) == other
    assert why_not == ""
    assert held == [(name, 128 << 10, 300.0) for name in plans]
    assert len(plans) == 4
    assert ends == {0: 3 * SETUPS + 1, 1: 3 * SETUPS + 1}
    assert ranks.cuda.allocated == 0
