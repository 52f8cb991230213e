"""Every box that comes with arfloor loads, says where its figures come from, and can be predicted."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from arfloor import topologies_io as io
from arfloor.core.predict import FABRICS, predict
from arfloor.core.rig import CERTAINTY, rig_problems, topology

TEXT = """
schema = 1
name = "pair"
title = "two GPUs"
gpu = "GPU"
compute_capability = [9, 0]
p2p = true
launch = "launch"
gpus = ["gpu0", "gpu1"]
nodes = [{ id = "gpu0", kind = "gpu" }, { id = "gpu1", kind = "gpu" }]
links = [{ a = "gpu0", b = "gpu1", kind = "nvlink", write = "rate", latency = "flag" }]
[figures.rate]
value = 100
unit = "GB/s"
origin = "assumed"
source = "a test"
[figures.flag]
value = 1
unit = "us"
origin = "published"
source = "a test"
[figures.launch]
value = 0.5
unit = "us"
origin = "measured"
source = "a test"
"""


@pytest.mark.parametrize("name", io.names())
def test_every_box_loads_and_every_figure_has_a_source(name):
    rig = io.find(name).rig
    assert rig.name == name
    assert not rig_problems(rig)
    for figure in rig.figures.values():
        assert figure.origin in CERTAINTY
        assert "https://" in figure.source or figure.origin != "published"
    used = {n for link in rig.links for n in (link.write, link.read, link.latency)}
    used |= {d.share for d in rig.derates} | {c.rate for c in rig.collapses} | {rig.launch}
    used |= {rig.nccl.bus, rig.nccl.error} if rig.nccl else set()
    assert set(rig.figures) <= used, "a figure that nothing uses"
    assert io.loads(io.dumps(rig)) == rig


@pytest.mark.parametrize("name", io.names())
def test_every_box_is_predicted_in_order(name):
    rig = io.find(name).rig
    for world in {2, len(rig.gpus)}:
        got = predict(rig, world=world, nbytes=262144)
        assert got.floor.origin == "predicted"
        assert got.floor.bound.value <= got.floor.attainable.lo <= got.floor.attainable.value
        assert got.floor.attainable.value <= got.kernels.value <= got.kernels.hi
        over_pcie = all(link.kind not in FABRICS for link in rig.links)
        assert (got.nccl is not None) == over_pcie
        assert got.nccl is None or got.nccl.hi > got.floor.attainable.lo


def test_the_boxes_of_the_issue_are_there():
    wanted = {
        "rtx-pro-6000-x4-direct",
        "rtx-pro-6000-x8-host-bridge",
        "rtx-pro-6000-x8-two-switches",
        "rtx-4090-x2-no-p2p",
        "rtx-4090-x4-no-p2p",
        "l40s-x8-two-sockets",
        "rtx-a6000-x4",
        "a100-pcie-x8",
    }
    assert wanted <= set(io.names())


def test_an_edge_is_as_certain_as_its_least_certain_figure():
    edge = topology(io.loads(TEXT)).edges[0]
    assert (edge.origin, edge.write_gbps, edge.latency_us) == ("assumed", 100, 1)


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("schema = 1", "schema = 99", "upgrade arfloor"),
        ("schema = 1", "schema = ", "not valid TOML"),
        ('write = "rate"', 'write = "speed"', "no figure|figure named 'speed'"),
        ('latency = "flag"', 'latency = "rate"', "in us, found GB/s"),
        ("value = 100", "value = -1", "0 < lo"),
        ("value = 100", 'value = "fast"', "value"),
        ('source = "a test"', 'source = ""', "expected a source"),
        ('origin = "assumed"', 'origin = "guessed"', "origin"),
        ("p2p = true", "p2p = true\ncolour = 1", "colour"),
        ('gpus = ["gpu0", "gpu1"]', 'gpus = ["gpu0", "gpu7"]', "gpu7"),
    ],
)
def test_a_wrong_file_is_refused_in_one_line(tmp_path, old, new, words):
    assert old in TEXT
    file = tmp_path / io.FILE_NAME
    file.write_text(TEXT.replace(old, new))
    with pytest.raises(io.TopologyFileError, match=words) as caught:
        io.read(file)
    assert "\n" not in str(caught.value)
    assert str(file) in str(caught.value)


def test_found_by_name_by_folder_and_by_file(tmp_path):
    (tmp_path / io.FILE_NAME).write_text(TEXT)
    assert io.find(tmp_path).rig.name == "pair"
    assert io.find(tmp_path / io.FILE_NAME).run is None
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "manifest.json").write_text("{}")
    assert io.find(tmp_path).run == tmp_path / "run"
    with pytest.raises(io.TopologyFileError, match="rtx-a6000-x4"):
        io.find("rtx-a6000-x5")


def test_unreadable_files_are_said_to_be_so(tmp_path):
    with pytest.raises(io.TopologyFileError, match="cannot be read"):
        io.read(tmp_path / "absent.toml")
    huge = tmp_path / io.FILE_NAME
    huge.write_bytes(b"#" * (io.MAX_BYTES + 1))
    with pytest.raises(io.TopologyFileError, match="at most"):
        io.read(huge)
    huge.write_bytes(b"\xff\xfe")
    with pytest.raises(io.TopologyFileError, match="cannot be read"):
        io.read(huge)


def test_installed_and_source_tree_places(monkeypatch, tmp_path):
    monkeypatch.setattr(io, "__file__", str(tmp_path / "arfloor" / "topologies_io.py"))
    assert io.roots() == ()
    folder = tmp_path / "arfloor" / "topologies" / "pair"
    folder.mkdir(parents=True)
    (folder / io.FILE_NAME).write_text(TEXT)
    assert io.names() == ("pair",)
    assert Path(io.find("pair").path) == folder


def test_schema_is_published():
    schema = io.json_schema()
    assert json.dumps(schema)
    assert "figures" in schema["properties"]


def test_written_files_read_back(tmp_path):
    rig = replace(io.loads(TEXT), notes=("two\nlines", 'a "quote"'))
    io.write(rig, tmp_path / io.FILE_NAME)
    assert io.read(tmp_path / io.FILE_NAME) == rig


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("channels = 2", "channels = 0", "expected 1 to 64 channels, found 0"),
        ("hi = 56.3", "hi = 1e308", "figure"),
        ("lo = 53.0", "lo = 1e-320", "figure"),
        ("schema = 1", f"schema = {'[' * 50_000}", "nested beyond all use"),
    ],
)
def test_figures_that_no_machine_has(old, new, said):
    text = (io.find("rtx-pro-6000-x8-two-switches").path / io.FILE_NAME).read_text(encoding="utf-8")
    assert old in text
    with pytest.raises(io.TopologyFileError, match=said):
        io.loads(text.replace(old, new, 1))


def test_a_byte_order_mark_is_read_over(tmp_path):
    original = io.find("rtx-pro-6000-x8-two-switches").path / io.FILE_NAME
    (tmp_path / io.FILE_NAME).write_bytes(b"\xef\xbb\xbf" + original.read_bytes())
    assert io.read(tmp_path / io.FILE_NAME) == io.read(original)
