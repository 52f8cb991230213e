"""A path of a run, kept small, reports what the whole run reports of that path."""

from dataclasses import replace

import pytest

from arfloor import recorded, rundir, topologies_io
from arfloor.cli import main
from arfloor.core.errors import InputError
from arfloor.core.floor import floor
from arfloor.core.predict import predict_floor
from arfloor.report.model import build
from tests.synthetic import cpu_world, gpu_world, write_run

SIZES = (4096, 65536, 262144)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return rundir.load(write_run(tmp_path_factory.mktemp("whole"), gpu_world(sizes=SIZES)))


@pytest.mark.parametrize(("path", "name"), [("host", "x2-host-bridge"), ("peer", "x2-nvlink")])
def test_one_command_makes_a_box_of_the_library(whole, path, name, tmp_path, capsys):
    folder = tmp_path / name
    command = ["export", str(whole.path), "--format", "box", "--path", path, "--out", str(folder)]
    assert main(command) == 0
    kept = rundir.load(folder / "run")
    wanted = {r.case.id: r for r in whole.results if r.case.path == path}
    assert {r.case.id: r.latency for r in kept.results} == {i: r.latency for i, r in wanted.items()}
    assert {r.case.id: r.check for r in kept.results} == {i: r.check for i, r in wanted.items()}
    assert not kept.samples
    assert "samples left out" in kept.manifest.notes[0]
    assert f"path {path} only" in kept.manifest.notes[0]
    before = next(s for s in build(whole).sections if s.path == path)
    (after,) = build(kept).sections
    for old, new in zip(before.rows, after.rows, strict=True):
        assert (new.verdict.status, new.verdict.best.case) == (old.verdict.status, old.verdict.best.case)
        assert (new.verdict.bound, new.verdict.attainable) == (old.verdict.bound, old.verdict.attainable)
        assert new.verdict.pairing == "unpaired"
    rig = topologies_io.read(folder / "topology.toml")
    assert (rig.name, rig.p2p) == (name, path == "peer")
    asked = {"path": path, "world": 2, "nbytes": 262144, "dtype": "bfloat16", "mode": "graph"}
    measured = floor(whole.primitives, **asked).attainable.value
    assert predict_floor(rig, **asked).attainable.value == pytest.approx(measured, rel=0.03)
    capsys.readouterr()
    assert main(["report", "--topology", str(folder)]) == 0
    told = capsys.readouterr().out
    assert "PREDICTED" not in told
    assert "samples left out" in told
    assert main(command) == 0  # again over itself


def test_what_is_kept_of_a_partial_run_says_so(whole, tmp_path):
    done = len(whole.records)
    recorded.write(replace(whole, planned=done + 2), tmp_path / "kept")
    assert (
        f"partial ({done} of {done + 2} blocks measured)" in rundir.load(tmp_path / "kept").manifest.notes[0]
    )
    recorded.write(replace(whole, planned=done), tmp_path / "all")
    assert "partial" not in rundir.load(tmp_path / "all").manifest.notes[0]


def test_a_run_of_both_paths_and_a_topology_alone(whole, tmp_path, capsys):
    assert main(["export", str(whole.path), "--format", "run", "--out", str(tmp_path / "r")]) == 0
    kept = rundir.load(tmp_path / "r")
    assert {r.case.path for r in kept.results} == {"peer", "host"}
    assert len(kept.results) == len(whole.results)
    size = sum(f.stat().st_size for f in (tmp_path / "r").iterdir())
    assert f"a run of {size} bytes" in capsys.readouterr().out
    assert main(["export", str(whole.path), "--format", "topology"]) == 0
    rig = topologies_io.loads(capsys.readouterr().out)
    assert (rig.name, rig.title) == ("synthetic-gpu", "2x Example GPU, host/pcie and peer/nvlink")
    (tmp_path / "mine").mkdir()
    file = tmp_path / "mine" / "topology.toml"
    assert main(["export", str(whole.path), "--format", "topology", "--out", str(file)]) == 0
    assert topologies_io.find(tmp_path / "mine").rig.name == "mine"
    assert main(["report", "--topology", str(tmp_path / "mine"), "--path", "host"]) == 0
    assert "PREDICTED, not measured" in capsys.readouterr().out


def test_what_cannot_be_kept_is_refused_and_nothing_is_written(whole, tmp_path, capsys):
    cpu = rundir.load(write_run(tmp_path / "cpu", cpu_world(sizes=(1024,))))
    with pytest.raises(InputError, match="expected a run on GPUs"):
        recorded.write_box(cpu, tmp_path / "box")
    with pytest.raises(InputError, match="measured: cpu"):
        recorded.write(cpu, tmp_path / "box", "host")
    with pytest.raises(InputError, match="more than 1000"):
        recorded.write(whole, tmp_path / "box", max_bytes=1000)
    with pytest.raises(InputError, match="another folder"):
        recorded.write(whole, whole.path)
    assert not (tmp_path / "box").exists()
    with pytest.raises(InputError, match="found another"):
        recorded.write(whole, cpu.path)
    assert rundir.load(cpu.path).manifest == cpu.manifest
    assert main(["export", str(whole.path), "--format", "run"]) == 2
    assert main(["export", str(whole.path), "--path", "host"]) == 2
    assert "only for --format" in capsys.readouterr().err


def test_a_decode_run_of_many_cases_fits(tmp_path):
    """Two thousand merged cases weigh less than the limit."""
    run = rundir.load(write_run(tmp_path / "all", gpu_world()))
    weight = recorded.write(run, tmp_path / "kept")
    assert weight / len(run.results) * 2000 < recorded.MAX_BYTES


def test_how_plans_were_chosen_stays_with_the_path(whole, tmp_path):
    run = rundir.load(write_run(tmp_path / "run", gpu_world(sizes=(4096,))))
    line = (
        '{"path": "PATH", "world": 2, "dtype": "bfloat16", "nbytes": 4096, "plan": "ll-one-8x128", '
        '"took_s": 0.1, "finalists_us": {"ll-one-8x128": [3.1, 3.2], "line16t32-one-8x64": [3.3, 3.3]}}\n'
    )
    bad = '{"path": "host"}\n' + line.replace("PATH", "host").replace("3.1", "-3.1")
    text = line.replace("PATH", "host") + line.replace("PATH", "peer") + bad
    (run.path / "tuning.jsonl").write_text(text, encoding="utf-8")
    assert [t.path for t in rundir.tunings(run.path)] == ["host", "peer"]
    recorded.write(run, tmp_path / "kept", "host")
    (kept,) = rundir.tunings(tmp_path / "kept")
    assert kept.finalists_us == {"ll-one-8x128": (3.1, 3.2), "line16t32-one-8x64": (3.3, 3.3)}
    assert rundir.tunings(whole.path) == []
