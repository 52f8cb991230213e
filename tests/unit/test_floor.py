"""The floor on worked examples whose answers are known by hand."""

import pytest
from by_hand import HOST, estimate, probe

from arfloor.core.cases import Case, Estimate, Result
from arfloor.core.floor import Cut, check_bound, floor, raise_attainable
from arfloor.core.rates import curve_us


def host_floor(primitives=HOST, nbytes=262144, world=2, **changes):
    arguments = {"path": "host", "world": world, "nbytes": nbytes, "dtype": "bfloat16", "mode": "graph"}
    return floor(primitives, **(arguments | changes))


def test_two_gpus_through_host_memory_by_hand():
    got = host_floor()
    assert got.bound.value == pytest.approx(1.3 + 262144 / 55e3)
    assert got.attainable.value == pytest.approx(1.3 + 1.3 + 262144 / 37e3)
    assert got.algorithm == "one-shot"
    assert [t.name for t in got.terms.attainable] == ["launch", "latency", "wire"]
    assert sum(t.us.value for t in got.terms.attainable) == pytest.approx(got.attainable.value)


def test_four_gen5_peers_match_the_published_wire_times():
    # Four Gen5 x16 GPUs, 262,144 B: two-shot wire 7.0 us, one-shot 14.0 (at 56.2 GB/s a port)
    peer = {"path": "peer", "dst": "cuda:1", "link": "pcie"}
    probes = (
        probe("pingpong", 1e-9, **peer),
        probe("stream", 56.2, **peer, active="both_ways"),
        probe("stream", 56.2 / 3, **peer, active="all"),
    )
    got = floor(probes, path="peer", world=4, nbytes=262144, dtype="bfloat16", mode="isolated")
    times = dict(got.considered)
    assert times["two-shot"].value == pytest.approx(7.0, abs=0.01)
    assert times["one-shot"].value == pytest.approx(14.0, abs=0.02)
    assert got.bound.value == pytest.approx(7.0, abs=0.01)


def test_links_of_their_own_to_every_peer_add_up_in_the_bound():
    """Four GPUs in an NVLink mesh: a rank sends over all three links at once."""
    peer = {"path": "peer", "dst": "cuda:1", "link": "nvlink"}
    probes = (
        probe("pingpong", 1e-9, **peer),
        probe("stream", 100.0, **peer),
        probe("stream", 90.0, **peer, active="all"),
    )
    arguments = {"path": "peer", "world": 4, "nbytes": 270000, "dtype": "bfloat16", "mode": "isolated"}
    assert floor(probes, **arguments).bound.value == pytest.approx(1.5)  # 2 x 3/4 S over 270 GB/s
    assert floor(probes[:2], **arguments).bound.value == pytest.approx(1.35)  # over 300: none was probed


def test_the_bound_of_the_peer_path_allows_for_the_host_path():
    """NCCL with peer access may still choose shared memory, which is the faster way on some boxes."""
    peer = {"path": "peer", "dst": "cuda:1", "link": "pcie"}
    slow = (probe("pingpong", 1.0, **peer), probe("stream", 10.0, **peer, active="both_ways"))
    got = host_floor((*slow, *HOST), path="peer")
    assert got.bound.value == pytest.approx(1.0 + 262144 / 55e3)
    assert dict(got.considered)["one-shot"].value == pytest.approx(1.3 + 1.0 + 262144 / 10e3)
    assert host_floor((*slow, *HOST)).bound.value == pytest.approx(1.3 + 262144 / 55e3)


def test_small_messages_choose_one_shot_and_large_ones_two_shot():
    small, large = host_floor(nbytes=1024, world=8), host_floor(nbytes=1 << 24, world=8)
    assert (small.algorithm, large.algorithm) == ("one-shot", "two-shot")


def test_isolated_mode_has_no_launch():
    assert host_floor(mode="isolated").attainable.value == pytest.approx(1.3 + 262144 / 37e3)


