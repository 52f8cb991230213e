"""What each statistic says about samples whose making is known."""

from dataclasses import replace

import numpy as np
import pytest

from arfloor.core.cases import Case, Samples
from arfloor.core.launches import of_pairs, of_rounds, over_rounds, trimmed
from arfloor.core.spread import spreads
from arfloor.core.statistics import (
    aa_spread,
    decide,
    latency,
    launch_spread,
    max_over_ranks,
    median_estimate,
    pair_spread,
    paired_ratio,
    stop_reason,
    summarise,
    unpaired_ratio,
    warmup,
)


def samples(us, rank=0, case_id="a"):
    """Samples from an array of shape (launches, rounds, replays)."""
    return [
        Samples(case_id=case_id, launch=i, round=j, rank=rank, us=tuple(map(float, us[i, j])))
        for i in range(us.shape[0])
        for j in range(us.shape[1])
    ]


def world(seed=0, us=20.0, shape=(2, 10, 20), launch=0.003, round_=0.003, replay=0.01):
    rng = np.random.default_rng(seed)
    log = (
        rng.normal(size=(shape[0], 1, 1)) * launch
        + rng.normal(size=(shape[0], shape[1], 1)) * round_
        + rng.normal(size=shape) * replay
    )
    return us * np.exp(log)


def test_the_slowest_rank_decides_each_replay():
    a = Samples(case_id="a", launch=0, round=0, rank=0, us=(1.0, 5.0))
    b = Samples(case_id="a", launch=0, round=0, rank=1, us=(4.0, 2.0))
    torn = Samples(case_id="a", launch=0, round=1, rank=0, us=(1.0,))
    half = Samples(case_id="a", launch=0, round=1, rank=1, us=(1.0, 2.0))
    assert {k: v.tolist() for k, v in max_over_ranks([a, b, torn, half]).items()} == {(0, 0): [4.0, 5.0]}


def test_one_late_rank_is_the_latency():
    on_time, late = world(0), world(1) + 5
    found = latency(samples(on_time, 0) + samples(late, 1) + samples(world(2), 2))
    assert found.value == pytest.approx(25.0, rel=0.01)


def test_latency_is_unmoved_by_wild_replays_and_one_wild_round():
    us = world()
    us[:, :, ::7] *= 30
    us[0, 3] *= 10
    assert latency(samples(us)).value == pytest.approx(20.0, rel=0.005)


