"""Posted-write collapse is seen in probes, and not where there is none."""

from by_hand import HOST, probe

from arfloor.core.regimes import write_collapses

PEER = {"path": "peer", "src": "cuda:0", "dst": "cuda:4", "link": "pcie"}


def test_the_published_collapse_is_found():
    probes = (
        probe("stream", 36.8, **PEER),
        probe("stream", 40.1, access="read", **PEER),
        probe("stream", 1.35, active="all", **PEER),
        probe("stream", 25.6, active="all", access="read", **PEER),
    )
    (found,) = write_collapses(probes)
    assert (found.active, found.write_gbps, found.other_gbps) == ("all", 1.35, 25.6)
    assert "pull" in found.sentence


def test_a_box_that_only_reads_fast():
    probes = (probe("stream", 2.6, **PEER), probe("stream", 52.0, access="read", **PEER))
    assert write_collapses(probes)[0].active == "one_way"


def test_both_ways_against_one_way_where_reads_were_not_probed():
    probes = (probe("stream", 37.0, **PEER), probe("stream", 2.7, active="both_ways", **PEER))
    assert write_collapses(probes)[0].against == "one stream alone"


def test_healthy_links_are_left_alone():
    assert write_collapses(HOST) == ()
    dense = (probe("stream", 54.0, **PEER), probe("stream", 11.0, active="all", **PEER))
    assert write_collapses(dense) == ()  # a third of a port, derated: what dense traffic gets
    assert write_collapses(()) == ()
