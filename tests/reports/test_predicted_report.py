"""Reports of boxes on which nothing was measured, or not what was asked: by one command, and marked so."""

import json
from html.parser import HTMLParser
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

from arfloor import library, rundir, topologies_io
from arfloor.cli import main
from arfloor.core.choose import best_subsets
from arfloor.core.outlook import outlook
from arfloor.core.predict import predict
from arfloor.core.rig_of_run import rig_of_run
from arfloor.report.predicted import card, html, plot, text
from arfloor.report.schemas import schemas
from tests.synthetic import cpu_world, gpu_world, write_run

SWITCHES = "rtx-pro-6000-x8-two-switches"
VALIDATOR = Draft202012Validator(json.loads(schemas()["report.schema.json"]))


def shown(capsys, *arguments):
    assert main(["report", *map(str, arguments)]) == 0
    return capsys.readouterr().out


def refused(capsys, *arguments):
    assert main(["report", *map(str, arguments)]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    return captured.err


@pytest.fixture(scope="module")
def four():
    return outlook(topologies_io.find(SWITCHES).rig, world=4, source="a test")


@pytest.mark.parametrize("name", library.names())
def test_every_box_of_the_library_gives_a_report_by_one_command(name, capsys):
    recorded = name in library.names(recorded=True)
    told = shown(capsys, "--topology", name)
    assert ("PREDICTED, not measured" in told) == (not recorded)
    rows = json.loads(shown(capsys, "--topology", name, "--format", "json"))
    VALIDATOR.validate(rows)
    assert rows
    assert all((row["origin"] == "predicted") == (not recorded) for row in rows)
    assert len(shown(capsys, "--topology", name, "--format", "md").splitlines()) <= card.MAX_LINES


def test_every_format_says_that_it_is_predicted_and_agrees(four, capsys):
    expected = four.headline
    numbers = [expected.floor.attainable.value, expected.kernels.value, expected.nccl.value]
    for out in (text.render(four), card.render(four), html.render(four)):
        assert "PREDICTED, not measured" in out
        for value in numbers:
            assert f"{value:.3g}" in out
        assert "Take gpu0, gpu1, gpu2, gpu3" in out
        assert "slow each other" in out
        assert "one-shot staged" in out
        assert "None" not in out
    rows = json.loads(shown(capsys, "--topology", SWITCHES, "--world", 4, "--format", "json"))
    row = next(r for r in rows if r["nbytes"] == expected.nbytes)
    assert row["attainable_us"] == expected.floor.attainable.value
    assert (row["status"], row["reason"], row["best_case"]) == ("no_data", "predicted", None)
    assert row["gpus"] == ["gpu0", "gpu1", "gpu2", "gpu3"]


def test_the_choice_of_gpus_and_the_groups_are_those_of_the_model(four):
    best = best_subsets(topologies_io.find(SWITCHES).rig, 4, 262144)
    assert [c.gpus for c in four.choices] == [c.gpus for c in best]
    told = text.render(four)
    for c in best:
        assert f"{', '.join(c.gpus)}   {c.attainable.value:.3g} [" in told
    apart = next(line for line in told.splitlines() if "gpu0+gpu1+gpu2+gpu3 and" in line and "1.00x" in line)
    assert "1.00x [1.00, 1.00]" in apart


class Outside(HTMLParser):
    def __init__(self):
        super().__init__()
        self.fetched, self.ids = [], []

    def handle_starttag(self, tag, attributes):
        self.ids += [v for n, v in attributes if n == "id"]
        self.fetched += [v for n, v in attributes if n in ("src", "href") and not v.startswith("#")]
        self.fetched += [tag] if tag in ("script", "iframe", "link") else []


def test_the_page_has_its_picture_and_fetches_nothing(four, tmp_path):
    page, seen = html.render(four), Outside()
    seen.feed(page)
    assert seen.fetched == []
    assert len(seen.ids) == len(set(seen.ids))
    assert page.count("<svg") == 1
    png, svg = plot.write(four, tmp_path)
    assert png.read_bytes().startswith(b"\x89PNG")
    assert "PREDICTED" in svg.read_text()


@pytest.fixture(scope="module")
def gpu_run(tmp_path_factory):
    return write_run(tmp_path_factory.mktemp("gpu") / "run", gpu_world(sizes=(65536, 262144)))


def test_what_was_measured_is_shown_as_measured(gpu_run, capsys):
    told = shown(capsys, gpu_run, "--world", 2, "--path", "host")
    assert "PREDICTED" not in told
    assert "host/pcie, 2 ranks" in told
    assert "peer/nvlink" not in told


def four_gpus(**changes):
    """Four GPUs of which two measured: probes among all, results of two."""
    from dataclasses import replace

    world = gpu_world(sizes=(262144,), **changes)
    probes = [
        replace(p, src=f"cuda:{a}", dst=p.dst if p.dst in ("host",) else f"cuda:{b}")
        for p in world.primitives
        for a, b in ((0, 1), (1, 0), (2, 3), (3, 2), (0, 2), (1, 3))
        if p.path == "host" or p.kind != "launch"
    ]
    return replace(world, machine=replace(world.machine, world=4), primitives=tuple(probes))


def test_a_world_that_was_not_measured_is_predicted_from_the_runs_own_probes(tmp_path, capsys):
    run = write_run(tmp_path / "four", four_gpus())
    told = shown(capsys, run, "--world", 3, "--path", "host")
    assert "PREDICTED, not measured: computed from the probes of run synthetic-gpu" in told
    loaded = rundir.load(run)
    rig = rig_of_run(loaded.manifest.machine, loaded.primitives, name="x")
    expected = predict(rig, world=3, path="host", nbytes=262144).floor.attainable.value
    rows = json.loads(shown(capsys, run, "--world", 3, "--path", "host", "--format", "json"))
    assert next(r for r in rows if r["nbytes"] == 262144)["attainable_us"] == pytest.approx(expected)
    assert "expected a world of 2 to 4, found 8" in refused(capsys, run, "--world", 8)


def test_a_described_box_answers_where_its_recorded_ranks_are_too_few(capsys):
    told = shown(capsys, "--topology", "rtx-pro-6000-x8-host-bridge", "--world", 8)
    assert "computed from the description of rtx-pro-6000-x8-host-bridge" in told
    assert "PREDICTED" not in shown(capsys, "--topology", "rtx-pro-6000-x8-host-bridge", "--world", 4)


def test_what_cannot_be_predicted_is_refused_in_a_line(tmp_path, gpu_run, capsys):
    cpu = write_run(tmp_path / "cpu", cpu_world(sizes=(1024,)))
    assert "only runs on GPUs" in refused(capsys, cpu, "--world", 4)
    assert "measured: 2 ranks on cpu" in refused(capsys, cpu, "--path", "host")
    assert "expected a world of 2 and no other, found 4" in refused(capsys, gpu_run, "--world", 4)
    assert "no peer access" in refused(capsys, "--topology", "rtx-4090-x2-no-p2p", "--path", "peer")
    assert "measured run" in refused(capsys, "--topology", SWITCHES, "--table", "nccl-tests")


def test_a_folder_of_ones_own_is_a_box(tmp_path, capsys):
    source = Path(topologies_io.find("rtx-a6000-x4").path) / topologies_io.FILE_NAME
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / topologies_io.FILE_NAME).write_text(source.read_text())
    assert "4x" in shown(capsys, "--topology", tmp_path / "mine", "--world", 2)
    (tmp_path / "mine" / topologies_io.FILE_NAME).write_text("schema = 99")
    assert "upgrade arfloor" in refused(capsys, "--topology", tmp_path / "mine")
