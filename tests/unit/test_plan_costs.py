"""What our one-shot packets take over the host, by worlds whose times are put together by hand."""

from dataclasses import replace

import pytest
from by_hand import estimate, probe

from arfloor.core.cases import Case, Ran, Result, Tuning
from arfloor.core.costs import finalists, fit_costs, fit_segments, held_out, segment_of
from arfloor.core.plan_costs import PlanCosts, applies, fit, hash_steps, predict_us
from arfloor.core.polls import CYCLES_A_US

HOST = (
    probe("launch", 0.5),
    probe("pingpong", 1.6),
    probe("stream", 50.0, active="one_way"),
    probe("stream", 40.0, access="read", active="one_way"),
    probe("stream", 32.0, active="all"),
    probe("stream", 32.0, access="read", active="all"),
    probe("stream", 40.0, engine="ce", active="all"),
    probe("stream", 40.0, engine="ce", access="read", active="all"),
)
COSTS = PlanCosts(round_us=1.0, hash_us=0.05, trip_us=2.5, wire_factor=0.9, n=4, worst_residual=0.0)
LONG = 504 * 120  # bytes of 120 tiles of 512


def ran(plan, nbytes, us=1.0, path="host"):
    case = Case(
        backend=path,
        variant=plan,
        path=path,
        devices=("cuda:0", "cuda:1"),
        numel=nbytes // 2,
        dtype="bfloat16",
        mode="graph",
    )
    protocol = plan.split("t")[0] if plan.startswith("line") else plan.split("-")[0]
    return Result(case=case, status="ok", latency=estimate(us), ran=Ran(algorithm=plan, protocol=protocol))


def us(plan, nbytes):
    found = predict_us(ran(plan, nbytes), HOST, COSTS)
    assert found is not None
    return found


OUT_IN, BOTH = 120 * 0.512 / 50 + 120 * 0.512 / 40, 120 * 0.512 / 32


def test_one_tile_a_warp_is_sent_before_anything_comes():
    assert us("line512t64-one-30x128", LONG) == pytest.approx(0.5 + 1.6 + 1.0 + 5 * 0.05 + 0.9 * OUT_IN)


def test_tiles_sent_ahead_go_beside_those_that_come():
    # of ten tiles a warp, one has nothing beside it
    expected = 0.5 + 1.6 + 1.0 + 5 * 0.05 + 0.9 * (0.1 * OUT_IN + 0.9 * BOTH)
    assert us("line512t64-one-3x128-ahead1", LONG) == pytest.approx(expected)
    # those that wait between: nine times more, longer than the wire takes
    assert us("line512t64-one-3x128", LONG) == pytest.approx(3.35 + 0.9 * 0.1 * OUT_IN + 9 * 2.5)


def test_a_pace_bounds_the_rate():
    slow = us("line512t64-one-30x128-pace64", LONG)
    assert slow == pytest.approx(3.35 + 120 * 64 / CYCLES_A_US)
    quick = us("line512t64-one-30x128-pace10", LONG)
    sent = 120 * 10 / CYCLES_A_US / BOTH  # this much of the time a burst is spread over
    assert quick == pytest.approx(3.35 + 0.9 * ((1 - sent) * OUT_IN + sent * BOTH))


def test_short_packets_carry_more_and_hash_less():
    ll, line16, line128 = (us(f"{p}-one-8x128", 2400) for p in ("ll", "line16t32", "line128t64"))
    assert ll - line16 == pytest.approx(0.9 * (2400 * 2 - 2400 * 16 / 12) / 1e3 * (1 / 50 + 1 / 40))
    assert line128 - line16 == pytest.approx(
        3 * 0.05 - 0.9 * (2400 * 16 / 12 - 2400 * 128 / 120) / 1e3 * (1 / 50 + 1 / 40)
    )


PLANS = (
    "ll-one-8x128",
    "line16t32-one-16x64-lag250",
    "line128t64-one-64x128",
    "line512t64-one-132x512-pace26-lag150-window2",
    "line512t64-one-33x256-ahead1",
    "line128t64-one-8x64",
)
WIDE = PLANS[2]
GRID = [(plan, 1 << k) for plan in PLANS for k in range(11, 21)]


