"""Workers started ahead, as real processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from arfloor import rundir
from arfloor.runtime.spares import COUNT, Spares, started, wanted
from tests.multiprocess.test_sweep import ROOT, once, recipe, statuses, sweep, torchrun  # noqa: F401

pytestmark = [pytest.mark.processes, pytest.mark.filterwarnings("ignore::ResourceWarning")]


@pytest.fixture(autouse=True)
def importable(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]))


def cpu_seconds(pid):
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def threads(pid):
    return len(list(Path(f"/proc/{pid}/task").iterdir()))


@pytest.mark.parametrize(
    ("env", "gpus", "count"),
    [({}, False, 0), ({}, True, 6), ({COUNT: "2"}, False, 2), ({COUNT: "x"}, True, 6)],
)
def test_spares_are_for_gpus_unless_asked_for(env, gpus, count):
    assert wanted(env, gpus=gpus) == count


def test_a_spare_that_is_ready_uses_no_core_and_ends_with_its_supervisor(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    spares = Spares(2, rank=0)
    pids = [process.pid for process in spares._waiting]
    try:
        spares.wait()
        before = [cpu_seconds(pid) for pid in pids]
        time.sleep(1.0)
        assert [cpu_seconds(pid) for pid in pids] == before
        assert all(threads(pid) == 1 for pid in pids)
    finally:
        spares.close()
    assert len(spares) == 0
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)


def test_a_spare_that_is_not_ready_in_time_is_ended(tmp_path, monkeypatch):
    (tmp_path / "slow_import.py").write_text("import time\ntime.sleep(60)\n")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), str(tmp_path)]))
    spares = Spares(1, rank=0, modules=("slow_import",))
    (process,) = spares._waiting
    spares.wait(timeout_s=0.5)
    assert process.returncode == -signal.SIGKILL
    assert len(spares) == 0
    assert spares.take(tmp_path / "x", tmp_path / "log", ()) is None


def test_an_order_cannot_turn_multicast_on(tmp_path, monkeypatch):
    settings = [["NCCL_NVLS_ENABLE", "1"], ["A_B", "2"], ["launcher", "supervisor"]]
    order = {"plan": "P", "log": str(tmp_path / "log"), "settings": settings}
    code = "import os; from arfloor.runtime import spares; spares.await_order([]); print(dict(os.environ))"
    run = subprocess.run(
        [sys.executable, "-c", code],
        input=json.dumps(order) + "\n",
        text=True,
        capture_output=True,
        timeout=30,
    )
    assert run.returncode == 0, run.stderr
    told = (tmp_path / "log").read_text()
    assert "'NCCL_NVLS_ENABLE': '0'" in told
    assert "'A_B': '2'" in told
    assert "'launcher'" not in told  # how ranks are started is no variable


def test_a_plan_of_many_launches_gets_more_spares_up_to_a_limit_unless_asked_otherwise(monkeypatch):
    begun = []
    monkeypatch.setattr(Spares, "_start", lambda self, *of: begun.append(of))
    monkeypatch.setattr(Spares, "keep", lambda self, count: self._waiting.__delitem__(slice(count, None)))
    spares = Spares(2, 3, ("os",), most=4)
    spares.fit(3)
    assert len(spares) == 3
    assert begun == [(3, ("os",))] * 3
    spares.fit(9)
    assert len(spares) == 4
    spares.fit(1)
    assert len(spares) == 1
    asked = started({COUNT: "2"}, 0, dry_run=False)
    asked.fit(9)
    assert len(asked) == 2
    assert len(started({COUNT: "2"}, 0, dry_run=True)) == 0


def test_a_spare_that_died_is_passed_over(tmp_path):
    spares = Spares(2, rank=0, modules=())
    try:
        spares.wait()
        first, second = spares._waiting
        os.kill(first.pid, signal.SIGKILL)
        first.wait()
        taken = spares.take(tmp_path / "no such plan", tmp_path / "log", (("ARFLOOR_TOLD", "yes"),))
        assert taken is second
        assert taken.wait(30) != 0  # there is no such plan
        assert "no such plan" in (tmp_path / "log").read_text()  # what it says goes to its log
        assert spares.take(tmp_path / "x", tmp_path / "log", ()) is None
    finally:
        spares.close()


def test_a_sweep_with_spares_measures_the_same_cases(tmp_path, recipe):  # noqa: F811
    out = tmp_path / "run"
    # two launches, one spare a rank: the second launch starts a worker of its own
    code, _, error = sweep(recipe, "--out", out, cwd=tmp_path, env={COUNT: "1"})
    assert code == 0, error
    run = rundir.load(out)
    assert {status for status, _ in statuses(run).values()} == {"ok"}
    assert {r.launch for r in run.records} == {0, 1}
    lines = [json.loads(line) for line in (out / "events.jsonl").read_text().splitlines()]
    assert [x["event"] for x in lines if x["event"] != "block"] == [
        *("start", "ready", "launch", "launch", "end")
    ]
    assert lines[-1]["failures"] == []


def test_a_spare_that_a_fault_kills_is_replaced_by_another(tmp_path, once):  # noqa: F811
    out = tmp_path / "run"
    code, _, error = sweep(
        *(once, "--out", out, "--backends", "gloo,tests.multiprocess.faults:Killed"),
        cwd=tmp_path,
        env={COUNT: "2"},
    )
    assert code == 0, error
    found = statuses(rundir.load(out))
    assert found["killed", 65536] == ("failed", "worker_died")
    assert found["gloo", 65536] == ("ok", None)
