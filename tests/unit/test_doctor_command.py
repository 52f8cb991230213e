"""`arfloor doctor`: the command, its text, its drawing and the topology it writes."""

import io
import json
import subprocess
import sys
import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

from arfloor import topologies_io
from arfloor.cli import main
from arfloor.commands import doctor
from arfloor.core.box import Box, GpuFacts, Pair, PathProbe, PciLink, Place
from arfloor.core.box_rig import BoxRigError, rig_of
from arfloor.core.doctor import diagnose
from arfloor.core.engines import engine_table
from arfloor.core.rig import topology
from arfloor.core.topology import Graph, islands
from arfloor.report import box_svg, box_text

MATRIX = """\
\tGPU0\tGPU1\tGPU2\tGPU3\tNIC0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID
GPU0\t X \tPIX\tNODE\tSYS\tPHB\t0-15\t0\t\tN/A
GPU1\tPIX\t X \tNODE\tSYS\tPHB\t0-15\t0\t\tN/A
GPU2\tNODE\tNODE\t X \tSYS\tNODE\t0-15\t0\t\tN/A
GPU3\tSYS\tSYS\tSYS\t X \tSYS\t16-31\t1\t\tN/A
NIC0\tPHB\tPHB\tNODE\tSYS\t X \t\t\t
$ nvidia-smi topo -p2p r
 \tGPU0\tGPU1\tGPU2\tGPU3
 GPU0\tX\tOK\tOK\tCNS
 GPU1\tOK\tX\tOK\tCNS
 GPU2\tOK\tOK\tX\tCNS
 GPU3\tCNS\tCNS\tCNS\tX
"""


@pytest.fixture
def pasted(tmp_path):
    file = tmp_path / "topo.txt"
    file.write_text(MATRIX)
    return file


def run(capsys, *argv):
    status = main(["doctor", *map(str, argv)])
    out, err = capsys.readouterr()
    return status, out, err


def test_text_of_a_pasted_matrix(pasted, capsys):
    status, out, err = run(capsys, "--from", pasted)
    assert (status, err) == (0, "")
    assert "NUMA node 1" in out
    assert "PCIe switch" in out
    assert "SYS!" in out
    assert "driver status CNS for 6 of 12 directed pairs" in out
    assert "8, 16 or 32 ranks" in out
    assert "environment" not in out  # the paste is of another machine
    assert "/dev/shm" not in out


def test_json_holds_everything_with_sources(pasted, capsys):
    status, out, _ = run(capsys, "--from", pasted, "--format", "json")
    document = json.loads(out)
    assert status == document["exit_status"] == 0
    schema = json.loads((Path(__file__).parents[2] / "docs/schemas/doctor.schema.json").read_text())
    Draft202012Validator(schema).validate(document)
    assert len(document["box"]["gpus"]) == 4
    assert {e["world"] for e in document["engines"]} == {2, 4}
    assert all(e["source"] for e in document["engines"])


def test_bad_input_is_one_line_and_status_2(tmp_path, capsys):
    file = tmp_path / "x"
    for content in (b"", b"hello\nworld\n", b"\x00\xff" * 500, b"<html></html>"):
        file.write_bytes(content)
        status, out, err = run(capsys, "--from", file)
        assert (status, out) == (2, "")
        assert err.count("\n") == 1
        assert "Traceback" not in err
    status, _, err = run(capsys, "--from", tmp_path / "missing")
    assert status == 2
    assert "cannot be read" in err


def piped(monkeypatch, text):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))


