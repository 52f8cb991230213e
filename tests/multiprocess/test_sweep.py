"""The sweep on real processes: two CPU ranks, faults from third-party backends, kills and resumption.

Nothing here asserts how long an operation takes; waits are bounded generously.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

import arfloor
from arfloor import rundir
from arfloor.core.judgement import judge_all
from arfloor.core.rates import BEST

pytestmark = [pytest.mark.processes, pytest.mark.filterwarnings("ignore::ResourceWarning")]

ROOT = Path(__file__).resolve().parents[2]
FAULTS = "tests.multiprocess.faults"
SIZES = (4096, 65536)


def torchrun(*args, ranks=2):
    return [
        *(sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"),
        *("-m", "arfloor.sweep", *map(str, args)),
    ]


def environment():
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
    return {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}


def sweep(*args, cwd, ranks=2, command=None, env=None):
    """Run a sweep to its end; (exit code of the launcher, stdout, stderr)."""
    done = subprocess.run(
        command or torchrun(*args, ranks=ranks),
        cwd=cwd,
        env=environment() | (env or {}),
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


def write_recipe(folder, launches):
    """Two sizes, gloo alone, no probes: the least that shows everything."""
    file = folder / f"tiny{launches}.toml"
    file.write_text(
        f'name = "tiny"\nsizes = {list(SIZES)}\nlaunches = {launches}\nbudget_s = 0.8\n'
        'timeout_s = 4\nprimitives = false\nbackends = ["gloo"]\n'
    )
    return file


@pytest.fixture(scope="module")
def recipe(tmp_path_factory):
    return write_recipe(tmp_path_factory.mktemp("recipe"), 2)


@pytest.fixture(scope="module")
def once(tmp_path_factory):
    return write_recipe(tmp_path_factory.mktemp("recipe"), 1)


def statuses(run):
    return {(r.case.backend, r.case.nbytes): (r.status, r.reason) for r in run.results}


def ours(line):
    return [x for x in line.splitlines() if x.startswith("arfloor: ")]


def no_traceback(text):
    """Nothing of ours ends in a traceback (torchrun prints its own when a rank's exit code is not 0)."""
    package = str(Path(arfloor.__file__).parent)
    return package not in "".join(x for x in text.splitlines() if x.lstrip().startswith("File "))


def test_smoke_with_gloo_and_mpi_measures_verifies_and_reports(tmp_path):
    out, recipe = tmp_path / "run", tmp_path / "short.toml"
    recipe.write_text("sizes = [4096, 262144]\nlaunches = 1\nbudget_s = 1\n")
    code, stdout, stderr = sweep(recipe, "--out", out, cwd=tmp_path)
    assert code == 0, stderr
    run = rundir.load(out)
    assert run.warnings == ()
    gloo = [r for r in run.results if r.case.backend == "gloo"]
    assert [r.status for r in gloo] == ["ok", "ok"]
    assert all(r.check.wrong == 0 and r.check.bitwise_equal and r.latency for r in gloo)
    assert all(r.stop in ("interval", "budget") for r in gloo)
    mpi = [r for r in run.results if r.case.backend == "mpi"]
    assert mpi
    assert {r.status for r in mpi} <= {"ok", "unsupported"}
    assert {p.kind for p in run.primitives} == {"pingpong", "stream", "reduce"}
    best = Counter((p.kind, p.source) for p in run.primitives if p.active == BEST)
    assert best["pingpong", "gloo"] >= 2  # of the probes, and of those beside the first block
    for group in judge_all(run.results, run.primitives):
        bound = group.floor.bound.lo
        assert 0 < bound <= group.floor.attainable.value
        assert all(r.latency.hi >= bound for r in group.results if r.status == "ok")
    assert len(run.manifest.blocks_done) == len(run.records)
    assert run.manifest.failures == ()
    assert {s.rank for s in run.samples} == {0, 1}
    assert "256 KiB" in stdout
    assert str(out) in stdout
    assert (out / "report.md").read_text() in stdout
    hostname = os.uname().nodename
    written = "".join(f.read_text() for f in out.glob("*.json*"))
    assert len(hostname) < 3 or hostname not in written


def test_each_fault_costs_its_case_and_nothing_else(tmp_path, recipe):
    """Killed, hung, raising and refusing on one rank, all in one run beside gloo."""
    out = tmp_path / "run"
    faults = [f"{FAULTS}:{name}" for name in ("Killed", "Hangs", "Raises", "Refuses")]
    code, stdout, stderr = sweep(
        recipe, "--backends", ",".join(["gloo", *faults]), "--out", out, cwd=tmp_path
    )
    assert code == 0, stderr
    run = rundir.load(out)
    expected = {
        ("gloo", 65536): ("ok", None),
        ("killed", 65536): ("failed", "worker_died"),
        ("hangs", 65536): ("timeout", "worker_hung"),
        ("raises", 65536): ("failed", "raised"),
        ("refuses", 65536): ("failed", "prepare_failed"),
    }
    expected |= {(name, 4096): ("ok", None) for name, _ in expected}
    assert statuses(run) == expected
    failed = {r.case.backend: r for r in run.results if r.status != "ok"}
    for name in ("killed", "raises", "refuses"):
        assert "rank 1" in failed[name].detail
    assert all(r.latency is None for r in failed.values())
    assert len(run.records) == 4  # two sizes, two launches: no block was lost
    assert run.primitives == ()  # the recipe asks for none
    assert len(run.manifest.failures) == 3  # refusing needed no kill
    for reason in ("worker_died", "worker_hung", "raised"):
        assert any(reason in text for text in run.manifest.failures)
        assert reason in stdout + (out / "report.md").read_text() + stderr
    assert no_traceback(stderr)


def test_a_worker_that_a_library_aborts_carries_the_reason_of_its_output(tmp_path, once):
    out = tmp_path / "run"
    code, _, stderr = sweep(once, "--backends", f"gloo,{FAULTS}:Aborted", "--out", out, cwd=tmp_path)
    assert code == 0, stderr
    run = rundir.load(out)
    (failed,) = [r for r in run.results if r.status != "ok"]
    assert (failed.case.backend, failed.case.nbytes, failed.reason) == ("aborted", 65536, "illegal_address")
    assert "rank 1" in failed.detail


def test_a_wrong_result_on_one_rank_is_no_fast_result(tmp_path, once):
    out = tmp_path / "run"
    code, _, stderr = sweep(once, "--backends", f"gloo,{FAULTS}:Wrong", "--out", out, cwd=tmp_path)
    assert code != 0
    assert "exitcode  : 5" in stderr
    run = rundir.load(out)
    wrong = next(r for r in run.results if (r.case.backend, r.case.nbytes) == ("wrong", 65536))
    assert (wrong.status, wrong.reason, wrong.latency) == ("wrong", "wrong_result", None)
    assert "rank 1" in wrong.detail
    assert wrong.check.wrong > 0
    assert statuses(run)["gloo", 65536] == ("ok", None)


def begin(args, cwd):
    """Start a sweep in a session of its own, as a terminal would."""
    return subprocess.Popen(
        torchrun(*args),
        cwd=cwd,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def wait_for(condition, process, seconds=90):
    end = time.monotonic() + seconds
    while not condition():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.05)


def members(session):
    """Processes that belong to a run, by the folder they work for (their command line or environment)."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and session in (entry / "cmdline").read_text():
                found.append(int(entry.name))
        except OSError:
            continue
    return found


def records(out):
    file = out / "results.jsonl"
    return file.read_bytes().count(b"\n") if file.is_file() else 0


def test_a_killed_job_is_resumed_to_the_same_cases(tmp_path, recipe):
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    assert sweep(recipe, "--out", whole, cwd=tmp_path)[0] == 0
    process = begin([recipe, "--out", cut, "--budget", "6"], tmp_path)
    wait_for(lambda: records(cut) >= 1, process)
    for pid in {process.pid, *members(str(cut))}:
        os.kill(pid, signal.SIGKILL)
    process.communicate(timeout=30)
    wait_for_gone(cut)
    before = records(cut)
    assert before < 4
    with (cut / "results.jsonl").open("ab") as stream:
        stream.write(b'{"schema":1,"block":{"id"')  # as if killed in the middle of a line
    code, _, stderr = sweep("--resume", cut, cwd=tmp_path)
    assert code == 0, stderr
    first, second = rundir.load(whole), rundir.load(cut)
    assert (first.planned, second.planned) == (4, 4)
    assert {r.case.id for r in first.results} == {r.case.id for r in second.results}
    assert statuses(first) == statuses(second)
    keys = [(r.block.id, r.launch) for r in second.records]
    assert len(keys) == len(set(keys)) == 4  # what was there was not measured again
    assert set(keys) == {(r.block.id, r.launch) for r in first.records}
    seen = [(s.case_id, s.launch, s.round, s.rank) for s in second.samples]
    assert len(seen) == len(set(seen))
    # nothing is left to do: said quickly, with the same report
    assert sweep("--resume", cut, cwd=tmp_path)[0] == 0
    assert len(rundir.load(cut).records) == 4


def wait_for_gone(out, seconds=20):
    end = time.monotonic() + seconds
    while members(str(out)):
        assert time.monotonic() < end, f"still running: {members(str(out))}"
        time.sleep(0.1)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_keeps_and_reports_what_is_done(tmp_path, recipe, number):
    out = tmp_path / "run"
    process = begin([recipe, "--out", out, "--budget", "16"], tmp_path)
    wait_for(lambda: records(out) >= 1, process)
    begun = time.monotonic()
    os.killpg(process.pid, number) if number == signal.SIGINT else process.terminate()
    stdout, stderr = process.communicate(timeout=40)
    assert time.monotonic() - begun < 20
    assert process.returncode != 0
    assert str(out) in stdout, stderr
    assert (out / "report.md").is_file()
    run = rundir.load(out)
    assert 1 <= len(run.records) < 4
    assert f"(partial: {len(run.records)} of 4 blocks)" in stdout.splitlines()[0]
    assert all(r.status == "ok" for r in run.results)
    assert run.manifest.failures == ()
    wait_for_gone(out)


def test_bad_input_is_one_line_on_rank_0_and_writes_nothing(tmp_path):
    code, stdout, stderr = sweep("--sizes", "1000", cwd=tmp_path)
    assert code == 1  # torchrun's own code for a failed rank
    lines = ours(stderr)
    assert len(lines) == 1
    for word in ("sizes", "'1000'", "multiple of 16"):
        assert word in lines[0]
    assert "exitcode  : 2" in stderr
    assert stdout == ""
    assert list(tmp_path.iterdir()) == []
    assert no_traceback(stderr)


def two_ranks_by_hand(cwd, *, envs, args):
    """Two ranks without a launcher: each may then differ from the other."""
    port = 20000 + os.getpid() % 20000
    common = environment() | {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", "arfloor.sweep", *map(str, args[rank])],
            cwd=cwd,
            env=common | {"RANK": str(rank)} | envs[rank],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in (0, 1)
    ]
    ended = [p.communicate(timeout=90) for p in processes]
    return [p.returncode for p in processes], [e[1] for e in ended]


def test_a_mistake_that_one_rank_alone_sees_ends_both_with_2(tmp_path, once):
    file = tmp_path / "bad.toml"
    file.write_text("surprise = 3\n")
    codes, errors = two_ranks_by_hand(tmp_path, envs=({}, {}), args=([once], [file]))
    assert codes == [2, 2]
    assert "surprise" in ours(errors[0])[0]
    assert ours(errors[1]) == []
    assert [f.name for f in tmp_path.iterdir()] == ["bad.toml"]


def test_ranks_on_different_versions_are_refused(tmp_path):
    # a package of that name and another version, in front of the installed one
    info = tmp_path / "other" / "numpy-0.0.1.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: numpy\nVersion: 0.0.1\n")
    other = os.pathsep.join([str(info.parent), environment()["PYTHONPATH"]])
    codes, errors = two_ranks_by_hand(tmp_path, envs=({}, {"PYTHONPATH": other}), args=(["smoke"], ["smoke"]))
    assert codes == [2, 2]
    assert "rank 1 has numpy 0.0.1" in ours(errors[0])[0]


@pytest.mark.parametrize(
    ("env", "words"), [({}, "torchrun"), ({"RANK": "0", "WORLD_SIZE": "1"}, "at least 2 ranks, found 1")]
)
def test_one_rank_or_no_launcher_are_refused(tmp_path, env, words):
    code, _, stderr = sweep(cwd=tmp_path, command=[sys.executable, "-m", "arfloor.sweep", "smoke"], env=env)
    assert code == 2
    assert words in ours(stderr)[0]
    assert no_traceback(stderr)


def test_mpirun_starts_a_sweep_like_torchrun(tmp_path, once):
    from arfloor.runtime import mpi_launch

    if mpi_launch.mpiexec() is None:
        pytest.skip("no mpiexec in this environment")
    out = tmp_path / "run"
    command = [*mpi_launch.command(2), sys.executable, "-m", "arfloor.sweep", str(once)]
    command += ["--backends", "gloo,mpi", "--sizes", "4096", "--out", str(out)]
    code, stdout, stderr = sweep(cwd=tmp_path, command=command, env=mpi_launch.environment(2))
    assert code == 0, stderr
    run = rundir.load(out)
    assert {s for s, _ in statuses(run).values()} <= {"ok", "unsupported"}
    assert statuses(run)["gloo", 4096] == ("ok", None)
    assert str(out) in stdout
