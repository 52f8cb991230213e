"""Predictions of described boxes against published measurements and against identities."""

from dataclasses import replace
from pathlib import Path

import pytest

from arfloor import topologies_io as io
from arfloor.core import pcie
from arfloor.core.choose import best_subsets, crossovers, interference
from arfloor.core.nccl_log import parse
from arfloor.core.nccl_model import nccl_pick, nccl_table, nccl_time_us, pci_graph_gbps
from arfloor.core.patterns import Model, Phase, Transfer, phases
from arfloor.core.predict import cut_gbps, predict, predict_floor, timings
from arfloor.core.rig import topology
from arfloor.core.topology import Graph

DIRECT8 = io.find("rtx-pro-6000-x8-host-bridge").rig
SWITCHES = io.find("rtx-pro-6000-x8-two-switches").rig
COLLAPSING = io.find("rtx-pro-6000-x8-four-virtual-switches").rig
NO_P2P = io.find("rtx-4090-x4-no-p2p").rig


def test_pcie_payload_rates_by_hand():
    raw = 32 * 128 / 130 / 8 * 16
    assert pcie.payload_gbps(5, 16, payload_bytes=256) == pytest.approx(raw * 256 / 280)
    # published Gen5 x16 peer writes reach 56.3 to 56.6 GB/s
    assert pcie.write_figure(5, 16).lo < 56.3 < pcie.write_figure(5, 16).hi
    with pytest.raises(ValueError, match="gen 9"):
        pcie.payload_gbps(9, 16, payload_bytes=256)


def test_one_way_flags_are_those_of_the_formula():
    def flag(rig, a, b):
        return Model(rig).one_way_us(a, b)

    assert flag(SWITCHES, "gpu0", "gpu1") == pytest.approx(pcie.FLAG_SWITCH_US)
    assert flag(DIRECT8, "gpu0", "gpu1") == pytest.approx(pcie.FLAG_ROOT_PORTS_US)
    assert flag(DIRECT8, "gpu0", "gpu4") == pytest.approx(pcie.FLAG_SOCKETS_US)


def test_the_published_one_shot_series_is_predicted():
    """Dense one-shot at 128 KiB and up, where the wire and not the kernel decides, within 15 %."""
    published = next(s for s in COLLAPSING.series if s.backend == "one-shot")
    small = published.points[0][1]
    for nbytes, us in published.points:
        if nbytes >= 131072:
            wire = timings(COLLAPSING, COLLAPSING.gpus[:4], "peer", nbytes)["one-shot"][1].wire_us
            assert small + wire == pytest.approx(us, rel=0.15)


def test_nccl_formula_meets_the_published_series_but_for_its_outlier():
    series = next(s for s in COLLAPSING.series if s.backend == "nccl")
    table = nccl_table(
        world=4, hardware="pci", channels=2, channel_gbps=pci_graph_gbps(5) / 2, compute_capability=(12, 0)
    )
    ratios = {nbytes: us / nccl_pick(table, nbytes)[2] for nbytes, us in series.points}
    assert ratios.pop(65536) > 4
    assert all(0.95 < r < 1.6 for r in ratios.values())


def test_nccl_formula_reproduces_the_table_that_its_log_prints():
    """Two H200s, NCCL 2.28.9, 12 channels of 30 GB/s; the tree's graph found more a channel."""
    text = (Path(__file__).parents[1] / "data" / "nccl-2.28.9-nvlink.log").read_text()
    printed = parse(text).tables[0]
    computed = nccl_table(
        world=2,
        hardware="nvlink",
        channels=12,
        channel_gbps=30.0,
        tree_channel_gbps=45.0,
        compute_capability=(9, 0),
        ll128=True,
    )
    for key, cell in computed.cells.items():
        assert cell.latency_us == pytest.approx(printed.cells[key].latency_us, abs=0.05)
        assert cell.bandwidth_gbps == pytest.approx(printed.cells[key].bandwidth_gbps, abs=0.06)
    assert len(computed.cells) == 6


