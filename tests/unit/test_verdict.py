"""Verdicts on groups whose answer is known by construction."""

from dataclasses import dataclass, replace

import pytest

from arfloor.core.cases import Case, Check, Estimate, Result
from arfloor.core.verdict import (
    Comparison,
    answer_of,
    best_result,
    compare_unpaired,
    default_result,
    is_default,
    is_noisy,
    judge,
    ratio_span,
)

OFF = (("NCCL_P2P_DISABLE", "1"),)


@dataclass(frozen=True)
class Floor:
    bound: Estimate
    attainable: Estimate
    algorithm: str = "one-shot"
    slow_probe: str | None = None


def about(value, spread=0.01):
    return Estimate(value=value, lo=value * (1 - spread), hi=value * (1 + spread), n=20, unit="us")


def floor_at(value):
    return Floor(bound=about(value * 0.7), attainable=about(value))


def result(us=None, *, spread=0.01, status="ok", reason=None, marks=(), check=None, **changes):
    fields = {
        "backend": "nccl",
        "path": "peer",
        "devices": ("cuda:0", "cuda:1"),
        "numel": 131072,
        "dtype": "bfloat16",
        "mode": "graph",
    }
    latency = None if us is None else about(us, spread)
    case = Case(**(fields | changes))
    return Result(case=case, status=status, reason=reason, latency=latency, marks=marks, check=check)


MIXING_OFF = (("NCCL_GRAPH_MIXING_SUPPORT", "0"),)


def test_a_best_that_asks_something_of_the_program_says_what_and_what_is_best_without() -> None:
    asking = result(20, variant="one-graph", settings=MIXING_OFF)
    verdict = judge([result(40), tuned(30), asking], floor_at(10))
    assert verdict.best is asking
    assert "NCCL_GRAPH_MIXING_SUPPORT=0 is for some programs: only where graphs that use" in verdict.sentence
    assert "asks nothing of a program: nccl ring-ll, 30" in verdict.sentence
    assert not is_default(replace(asking.case, variant="default"))
    plain = judge([result(40), tuned(10), asking], floor_at(10))
    assert "program" not in plain.sentence


def tuned(us, **changes):
    return result(us, variant="ring-ll", **changes)


@pytest.mark.parametrize(
    ("results", "attainable", "status", "reason"),
    [
        ((result(40), tuned(20)), 10, "switch", "best_beats_default"),
        ((result(40), tuned(20)), 19, "switch", "best_beats_default"),
        ((result(11), tuned(20)), 10, "at_floor", "default_at_floor"),
        ((result(20), tuned(30)), 10, "gap", "above_floor"),
        ((result(20, spread=0.001), tuned(19.9, spread=0.001)), 10, "gap", "above_floor"),
        ((result(20), tuned(19.5)), 10, "undecided", "interval_meets_band"),
        ((result(12.5, spread=0.05),), 10, "undecided", "interval_meets_floor"),
        ((result(40), tuned(20)), None, "switch", "best_beats_default"),
        ((result(40), tuned(50)), None, "no_data", "no_floor"),
        ((tuned(50),), 10, "no_data", "no_default"),
        ((result(status="failed", reason="worker_died"), tuned(50)), 10, "no_data", "no_default"),
        ((result(status="failed", reason="worker_died"),), 10, "no_data", "no_best"),
    ],
)
def test_status_and_reason(results, attainable, status, reason):
    verdict = judge(results, None if attainable is None else floor_at(attainable))
    assert (verdict.status, verdict.reason) == (status, reason)
    assert verdict.sentence.startswith("At 256 KiB: ")


def test_a_default_no_faster_than_best_but_outside_the_limit_names_the_best():
    # 12.55 is outside 1.25, 12.4 within; the two are the same within the band
    results = (result(12.55, spread=1e-4), tuned(12.4, spread=1e-4))
    exact = replace(floor_at(10), attainable=about(10, 0.0))
    assert judge(results, exact).reason == "best_at_floor"


def test_a_wrong_result_is_never_the_best():
    wrong = tuned(5, check=Check(max_error=9, bound=1, wrong=3, bitwise_equal=True))
    verdict = judge((result(40), wrong), floor_at(30))
    assert verdict.best.case.variant == "default"
    assert verdict.status != "switch"


def test_the_default_is_the_one_without_optional_settings():
    assert is_default(result(1).case)
    assert not is_default(result(1, variant="ring-ll").case)
    assert not is_default(result(1, settings=OFF).case)  # on a peer path, P2P off is a choice
    assert is_default(result(1, settings=OFF, path="host").case)
    assert is_default(result(1, path="host").case)  # a box without peer access
    assert not is_default(result(1, settings=(*OFF, ("NCCL_SHM_DISABLE", "1")), path="host").case)
    assert is_default(result(1, backend="gloo", path="cpu").case)
    assert not is_default(result(1, backend="mpi", path="cpu", settings=(("launcher", "mpiexec"),)).case)


