"""Worlds with a known truth: how often intervals cover it and comparisons find it.

The bounds of the fast tests leave room for the chance of few worlds; the slow ones are the proof.
"""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from arfloor.core.launches import estimate, of_pairs
from arfloor.core.spread import launch_spread
from tests.worlds import (
    CURVES,
    STATISTICS,
    World,
    _launches,
    comparisons,
    fits,
    latency_coverage,
    rounds_of,
    stopping_coverage,
)

PLANTED = 1.05


@pytest.mark.parametrize(
    "name",
    [
        "two launches",
        "two launches, their luck shared by all cases",
        "drift of 3 % in a launch",
        "one rank late by 20 %, eight ranks",
        "two launches, one case alone",
    ],
)
def test_latency_intervals_cover_the_truth(name):
    world = replace(STATISTICS[name], cases=min(STATISTICS[name].cases, 12))
    covered, _ = latency_coverage(world, 25)
    assert covered >= (0.7 if world.cases == 1 or world.process else 0.85)


@pytest.mark.parametrize("late", [0.0, 0.3])
def test_latency_is_recovered_to_three_digits(late):
    world = World(launches=5, rounds=30, replays=30, cases=5, launch=3e-4, round=2e-3, replay=5e-3, late=late)
    cases = [_launches(us) for us in world.draw(np.random.default_rng(1))]
    for case in cases:
        assert estimate(case, launch_spread(cases)).value == pytest.approx(world.truth(), rel=1e-3)


@pytest.mark.parametrize("paired", [True, False])
def test_a_planted_change_is_found_and_equal_cases_are_not_called(paired):
    world = World(cases=12, launch=0.0)
    planted = comparisons(world, PLANTED, 25, paired=paired)
    assert planted.allowed > 0.7
    assert planted.right >= 0.9
    assert comparisons(world, 1.0, 25, paired=paired).called == 0


@pytest.mark.parametrize(
    "name", ["one line", "one line, one point 3 times too slow", "one switch", "two switches"]
)
def test_fits_recover_the_truth_to_two_digits(name):
    found = fits(CURVES[name], 8)
    assert found.digits >= 2
    assert found.segments >= 0.75
    assert min(found.alpha, found.beta) >= 0.6


@given(scale=st.floats(1e-2, 1e6), seed=st.integers(0, 1000))
@settings(max_examples=25, deadline=None)
def test_units_do_not_matter(scale, seed):
    us = World(cases=1, rounds=6, replays=5).draw(np.random.default_rng(seed))[0]
    one, other = estimate(_launches(us)), estimate(_launches(us * scale))
    for name in ("value", "lo", "hi"):
        assert getattr(other, name) == pytest.approx(getattr(one, name) * scale, rel=1e-9)


@given(seed=st.integers(0, 1000))
@settings(max_examples=25, deadline=None)
def test_a_over_b_is_the_inverse_of_b_over_a(seed):
    a, b = (rounds_of(us) for us in World(cases=2, rounds=6, replays=5).draw(np.random.default_rng(seed)))
    there, back = estimate(of_pairs(a, b), unit="ratio"), estimate(of_pairs(b, a), unit="ratio")
    assert there.value == pytest.approx(1 / back.value)
    assert there.lo == pytest.approx(1 / back.hi)


# -- the proof -----------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("name", STATISTICS)
def test_latency_intervals_cover_93_to_97_percent_of_1000_worlds(name):
    covered, _ = latency_coverage(STATISTICS[name], 1000)
    assert 0.93 <= covered <= 0.97


@pytest.mark.slow
def test_stopping_at_a_narrow_interval_costs_no_coverage():
    within, over, _ = stopping_coverage(100)
    assert within >= 0.92
    assert 0.93 <= over <= 0.97


@pytest.mark.slow
@pytest.mark.parametrize("paired", [True, False])
@pytest.mark.parametrize("name", [n for n, w in STATISTICS.items() if w.cases > 1])
def test_comparisons_find_five_percent_and_call_at_most_one_percent_of_equal_pairs(name, paired):
    planted = comparisons(STATISTICS[name], PLANTED, 50, paired=paired)  # of 24 pairs each
    if planted.allowed > 0.02:
        assert planted.right >= 0.95
    assert comparisons(STATISTICS[name], 1.0, 50, paired=paired).called <= 0.01


@pytest.mark.slow
@pytest.mark.parametrize("name", CURVES)
def test_fits_cover_93_to_97_percent_of_1000_worlds(name):
    found = fits(CURVES[name], 1000)
    assert 0.93 <= found.alpha <= 0.97
    assert 0.93 <= found.beta <= 0.97
    assert found.predicted >= 0.93
    assert found.segments >= 0.97
    assert found.digits >= (1.5 if CURVES[name].noise > 0.01 else 2)