def cpu_probe(kind, value, source, **changes):
    cpu = {"engine": "cpu", "access": "sendrecv", "src": "cpu:0", "dst": "cpu:1", "path": "cpu"}
    return probe(kind, value, **(cpu | {"link": "shm", "source": source} | changes))


def test_cpu_takes_the_best_launcher_whole_and_adds_the_additions():
    probes = (
        cpu_probe("pingpong", 30.0, "gloo", link="tcp"),
        cpu_probe("stream", 4.0, "gloo", link="tcp", active="both_ways"),
        cpu_probe("pingpong", 1.0, "mpi"),
        cpu_probe("stream", 2.0, "mpi", active="both_ways"),
        cpu_probe("reduce", 5.0, "numpy", access="read"),
    )
    arguments = {"path": "cpu", "world": 2, "dtype": "float32", "mode": "eager"}
    small = floor(probes, nbytes=4000, **arguments)
    assert small.attainable.value == pytest.approx(1.0 + 4000 / 2e3 + 4000 / 5e3)
    large = floor(probes, nbytes=4_000_000, **arguments)
    # two-shot adds half as much, one latency more
    assert large.attainable.value == pytest.approx(60.0 + 1000 + 400)
    assert large.bound.value == pytest.approx(1.0 + 800)  # ranks sharing memory may add in place


def test_no_floor_without_latency_or_rate():
    assert host_floor(HOST[:3]) is None
    assert host_floor(HOST[3:]) is None
    assert host_floor(()) is None
    failed = tuple(p for p in HOST if p.kind != "pingpong")
    failed += (probe("pingpong", 1.3, status="failed", estimate=None),)
    assert host_floor(failed) is None


def make_result(us, nbytes=262144, **changes):
    case = Case(
        backend="line",
        path="host",
        devices=("cuda:0", "cuda:1"),
        numel=nbytes // 2,
        dtype="bfloat16",
        mode="graph",
    )
    return Result(**({"case": case, "status": "ok", "latency": estimate(us)} | changes))


def test_a_result_below_its_bound_fails_loudly():
    got = check_bound(make_result(5.0), host_floor())
    assert (got.status, got.reason, got.latency) == ("failed", "below_bound", None)
    assert "measured 5.00 us" in got.detail
    fine = make_result(6.5)
    assert check_bound(fine, host_floor()) is fine


def test_a_faster_result_becomes_attainable_and_names_the_slow_probe():
    before = host_floor()
    got = raise_attainable(before, [make_result(8.0), make_result(12.0)])
    assert got.attainable.value == 8.0
    assert got.algorithm == "line"
    assert "wire" in got.slow_probe
    assert "37" not in (before.slow_probe or "")
    assert raise_attainable(before, [make_result(12.0)]) is before
    assert raise_attainable(before, [make_result(1.0)]) is before  # below the bound: a bug, not a record
    assert raise_attainable(before, [make_result(8.0, status="wrong")]) is before


def test_rates_between_sizes_are_linear_in_time_and_never_fall():
    curve = ((1000, estimate(1.0, unit="GB/s")), (2000, estimate(4.0, unit="GB/s")))
    assert curve_us(curve, 500).value == pytest.approx(0.5)
    assert curve_us(curve, 2000).value == pytest.approx(1.0)  # not 0.5: fewer bytes took longer
    assert curve_us(curve, 4000).value == pytest.approx(2.0)


CPU = (
    cpu_probe("pingpong", 50.0, "gloo", link="tcp"),
    cpu_probe("stream", 1.0, "gloo", link="tcp", active="both_ways"),
)


def cpu_floor(probes=CPU):
    return floor(probes, path="cpu", world=2, nbytes=1000, dtype="float32", mode="eager")


def cpu_result(us, spread, backend="gloo"):
    case = Case(
        backend=backend, path="cpu", devices=("cpu:0", "cpu:1"), numel=250, dtype="float32", mode="eager"
    )
    return Result(case=case, status="ok", latency=estimate(us, spread))


