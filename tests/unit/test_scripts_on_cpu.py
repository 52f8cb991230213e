"""Scripts of microbench/ from their command line to their last row, on the stand-in of `cuda_on_cpu`."""

from __future__ import annotations

import importlib
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("cuda.bindings", reason="needs cuda-core: pip install 'arfloor[cuda]'")
pytest.importorskip("torch")

from arfloor import rundir
from arfloor.backends import tune
from arfloor.core.cases import Primitive
from arfloor.runtime import timing_gpu
from tests.unit.cuda_on_cpu import Cuda, Failed, Left, TimedOp, forget_streams, rank_of

ROOT = Path(__file__).parents[2]
SCRIPTS = sorted(p.stem for p in (ROOT / "microbench").glob("*.py") if not p.stem.endswith("_ranks"))
US = {"nccl": 12.0, "flag": 5.0, "ll": 2.5, "line": 3.0}


def us_of(name: str) -> float:
    """What a launch takes: by protocol; second phases cost a little more, fewer bits less."""
    if name in ("device_barrier", "delay", "empty"):
        return 1.0
    front = next(us for start, us in US.items() if name.startswith(start))
    return front + 0.5 * ("-two" in name) + 0.25 * ("line16" in name) - 0.6 * name.endswith(("-int8", "-fp8"))


