"""What is said of a box before anything was measured on it."""

import pytest

from arfloor import library
from arfloor import topologies_io as io
from arfloor.cli import main
from arfloor.core.choose import best_subsets, contrast
from arfloor.core.outlook import outlook
from arfloor.core.predict import predict
from arfloor.core.rig_words import words

SIZES = (4096, 262144)


@pytest.fixture(scope="module")
def switches():
    return outlook(io.find("rtx-pro-6000-x8-two-switches").rig, world=4, sizes=SIZES)


def test_everything_is_marked_predicted(switches):
    assert [p.nbytes for p in switches.rows] == list(SIZES)
    assert {p.floor.origin for p in switches.rows} == {"predicted"}
    assert switches.sentences[0].startswith("Predicted, not measured")
    (said,) = (s for s in switches.sentences if s.startswith("Assumed, not measured: "))
    assert "the rate of host memory" in said


@pytest.mark.parametrize("name", library.names())
def test_figures_are_called_by_what_they_are_and_not_by_their_keys(name):
    rig = library.box(name).rig
    if rig is None:
        return
    found = words(rig, rig.figures)
    assert not set(found) & set(rig.figures)
    assert not any("_" in phrase for phrase in found)
    said = " ".join(outlook(rig, world=2, sizes=SIZES).sentences)
    assert not any(key in said for key in rig.figures if "_" in key)


def test_reads_and_writes_with_figures_of_their_own_are_told_apart():
    rig = io.find("h200-x4").rig
    assert words(rig, ["host_host", "host_write", "host_read", "peer_half_hop", "mine"]) == (
        "what PCIe keeps of its rate when all ranks use host memory at once",
        "the rate of writes over PCIe",
        "the rate of reads over PCIe",
        "a flag's latency over NVLink",
        "mine",
    )


def test_which_four_and_what_two_groups_do(switches):
    assert switches.choices[0].gpus == ("gpu0", "gpu1", "gpu2", "gpu3")
    apart, mixed = switches.groups
    assert apart.slowdown.value == pytest.approx(1.0)
    assert mixed.slowdown.value > 1.4
    said = " ".join(switches.sentences)
    assert "Take gpu0, gpu1, gpu2, gpu3" in said
    assert "do not disturb each other" in said
    assert "slow each other down" in said


def test_what_the_slower_choice_waits_for_is_said(switches):
    said = " ".join(switches.sentences)
    assert "as long, waiting for a switch's uplink (port1 to switch1)." in said
    assert "For two such groups at once take gpu0+gpu1+gpu2+gpu3 and gpu4+gpu5+gpu6+gpu7" in said


def test_through_host_memory_a_shared_uplink_spreads_one_group_and_two_do_as_well_on_a_switch_each():
    rig = io.find("rtx-pro-6000-x8-two-switches").rig
    got = outlook(rig, world=4, path="host", sizes=SIZES)
    said = " ".join(got.sentences)
    assert "Take gpu0, gpu1, gpu4, gpu5: gpu0, gpu1, gpu2, gpu3 would take" in said
    assert "waiting for a switch's uplink (switch0 to port0)." in said
    assert [g.groups for g in got.groups][1] == (rig.gpus[:4], rig.gpus[4:])
    assert "Two such groups that reduce at once take as long however the GPUs are divided." in said


def test_a_figure_that_turns_the_choice_round_is_named():
    rig = io.find("l40s-x8-two-sockets").rig
    found = contrast(rig, rig.gpus[:4], (*rig.gpus[:2], *rig.gpus[4:6]), 262144, "host")
    assert found.ratio.lo < 1 < found.ratio.value < found.ratio.hi
    assert found.turns == (("dram", "slow"),)
    assert found.waits_for is None  # each GPU's own link
    said = " ".join(outlook(rig, world=4, path="host", sizes=SIZES).sentences)
    assert "It would be the other way round with the rate of host memory at its slow end." in said


@pytest.mark.parametrize("name", ["rtx-pro-6000-x8-two-switches", "l40s-x8-two-sockets"])
@pytest.mark.parametrize("path", ["peer", "host"])
def test_the_contrast_is_that_of_the_choices(name, path):
    rig = io.find(name).rig
    choices = best_subsets(rig, 4, 262144, path=path)
    best, worst = choices[0], choices[-1]
    found = contrast(rig, best.gpus, worst.gpus, 262144, path).ratio
    assert found.value == pytest.approx(worst.attainable.value / best.attainable.value)
    assert found.lo <= found.value <= found.hi


def test_groups_that_slow_each_other_at_the_slow_end_only_may_do_so():
    said = " ".join(outlook(io.find("rtx-4090-x4-no-p2p").rig, world=2, sizes=SIZES).sentences)
    assert "may slow each other down: 1.00x [1.00, " in said
    assert "moment slow each other" not in said


def test_nccl_stands_beside_the_floor(switches):
    sentence = next(s for s in switches.sentences if s.startswith("NCCL"))
    assert switches.headline.nccl_choice in sentence


def test_all_gpus_leave_no_choice():
    got = outlook(io.find("rtx-4090-x2-no-p2p").rig, world=2, sizes=SIZES)
    assert got.path == "host"
    assert got.choices == ()
    assert got.groups == ()
    with pytest.raises(ValueError, match="world of 2 and no other"):
        outlook(io.find("rtx-4090-x2-no-p2p").rig, world=3)


@pytest.mark.parametrize("name", library.names())
def test_nothing_is_predicted_faster_than_attainable_nor_that_than_the_bound(name):
    rig = library.box(name).rig
    if rig is None:
        return
    for size in (1024, 262144, 1 << 22, 1 << 26):
        found = predict(rig, world=2, nbytes=size)
        assert found.floor.bound.value <= found.floor.attainable.value
        for e in (found.kernels, *([found.nccl] if found.nccl else [])):
            assert found.floor.attainable.value <= e.value * (1 + 1e-12)
            assert e.lo <= e.value <= e.hi


@pytest.mark.parametrize("world", ["0", "1", "-1"])
def test_a_world_that_is_none_is_refused_not_taken_for_all(world, capsys):
    assert main(["report", "--topology", "rtx-4090-x4-no-p2p", "--world", world]) == 2
    assert f"--world {world}: expected the number of ranks, 2 or more" in capsys.readouterr().err