def test_standard_input_as_the_documentation_writes_it():
    command = [sys.executable, "-m", "arfloor", "doctor", "--from", "-"]
    done = subprocess.run(command, input=MATRIX, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert "nvidia-smi topo" in done.stdout


@pytest.mark.parametrize("spelled", [("--from", "-"), ("--from=-",)])
def test_standard_input_in_either_spelling_among_other_options(spelled, monkeypatch, capsys, tmp_path):
    piped(monkeypatch, MATRIX)
    status, out, _ = run(capsys, *spelled, "--format", "json", "--svg", tmp_path / "box.svg")
    assert status == 0
    assert len(json.loads(out)["box"]["gpus"]) == 4


def test_an_option_is_not_taken_for_the_file_to_read(capsys, tmp_path):
    status, _, err = run(capsys, "--from", "--write", tmp_path)
    assert status == 2
    assert "found '--write'" in err


def test_what_cannot_be_read_is_named(monkeypatch, capsys, tmp_path):
    (tmp_path / "topo.txt").write_text("hello\n")
    assert "topo.txt: not `nvidia-smi topo`" in run(capsys, "--from", tmp_path / "topo.txt")[2]
    piped(monkeypatch, "")
    assert "standard input: expected `nvidia-smi topo`" in run(capsys, "--from", "-")[2]
    monkeypatch.setattr(sys, "stdin", None)
    assert "standard input, found it closed" in run(capsys, "--from", "-")[2]


def test_warnings_name_the_file_and_the_line(tmp_path, capsys):
    file = tmp_path / "topo.txt"
    file.write_text("GPU0 GPU1 GPU2\nGPU0 X PHB\nGPU1 PHB X SYS\nGPU2 SYS SYS X\n")
    _, out, _ = run(capsys, "--from", file)
    assert "topo.txt, line 2: row GPU0: 2 of 2 cells" in out


def test_a_problem_gives_status_1(capsys, monkeypatch):
    box = Box(
        source="x",
        gpus=(GpuFacts(id="GPU0", mig=True), GpuFacts(id="GPU1")),
        pairs=(Pair(a="GPU0", b="GPU1"), Pair(a="GPU1", b="GPU0")),
    )
    monkeypatch.setattr(doctor, "_this_machine", lambda probe: box)
    status, out, _ = run(capsys)
    assert status == 1
    assert "PROBLEM" in out


def test_written_topology_is_read_back_and_means_the_same(pasted, tmp_path, capsys):
    status, _, _ = run(capsys, "--from", pasted, "--write", tmp_path / "mybox")
    assert status == 0
    rig = topologies_io.read(tmp_path / "mybox" / "topology.toml")
    assert rig.name == "mybox"
    assert rig.p2p is False
    assert islands(topology(rig)) == (("gpu0", "gpu1"), ("gpu2",), ("gpu3",))
    assert islands(topology(rig), "socket") == (("gpu0", "gpu1", "gpu2"), ("gpu3",))
    graph = Graph(topology(rig))
    one, two, three = (graph.route("gpu0", f"gpu{i}").latency_us for i in (1, 2, 3))
    assert 0.6 < one < two < three
    assert all(f.source for f in rig.figures.values())
    assert rig.figures["pcie_assumed"].origin == "assumed"
    ET.parse(tmp_path / "mybox" / "box.svg")


RELATIONS = MATRIX[: MATRIX.index("$")]


def test_a_description_that_stands_in_the_way_is_kept_and_named(pasted, tmp_path, capsys):
    folder = tmp_path / "mybox"
    first = run(capsys, "--from", pasted, "--write", folder)[2]
    assert first.startswith("wrote topology.toml and box.svg to ")
    again = run(capsys, "--from", pasted, "--write", folder)[2]
    assert again == first  # nothing differs
    edited = (folder / "topology.toml").read_text() + "# mine\n"
    (folder / "topology.toml").write_text(edited)
    status, _, err = run(capsys, "--from", pasted, "--write", folder)
    assert status == 0
    assert "that was there is now topology.toml.old" in err
    assert (folder / "topology.toml.old").read_text() == edited
    assert "# mine" not in (folder / "topology.toml").read_text()
    (folder / "topology.toml").write_text("# of another probe\n")
    assert "is now topology.toml.old1" in run(capsys, "--from", pasted, "--write", folder)[2]
    assert (folder / "topology.toml.old").read_text() == edited


def test_bridges_and_adapters_have_their_names(tmp_path, capsys):
    file = tmp_path / "topo.txt"
    file.write_text(RELATIONS + "\nNIC Legend:\n\n  NIC0: mlx5_0\n  NIC7: mlx5_7\n")
    _, out, _ = run(capsys, "--from", file)
    assert "host bridge hb0" in out
    assert "NIC0  mlx5_0" in out
    assert "mlx5_7" not in out  # no such column


def test_unknown_peer_access_stays_unknown_and_what_is_assumed_is_said(tmp_path, capsys):
    file, folder = tmp_path / "topo.txt", tmp_path / "mybox"
    file.write_text(RELATIONS)
    run(capsys, "--from", file, "--write", folder)
    assert "p2p =" not in (folder / "topology.toml").read_text()
    assert topologies_io.read(folder / "topology.toml").p2p is None
    assert main(["report", "--topology", str(folder), "--world", "2"]) == 0
    by_default = flat(capsys.readouterr().out)
    assert "host path" in by_default
    assert "peer access is not known: assumed that they have none" in by_default
    assert main(["report", "--topology", str(folder), "--path", "peer"]) == 0
    assert "assumed to have peer access" in flat(capsys.readouterr().out)
    assert main(["report", "--topology", str(folder), "--path", "host"]) == 0
    assert "peer access" not in flat(capsys.readouterr().out)
    asked = ["--model", "DeepSeek-V4-Flash", "--tp", "4", "--tok-s", "64:509", "--using", "arfloor"]
    assert main(["whatif", "--topology", str(folder), "--path", "peer", *asked]) == 0
    assert "assumed to have peer access" in flat(capsys.readouterr().out)


@pytest.mark.parametrize(
    ("status", "begins", "spread"),
    [
        (None, "give one", "without peer access, GPUs behind one switch share its uplink"),
        ("CNS", "GPUs behind one switch share its uplink to host memory", "may be faster, alone"),
        ("OK", "give one", ""),
    ],
)
def test_which_gpus_a_group_should_have_depends_on_the_path(status, begins, spread):
    def pair(a, b):
        return Pair(a=a, b=b, relation="PIX" if a[3] == b[3] else "SYS", read=status, write=status)

    ids = ["GPU00", "GPU01", "GPU10", "GPU11"]
    box = Box(
        source="x",
        gpus=tuple(GpuFacts(id=i, numa=int(i[3])) for i in ids),
        pairs=tuple(pair(a, b) for a in ids for b in ids if a != b),
    )
    (found,) = [f for f in diagnose(box) if f.code == "numa_split"]
    assert found.remedy.startswith(begins)
    assert spread in found.remedy
    assert ("uplink" in found.remedy) == bool(spread)


def test_nvlink_between_all_gpus_makes_peer_the_likelier_path(tmp_path, capsys):
    (tmp_path / "topo.txt").write_text("\tGPU0\tGPU1\tCPU Affinity\tNUMA Affinity\n"
        "GPU0\t X \tNV4\t0-7\t0\nGPU1\tNV4\t X \t0-7\t0\n")  # fmt: skip
    run(capsys, "--from", tmp_path / "topo.txt", "--write", tmp_path / "box")
    assert main(["report", "--topology", str(tmp_path / "box")]) == 0
    shown = flat(capsys.readouterr().out)
    assert "peer path" in shown
    assert "assumed to have peer access" in shown


def test_nccl_is_predicted_though_nobody_said_the_generation(tmp_path, capsys):
    file, folder = tmp_path / "topo.txt", tmp_path / "mybox"
    file.write_text(RELATIONS)
    run(capsys, "--from", file, "--write", folder)
    rig = topologies_io.read(folder / "topology.toml")
    bus = rig.figures[rig.nccl.bus]
    assert bus.origin == "assumed"
    assert bus.lo < 12 < 48 < bus.hi  # what NCCL takes Gen3 and Gen5 for
    asked = ["--model", "DeepSeek-V4-Flash", "--tp", "4", "--tok-s", "64:509", "--apply", "switch:attainable"]
    assert main(["whatif", "--topology", str(folder), *asked]) == 0
    shown = flat(capsys.readouterr().out)
    assert "A(S): nccl of mybox (predicted)" in shown
    assert "(topology.toml: pcie_assumed, nccl_bus)" in shown


def test_a_rate_stated_outright_is_taken_for_the_generation_that_has_it():
    links = [PciLink(gen=4, width=16), PciLink(stated_gbps=16 * 16 * 128 / 130 / 8)]
    by_gen, by_rate = (
        rig_of(replace(b, places=tuple(replace(p, link=k) if p.kind == "gpu" else p for p in b.places)), "x")
        for k in links
        for b in [linked(nvlinks=0)]
    )
    assert by_rate.figures["nccl_bus"].value == pytest.approx(by_gen.figures["nccl_bus"].value)
    assert by_rate.figures["nccl_bus"].origin == "predicted"


def test_where_nccl_is_not_predicted_the_answer_says_why(tmp_path, capsys):
    folder = tmp_path / "pair"
    folder.mkdir()
    topologies_io.write(rig_of(linked(), "pair"), folder / "topology.toml")
    asked = ["whatif", "--model", "DeepSeek-V4-Flash", "--tp", "2", "--tok-s", "64:509"]
    assert main([*asked, "--topology", str(folder)]) == 2
    assert "NCCL over NVLink is not predicted from a description" in capsys.readouterr().err
    topologies_io.write(replace(rig_of(linked(), "pair"), nccl=None), folder / "topology.toml")
    assert main([*asked, "--topology", str(folder), "--path", "host"]) == 2
    assert "its topology.toml has no [nccl]" in capsys.readouterr().err


def flat(text):
    return " ".join(text.split())


def test_no_topology_can_be_written_of_one_gpu_or_of_none(capsys, tmp_path):
    file = tmp_path / "one.txt"
    file.write_text("\tGPU0\tCPU Affinity\tNUMA Affinity\nGPU0\t X \t0-7\t0\n")
    status, _, err = run(capsys, "--from", file, "--write", tmp_path / "box")
    assert status == 2
    assert "two or more GPUs" in err
    with pytest.raises(BoxRigError):
        rig_of(Box(source="x"), "x")


def linked(nvlinks=18, capability=(9, 0), probes=()):
    link = PciLink(gen=5, width=16, gen_max=5, width_max=16)
    names = ("GPU0", "GPU1")
    return Box(
        source="x",
        places=(
            Place(id="numa0", kind="socket", numa=0),
            *(Place(id=n, kind="gpu", parent="numa0", numa=0, link=link) for n in names),
        ),
        gpus=tuple(GpuFacts(id=n, name="NVIDIA H200", compute_capability=capability) for n in names),
        pairs=tuple(Pair(a=a, b=b, nvlinks=nvlinks, read="OK", write="OK") for a, b in (names, names[::-1])),
        probes=probes,
    )


def test_rates_follow_from_links_or_from_what_was_measured():
    rig = rig_of(linked(), "pair")
    assert rig.figures["nvlink_18"].value == pytest.approx(360)
    assert rig.figures["pcie_gen5_x16"].value == pytest.approx(57.6, abs=0.1)
    probe = PathProbe(a="GPU0", b="GPU1", status="ok", peer_gbps=371.0, host_gbps=54.0)
    measured = rig_of(linked(probes=(probe,)), "pair")
    assert measured.figures["nvlink_gpu0_gpu1"].origin == "measured"
    assert measured.figures["pcie_gpu0"].value == 54.0
    assert Graph(topology(rig)).route("gpu0", "gpu1").edges[0].kind == "nvlink"


def test_peer_access_of_some_pairs_is_said_and_spreads_no_group(pasted, tmp_path, capsys):
    shown = flat(run(capsys, "--from", pasted, "--write", tmp_path / "box")[1])
    assert "do: give one tensor-parallel group the GPUs of one node where they suffice; without peer" in shown
    assert main(["report", "--topology", str(tmp_path / "box"), "--world", "2"]) == 0
    report = flat(capsys.readouterr().out)
    assert "some pairs have it, not all (GPU0-GPU1, GPU0-GPU2, GPU1-GPU2)" in report
    assert main(["report", "--topology", str(tmp_path / "box"), "--path", "peer"]) == 2
    assert "no peer access, or not every pair" in capsys.readouterr().err


def test_peer_access_that_corrupts_is_none_and_one_that_failed_is_not_proven():
    good = PathProbe(a="GPU0", b="GPU1", status="ok", correct=True, peer_gbps=50.0)
    assert rig_of(linked(probes=(good,)), "pair").p2p is True
    assert rig_of(linked(probes=(good, replace(good, correct=False))), "pair").p2p is False
    assert rig_of(linked(probes=(good, PathProbe(a="GPU1", b="GPU0", status="failed"))), "pair").p2p is None


def test_drawing_is_well_formed_whatever_the_names():
    base = linked()
    nasty = Box(
        source='<&"',
        places=(*base.places[:1], Place(id="GPU0", kind="gpu", parent="numa0", name="<b>&")),
        gpus=(GpuFacts(id="GPU0", name="]]><script>"), GpuFacts(id="GPU1")),
        pairs=base.pairs,
    )
    for box in (nasty, base, Box(source="x"), looping()):
        ET.fromstring(box_svg.render(box))
        assert box_text.render(box, diagnose(box), engine_table(box))


def looping():
    return Box(
        source="x",
        places=(Place(id="a", kind="switch", parent="b"), Place(id="b", kind="switch", parent="a")),
        gpus=(GpuFacts(id="GPU0"),),
    )


def test_drawing_of_many_gpus_stays_small():
    ids = [f"GPU{i}" for i in range(16)]
    box = Box(
        source="x",
        gpus=tuple(GpuFacts(id=i) for i in ids),
        pairs=tuple(Pair(a=a, b=b, nvlinks=6) for a in ids for b in ids if a != b),
    )
    drawn = box_svg.render(box)
    assert drawn.count("<path") == 1  # one arc for all alike
    assert "all 16 GPUs: 6 NVLink links" in drawn