class Bench:
    """Runs a script with `world` threads as ranks."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        monkeypatch.syspath_prepend(str(ROOT / "microbench"))
        for name in SCRIPTS:  # before anything is replaced: they keep what they import
            importlib.import_module(name)
        self.cuda = Cuda(monkeypatch, us_of)
        self._monkeypatch, self._capsys = monkeypatch, capsys
        self.gpu_ranks: Any = importlib.import_module("gpu_ranks")
        self._stand_in(self.gpu_ranks)
        for module in (timing_gpu, tune):  # short chains: every operation takes as long as the others
            monkeypatch.setattr(module, "FEW", 2)
            monkeypatch.setattr(module, "MANY", 5)

    def _stand_in(self, gpu_ranks: Any) -> None:
        def nccl() -> Any:
            return SimpleNamespace(prepare=lambda case, group, slots: TimedOp(self.cuda, case, slots))

        def left(rank: Any) -> None:
            rank.group.barrier()
            raise Left

        def failed(rank: Any, why: str) -> None:
            raise Failed(why)

        for module in map(importlib.import_module, ("gpu_ranks", *SCRIPTS)):
            if hasattr(module, "Nccl"):
                self._monkeypatch.setattr(module, "Nccl", nccl)
        self._monkeypatch.setattr(gpu_ranks.GpuRank, "leave", left)
        self._monkeypatch.setattr(gpu_ranks.GpuRank, "fail", failed)

    def script(self, name: str) -> Any:
        return importlib.import_module(name)

    def run(self, name: str, *arguments: str, path: str = "peer", world: int = 2) -> list[str]:
        """What it printed, by line. Raises Failed."""
        script, place = self.script(name), self.cuda.here
        join = lambda limit_s=60.0: rank_of(self.gpu_ranks, place.group, path, limit_s)  # noqa: E731
        self._monkeypatch.setattr(script, "join", join)
        self._monkeypatch.setattr(sys, "argv", [f"{name}.py", *arguments])

        def main(group: Any) -> None:
            with pytest.raises(Left):
                script.main()

        self.cuda.run(world, main)
        return self._capsys.readouterr().out.splitlines()


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Bench]:
    yield Bench(monkeypatch, capsys)
    forget_streams()


def values_of(names: list[str], line: str) -> dict[str, float]:
    """A row of cells such as `2.50 (0.10)*`, by column."""
    cells = line.split(")")[:-1]
    return {n: float(c.split("(")[0].split()[-1]) for n, c in zip(names, cells, strict=True)}


@pytest.mark.parametrize("path", ["peer", "host"])
def test_which_protocol_wins_marks_the_fastest_of_a_row(bench: Bench, path: str) -> None:
    lines = bench.run("which_protocol_wins", "--sizes", "8192", path=path)
    assert path in lines[0]
    names, row = lines[1].split()[1:], lines[2]
    assert ("pull" in names) == (path == "peer")
    assert names[-2:] == ["auto", "nccl"]
    assert int(row.split()[0]) == 8192
    values = values_of(names, row)
    assert values["ll"] == values["auto"] == 2.5
    assert (values["line64"], values["line16"], values["line128-two"]) == (3.0, 3.25, 3.5)
    assert (values["flag"], values["nccl"]) == (5.0, 12.0)
    assert re.findall(r"([\d.]+) \([\d.]+\)\*", row) == ["2.50", "2.50"]


def test_a_wrong_sum_has_no_latency(bench: Bench) -> None:
    bench.cuda.spoiled = "flag"
    with pytest.raises(Failed, match=r"flag.*wrong sum at 8192 B"):
        bench.run("which_protocol_wins", "--sizes", "8192")


def test_no_row_is_begun_after_the_limit(bench: Bench) -> None:
    lines = bench.run("protocol_cost", "--sizes", "8192,65536", "--limit-s", "0")
    assert lines[2:] == ["8192 B and on: left out, 0 s are over"]
    lines = bench.run("protocol_cost", "--sizes", "8192,65536", "--limit-s", "100")
    assert [line.split()[0] for line in lines[2:]] == ["8192", "65536"]


def test_graph_saves_times_three_modes(bench: Bench) -> None:
    lines = bench.run("graph_saves", "--sizes", "1024")
    assert lines[2].split() == ["1024", "12.0", "12.0", "12.0", "1.00"]


@pytest.mark.parametrize("path", ["peer", "host"])
def test_capture_levels_has_a_line_a_size_implementation_and_wait(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    monkeypatch.setattr(bench.script("capture_levels"), "CAPTURES", 3)
    lines = bench.run("capture_levels", path=path)
    assert [line.split()[:5] for line in lines[2:]] == [
        [str(size), name, str(apart), us, us]
        for size in (8192, 262144)
        for name, us in (("nccl", "12.00"), ("ours", "2.50" if size == 8192 else "3.00"))
        for apart in (0, 50, 150)
    ]
    assert all(line.endswith("%  3") for line in lines[2:])  # one level


@pytest.mark.parametrize(("path", "plans"), [("peer", 1), ("host", 4)])
def test_slab_luck_finds_no_difference_where_there_is_none(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, path: str, plans: int
) -> None:
    for name, value in {"EACH": 4, "CAPTURES": 2, "REPLAYS": 3}.items():
        monkeypatch.setattr(bench.script("slab_luck"), name, value)
    places: dict[int, list[tuple[int, ...]]] = {0: [], 1: []}
    end_type = bench.script("slab_luck").Endpoint

    def endpoint(**arguments: Any) -> Any:
        places[arguments["rank"]].append(arguments["pointers"])
        return end_type(**arguments)

    monkeypatch.setattr(bench.script("slab_luck"), "Endpoint", endpoint)
    lines = bench.run("slab_luck", path=path)[1:]
    assert len(lines) == 2 * plans
    for mine in places.values():
        assert len(mine) == 4 * len(lines)
        of_a_line = [mine[i : i + 4] for i in range(0, len(mine), 4)]
        assert all(len(set(found)) == 4 for found in of_a_line)  # a place of its own each
    for line in lines:
        us = "2.50" if " ll" in line else "3.25" if "line16" in line else "3.00"
        assert line.endswith(f"apart 0.0 %, captures 0.0 %; {' '.join([us] * 4)}; alone {us} {us} {us}")


@pytest.mark.parametrize("world", [3, 4])
def test_staging_saves_has_islands_of_an_even_world(bench: Bench, world: int) -> None:
    lines = bench.run("staging_saves", "--sizes", "65536", world=world)
    names = lines[1].split()[1:]
    assert ("islands" in names) == (world == 4)
    assert values_of(names, lines[2])["line512-two-staged"] == 3.5
    kinds = {
        name.split("-", 1)[1].rsplit("-", 1)[0] for name in bench.cuda.launched if name.startswith("line")
    }
    assert {"one-staged", "two-staged"} <= kinds


@pytest.mark.parametrize(("world", "path"), [(2, "peer"), (4, "host")])
def test_staging_saves_says_where_there_is_nothing_to_stage(bench: Bench, world: int, path: str) -> None:
    with pytest.raises(Failed, match="three or more GPUs"):
        bench.run("staging_saves", world=world, path=path)


@pytest.fixture
def few_sums(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> Bench:
    script = bench.script("torn_lines")
    for name, value in {"NBYTES": 4096, "REPLAYS": 3, "SLOTS": 2, "LINES": (64, 128)}.items():
        monkeypatch.setattr(script, name, value)
    return bench


def test_torn_lines_over_the_host_are_counted_by_line(few_sums: Bench) -> None:
    lines = few_sums.run("torn_lines", path="host")
    # by hand: 4096 B in 56 and 120 B a line; two ranks, 3 x 2 sums each
    assert lines[0].endswith("4096 B, 12 sums a row")
    assert [line.split() for line in lines[2:]] == [
        ["64", str(74 * 6 * 2), "0", "0"],
        ["128", str(35 * 6 * 2), "12", "12"],
    ]


def test_torn_lines_over_the_peer_path_are_none(few_sums: Bench) -> None:
    lines = few_sums.run("torn_lines")
    assert [line.split()[2:] for line in lines[2:]] == [["0", "0"]] * 2


def test_a_wrong_sum_with_the_hash_ends_torn_lines(few_sums: Bench) -> None:
    few_sums.cuda.spoiled = "line64"
    with pytest.raises(Failed, match=r"line64.*: 12 wrong sums with the hash"):
        few_sums.run("torn_lines")


@pytest.fixture
def small_products(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> Bench:
    script = bench.script("contention")
    monkeypatch.setattr(script, "SHAPES", {"decode": (2, 8, 8), "prefill": (4, 8, 8)})
    monkeypatch.setattr(script, "LEAST_US", 20.0)
    monkeypatch.setattr(script, "REPLAYS", 3)
    monkeypatch.setattr(script, "NBYTES", 1 << 14)
    return bench


def test_contention_adds_each_row_to_a_run_when_it_has_it(small_products: Bench, tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text("{}")
    lines = small_products.run("contention", "--run", str(tmp_path), "--blocks", "8,33", path="host")
    # one stream in place of two: nothing slows anything
    assert [line.split()[:4] for line in lines[2:]] == [
        [name, blocks, "1.0", "3.0"] for name in ("decode", "prefill") for blocks in ("8", "33")
    ]
    rows = [json.loads(line) for line in (tmp_path / "primitives.jsonl").read_text().splitlines()]
    assert len(rows) == 8
    kept = rundir.adapter(Primitive).validate_python(rows[0])
    assert (kept.kind, kept.access, kept.src, kept.dst, kept.path) == (
        "contention", "compute", "decode", "8 blocks", "host",
    )  # fmt: skip
    assert kept.estimate is not None
    assert kept.estimate.value == pytest.approx(1.0)


def test_contention_asks_for_products_and_a_run_that_exist(small_products: Bench, tmp_path: Path) -> None:
    for arguments in (["--products", "attention"], ["--run", str(tmp_path)]):
        with pytest.raises(SystemExit):
            small_products.run("contention", *arguments)


@pytest.fixture
def few_replays(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> Bench:
    for name in ("QUICK", "LONG"):
        monkeypatch.setattr(tune, name, 2)
    for name in ("QUICK", "REPLAYS"):
        monkeypatch.setattr(bench.script("quantised_wire"), name, 3)
    return bench


@pytest.mark.parametrize("path", ["peer", "host"])
def test_quantised_wire_stands_beside_16_bits(few_replays: Bench, path: str) -> None:
    lines = few_replays.run("quantised_wire", "--sizes", "65536", path=path)
    assert lines[0] == f"64 KiB over {path}"
    rows = {
        label: next(x for x in lines if x.strip().startswith(label)) for label in ("16 bits", "int8", "fp8")
    }
    assert "1.000 of 16 bits" in rows["16 bits"]
    for wire in ("int8", "fp8"):
        assert "2.40 us" in rows[wire]
        assert "0.800 of 16 bits" in rows[wire]
        assert rows[wire].endswith(f"-{wire}")
        assert "rms 0.1" in rows[wire]  # the stand-in rounds to bfloat16 alone


def test_a_wire_that_is_wrong_is_said_and_the_other_timed(few_replays: Bench) -> None:
    few_replays.cuda.spoiled = "fp8"
    lines = few_replays.run("quantised_wire", "--sizes", "65536")
    assert any("fp8: " in line and "wrong elements, not timed" in line for line in lines)
    assert [line.split()[0] for line in lines if "of 16 bits" in line] == ["16", "int8"]


@pytest.mark.parametrize("path", ["peer", "host"])
def test_scripts_free_what_they_allocate(few_sums: Bench, path: str) -> None:
    few_sums.run("torn_lines", path=path)
    assert few_sums.cuda.allocated == 0


class Joined(Exception):
    """A script read its command line and would begin."""


def test_the_steps_of_four_gpus_are_command_lines_that_the_scripts_take(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    limits: list[float] = []

    def join(limit_s: float) -> None:
        limits.append(limit_s)
        raise Joined

    seen = []
    tool = importlib.import_module("four_gpus")
    for step in (*tool.steps(tmp_path, 4, 580.0), *tool.scripts(2, 580.0), *tool.scripts(4, 580.0)):
        at = next((i for i, word in enumerate(step.argv) if word.startswith("microbench/")), None)
        if at is None:
            continue
        script = bench.script(Path(step.argv[at]).stem)
        monkeypatch.setattr(script, "join", join)
        monkeypatch.setattr(sys, "argv", list(step.argv[at:]))
        with pytest.raises(Joined):
            script.main()
        seen.append(step.name)
    sys.modules.pop("four_gpus")
    assert seen[:4] == ["decode-peer", "decode-host", "fused-peer", "fused-host"]
    assert limits[:4] == [105, 105, 47, 47]  # by hand: a quarter and 15 % of 580 s, less 40
    at_two, at_four = seen[4:14], seen[14:]
    assert set(at_four) - set(at_two) == {"staging_saves-peer"}
    assert len(at_four) == len(at_two) + 1 == 11
    assert limits[4] == 50


@pytest.mark.parametrize("name", SCRIPTS)
def test_help_says_how_to_run_it_and_how_long_it_takes(
    name: str, bench: Bench, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", [f"{name}.py", "--help"])
    with pytest.raises(SystemExit) as ended:
        bench.script(name).main()
    said = capsys.readouterr().out
    assert ended.value.code == 0
    assert f"microbench/{name}.py" in said
    assert "What to look for" in said
    assert re.search(r"start|seconds", said)
    on_gpus = "cpu_ranks" not in (ROOT / "microbench" / f"{name}.py").read_text()
    assert ("--limit-s" in said) == on_gpus
