"""Fits recover a known truth, name what does not belong, and say what they cannot tell."""

import numpy as np
import pytest

from arfloor.core import units
from arfloor.core.cases import Estimate
from arfloor.core.fits import fit

KIB = 1024
SIZES = tuple(round(s) for s in np.geomspace(256, 16 << 20, 24))
PUBLISHED_KIB = (1, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
# design section 7: 4x RTX PRO 6000, us
ONE_SHOT = (6.1, 6.5, 6.4, 7.7, 9.2, 11.8, 17.6, 28.7, 51.0, 95.6)
NCCL = (13.5, 13.2, 13.9, 14.7, 15.6, 71.2, 24.7, 40.9, 71.7, 85.2)


def estimate(us, relative=0.0):
    return Estimate(
        value=float(us),
        lo=float(us * np.exp(-1.96 * relative)),
        hi=float(us * np.exp(1.96 * relative)),
        n=1,
        unit="us",
    )


def points(us, sizes=SIZES, relative=0.0):
    return [(s, estimate(u, relative)) for s, u in zip(sizes, us, strict=True)]


def noisy(us, relative, seed=0):
    return np.asarray(us) * np.exp(np.random.default_rng(seed).normal(size=len(us)) * relative)


def test_a_line_is_recovered_exactly_without_noise():
    found = fit(points([7.0 + s / 12e3 for s in SIZES]))
    (segment,) = found.segments
    assert segment.alpha.value == pytest.approx(7.0, rel=1e-6)
    assert segment.gbps == pytest.approx(12.0, rel=1e-6)
    assert found.outliers == ()
    assert found.unidentified == ()
    assert found.predict(100_000).value == pytest.approx(7.0 + 100_000 / 12e3, rel=1e-6)


@pytest.mark.parametrize("seed", range(5))
def test_switches_are_found_and_each_line_recovered_to_two_digits(seed):
    truth = [9 + s / 2e3 if s < 10_000 else 20 + s / 8e3 if s < 500_000 else 45 + s / 25e3 for s in SIZES]
    found = fit(points(noisy(truth, 0.003, seed), relative=0.003))
    first_after = (min(s for s in SIZES if s >= 10_000), min(s for s in SIZES if s >= 500_000))
    assert found.knots == first_after
    for segment, alpha, gbps in zip(found.segments, (9, 20, 45), (2, 8, 25), strict=True):
        assert segment.alpha.value == pytest.approx(alpha, rel=0.03)
        assert segment.gbps == pytest.approx(gbps, rel=0.03)


def test_known_knots_are_used_as_given():
    truth = [9 + s / 2e3 if s < 10_000 else 12 + s / 2.2e3 for s in SIZES]
    found = fit(points(truth), knots=[10_000])
    assert found.knots_from == "given"
    assert found.knots == (min(s for s in SIZES if s >= 10_000),)
    assert found.segments[0].alpha.value == pytest.approx(9, rel=1e-4)


def test_an_outlier_is_named_and_not_averaged_in():
    us = noisy([7.0 + s / 12e3 for s in SIZES], 0.003)
    us[9] *= 3
    found = fit(points(us, relative=0.003))
    assert [o.nbytes for o in found.outliers] == [SIZES[9]]
    assert found.segments[0].alpha.value == pytest.approx(7.0, rel=0.01)
    assert found.outliers[0].expected_us == pytest.approx(7.0 + SIZES[9] / 12e3, rel=0.01)


def test_published_one_shot_series_is_a_straight_line():
    found = fit(points(ONE_SHOT, [k * KIB for k in PUBLISHED_KIB]))
    (segment,) = found.segments
    assert found.outliers == ()
    assert segment.alpha.value == pytest.approx(6.1, abs=0.1)
    assert segment.gbps == pytest.approx(11.6, abs=0.1)


def test_published_nccl_series_names_its_64_kib_point():
    sizes = [k * KIB for k in PUBLISHED_KIB]
    found = fit(points(NCCL, sizes))
    assert [(o.nbytes, o.us) for o in found.outliers] == [(64 * KIB, 71.2)]
    without = fit([p for p in points(NCCL, sizes) if p[0] != 64 * KIB])
    predicted = found.predict(64 * KIB)
    assert 15.6 < predicted.value < 24.7
    assert predicted.value == pytest.approx(without.predict(64 * KIB).value, rel=0.01)
    assert predicted.hi < 71.2


def test_what_is_not_identifiable_is_named():
    flat = fit(points(noisy([20 + s / 1e9 for s in SIZES], 0.01), relative=0.01))
    (rate,) = flat.unidentified
    assert rate.startswith("the rate from 256 B to 16 MiB is uncertain, ")
    beta = flat.segments[0].beta
    assert (beta.lo > 0) != ("GB/s or more; bytes are " in rate)
    assert f"{units.number(1e-3 / beta.hi)}" in rate  # the interval itself, not that it meets zero
    large = list(np.geomspace(1 << 20, 1 << 28, 12))
    steep = fit(points(noisy([0.5 + s / 12e3 for s in large], 0.02), [int(s) for s in large], 0.02))
    assert any("the fixed cost from" in sentence for sentence in steep.unidentified)


def test_a_knot_that_could_lie_elsewhere_is_named_and_a_sharp_one_is_not():
    def switching(after):
        return [9 + s / 8e3 if s < 60_000 else after + s / 8e3 for s in SIZES]

    # one pair of lines meets at a measured size, which may belong to either; the other jumps
    meet = SIZES[12]
    meeting = [min(9 + s / 2e3, 9 + meet / 2e3 + (s - meet) / 12e3) for s in SIZES]
    blurred = fit(points(noisy(meeting, 0.02, 1), relative=0.02))
    sharp = fit(points(noisy(switching(14), 0.003), relative=0.003))
    assert any("begins" in sentence for sentence in blurred.unidentified)
    assert not any("begins" in sentence for sentence in sharp.unidentified)


def test_prediction_outside_the_range_says_so():
    found = fit(points(noisy([7.0 + s / 12e3 for s in SIZES], 0.01), relative=0.01))
    inside, outside = found.predict(SIZES[-1]), found.predict(SIZES[-1] * 16)
    assert "outside" in found.note(SIZES[-1] * 16)
    assert found.note(SIZES[-1]) == ""
    assert outside.n == 0 < inside.n
    assert outside.hi / outside.lo > inside.hi / inside.lo


def test_prediction_between_segments_spans_both():
    truth = [9 + s / 2e3 if s < 10_000 else 40 + s / 8e3 for s in SIZES]
    found = fit(points(truth), knots=[10_000])
    between = int((found.segments[0].end * found.segments[1].start) ** 0.5)
    assert "switches" in found.note(between)
    predicted = found.predict(between)
    assert predicted.lo <= 9 + between / 2e3
    assert predicted.hi >= 40 + between / 8e3


def test_intervals_contain_their_values_and_shrink_with_noise():
    truth = [7.0 + s / 12e3 for s in SIZES]
    widths = []
    for relative in (0.002, 0.02):
        found = fit(points(noisy(truth, relative), relative=relative))
        for e in (found.segments[0].alpha, found.segments[0].beta):
            assert e.lo <= e.value <= e.hi
        widths.append(found.segments[0].alpha.hi - found.segments[0].alpha.lo)
    assert widths[0] < widths[1] / 3


def test_low_line_lies_below_most_points_and_is_apart():
    us = noisy([7.0 + s / 12e3 for s in SIZES], 0.05)
    found = fit(points(us))
    below = sum(
        u < found.low.alpha_us + found.low.beta_us_per_byte * s - 1e-9 for s, u in zip(SIZES, us, strict=True)
    )
    assert below <= 0.1 * len(SIZES) + 1
    assert found.low.alpha_us < found.segments[0].alpha.value


def test_where_many_points_are_far_off_the_lines_are_wrong_and_not_the_points():
    falling = fit(points([100 - s / 2e5 for s in SIZES]))
    assert falling.outliers == ()
    assert falling.scatter > 0.1
    assert any("the rate from" in sentence for sentence in falling.unidentified)


def test_intervals_as_wide_as_can_be_stay_finite():
    wild = [
        (s, Estimate(value=1000.0 + s, lo=1e-3, hi=1e9, n=2, unit="us")) for s in (1024, 2048, 4096, 8192)
    ]
    predicted = fit(wild).predict(3000)
    assert 0 < predicted.lo < 1000 < predicted.hi < np.inf


def test_leave_one_out_error_shows_a_bad_model():
    line = [7.0 + s / 12e3 for s in SIZES]
    bent = [7.0 + (s / 12e3) ** 0.5 for s in SIZES]
    assert fit(points(line)).loo_error < 1e-6
    assert fit(points(bent), max_segments=1).loo_error > 0.02


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ([], "at least two"),
        ([(8, 1.0), (8, 2.0)], "each once"),
        ([(8, 1.0), (16, -2.0)], "positive"),
    ],
)
def test_unusable_points_are_refused(rows, expected):
    with pytest.raises(ValueError, match=expected):
        fit([(s, estimate(u)) for s, u in rows])


def test_two_sizes_fit_and_say_that_the_error_is_unknown():
    found = fit(points([10.0, 20.0], (1024, 65536)))
    assert "cannot be known" in found.unidentified[0]
    assert found.loo_error is None
