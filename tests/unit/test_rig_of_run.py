"""A box described by a run's own probes predicts what those probes say."""

import pytest
from by_hand import HOST, probe

from arfloor import topologies_io as io
from arfloor.core.cases import Machine
from arfloor.core.floor import floor
from arfloor.core.predict import predict, predict_floor
from arfloor.core.rig import rig_problems
from arfloor.core.rig_of_run import rig_of_run

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


def test_nccl_is_predicted_over_pcie_and_not_over_direct_links():
    rig = rig_of_run(H200, RUN, name="pair")
    assert predict(rig, world=2, path="host", nbytes=262144).nccl is not None
    assert predict(rig, world=2, path="peer", nbytes=262144).nccl is None