def test_nccl_formula_reproduces_the_table_of_the_host_path():
    """The same box with peer access off (docs/measurements.md): RING LL 8.6 us / 20, SIMPLE 19.8 / 40."""
    table = nccl_table(
        world=2, hardware="pci", channels=4, channel_gbps=10.0, compute_capability=(9, 0)
    ).cells
    ll, simple = table["AllReduce", "RING", "LL"], table["AllReduce", "RING", "SIMPLE"]
    assert (ll.latency_us, ll.bandwidth_gbps) == pytest.approx((8.6, 20.0))
    assert (simple.latency_us, simple.bandwidth_gbps) == pytest.approx((19.8, 40.0))


def test_nccl_formula_by_hand():
    table = nccl_table(world=8, hardware="pci", channels=2, channel_gbps=12, compute_capability=(8, 0))
    # ring LL: 6.6 + 14 x 1.0; bandwidth 24 / 2 x 8 / 14
    assert nccl_time_us(table, "RING", "LL", 65536) == pytest.approx(20.6 + 65536 / (24 / 2 * 8 / 14 * 1e3))
    assert nccl_time_us(table, "RING", "SIMPLE", 0) == pytest.approx(8.4 + 14 * 5.7)
    # tree LL at 1 KiB (2^4 x 64 B): efficiency 0.9
    tree = 24 * 0.92 / 3.8 * 0.5
    assert nccl_time_us(table, "TREE", "LL", 1024) == pytest.approx(20.8 + 1024 / (0.9 * tree * 1e3))
    assert nccl_time_us(table, "RING", "LL128", 1024) is None
    assert nccl_pick(table, 1024)[:2] == ("RING", "LL")
    assert nccl_pick(table, 1 << 22)[:2] == ("RING", "SIMPLE")
    with pytest.raises(ValueError, match="at least 2"):
        nccl_table(world=1, hardware="pci", channels=2, channel_gbps=12, compute_capability=(8, 0))


def test_posted_writes_collapse_only_under_the_published_conditions():
    model = Model(COLLAPSING)

    def rate(*pairs, pull=False):
        transfers = tuple(Transfer(src=f"gpu{a}", dst=f"gpu{b}", nbytes=1e6, pull=pull) for a, b in pairs)
        phase = Phase(transfers=transfers, pattern="staged", rounds=0)
        timed = model.time("test", [phase], "peer")
        return len(pairs) * 1e6 / timed.wire_us / 1e3

    assert rate((0, 4), (1, 6)) == pytest.approx(2.7)  # two GPUs, one uplink, two root ports
    assert rate((0, 4), (1, 5)) > 30  # one root port at the far end
    assert rate((0, 4), (2, 6)) > 30  # an uplink each
    assert rate((0, 4), (0, 6)) > 30  # one source
    assert rate((0, 4), (1, 6), pull=True) > 30  # reads


def test_pulling_or_islands_avoid_the_collapse():
    considered = dict(predict_floor(COLLAPSING, world=8, nbytes=262144).considered)
    assert considered["two-shot"].value > 4 * considered["two-shot pull"].value
    assert considered["islands"].value < considered["two-shot"].value


def test_cuts_by_hand():
    graph = Graph(topology(SWITCHES))
    left, right = SWITCHES.gpus[:4], SWITCHES.gpus[4:]
    assert cut_gbps(graph, left, right) == pytest.approx(53.8, abs=0.01)
    assert cut_gbps(graph, left[:2], left[2:]) == pytest.approx(107.6, abs=0.01)


def test_eight_gpus_behind_two_switches_are_bound_by_the_uplink_when_dense():
    assert predict_floor(SWITCHES, world=8, nbytes=1 << 20).terms.attainable[2].source
    timing = timings(SWITCHES, SWITCHES.gpus, "peer", 1 << 20)["two-shot"][1]
    assert "switch" in timing.bottleneck
    assert "port" in timing.bottleneck
    ring = timings(SWITCHES, SWITCHES.gpus, "peer", 1 << 20)["ring"][1]
    assert ring.wire_us < timing.wire_us


