"""Run directories that rotted, were cut, or were written by something else: named, never believed."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace

import pytest

from arfloor import rundir
from arfloor.cli import main
from arfloor.core.cases import Samples
from arfloor.core.launches import of_pairs
from arfloor.core.sanity import fault, whole_rounds
from arfloor.report.style import spread
from tests.synthetic import gpu_world, write_run


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    world = gpu_world(sizes=(1024, 65536, 262144), launches=1, rounds=2, replays=3)
    return write_run(tmp_path_factory.mktemp("whole"), world)


@pytest.fixture
def run(whole, tmp_path):
    return shutil.copytree(whole, tmp_path / "run")


def rewrite(file, change):
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    for line in lines:
        change(line)
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))


def of_results(change):
    return lambda line: [change(result) for result in line["results"]]


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff\xfe\x00",
        b"[" * 100_000,
        b'{"a":' * 100_000,
        b'{"schema":' + b"9" * 6000 + b"}",
        b'{"schema": NaN}',
        b'{"schema": 0}',
        b"null",
    ],
)
def test_a_manifest_that_is_none_is_one_line(run, content, capsys):
    (run / "manifest.json").write_bytes(content)
    assert main(["report", str(run)]) == 2
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize(
    ("schema", "said"), [(2, "upgrade arfloor"), (0, "expected schema 1"), (-1, "schema")]
)
def test_schemas_that_cannot_be_read(run, schema, said, capsys):
    manifest = json.loads((run / "manifest.json").read_text())
    (run / "manifest.json").write_text(json.dumps(manifest | {"schema": schema}))
    assert main(["report", str(run)]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("place", ["a" * 5000, "a\0b"])
def test_places_that_cannot_be(place, capsys):
    assert main(["report", place]) == 2
    assert capsys.readouterr().err.count("\n") == 1


CASES = {
    "no elements": {"numel": 0},
    "fewer than none": {"numel": -4},
    "too many": {"numel": 10**400},
    "no devices": {"devices": []},
    "one device": {"devices": ["cuda:0"]},
    "a group of one": {"groups": [[0], [1]]},
    "a rank that is not there": {"groups": [[0, 5]]},
    "a rank twice": {"groups": [[0, 0]]},
    "an escape in a name": {"variant": "\x1b[31mx"},
    "no name": {"backend": ""},
}


@pytest.mark.parametrize("kind", CASES)
def test_a_case_that_cannot_be_is_dropped_and_named(run, kind, capsys):
    rewrite(run / "results.jsonl", of_results(lambda r: r["case"].update(CASES[kind])))
    loaded = rundir.load(run)
    assert loaded.results == ()
    assert "dropped: " in loaded.warnings[0]
    for command in (["report", run, "--format", "json"], ["export", run, "--format", "nccl-tests"]):
        assert main([str(word) for word in command]) == 0
        assert "results.jsonl: line 1 dropped" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("value", "lo", "hi", "unit"),
    [
        (0, 0, 0, "us"),
        (-5, -6, -4, "us"),
        (5, 9, 1, "us"),
        (5, 0, 9, "us"),
        (5, 6, 7, "us"),
        (1e308, 1e307, 1.7e308, "us"),
        (5e-324, 5e-324, 5e-324, "us"),
        (5, 4, 6, "ms"),
    ],
)
def test_latencies_and_rates_that_cannot_be_are_dropped(run, value, lo, hi, unit):
    wrong = {"value": value, "lo": lo, "hi": hi, "n": 3, "unit": unit}
    rewrite(run / "results.jsonl", of_results(lambda r: r["latency"] and r.update(latency=wrong)))
    rewrite(run / "primitives.jsonl", lambda p: p.update(estimate=wrong))
    loaded = rundir.load(run)
    assert loaded.results == ()
    assert loaded.primitives == ()
    assert main(["report", str(run)]) == 0


@pytest.mark.parametrize("nbytes", [-1, 10**400])
def test_probes_of_sizes_that_cannot_be_are_dropped(run, nbytes, capsys):
    rewrite(run / "primitives.jsonl", lambda p: p.update(nbytes=nbytes))
    assert rundir.load(run).primitives == ()
    assert main(["report", str(run), "--format", "html"]) == 0
    assert "expected 0 to" in capsys.readouterr().err


def test_an_interval_of_many_orders_is_honest_and_kept(run):
    """Two launches that disagree tenfold say little: one degree of freedom makes such intervals."""
    wide = {"value": 1957.96, "lo": 5.7e-15, "hi": 6.7e20, "n": 6, "unit": "us"}
    rewrite(run / "results.jsonl", of_results(lambda r: r["latency"] and r.update(latency=wide)))
    for file in run.glob("samples-*"):
        file.unlink()
    loaded = rundir.load(run)
    assert loaded.warnings == ()
    assert all(r.latency.hi == 6.7e20 for r in loaded.results if r.status == "ok")
    for format in ("text", "json", "md"):
        assert main(["report", str(run), "--format", format]) == 0


def test_many_dropped_lines_are_counted_not_listed(run):
    (run / "results.jsonl").write_text('{"a": 1}\n' * 500)
    assert len(rundir.load(run).warnings) < 20
    assert rundir.load(run).warnings[-1] == "results.jsonl: 500 lines dropped in all, of 500"


@pytest.mark.parametrize("rank", [0, 1])
def test_a_lost_rank_does_not_make_its_cases_faster(run, rank):
    before = {r.case.id: r.latency for r in rundir.load(run).results}
    (run / f"samples-rank{rank}.jsonl").unlink()
    loaded = rundir.load(run)
    recorded = {r.case.id: r.latency for record in loaded.records for r in record.results}
    assert loaded.samples == ()
    assert any(f"rank {rank} timed nothing" in w for w in loaded.warnings)
    assert {r.case.id: r.latency for r in loaded.results} == recorded != before


def test_only_rounds_without_all_ranks_are_left_out():
    samples = [
        Samples(case_id="a", launch=0, round=number, rank=rank, us=(1.0,))
        for number, rank in ((0, 0), (0, 1), (1, 0), (2, 1))
    ]
    kept, told = whole_rounds([*samples, replace(samples[0], case_id="unknown")], {"a": 2})
    assert [(s.round, s.rank) for s in kept] == [(0, 0), (0, 1)]
    assert "rank 0, 1 timed nothing in 1 of 3 rounds" in told[0]
    assert whole_rounds(samples[:2], {"a": 2}) == (tuple(samples[:2]), ())


def test_a_slope_that_noise_carried_to_zero_has_a_ratio():
    found = of_pairs({(0, 0): (0.0,), (0, 1): (1.0,)}, {(0, 0): (1.0,), (0, 1): (0.0,)})
    assert found is not None
    assert fault(Samples(case_id="a", launch=0, round=0, rank=0, us=(-0.2, 0.0, 3.0))) is None
    assert fault(Samples(case_id="a", launch=0, round=0, rank=0, us=(1e300,))) is not None
    assert fault(Samples(case_id="a", launch=0, round=0, rank=0, us=(1.0,), chains_us=(60.0, 1e300)))


def test_a_run_without_default_or_floor_is_drawn(run, tmp_path):
    assert spread([], []) == []
    rewrite(run / "results.jsonl", of_results(lambda r: r["case"].update(backend="other")))
    (run / "primitives.jsonl").unlink()
    assert main(["report", str(run), "--format", "html", "--figures", str(tmp_path / "f")]) == 0


def test_what_was_dropped_stands_in_a_what_if(run, capsys):
    with (run / "results.jsonl").open("a") as stream:
        stream.write('{"a": 1}\n')
    asked = ["whatif", "--model", "Llama-3.3-70B", "--tp", "2", "--tok-s", "1:50", "--path", "host"]
    assert main([*asked, "--run", str(run)]) == 0
    assert "latencies: results.jsonl: line 7 dropped" in capsys.readouterr().out