def test_on_a_shared_machine_only_a_whole_interval_below_the_bound_is_impossible():
    found = cpu_floor()
    assert found.bound.value == pytest.approx(51.0)
    assert check_bound(cpu_result(30.0, 0.1), found).reason == "below_bound"
    busy = cpu_result(45.0, 0.01)  # within what a probe at a busy moment may be too slow
    assert check_bound(busy, found) is busy
    wide = cpu_result(40.0, 0.5)
    assert check_bound(wide, found) is wide
    lowered = raise_attainable(found, [wide])
    assert lowered.bound.value == lowered.attainable.value == 40.0
    assert lowered.bound.lo <= lowered.bound.value <= lowered.bound.hi


def test_a_launcher_that_was_not_probed_is_not_judged_by_another():
    found = cpu_floor()
    quick = cpu_result(5.0, 0.01, backend="mpi")
    assert check_bound(quick, found) is quick
    lowered = raise_attainable(found, [quick])
    assert lowered.bound.value == 5.0
    assert "not probed" in lowered.slow_probe


def test_the_best_repetition_is_for_the_bound_alone():
    best = (
        cpu_probe("pingpong", 10.0, "gloo", link="tcp", active="best"),
        cpu_probe("stream", 2.0, "gloo", link="tcp", active="best"),
    )
    found = cpu_floor((*CPU, *best))
    assert found.bound.value == pytest.approx(10.5)
    assert found.attainable == cpu_floor().attainable


def test_the_bound_takes_the_least_latency_at_its_optimistic_end_whatever_the_other_end():
    sure = probe("pingpong", 0, estimate=Estimate(value=1.3, lo=1.2, hi=1.3, n=9, unit="us"))
    wide = probe("pingpong", 0, estimate=Estimate(value=1.4, lo=1.0, hi=9.0, n=9, unit="us"), src="cuda:1")
    got = host_floor((sure, wide, probe("stream", 55.0)))
    assert got.bound.value == pytest.approx(1.0 + 262144 / 55e3)


def test_only_what_lies_below_the_whole_bound_is_impossible():
    got = host_floor(
        (probe("pingpong", 1.3), probe("stream", 0, estimate=estimate(55.0, spread=0.2, unit="GB/s")))
    )
    between = make_result((got.bound.lo + got.bound.hi) / 2)
    assert check_bound(between, got) is between
    assert check_bound(make_result(got.bound.lo * 0.99), got).reason == "below_bound"


def test_rates_are_taken_at_the_size_that_was_probed_the_best_of_repeats():
    slow_then_fast = (
        probe("pingpong", 1.0),
        probe("stream", 10.0, nbytes=1 << 18, active="all"),
        probe("stream", 20.0, nbytes=1 << 18, active="all"),
        probe("stream", 40.0, nbytes=1 << 22, active="all"),
    )
    for nbytes, gbps in ((1 << 18, 20.0), (1 << 22, 40.0)):
        wire = host_floor(slow_then_fast, nbytes).terms.attainable[-1]
        assert wire.us.value == pytest.approx(nbytes / gbps / 1e3)


def test_the_far_end_of_the_bound_is_that_of_its_slowest_wire():
    cut = Cut(name="sockets", gbps=Estimate(value=20.0, lo=10.0, hi=30.0, n=9, unit="GB/s"))
    got = host_floor((probe("pingpong", 1.0), probe("stream", 55.0)), cuts=(cut,))
    assert got.bound.value == got.bound.lo == pytest.approx(1.0 + 262144 / 30e3)
    assert got.bound.hi == pytest.approx(1.0 + 262144 / 20e3)


def test_the_cheapest_launch_counts():
    got = host_floor((*HOST, probe("launch", 2.0, src="cuda:1"), probe("launch", 0.9, src="cuda:1")))
    assert got.terms.attainable[0].us.value == 0.9


@pytest.mark.parametrize(("mode", "said"), [("graph", "not probed"), ("isolated", "no launch in this mode")])
def test_a_launch_that_is_not_there_is_not_blamed_on_cpus(mode, said):
    got = host_floor([p for p in HOST if p.kind != "launch"], mode=mode)
    assert (got.terms.attainable[0].us.value, got.terms.attainable[0].source) == (0.0, said)
