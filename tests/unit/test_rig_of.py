"""Boxes described from what a machine says of itself, and from a run's own probes."""

import pytest
from test_floor import HOST, probe

from arfloor import topologies_io as io
from arfloor.core.box import Box, GpuFacts, Pair, PciLink, Place
from arfloor.core.cases import Machine
from arfloor.core.choose import best_subsets
from arfloor.core.floor import floor
from arfloor.core.predict import predict, predict_floor
from arfloor.core.rig import rig_problems, topology
from arfloor.core.rig_of_box import rig_of_box
from arfloor.core.rig_of_run import rig_of_run
from arfloor.core.topology import islands


def two_switches():
    places = [Place(id="s0", kind="socket", numa=0)]
    for k in range(2):
        port, switch = f"p{k}", f"sw{k}"
        places.append(Place(id=port, kind="root_port", parent="s0", numa=0))
        places.append(Place(id=switch, kind="switch", parent=port, link=PciLink(gen=5, width=16)))
        idle = PciLink(gen=1, width=16, gen_max=5, width_max=16)
        places += [Place(id=f"GPU{2 * k + i}", kind="gpu", parent=switch, link=idle) for i in range(2)]
    gpus = tuple(GpuFacts(id=f"GPU{i}", name="NVIDIA L40S", compute_capability=(8, 9)) for i in range(4))
    pairs = tuple(Pair(a=a.id, b=b.id, read="OK", write="OK") for a in gpus for b in gpus if a.id != b.id)
    return Box(source="test", places=tuple(places), gpus=gpus, pairs=pairs)


def test_a_box_behind_two_switches():
    rig = rig_of_box(two_switches(), name="box")
    assert not rig_problems(rig)
    assert rig.p2p
    assert not rig.notes
    assert islands(topology(rig)) == (("GPU0", "GPU1"), ("GPU2", "GPU3"))
    assert {f.origin for f in rig.figures.values()} <= {"predicted", "assumed"}
    assert rig.figures["gen5_x16_write"].value == pytest.approx(57.6, abs=0.1)  # idle links count as trained
    assert best_subsets(rig, 2, 262144)[0].gpus == ("GPU0", "GPU1")
    assert io.loads(io.dumps(rig)) == rig


def test_what_a_pasted_matrix_does_not_state_is_noted():
    box = Box(source="paste", gpus=(GpuFacts(id="GPU0", numa=0), GpuFacts(id="GPU1", numa=1)))
    rig = rig_of_box(box, name="box")
    assert not rig_problems(rig)
    said = " ".join(rig.notes)
    for word in ("place was not stated", "Gen4 x16", "peer access was not stated"):
        assert word in said
    got = predict(rig, world=2, nbytes=262144)
    assert got.floor.bound.value < got.floor.attainable.value
    with pytest.raises(ValueError, match="at least two GPUs"):
        rig_of_box(Box(source="empty"), name="none")


def test_geforce_and_refused_peers_go_through_the_host():
    gpus = tuple(GpuFacts(id=f"GPU{i}", name="NVIDIA GeForce RTX 4090") for i in range(2))
    assert not rig_of_box(Box(source="paste", gpus=gpus), name="box").p2p
    refused = (Pair(a="GPU0", b="GPU1", read="CNS", write="CNS"),)
    plain = tuple(GpuFacts(id=f"GPU{i}", name="NVIDIA L40S") for i in range(2))
    rig = rig_of_box(Box(source="paste", gpus=plain, pairs=refused), name="box")
    assert not rig.p2p
    assert predict(rig, world=2, nbytes=1024).path == "host"


def test_nvlink_pairs_become_direct_links():
    gpus = tuple(GpuFacts(id=f"GPU{i}", name="NVIDIA RTX A6000", nvlink_gbps=14.0) for i in range(4))
    bridged = (Pair(a="GPU0", b="GPU1", nvlinks=4), Pair(a="GPU1", b="GPU0", nvlinks=4))
    rig = rig_of_box(Box(source="paste", gpus=gpus, pairs=bridged), name="box")
    assert not rig_problems(rig)
    assert rig.figures["nvlink_x4"].estimate.hi == pytest.approx(56.0)
    assert best_subsets(rig, 2, 262144)[0].gpus == ("GPU0", "GPU1")


H200 = Machine(world=2, device_kind="cuda", device_name="NVIDIA H200", compute_capability=(9, 0))
PEER = {"path": "peer", "dst": "cuda:1", "link": "nvlink"}
RUN = (
    *HOST,
    probe("pingpong", 0.9, **PEER),
    probe("stream", 350.0, **PEER),
    probe("stream", 340.0, access="read", **PEER),
    probe("stream", 300.0, active="both_ways", **PEER),
)


@pytest.mark.parametrize("path", ["host", "peer"])
@pytest.mark.parametrize("nbytes", [4096, 262144, 1 << 22])
def test_a_run_described_by_its_probes_has_the_floor_of_its_probes(path, nbytes):
    rig = rig_of_run(H200, RUN, name="pair")
    assert not rig_problems(rig)
    asked = {"path": path, "world": 2, "nbytes": nbytes, "dtype": "bfloat16", "mode": "graph"}
    measured, described = floor(RUN, **asked), predict_floor(rig, **asked)
    assert described.attainable.value == pytest.approx(measured.attainable.value, rel=0.03)
    if path == "host":
        assert described.bound.value == pytest.approx(measured.bound.value, rel=0.02)
    assert io.loads(io.dumps(rig)) == rig


def test_a_run_without_peer_probes_describes_the_host_path_alone():
    rig = rig_of_run(H200, HOST, name="pair", source="run x")
    assert not rig.p2p
    assert {f.source for f in rig.figures.values() if f.origin == "measured"} == {"run x"}
    with pytest.raises(ValueError, match="found none"):
        rig_of_run(H200, HOST[:1], name="pair")
