"""What is said of a box before anything was measured on it."""

import pytest

from arfloor import topologies_io as io
from arfloor.core.outlook import outlook

SIZES = (4096, 262144)


@pytest.fixture(scope="module")
def switches():
    return outlook(io.find("rtx-pro-6000-x8-two-switches").rig, world=4, sizes=SIZES)


def test_everything_is_marked_predicted(switches):
    assert [p.nbytes for p in switches.rows] == list(SIZES)
    assert {p.floor.origin for p in switches.rows} == {"predicted"}
    assert switches.sentences[0].startswith("Predicted, not measured")
    assert any("dram" in s and "Nobody measured" in s for s in switches.sentences)


def test_which_four_and_what_two_groups_do(switches):
    assert switches.choices[0].gpus == ("gpu0", "gpu1", "gpu2", "gpu3")
    apart, mixed = switches.groups
    assert apart.slowdown.value == pytest.approx(1.0)
    assert mixed.slowdown.value > 1.4
    said = " ".join(switches.sentences)
    assert "Take gpu0, gpu1, gpu2, gpu3" in said
    assert "do not disturb each other" in said
    assert "slow each other" in said


def test_nccl_stands_beside_the_floor(switches):
    sentence = next(s for s in switches.sentences if s.startswith("NCCL"))
    assert switches.headline.nccl_choice in sentence


def test_all_gpus_leave_no_choice():
    got = outlook(io.find("rtx-4090-x2-no-p2p").rig, world=2, sizes=SIZES)
    assert got.path == "host"
    assert got.choices == ()
    assert got.groups == ()
    with pytest.raises(ValueError, match="world of 2 to 2"):
        outlook(io.find("rtx-4090-x2-no-p2p").rig, world=3)
