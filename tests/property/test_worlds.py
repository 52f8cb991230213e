"""Worlds with a known truth: how often intervals cover it and comparisons find it.

The bounds of the fast tests leave room for the chance of few worlds; the slow ones are the proof.
"""

import numpy as np
import pytest

from arfloor.core.launches import estimate
from arfloor.core.spread import launch_spread
from tests.worlds import CURVES, STATISTICS, World, _launches, comparisons, fits, latency_coverage

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
    covered, _ = latency_coverage(STATISTICS[name], 60)
    assert covered >= 0.85


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


# -- the proof -----------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("name", STATISTICS)
def test_latency_intervals_cover_93_to_97_percent_of_1000_worlds(name):
    covered, _ = latency_coverage(STATISTICS[name], 1000)
    assert 0.93 <= covered <= 0.97


@pytest.mark.slow
@pytest.mark.parametrize("paired", [True, False])
@pytest.mark.parametrize("name", [n for n, w in STATISTICS.items() if w.cases > 1])
def test_comparisons_find_five_percent_and_call_at_most_one_percent_of_equal_pairs(name, paired):
    planted = comparisons(STATISTICS[name], PLANTED, 1000, paired=paired)
    if planted.allowed > 0.02:
        assert planted.right >= 0.95
    assert comparisons(STATISTICS[name], 1.0, 1000, paired=paired).called <= 0.01


@pytest.mark.slow
@pytest.mark.parametrize("name", CURVES)
def test_fits_cover_93_to_97_percent_of_1000_worlds(name):
    found = fits(CURVES[name], 1000)
    assert 0.93 <= found.alpha <= 0.97
    assert 0.93 <= found.beta <= 0.97
    assert found.predicted >= 0.93
    assert found.segments >= 0.97
    assert found.digits >= (1.5 if CURVES[name].noise > 0.01 else 2)
