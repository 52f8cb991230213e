"""Costs of an implementation fitted on some sizes and grids, and held-out ones predicted."""

import pytest
from by_hand import HOST, estimate

from arfloor.core.cases import Case, Ran, Result
from arfloor.core.costs import fit_costs, held_out, predict_us


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
    assert got.costs.worst_residual < 0.1


def test_the_wire_is_never_beaten_and_too_few_results_fit_nothing():
    quick = [world(n, 32, 2.6 + 0.5 * n / 37e3) for n in (1 << 18, 1 << 19, 1 << 20)]
    assert fit_costs(quick, HOST).wire_factor == 1.0
    assert fit_costs(RESULTS[:2], HOST) is None
    assert fit_costs(RESULTS, ()) is None
    assert held_out(RESULTS, HOST, fitted=lambda r: False) is None


def test_a_prediction_does_not_look_at_its_own_result():
    costs = fit_costs(RESULTS, HOST)
    wrong = world(1 << 18, 16, 1e6)
    assert predict_us(wrong, HOST, costs) == pytest.approx(truth(1 << 18, 16), rel=1e-3)
