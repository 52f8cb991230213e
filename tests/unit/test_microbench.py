"""The scripts of microbench/ need GPUs; what can be known of them without any."""

from __future__ import annotations

import ast
import faulthandler
import importlib
import io
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from arfloor.runtime import chains, timing_gpu
from arfloor.runtime.ranks import NO_MULTICAST

ROOT = Path(__file__).parents[2]
# code that no test runs without a GPU
FOLDERS = ("microbench", "tests/gpu")


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Any]:
    """Imports a script of microbench/ by its name."""
    monkeypatch.syspath_prepend(str(ROOT / "microbench"))
    return importlib.import_module


def shadowed(source: str) -> Iterator[str]:
    """`line: name` of every name that a function binds although the module imports it.

    Reading the import there is an UnboundLocalError, which neither ruff nor mypy reports."""
    tree = ast.parse(source)
    imported = {
        (alias.asname or alias.name).partition(".")[0]
        for node in tree.body
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
    }
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef):
            for node in ast.walk(function):
                stored = isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
                if stored and node.id in imported:
                    yield f"{node.lineno}: {node.id}"


def test_a_shadowed_import_is_seen() -> None:
    source = "from a import chains\ndef f(x):\n    chains = [chains.Chain(i) for i in x]\n    return chains\n"
    assert list(shadowed(source)) == ["3: chains"]
    assert list(shadowed(source.replace("    chains = ", "    built = "))) == []


@pytest.mark.parametrize("folder", FOLDERS)
def test_no_function_hides_an_import(folder: str) -> None:
    scripts = sorted((ROOT / folder).glob("*.py"))
    assert len(scripts) > 5
    found = {path.name: list(shadowed(path.read_text(encoding="utf-8"))) for path in scripts}
    assert {name: hidden for name, hidden in found.items() if hidden} == {}


def test_interleaved_runs_take_turns_and_give_the_slope_of_the_slowest_rank(monkeypatch, script) -> None:
    """`interleaved_us` on chains whose times are known: rank 0 here, the other rank a third slower."""
    closed = []

    class Chain:
        def __init__(self, op, count, barrier, *, graph):
            op.run(0)
            self.us = 20.0 + count * op.run(1)

        def replay_us(self) -> float:
            return self.us

        def close(self) -> None:
            closed.append(self)

    gpu_ranks = script("gpu_ranks")
    monkeypatch.setattr(chains, "Chain", Chain)
    monkeypatch.setattr(timing_gpu, "barrier_for", lambda ranks, path: SimpleNamespace(check=lambda: None))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)

    def everyone(times):
        slower = {name: [[us * 4 / 3 for us in chain] for chain in pair] for name, pair in times.items()}
        return [times, slower]

    ranks = SimpleNamespace(path="peer", group=SimpleNamespace(all_gather=everyone))
    found = gpu_ranks.interleaved_us(ranks, {"slow": lambda slot: 6.0, "fast": lambda slot: 3.0}, replays=5)
    assert found == {"slow": pytest.approx([8.0] * 5), "fast": pytest.approx([4.0] * 5)}
    assert len(closed) == 4


def test_an_error_is_said_where_stderr_is_a_buffer_that_is_lost(monkeypatch, script, capfd) -> None:
    """As torch.distributed puts in its place while a hook runs; the process then ends at once."""
    gpu_ranks = script("gpu_ranks")
    codes: list[int] = []
    monkeypatch.setattr(os, "_exit", codes.append)
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    gpu_ranks._end_at_once(ValueError, ValueError("a broken rank"), None)
    assert "ValueError: a broken rank" in capfd.readouterr().err
    assert codes == [1]


@pytest.mark.parametrize("path", ["peer", "host"])
def test_a_case_of_a_script_is_on_the_path_it_was_started_for(path: str, script) -> None:
    gpu_ranks = script("gpu_ranks")
    rank = object.__new__(gpu_ranks.GpuRank)
    rank.path, rank.world = path, 2
    made = rank.case("nccl", "16ch", 262144)
    assert (made.nbytes, made.world, made.path, made.inplace) == (262144, 2, path, True)
    assert dict(made.settings) == ({"NCCL_P2P_DISABLE": "1"} if path == "host" else {})


def test_captures_are_described_by_their_levels(script) -> None:
    """Two ranks, three captures of 10, 11 and 11 us an operation on the slower; late, 1 us more."""
    levels = script("capture_levels")

    def times(each_us):
        return [20 + 40 * each_us] * 3, [20 + 8 * each_us] * 3

    slower, other = [times(us) for us in (10.0, 11.0, 11.0)], [times(9.0)] * 3
    late = [times(us + 1) for us in (10.0, 11.0, 11.0)]
    prompt = levels.slopes([other, slower])
    assert prompt == [pytest.approx([us] * 3) for us in (10.0, 11.0, 11.0)]
    found = levels.described(prompt, levels.slopes([late, other])).split()
    mean = 32 / 3
    assert [float(word) for word in found[:2]] == [pytest.approx(mean, abs=0.01), 11.0]
    assert float(found[2]) == pytest.approx(100 * (2 / 9) ** 0.5 / mean, abs=0.1)
    assert float(found[3]) == 0.0
    assert float(found[5]) == pytest.approx(100 / mean, abs=0.1)
    assert found[7:] == ["1", "0", "2"]


def test_luck_of_slabs_is_told_from_that_of_captures(script) -> None:
    spreads = script("slab_luck").spreads
    assert spreads([[9.0, 9.0], [11.0, 11.0]]) == pytest.approx((100 * 2**0.5 / 10, 0.0))
    assert spreads([[9.0, 11.0], [11.0, 13.0]]) == pytest.approx((100 / 11, 100 * 2**0.5 / 11))
    between, within = spreads([[9.0, 11.0], [9.0, 11.0]])
    assert (between, within) == pytest.approx((0.0, 100 * 2**0.5 / 10))


def test_a_limit_is_over_for_all_when_it_is_for_one(script, capsys) -> None:
    rank = object.__new__(script("gpu_ranks").GpuRank)
    rank.rank, rank._begun, rank._limit_s = 0, time.monotonic(), 60.0
    rank.group = SimpleNamespace(all_gather=lambda spent_s: [spent_s, 61.0])
    assert rank.over("8192 B")
    assert capsys.readouterr().out == "8192 B and on: left out, 60 s are over\n"
    rank.group = SimpleNamespace(all_gather=lambda spent_s: [spent_s, 59.0])
    assert not rank.over("8192 B")


def test_a_script_that_joins_will_end_and_turns_multicast_off(monkeypatch, script) -> None:
    gpu_ranks = script("gpu_ranks")
    ends: list[tuple[float, bool]] = []
    for name in NO_MULTICAST:
        monkeypatch.setenv(name, "")
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    monkeypatch.setattr(faulthandler, "dump_traceback_later", lambda s, *, exit: ends.append((s, exit)))
    monkeypatch.setattr(gpu_ranks, "die_with_parent", lambda: None)
    monkeypatch.setattr(gpu_ranks, "GpuRank", lambda limit_s: limit_s)
    assert gpu_ranks.join(30.0) == 30.0
    assert ends == [(30.0 + gpu_ranks.GRACE_S, True)]
    assert {name: os.environ[name] for name in NO_MULTICAST} == NO_MULTICAST
    assert sys.excepthook is gpu_ranks._end_at_once
