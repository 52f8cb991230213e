"""Costs of an implementation fitted on some sizes and grids, and held-out ones predicted."""

import pytest
from by_hand import HOST, estimate

from arfloor.core.cases import Case, Ran, Result
from arfloor.core.costs import fit_costs, fit_segments, held_out, predict_us, segment_of
from arfloor.core.plans import parse
from arfloor.core.trips import nccl_trips, plan_trips, trips


def world(nbytes, channels, us, protocol="line128"):
    case = Case(
        backend="arfloor",
        variant=f"{channels}",
        path="host",
        devices=("cuda:0", "cuda:1"),
        numel=nbytes // 2,
        dtype="bfloat16",
        mode="graph",
    )
    ran = Ran(algorithm="one-shot, push", protocol=protocol, channels=channels)
    return Result(case=case, status="ok", latency=estimate(us), ran=ran)


def truth(nbytes, channels):
    """launch 1.3 + flag 1.3 + 0.9 a round + 1.15 of the wire + what a channel moves at 4 GB/s."""
    moved = nbytes * 128 / 120
    return 1.3 + 1.3 + 0.9 + 1.15 * moved / 37e3 + moved / channels / 4e3


GRID = [(1 << k, c) for k in range(12, 22) for c in (4, 8, 16, 32)]
RESULTS = [world(n, c, truth(n, c)) for n, c in GRID]


def test_known_costs_are_recovered():
    found = fit_costs(RESULTS, HOST)
    assert found.round_us == pytest.approx(0.9, rel=1e-3)
    assert found.wire_factor == pytest.approx(1.15, rel=1e-3)
    assert found.channel_gbps == pytest.approx(4.0, rel=1e-3)
    assert found.worst_residual < 1e-3


def test_held_out_sizes_and_grids_are_predicted():
    noisy = [
        world(n, c, truth(n, c) * (1 + 0.03 * (-1) ** i)) for i, (n, c) in enumerate(GRID)
    ]  # fmt: skip
    got = held_out(noisy, HOST, fitted=lambda r: r.ran.channels in (4, 16) and r.case.nbytes % 3 != 1)
    assert len(got.errors) == sum(c not in (4, 16) or n % 3 == 1 for n, c in GRID)
    assert got.worst < 0.1
    assert got.within(0.1) == len(got.errors)
    (costs,) = got.fitted.costs.values()
    assert costs.worst_residual < 0.1


def test_the_wire_is_never_beaten_and_too_few_results_fit_nothing():
    quick = [world(n, 32, 2.6 + 0.5 * n / 37e3) for n in (1 << 17, 1 << 18, 1 << 19, 1 << 20)]
    assert fit_costs(quick, HOST).wire_factor == 1.0
    assert fit_costs(RESULTS[:2], HOST) is None
    assert fit_costs(RESULTS, ()) is None
    nothing = held_out(RESULTS, HOST, fitted=lambda r: False)
    assert (nothing.errors, len(nothing.unpredicted), nothing.worst) == ((), len(RESULTS), 0.0)


def test_a_prediction_does_not_look_at_its_own_result():
    costs = fit_costs(RESULTS, HOST)
    wrong = world(1 << 18, 16, 1e6)
    assert predict_us(wrong, HOST, costs) == pytest.approx(truth(1 << 18, 16), rel=1e-3)


def nccl(nbytes, protocol, channels, us=1.0, expected=None, variant="default"):
    made = world(nbytes, channels, us, protocol)
    case = Case(
        backend="nccl",
        variant=variant,
        path="host",
        devices=made.case.devices,
        numel=nbytes // 2,
        dtype="bfloat16",
        mode="graph",
    )
    ran = Ran(algorithm="RING", protocol=protocol, channels=channels, source="log", predicted_us=expected)
    return Result(case=case, status="ok", latency=estimate(us), ran=ran)


def test_a_larger_message_may_take_fewer_trips():
    # by NCCL's rule 3,072 B take 128 threads of 8 B for 1,536 B a chunk, 4,096 B take 256 for 2,048
    assert [nccl_trips("LL", n, 2, 1) for n in (1024, 1536, 2048, 3072, 4096, 6144, 8192, 12288)] == [
        1, 1, 1, 2, 1, 2, 1, 2,
    ]  # fmt: skip
    assert nccl_trips("LL", 1 << 18, 2, 4) == 8
    assert nccl_trips("LL", 1 << 18, 2, 16) == 2
    assert [nccl_trips("SIMPLE", n, 2, 1) for n in (2048, 3072, 4096, 6144, 8192)] == [1, 2, 2, 3, 2]
    assert nccl_trips("SIMPLE", 1 << 22, 2, 8) == 4  # 32 passes, eight at a time
    assert [nccl_trips("LL128", n, 2, 16) for n in (1 << 20, 1 << 21)] == [1, 2]


def test_a_plan_that_sends_ahead_hides_its_trips():
    plan = parse("line512t64-one-4x64")
    assert plan_trips(plan, 504 * 24, 2) == 3  # 8 warps, a line each
    assert plan_trips(parse(f"{plan.name}-ahead1"), 504 * 24, 2) == 1
    assert trips(nccl(3072, "LL", 1)) == 2
    assert trips(world(3072, 1, 1.0)) == 1  # nobody knows


def test_protocols_are_fitted_apart_and_variants_of_one_together():
    """LL: 5 us a round and 0.8 a further trip; Simple: 13 a round; the wire of both as probed."""

    def us(nbytes, protocol, channels):
        packet, cost, further = (2.0, 5.0, 0.8) if protocol == "LL" else (1.0, 13.0, 0.0)
        extra = 2 * further * (nccl_trips(protocol, nbytes, 2, channels) - 1)
        return 1.3 + 2 * (1.3 + cost) + extra + nbytes * packet / 37e3

    both = [(n, "LL", c) for n in (1 << k for k in range(11, 19)) for c in (4, 16)]
    both += [(3 << k, "SIMPLE", c) for k in range(18, 22) for c in (4, 16)]
    results = [nccl(n, p, c, us(n, p, c), variant=f"{c}ch") for n, p, c in both]
    assert len({segment_of(r) for r in results}) == 2
    got = held_out(results, HOST, fitted=lambda r: r.case.variant == "4ch")
    assert (len(got.errors), got.unpredicted) == (12, ())
    assert got.worst < 1e-6
    low = next(c for key, c in got.fitted.costs.items() if key[-1] == "ll")
    assert (low.round_us, low.trip_us) == (pytest.approx(5.0), pytest.approx(0.8))


def test_a_segment_of_few_results_takes_the_shape_of_the_librarys_own_model():
    few = [nccl(1 << 21, "SIMPLE", 4, 45.0, 30.0), nccl(1 << 22, "SIMPLE", 4, 66.0, 44.0)]
    found = fit_segments(few, HOST)
    assert not found.costs
    assert found.predict_us(nccl(3 << 20, "SIMPLE", 4, expected=40.0), HOST) == pytest.approx(60.0)
    assert found.predict_us(nccl(3 << 20, "SIMPLE", 4), HOST) is None
    assert found.predict_us(nccl(3 << 20, "LL", 4, expected=40.0), HOST) is None
