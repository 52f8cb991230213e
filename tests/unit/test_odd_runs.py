"""Runs of odd shapes, and narrow terminals: what a reader of a report or comparison is told all the same."""

import json
from dataclasses import replace

import pytest

from arfloor import rundir
from arfloor.cli import main
from arfloor.report import model
from tests.synthetic import cpu_world, gpu_world, probe, write_run


def test_what_was_found_beside_blocks_does_not_rename_a_link():
    world = cpu_world()
    beside = [
        replace(found, active="best")
        for found in (
            *(p for p in world.primitives if p.link == "tcp"),
            probe("reduce", 9.0, engine="cpu", access="add", src="cpu:0", path="cpu", link="memory"),
        )
    ]
    assert model.link_of((), world.primitives, "cpu") == "shm"
    assert model.link_of((), (*world.primitives, *beside * 40), "cpu") == "shm"


@pytest.mark.parametrize("columns", ["40", "80", "100", "160"])
def test_a_comparison_names_case_ratio_and_answer_at_any_width(columns, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", columns)
    few = {"sizes": (8192, 65536), "rounds": 2, "replays": 3}
    runs = [str(write_run(tmp_path / str(n), gpu_world(run_id=str(n), seed=n, **few))) for n in (1, 2)]
    assert main(["compare", *runs, "--all"]) == 0
    out = capsys.readouterr().out
    lines = out.splitlines()
    assert max(map(len, lines)) <= max(int(columns), 80)
    head = next(line for line in lines if " size " in line)
    assert " case " in head
    assert head.endswith("B is")
    rows = [line for line in lines if " KiB " in line and "[" in line]
    assert rows
    assert all(line.count("]") and "…" not in line for line in rows)
    assert all(any(answer in line for answer in ("faster", "slower", "same", "undecided")) for line in rows)


def test_what_nobody_noted_is_not_called_absent(tmp_path, capsys):
    few = {"sizes": (8192,), "launches": 1, "rounds": 2, "replays": 3}
    run, kept = str(write_run(tmp_path / "run", cpu_world(**few))), str(tmp_path / "kept")
    writer, manifest = rundir.Writer(run), rundir.load(run).manifest
    writer.manifest(replace(manifest, env={"OMP_NUM_THREADS": "1"}))
    assert main(["export", run, "--format", "run", "--out", kept]) == 0
    assert main(["compare", run, kept]) == 0
    out = capsys.readouterr().out
    assert "environment: B names none" in out
    assert "absent" not in out


def test_a_run_without_results_cannot_be_kept_and_the_refusal_reads_well(tmp_path, capsys):
    run = write_run(tmp_path / "run", cpu_world(sizes=()))
    assert main(["export", str(run), "--format", "run", "--out", str(tmp_path / "kept")]) == 2
    assert "nothing was measured; complete it" in capsys.readouterr().err


def test_launches_whose_samples_are_lost_count_all(tmp_path):
    run = write_run(tmp_path / "run", cpu_world(sizes=(8192,), launches=3, rounds=4, replays=5))
    for file in run.glob("samples-rank*.jsonl"):
        file.unlink()
    records = [json.loads(line) for line in (run / "results.jsonl").read_text().splitlines()]
    for record in records:
        for result in record["results"]:
            for key in ("value", "lo", "hi"):
                result["latency"][key] *= (1.0, 1.25, 1.6)[record["launch"]]
    (run / "results.jsonl").write_text("".join(json.dumps(r) + "\n" for r in records))
    bare = rundir.load(run)
    for r in bare.results:
        first, second, third = (
            x.latency for record in bare.records for x in record.results if x.case == r.case
        )
        assert r.latency.value == pytest.approx((first.value * second.value * third.value) ** (1 / 3))
        assert r.latency.lo < first.value < third.value < r.latency.hi
        assert r.latency.n == first.n + second.n + third.n