def test_known_costs_are_recovered_and_unseen_plans_predicted():
    results = [ran(plan, n, us(plan, n)) for plan, n in GRID]
    found = fit(results, HOST)
    assert found.round_us == pytest.approx(1.0, rel=0.01)
    assert found.hash_us == pytest.approx(0.05, rel=0.05)
    assert found.trip_us == pytest.approx(2.5, rel=0.01)
    assert found.wire_factor == pytest.approx(0.9, rel=0.01)
    got = held_out(results, HOST, fitted=lambda r: r.case.variant != PLANS[3] and r.case.nbytes & 0x55555)
    assert not got.unpredicted
    assert got.worst < 0.03
    assert {type(c) for c in got.fitted.costs.values()} == {PlanCosts}


def test_the_wire_is_not_beaten_by_more_than_any_engine_did():
    quick = [ran("line512t64-one-132x512", n, 2.1 + 0.3 * n / 32e3) for n in (1 << k for k in range(14, 20))]
    assert fit(quick, HOST).wire_factor == pytest.approx(32 / 40)
    assert fit(quick[:3], HOST) is None
    assert fit(quick, HOST[:2]) is None


def test_a_plan_that_waits_again_needs_one_that_did():
    once = [ran("line512t64-one-132x512", n, us("line512t64-one-132x512", n)) for n in (1 << 12, 1 << 14)] * 2
    found = fit(once, HOST)
    assert found.trip_us is None
    assert found.hash_us == 0  # of one length of line: in what a round costs
    assert predict_us(ran("line512t64-one-8x128", 1 << 18), HOST, found) is None
    assert fit_segments(once, HOST).predict_us(ran("line512t64-one-8x128", 1 << 18), HOST) is None


def test_other_shapes_and_paths_keep_the_common_formula():
    assert applies(ran("ll-one-8x128", 4096))
    for plan, path in (
        ("flag-one-8x128", "host"),
        ("line128t64-two-8x128", "host"),
        ("ll-one-8x128", "peer"),
    ):
        assert not applies(ran(plan, 4096, path=path))
    steps = {
        p: hash_steps(ran(f"{p}-one-8x128", 4096)) for p in ("ll", "line16t32", "line64t32", "line512t64")
    }
    assert steps == {"ll": 0, "line16t32": 0, "line64t32": 2, "line512t64": 5}


def test_over_peer_memory_steps_of_the_hash_are_told_apart_where_several_lengths_ran():
    peer = tuple(
        replace(p, path="peer", src="cuda:0", dst="cuda:1") if p.kind != "launch" else p for p in HOST
    )
    plans = [(p, n) for p in ("ll", "line64t32", "line512t64") for n in (4096, 16384, 65536)]
    us = [ran(f"{p}-one-64x512", n, path="peer") for p, n in plans]
    made = [
        replace(r, latency=estimate(3.0 + 0.1 * hash_steps(r) + r.case.nbytes * f / 40e3))
        for r, f in zip(us, [2] * 3 + [64 / 60] * 3 + [512 / 504] * 3, strict=True)
    ]
    found = fit_costs(made, peer)
    assert found.hash_us == pytest.approx(0.1, rel=0.05)
    assert found.worst_residual < 0.01
    assert fit_costs([r for r in made if "line512" in r.case.variant] * 2, peer).hash_us == 0


def test_what_tuning_timed_is_fitted_beside_the_results_and_not_asked_about():
    results = [ran(WIDE, n, us(WIDE, n)) for n in (1 << k for k in range(11, 17))]
    tunings = [
        Tuning(
            path="host",
            world=2,
            dtype="bfloat16",
            nbytes=n,
            plan=WIDE,
            took_s=1.0,
            finalists_us={p: (us(p, n), 99.0) for p in PLANS if p != WIDE}
            | {"of a later version": (1.0, 1.0)},
        )
        for n in (1 << 10, 1 << 11, 1 << 12, 1 << 13)
    ]
    timed = finalists(tunings, results)
    assert len(timed) == 3 * 5  # no result at 1 KiB
    assert {segment_of(r) for r in timed} == {segment_of(results[0])}
    assert len({r.case.id for r in timed}) == 15
    got = held_out(results, HOST, fitted=lambda r: r.case.nbytes < 1 << 13, also=timed)
    assert sorted(i for i, _ in got.errors) == sorted(r.case.id for r in results[2:])
    (costs,) = got.fitted.costs.values()
    assert costs.n == 2 + 2 * 5
    assert got.worst < 0.03