@pytest.mark.parametrize(
    ("n", "left"), [(1, 1), (2, 2), (3, 3), (4, 2), (9, 7), (10, 8), (19, 17), (20, 16), (100, 80)]
)
def test_the_extreme_tenth_is_trimmed_at_either_end(n, left):
    values = np.random.default_rng(n).permutation(n)
    kept = trimmed(values).tolist()
    assert kept == list(range((n - left) // 2, n - (n - left) // 2))
    said = over_rounds(values.astype(float))
    assert said.log == pytest.approx((n - 1) / 2)
    assert said.free == left - 1


def test_the_variance_of_a_trimmed_mean_is_that_of_its_error():
    rng = np.random.default_rng(0)
    said = [over_rounds(rng.normal(size=14)) for _ in range(3000)]
    assert np.mean([s.noise for s in said]) == pytest.approx(np.var([s.log for s in said]), rel=0.1)


def test_rounds_on_two_levels_give_the_same_latency_again_and_again():
    """A tenth apart and about as frequent, as NCCL's captures over a host bridge: a median is on either."""
    rng = np.random.default_rng(1)
    us = 15.6 * 1.1 ** rng.integers(0, 2, (300, 40, 1)) * np.exp(rng.normal(size=(300, 40, 1)) * 0.005)
    means = [np.exp(over_rounds(np.log(run[:, 0])).log) for run in us]
    medians = np.median(us[:, :, 0], axis=1)
    assert np.std(means) < 0.01 * 16.4
    assert np.std(medians) > 2 * np.std(means)


def test_latency_of_no_samples_is_none():
    assert latency([]) is None
    assert summarise([]) is None


def test_a_single_value_has_a_degenerate_interval():
    (one,) = [Samples(case_id="a", launch=0, round=0, rank=0, us=(7.0,))]
    found = latency([one])
    assert (found.value, found.lo, found.hi, found.n) == (7.0, 7.0, 7.0, 1)


def test_one_replay_each_gives_a_ratio_but_no_answer():
    a, b = np.full((1, 1, 1), 10.0), np.full((1, 1, 1), 20.0)
    for found in (paired_ratio(samples(a), samples(b)), unpaired_ratio(samples(a), samples(b))):
        assert found.ratio.value == pytest.approx(0.5)
        assert (found.answer, found.reason) == ("undecided", "no_interval")


def test_a_single_replay_is_not_decided_by_what_other_cases_say_of_their_launches():
    pairs = [(samples(world(n)), samples(world(n + 50))) for n in range(12)]
    one = [samples(np.full((1, 1, 1), us)) for us in (21.0, 20.0)]
    spread, paired = launch_spread([summarise(a) for a, _ in pairs]), pair_spread(pairs)
    found = latency(one[0], spread=spread)
    assert (found.lo, found.value, found.hi) == (21.0, 21.0, 21.0)
    for ratio in (
        paired_ratio(*one, spread=paired),
        paired_ratio(*one, by="launch", spread=paired),
        unpaired_ratio(one[0], pairs[0][1], spread_a=spread, spread_b=spread),
    ):
        assert (ratio.answer, ratio.reason) == ("undecided", "no_interval")


def test_a_launch_of_one_round_is_as_noisy_as_the_others():
    many = samples(world(5))
    few = [s for s in many if s.launch or s.round < 1]
    other = {(s.launch, s.round): s.us for s in samples(world(6))}
    pairs = of_pairs({(s.launch, s.round): s.us for s in few}, other)
    assert pairs.noise[0] == pairs.noise[1] > 0
    bare = summarise([replace(s, us=s.us[: 1 + 9 * s.launch]) for s in few])
    assert bare.noise[0] == bare.noise[1] > 0


def test_two_launches_that_differ_make_a_wide_interval_and_other_cases_narrow_it():
    rng = np.random.default_rng(3)
    cases = [of_rounds(rounds(world(int(s), launch=0.005))) for s in rng.integers(0, 1 << 30, 40)]
    spread = launch_spread(cases)
    assert spread.sd == pytest.approx(0.005, rel=0.5)
    us = world(4, launch=0.0)
    us[1] *= 1.02
    alone, informed = latency(samples(us)), latency(samples(us), spread=spread)
    assert alone.value == informed.value
    assert alone.hi / alone.lo > 1.2 > 1.05 > informed.hi / informed.lo > 1.01


def rounds(us):
    return {(i, j): us[i, j].tolist() for i in range(us.shape[0]) for j in range(us.shape[1])}


def test_launch_luck_shared_by_all_cases_is_not_taken_for_many_observations():
    apart = [of_rounds(rounds(world(s, launch=0.01))) for s in range(20)]
    shift = np.array([0.99, 1.01])[:, None, None]
    together = [of_rounds(rounds(world(s, launch=0.0) * shift)) for s in range(20)]
    assert launch_spread(apart).shared < 0.3
    assert launch_spread(together).shared > 0.7
    narrow, wide = (s for s in (launch_spread(apart), launch_spread(together)))
    us = world(99, launch=0.0)
    assert latency(samples(us), spread=wide).hi > latency(samples(us), spread=narrow).hi


def test_too_few_cases_teach_nothing_about_launches():
    assert launch_spread([of_rounds(rounds(world(s))) for s in range(1)]) is None
    assert launch_spread([of_rounds(rounds(world(s, shape=(1, 5, 5)))) for s in range(20)]) is None


def test_families_are_judged_apart():
    def case(backend, numel):
        return Case(
            backend=backend,
            path="cpu",
            devices=("cpu:0", "cpu:1"),
            numel=numel,
            dtype="float32",
            mode="eager",
        )

    cases = [case("calm", n) for n in range(1, 11)] + [case("wild", n) for n in range(1, 11)]
    launches = [
        of_rounds(rounds(world(i, launch=0.05 if c.backend == "wild" else 0.001)))
        for i, c in enumerate(cases)
    ]
    found = spreads([*cases, case("alone", 1)], [*launches, launches[0]])
    assert found[0] is found[9]
    assert found[0].sd < 0.01 < 0.02 < found[10].sd
    assert found[-1] is None


@pytest.mark.parametrize(
    ("lo", "hi", "aa", "answer", "reason"),
    [
        (0.90, 0.95, 0.0, "faster", "faster"),
        (1.03, 1.10, 0.0, "slower", "slower"),
        (0.99, 1.015, 0.0, "same", "same"),
        (0.90, 0.99, 0.0, "undecided", "interval_meets_band"),
        (0.50, 2.00, 0.0, "undecided", "interval_meets_band"),
        (1.03, 1.10, 0.05, "undecided", "aa_spread"),
        (0.94, 0.97, 0.04, "undecided", "aa_spread"),
        (1.06, 1.10, 0.05, "slower", "slower"),
        (0.99, 1.015, 0.05, "same", "same"),
    ],
)
def test_four_answers_each_with_its_reason(lo, hi, aa, answer, reason):
    assert decide(lo, hi, aa_spread=aa) == (answer, reason)


def test_pairing_cancels_drift_that_hides_the_difference_otherwise():
    drift = np.linspace(1, 1.5, 10)[None, :, None]
    a, b = world(1, launch=0.0, us=19.0) * drift, world(2, launch=0.0, us=20.0) * drift
    # the launches differ by far more than the cases do; each pair of rounds does not
    a[1], b[1] = a[1] * 1.2, b[1] * 1.2
    spread = pair_spread([(samples(world(s)), samples(world(s + 50))) for s in range(10)])
    paired = paired_ratio(samples(a), samples(b), spread=spread)
    assert (paired.answer, paired.pairing) == ("faster", "round")
    assert paired.ratio.value == pytest.approx(0.95, rel=0.005)
    assert unpaired_ratio(samples(a), samples(b)).answer == "undecided"


def test_a_case_against_itself_is_the_same():
    found = paired_ratio(samples(world()), samples(world()))
    assert (found.answer, found.ratio.value) == ("same", 1.0)


def test_pairing_by_launch_says_so():
    a, b = world(1, us=10, launch=0.0), world(2, us=20, launch=0.0, shape=(2, 6, 20))
    found = paired_ratio(samples(a), samples(b), by="launch")
    assert (found.answer, found.pairing) == ("faster", "launch")


def test_nothing_in_common_cannot_be_paired():
    later = [
        Samples(case_id="b", launch=s.launch + 5, round=s.round, rank=0, us=s.us) for s in samples(world())
    ]
    found = paired_ratio(samples(world()), later)
    assert (found.ratio, found.answer, found.reason) == (None, "undecided", "not_paired")
    assert unpaired_ratio(samples(world()), []).reason == "not_ok"


def test_paired_ratio_with_one_round_a_launch_uses_the_replays():
    a, b = world(1, us=10, shape=(1, 1, 30)), world(2, us=20, shape=(1, 1, 30))
    found = paired_ratio(samples(a), samples(b))
    assert found.answer == "faster"
    assert found.ratio.lo < found.ratio.value < found.ratio.hi


def test_aa_spread_sees_what_differs_between_rounds():
    quiet = [samples(world(s, round_=0.001)) for s in range(30)]
    loud = [samples(world(s, round_=0.05)) for s in range(30)]
    assert aa_spread(quiet) < 0.01 < 0.02 < aa_spread(loud) < 0.1
    assert aa_spread([samples(world(0, shape=(2, 1, 5)))]) is None


def test_stopping_names_the_interval_or_the_budget():
    calm = world(shape=(1, 20, 20), round_=0.002)[0].tolist()
    wild = world(shape=(1, 20, 20), round_=0.3)[0].tolist()
    assert stop_reason(calm, spent_s=1, budget_s=10) == "interval"
    assert stop_reason(wild, spent_s=1, budget_s=10) is None
    assert stop_reason(wild, spent_s=10, budget_s=10) == "budget"
    assert stop_reason(calm[:4], spent_s=1, budget_s=10) is None
    assert stop_reason([], spent_s=10, budget_s=10) == "budget"


def test_warmup_is_found_and_steady_runs_have_none():
    rng = np.random.default_rng(0)
    steady = 20 * np.exp(rng.normal(size=60) * 0.01)
    warming = steady * np.where(np.arange(60) < 7, 1.5, 1.0)
    assert warmup(steady.tolist()) == 0
    assert warmup(warming.tolist()) == 7
    decaying = steady * (1 + np.exp(-np.arange(60) / 3))
    assert 6 <= warmup(decaying.tolist()) <= 20
    spiky = steady.copy()
    spiky[30] = 500
    assert warmup(spiky.tolist()) == 0
    assert warmup([1.0, 2.0]) == 0


def test_median_estimate_contains_its_value_and_refuses_nothing():
    found = median_estimate(world()[0, 0])
    assert found.lo <= found.value <= found.hi
    with pytest.raises(ValueError, match="at least one"):
        median_estimate([])


def test_a_round_whose_slopes_a_stall_made_negative_is_dropped() -> None:
    rounds = [(10.0, 10.2), (-86.0, -85.0), (10.1, 9.9)]
    samples = [
        Samples(case_id="c", launch=0, round=number, rank=rank, us=us)
        for number, us in enumerate(rounds)
        for rank in (0, 1)
    ]
    assert sorted(max_over_ranks(samples)) == [(0, 0), (0, 2)]
    found = latency(samples)
    assert found is not None
    assert 9.9 <= found.value <= 10.2