def test_without_peer_access_everything_goes_through_host_memory():
    got = predict(NO_P2P, world=4, nbytes=262144)
    assert got.path == "host"
    with pytest.raises(ValueError, match="no peer access"):
        predict(NO_P2P, world=4, nbytes=262144, path="peer")
    alone = io.find("h200-x2-host-bridge").rig  # its GPUs have no way to each other at all
    with pytest.raises(ValueError, match="no peer access"):
        predict_floor(alone, world=2, path="peer", nbytes=262144)


def test_which_four_of_eight():
    for rig in (DIRECT8, SWITCHES, COLLAPSING):
        best = best_subsets(rig, 4, 262144)
        assert best[0].gpus == rig.gpus[:4]  # one socket, one switch
        assert best[-1].attainable.value > 1.2 * best[0].attainable.value


def test_two_groups_share_nothing_when_they_keep_to_their_switch():
    apart = interference(SWITCHES, (SWITCHES.gpus[:4], SWITCHES.gpus[4:]), 262144)
    assert apart.slowdown.value == pytest.approx(1.0)
    mixed = interference(SWITCHES, (SWITCHES.gpus[::2], SWITCHES.gpus[1::2]), 262144)
    assert 1.4 < mixed.slowdown.value <= 2.0
    with pytest.raises(ValueError, match="disjoint"):
        interference(SWITCHES, (SWITCHES.gpus[:4], SWITCHES.gpus[3:7]), 262144)


def test_crossovers_are_where_the_schedules_meet():
    found = crossovers(DIRECT8, world=4)
    assert [(c.first, c.second) for c in found] == [("one-shot staged", "two-shot staged")]
    at = found[0].nbytes
    assert at.lo <= at.value <= at.hi
    timed = timings(DIRECT8, DIRECT8.gpus[:4], "peer", round(at.value))
    assert timed["one-shot staged"][1].us == pytest.approx(timed["two-shot staged"][1].us, rel=1e-3)


def test_predictions_grow_with_size_and_shrink_with_bandwidth():
    times = [predict_floor(SWITCHES, world=8, nbytes=1 << k).attainable.value for k in range(10, 23, 4)]
    assert times == sorted(times)
    figures = dict(DIRECT8.figures)
    figures["pcie"] = replace(figures["pcie"], value=100.0, lo=100.0, hi=100.0)
    quick = replace(DIRECT8, name="quick", figures=figures)
    before, after = (predict_floor(r, world=4, nbytes=262144) for r in (DIRECT8, quick))
    assert after.bound.value < before.bound.value
    assert after.attainable.value < before.attainable.value


@pytest.mark.parametrize("world", [0, 1, 9])
def test_a_world_the_box_does_not_have(world):
    with pytest.raises(ValueError, match="2 to 8"):
        predict(DIRECT8, world=world, nbytes=1024)


def test_named_ranks_must_exist():
    with pytest.raises(ValueError, match="gpu9"):
        predict(DIRECT8, ranks=("gpu0", "gpu9"), nbytes=1024)


def test_every_byte_of_every_schedule_is_accounted_for():
    """Bytes in per rank equal the table's; in a phase every rank receives what its share needs."""
    ranks, nbytes = SWITCHES.gpus, 1 << 20
    model = Model(SWITCHES)
    once, twice = 7 * nbytes, 2 * 7 / 8 * nbytes
    table = {
        "one-shot": once,
        "one-shot staged": once,
        "two-shot": twice,
        "two-shot staged": twice,
        "ring": twice,
    }
    for algorithm, expected in table.items():
        received = dict.fromkeys(ranks, 0.0)
        for phase in phases(model, algorithm, ranks, "peer", nbytes):
            for t in phase.transfers:
                received[t.dst] += phase.count * t.nbytes
        assert all(r == pytest.approx(expected) for r in received.values()), algorithm
