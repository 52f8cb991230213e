"""Ranks that share an uplink to the host: rates by hand."""

import pytest
from by_hand import probe

from arfloor.core.patterns import Model
from arfloor.core.shared_uplink import Uplink, rig_of, timing, uplink_of

UPLINK = Uplink(write_gbps=53.0, read_gbps=50.0, both_gbps=36.0, flag_us=1.8)


def model(ranks_a_gpu):
    return Model(rig_of(UPLINK, gpus=2, ranks_a_gpu=ranks_a_gpu))


def test_one_rank_a_gpu_gets_what_both_ways_were_probed_at():
    t = timing(model(1), "one-shot", 1 << 20)
    assert t.wire_us == pytest.approx((1 << 20) / 36e3, rel=1e-3)
    assert t.latency_us == pytest.approx(1.8, rel=1e-3)
    assert timing(model(1), "two-shot", 1 << 20).latency_us == pytest.approx(3.6, rel=1e-3)


def test_two_ranks_a_gpu_read_six_messages_over_one_link():
    t = timing(model(2), "one-shot", 1 << 20)
    assert t.wire_us == pytest.approx(6 * (1 << 20) / 50e3, rel=1e-3)
    assert "port" in t.bottleneck
    # two-shot: 2 x 1 message out, 2 x 1.5 in; the bridge alone needs that long, the wire's ways at most
    bridge = (2 + 3 * (1 + 24 / 152)) * (1 << 20) / (36e3 * (2 + 24 / 152))
    two = timing(model(2), "two-shot", 1 << 20)
    assert bridge < two.wire_us < 5 * (1 << 20) / 50e3


def test_the_uplink_is_the_slowest_gpus_and_says_what_was_not_probed():
    def stream(rate, access, active, gpu):
        ends = {"src": gpu, "dst": "host"} if access == "write" else {"src": "host", "dst": gpu}
        return probe("stream", rate, access=access, active=active, **ends)

    probes = [probe("pingpong", 1.8)]
    probes += [stream(53.0, "write", "all_one_way", g) for g in ("cuda:0", "cuda:1")]
    probes += [stream(r, "read", "all_one_way", g) for r, g in ((51.0, "cuda:0"), (50.0, "cuda:1"))]
    probes.append(stream(55.0, "read", "one_way", "cuda:0"))
    with pytest.raises(ValueError, match="found none of both at once"):
        uplink_of(probes)
    probes += [stream(36.0, "read", "all", g) for g in ("cuda:0", "cuda:1")]
    assert uplink_of(probes) == UPLINK
    # a burst does not count: the largest message does
    burst = probe("stream", 60.0, access="read", active="all_one_way", src="host", dst="cuda:1", nbytes=1)
    assert uplink_of([*probes, burst]) == UPLINK
    with pytest.raises(ValueError, match="flags"):
        uplink_of(probes[1:])