def test_a_correct_default_goes_before_a_failed_one():
    failed = result(status="failed", path="host")
    measured = result(40, settings=OFF, path="host")
    assert default_result((failed, measured)) is measured


def test_the_default_wins_a_tie_for_best():
    default = result(20)
    assert best_result((tuned(20), default)) is default


@pytest.mark.parametrize(
    ("lo", "hi", "answer"),
    [
        (1.021, 1.5, "faster"),
        (0.99, 1.01, "same"),
        (0.99, 1.03, "undecided"),
        (0.5, 0.97, "slower"),
        (0.9, 1.0, "undecided"),
        (1.02, 1.1, "undecided"),
    ],
)
def test_four_answers(lo, hi, answer):
    assert answer_of(Estimate(value=(lo + hi) / 2, lo=lo, hi=hi, n=9, unit="ratio")) == answer


def test_an_answer_against_the_medians_stays_open():
    def contradicts(default, candidate):
        return replace(compare_unpaired(default, candidate), answer="slower")

    verdict = judge((result(20), tuned(15)), floor_at(10), contradicts)
    assert (verdict.status, verdict.reason) == ("undecided", "medians_disagree")
    assert "faster by its latency, but compared unpaired the default takes" in verdict.sentence


@pytest.mark.parametrize(
    ("reason", "ends", "told"),
    [
        ("interval_meets_band", (0.9, 3.0), "99 % interval [0.90, 3.00] meets the +-2 % band"),
        ("interval_meets_band", (0.001, 12665.0), "99 % interval is so wide that it says nothing"),
        ("aa_spread", (0.9, 3.0), "by up to 1.05x"),
    ],
)
def test_what_leaves_it_open_is_told_with_the_interval_that_decided(reason, ends, told):
    def wide(default, candidate):
        ratio = compare_unpaired(default, candidate).ratio
        return Comparison(
            answer="undecided", ratio=ratio, pairing="round", reason=reason, decided_on=ends, band=0.05
        )

    verdict = judge((result(20), tuned(15)), floor_at(10), wide)
    assert (verdict.status, verdict.reason) == ("undecided", reason)
    assert told in verdict.sentence


def test_the_sentence_tells_how_the_two_were_compared_and_what_disturbed_them():
    def by_launch(default, candidate):
        ratio = compare_unpaired(default, candidate).ratio
        return Comparison(answer="faster", ratio=ratio, pairing="launch")

    verdict = judge((result(40, marks=("throttled",)), tuned(20)), floor_at(10), by_launch)
    assert "paired by launch, which is weaker" in verdict.sentence
    assert "throttled" in verdict.sentence
    assert verdict.pairing == "launch"


def test_a_result_that_lowered_attainable_is_at_the_floor_and_the_slow_probe_is_named():
    floor = replace(floor_at(11), attainable=about(11, 0.3), slow_probe="slow probe: stream sm")
    verdict = judge((result(11, spread=0.3),), floor)
    assert verdict.status == "at_floor"
    assert verdict.headroom_left.value == verdict.headroom_left.hi == 1
    assert "slow probe: stream sm" in verdict.sentence


def test_a_gain_of_which_the_machine_was_too_busy_to_tell_the_size_is_no_advice():
    def by(lo, hi):
        return lambda default, candidate: Comparison(
            answer="faster", ratio=Estimate(value=18.7, lo=lo, hi=hi, n=4, unit="ratio"), pairing="round"
        )

    pair = (result(40), tuned(2.1))
    noisy, clear = (judge(pair, floor_at(2), by(lo, 20.0)) for lo in (4.25, 17.0))
    assert (noisy.status, is_noisy(noisy)) == ("switch", True)
    assert "the machine was busy, repeat this before switching to nccl" in noisy.sentence
    assert not is_noisy(clear)
    assert "At 256 KiB: switch to nccl" in clear.sentence


def test_results_of_two_groups_are_refused():
    with pytest.raises(ValueError, match="one group, found 2"):
        judge((result(1), result(1, numel=7)), None)
    with pytest.raises(ValueError, match="one group, found 0"):
        judge((), None)


@pytest.mark.parametrize(
    ("attainable", "told"), [(10, "that is at the 10.0 us"), (9, "that is 1.11x the 9.00 us")]
)
def test_how_far_the_best_is_from_the_floor(attainable, told):
    assert told in judge((result(10),), floor_at(attainable)).sentence


def test_a_ratio_is_told_with_both_its_ends():
    assert ratio_span(Estimate(value=3.4, lo=3.1, hi=3.8, n=9, unit="ratio")) == "3.40x [3.10, 3.80]"
