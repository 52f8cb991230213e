"""The run directory survives being killed and refuses what it cannot read."""

import json

import pytest

from arfloor import rundir
from arfloor.core.cases import Block, BlockRecord, Case, Estimate, Machine, Manifest, Result, Samples


def make_case(**changes):
    fields = {
        "backend": "gloo",
        "path": "cpu",
        "devices": ("cpu:0", "cpu:1"),
        "numel": 256,
        "dtype": "float32",
        "mode": "eager",
    }
    return Case(**(fields | changes))


def make_manifest(**changes):
    fields = {
        "schema": 1,
        "run_id": "test",
        "origin": "measured",
        "started": "2026-01-01T00:00:00Z",
        "recipe": {},
        "seed": 0,
        "launches": 1,
        "machine": Machine(world=2, device_kind="cpu", device_name="test"),
        "versions": {},
        "env": {},
    }
    return Manifest(**(fields | changes))


def make_record(case, launch=0):
    block = Block(
        id="b0",
        settings=(),
        path="cpu",
        devices=case.devices,
        dtype="float32",
        numel=256,
        case_ids=(case.id,),
    )
    estimate = Estimate(value=10.0, lo=9.0, hi=11.0, n=3, unit="us")
    result = Result(case=case, status="ok", latency=estimate, block_id="b0")
    return BlockRecord(schema=1, block=block, launch=launch, results=(result,))


def write_run(path):
    case = make_case()
    writer = rundir.Writer(path)
    writer.manifest(make_manifest())
    for rank in (0, 1):
        writer.samples(
            rank, [Samples(case_id=case.id, launch=0, round=0, rank=rank, us=(9.0 + rank, 20.0, 30.0))]
        )
    writer.block(make_record(case))
    return case


def test_round_trip_takes_the_slowest_rank(tmp_path):
    case = write_run(tmp_path)
    run = rundir.load(tmp_path)
    assert run.results[0].case == case
    assert run.results[0].latency.value == 20.0
    assert rundir.blocks_done(run) == {("b0", 0)}
    assert run.warnings == ()


def test_torn_last_line_is_dropped_and_repaired_by_the_next_write(tmp_path):
    case = write_run(tmp_path)
    with (tmp_path / "results.jsonl").open("ab") as stream:
        stream.write(b'{"schema":1,"bl')
    run = rundir.load(tmp_path)
    assert len(run.records) == 1
    assert "torn" in run.warnings[0]
    rundir.Writer(tmp_path).block(make_record(case, launch=1))
    assert rundir.blocks_done(rundir.load(tmp_path)) == {("b0", 0), ("b0", 1)}


def test_samples_of_an_unfinished_block_do_not_count(tmp_path):
    case = write_run(tmp_path)
    rundir.Writer(tmp_path).samples(0, [Samples(case_id=case.id, launch=1, round=0, rank=0, us=(1.0,))])
    assert {s.launch for s in rundir.load(tmp_path).samples} == {0}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{", "damaged"),
        ("[]", "not an arfloor manifest"),
        ('{"schema": 99}', "newer"),
        ('{"schema": 1, "surprise": 2}', "not an arfloor manifest"),
    ],
)
def test_foreign_directories_are_refused_in_one_line(tmp_path, text, expected):
    (tmp_path / "manifest.json").write_text(text)
    with pytest.raises(rundir.RunDirError, match=expected) as caught:
        rundir.load(tmp_path)
    assert "\n" not in str(caught.value)


def test_no_run_directory_is_said_so(tmp_path):
    with pytest.raises(rundir.RunDirError, match=r"manifest\.json"):
        rundir.load(tmp_path)


def test_nan_is_neither_written_nor_read(tmp_path):
    case = write_run(tmp_path)
    before = (tmp_path / "samples-rank0.jsonl").read_bytes()
    spoilt = Samples(case_id=case.id, launch=0, round=1, rank=0, us=(1.0, float("nan")))
    with pytest.raises(ValueError, match="JSON"):
        rundir.Writer(tmp_path).samples(0, [spoilt])
    assert (tmp_path / "samples-rank0.jsonl").read_bytes() == before
    line = json.loads((tmp_path / "results.jsonl").read_text())
    line["results"][0]["latency"]["value"] = float("nan")
    (tmp_path / "results.jsonl").write_text(json.dumps(line) + "\n")
    assert rundir.load(tmp_path).records == ()
