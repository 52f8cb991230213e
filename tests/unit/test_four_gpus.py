"""Four GPUs told from two: the page says what the code computes, and a run's figures find their places."""

from __future__ import annotations

import json
import sys
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from arfloor import rundir, topologies_io
from arfloor.core.cases import Block, BlockRecord, Case, Estimate, Machine, Manifest, Primitive, Result
from arfloor.core.errors import InputError
from arfloor.core.extended import extended, extended_probes
from arfloor.core.floor import floor
from arfloor.core.misses import Expected, Miss, misses
from arfloor.core.step_shape import Shape
from arfloor.report.four_gpus import measured, page, predicted

ROOT = Path(__file__).parents[2]


@pytest.fixture
def tool(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    import four_gpus

    yield four_gpus
    sys.modules.pop("four_gpus")


def test_the_page_and_the_box_are_what_the_code_computes(tool: ModuleType) -> None:
    say = "run: python tools/four_gpus.py page"
    assert tool.render() == tool.PAGE.read_text(encoding="utf-8"), say
    assert topologies_io.dumps(predicted.box(4)) == tool.BOX.read_text(encoding="utf-8"), say


@pytest.mark.parametrize("path", predicted.PATHS)
@pytest.mark.parametrize("nbytes", predicted.SIZES)
def test_a_pair_extended_to_two_is_the_pair(path: Any, nbytes: int) -> None:
    pair = floor(predicted.probes(), path=path, world=2, nbytes=nbytes, dtype="bfloat16", mode="graph")
    made = predicted.floor_of(path, 2, nbytes)
    assert pair is not None
    assert made.bound == pair.bound
    # the launch and the host probes of the pair's first GPU stand for all
    assert made.attainable.value == pytest.approx(pair.attainable.value, rel=0.01)
    assert made.origin == "predicted"


@pytest.mark.parametrize("path", predicted.PATHS)
def test_more_ranks_take_longer_and_nothing_beats_the_bound(path: Any) -> None:
    for nbytes in predicted.SIZES:
        floors = [predicted.floor_of(path, world, nbytes) for world in predicted.WORLDS]
        assert all(a.attainable.value < b.attainable.value for a, b in pairwise(floors))
        for world, made in zip(predicted.WORLDS, floors, strict=True):
            for e in predicted.latencies(world, path, nbytes):
                assert e.estimate.lo <= e.estimate.value <= e.estimate.hi
                assert e.estimate.lo >= made.bound.lo
            assert predicted.ours(path, world, nbytes).value > made.attainable.value


def test_host_memory_is_a_multicast_and_a_port_is_shared() -> None:
    """By hand, from the pair's rates: 1.5 S in over the host at four ranks, a port for three peers."""
    probes = extended_probes(predicted.probes(), 4)
    rate = next(
        p.estimate.value
        for p in probes
        if p.estimate
        and (p.kind, p.path, p.active, p.engine, p.nbytes, p.access, p.dst)
        == ("stream", "host", "all", "ce", 4 << 20, "read", "cuda:3")
    )
    large = predicted.floor_of("host", 4, 4 << 20).terms.attainable
    assert next(t.us.value for t in large if t.name == "wire") == pytest.approx(
        1.5 * (4 << 20) / rate / 1e3, rel=0.03
    )
    dense = [p for p in probes if p.path == "peer" and p.active == "all" and p.kind == "stream"]
    assert {(p.src, p.dst) for p in dense} == {
        (f"cuda:{a}", f"cuda:{b}") for a in range(4) for b in range(4) if a != b
    }
    both = max(p.estimate.value for p in probes if p.estimate and (p.path, p.active) == ("peer", "both_ways"))
    assert max(p.estimate.value for p in dense if p.estimate) == pytest.approx(both / 3)


def test_a_box_is_extended_from_a_pair_with_both_paths_only() -> None:
    with pytest.raises(ValueError, match="expected a pair"):
        extended(predicted.box(4), 8, name="x", title="x")
    host = topologies_io.find("h200-x2-host-bridge").rig
    with pytest.raises(ValueError, match="both paths"):
        extended(host, 4, name="x", title="x")


def test_a_step_is_split_over_ranks_in_whole_vectors() -> None:
    shape = Shape()
    assert (shape.reduces, shape.message_nbytes(32)) == (64, 262144)
    # by hand: 32 layers of 4096 x (6144 + 4096 + 3 x 14336) weights of two bytes, over four ranks
    assert shape.weight_nbytes(4) == 32 * 4096 * 53248 * 2 // 4
    for world in (2, 4, 8):
        shape.check(world)
    with pytest.raises(ValueError, match="hidden a multiple of 8 x 3 ranks, found 4096"):
        shape.check(3)


def estimate(value: float) -> Estimate:
    return Estimate(value=value, lo=value * 0.9, hi=value * 1.3, n=0, unit="us")


def test_a_miss_is_a_share_of_the_prediction() -> None:
    wanted = [Expected(key=(k,), label=k, estimate=estimate(10.0)) for k in "abcd"]
    a, b, c, d = misses(wanted, {("a",): 10.0, ("b",): 12.5, ("c",): 7.0})
    assert (a.share, a.inside, a.to_explain) == (0.0, True, False)
    assert (b.share, b.inside, b.to_explain) == (0.25, True, True)
    assert (c.inside, c.to_explain) == (False, True)
    assert (d.share, d.inside, d.to_explain) == (None, False, False)
    assert page.line(c) == "c: predicted 10.0 [9.00, 13.0] us, measured 7.00: -30 %, outside its interval"
    assert isinstance(d, Miss)


def case(backend: str, variant: str, path: str, nbytes: int = 262144, **more: Any) -> Case:
    devices = tuple(f"cuda:{r}" for r in range(4))
    fields: dict[str, Any] = {"path": path, "devices": devices, "dtype": "bfloat16", "mode": "graph"} | more
    return Case(backend=backend, variant=variant, numel=nbytes // 2, **fields)


def write_run(folder: Path, results: list[Result], primitives: tuple[Primitive, ...]) -> None:
    writer = rundir.Writer(folder)
    machine = Machine(world=4, device_kind="cuda", device_name="GPU")
    writer.manifest(
        Manifest(
            schema=1, run_id="x", origin="measured", started="", recipe={}, seed=0, launches=1,
            machine=machine, versions={}, env={},
        )
    )  # fmt: skip
    for n, r in enumerate(results):
        block = Block(
            id=str(n), settings=(), path=r.case.path, devices=r.case.devices, dtype="bfloat16",
            numel=r.case.numel, case_ids=(r.case.id,),
        )  # fmt: skip
        writer.block(BlockRecord(schema=1, block=block, launch=0, results=(r,)))
    writer.primitives(primitives)


def test_a_runs_figures_find_their_predictions(tmp_path: Path, tool: ModuleType) -> None:
    times = {
        ("nccl", "default", "host"): 60.0,
        ("nccl", "16ch", "host"): 45.0,
        ("host", "auto", "host"): 17.0,
        ("host", "line512-two", "host"): 19.0,
        ("peer", "auto", "peer"): 1.0,  # below the bound: not believed
        ("peer", "pull", "peer"): 9.0,
        ("torch_symm", "two_shot", "peer"): 9.5,
    }
    results = [Result(case=case(*k), status="ok", latency=estimate(us)) for k, us in times.items()]
    results.append(Result(case=case("peer", "line128", "peer"), status="wrong", reason="wrong_result"))
    results.append(
        Result(case=case("host", "auto", "host", mode="eager"), status="ok", latency=estimate(99.0))
    )
    write_run(tmp_path / "world-4", results, extended_probes(predicted.probes(), 4))
    (tmp_path / "decode-host.json").write_text(
        json.dumps(
            {
                "world": 4,
                "path": "host",
                "batches": [
                    {"batch": 32, "alike": True, "us": {"ours": 2000.0, "nccl default": 3000.0}},
                    {"batch": 64, "alike": False, "us": {"ours": 2000.0, "nccl default": 3000.0}},
                ],
            }
        )
    )
    found = measured.measured(tmp_path)
    host = {k[3]: v for k, v in found.items() if k[:3] == ("4", "host", "262144")}
    floors = predicted.floor_of("host", 4, 262144)
    assert host == {
        "NCCL default": 60.0,
        "NCCL best": 45.0,
        "ours, tuned": 17.0,
        "ours, two-shot": 19.0,
        "bound": floors.bound.value,
        "attainable": floors.attainable.value,
    }
    assert {k[3] for k in found if k[:3] == ("4", "peer", "262144")} == {
        "ours, one-shot pull",
        "bound",
        "attainable",
    }
    assert {k: v for k, v in found.items() if k[0] == "decode"} == {("decode", "host", "32"): 0.5}
    assert found["crossover", "4", "host", "attainable"] == predicted.crossover("host", 4).value
    expected = {e.key: e.estimate for e in predicted.predictions()}
    pull, tuned = (
        expected["4", "peer", "262144", "ours, one-shot pull"],
        expected["4", "host", "262144", "ours, tuned"],
    )
    assert 9.0 / pull.value > 1.2  # or it would not be marked
    line = next(x for x in tool.compare(tmp_path) if "one-shot pull" in x)
    assert line.startswith(
        f"  ! 4 peer 262144 ours, one-shot pull: predicted {pull.value:.2f} [{pull.lo:.2f}, "
    )
    assert line.endswith(f"measured 9.00: {9 / pull.value - 1:+.0%}, inside its interval".replace("%", " %"))
    assert f"17.0 ({17 / tuned.value - 1:+.0%})".replace("%", " %") in tool.render(tmp_path)


def test_where_one_shape_overtakes_another_lies_between_two_sizes() -> None:
    one = {1 << k: 2.0 + (1 << k) / 1e4 for k in range(12, 22)}
    two = {1 << k: 4.0 + (1 << k) / 2e4 for k in range(12, 22)}
    assert measured.where_overtaken(one, two) == pytest.approx(4e4, rel=0.05)
    assert measured.where_overtaken(two, one) is None
    assert measured.where_overtaken(one, {1 << 12: 9.0}) is None


def test_folders_without_a_run_and_files_that_are_none_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="found neither"):
        measured.measured(tmp_path)
    (tmp_path / "decode-peer.json").write_text('{"world": 4, "path": "peer"}')
    with pytest.raises(InputError, match=r"decode-peer\.json: expected what microbench"):
        measured.measured(tmp_path)


@pytest.mark.processes
def test_a_step_that_fails_or_lasts_too_long_costs_itself_alone(
    tmp_path: Path, tool: ModuleType, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tool, "ENDING_S", 0.5)

    def step(name: str, code: str, share: float = 1.0) -> Any:
        return tool.Step(name=name, argv=(sys.executable, "-c", code), share=share)

    todo = [
        step("broken", "print('why'); raise SystemExit(3)"),
        step("hung", "import time; time.sleep(60)", share=0.15),
        step("good", "import os; assert os.environ['NCCL_NVLS_ENABLE'] == '0'"),
    ]
    assert tool.carry_out(tmp_path, todo, 10.0) == 1
    said = capsys.readouterr().out
    assert "broken: failed with 3" in said
    assert "    why" in said
    assert "hung: out of time" in said
    assert "good: done" in said


def test_what_ranks_printed_last_is_shown_without_their_launchers_end(tool: ModuleType) -> None:
    launcher = """\
W1130 00:56:23.053000 19043 torch/distributed/elastic/multiprocessing/api.py:1028] Sending process 19075
Traceback (most recent call last):
  File "<frozen runpy>", line 198, in _run_module_as_main
  File "/somewhere/torch/distributed/run.py", line 1032, in <module>
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
"""
    own = [
        "row 1",
        "rank 1:",
        "Traceback (most recent call last):",
        '  File "x.py", line 1',
        "ValueError: broken",
    ]
    assert tool.last_lines("\n".join([*own, launcher])) == own
    assert tool.last_lines("\n".join([*map(str, range(99)), launcher])) == [str(n) for n in range(79, 99)]


def test_both_commands_fit_into_their_time_and_write_where_compare_looks(
    tmp_path: Path, tool: ModuleType
) -> None:
    sweeps = tool.sweeps(tmp_path, (4, 3, 2), ("--devices", "cpu"))
    assert [s.argv[s.argv.index("--out") + 1] for s in sweeps] == [
        str(tmp_path / f"world-{n}") for n in (4, 3, 2)
    ]
    assert all(s.argv[-2:] == ("--devices", "cpu") for s in sweeps)
    names = [s.name for s in tool.steps(tmp_path)]
    assert names == ["decode-peer", "decode-host", "correctness", "fused-peer", "fused-host"]
    on_host = [dict(s.environment).get("NCCL_P2P_DISABLE") for s in tool.steps(tmp_path)]
    assert on_host == [None, "1", None, None, "1"]
    for argument in ("microbench/decode_step.py", "microbench/fused.py", "tests/gpu/test_many_ranks.py"):
        assert (ROOT / argument).is_file()
        assert any(argument in s.argv for s in tool.steps(tmp_path))
