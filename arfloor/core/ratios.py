"""Is one case faster than another? A ratio of latencies, its interval, and one of four answers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

import numpy as np

from arfloor.core.cases import Estimate, Samples, record
from arfloor.core.launches import (
    Launches,
    Spread,
    interval,
    moments,
    of_launches,
    of_pairs,
    of_rounds,
    slowest_rank,
    summarise,
)

BAND = 0.02  # latencies closer than this are equal for every purpose here
LEVEL = 0.99  # a run holds hundreds of pairs: at 95 % a dozen of them would be called by chance

Answer = Literal["faster", "slower", "same", "undecided"]
Pairing = Literal["round", "launch", "none"]


@record
class Comparison:
    """Latency of the first case over that of the second.

    `answer` is about the first: `faster` means that its latency is lower. It is taken on the 99 %
    interval `decided_on`; `ratio` carries the 95 % one. `band`: half-width of the band of equality that
    was applied, with the A/A spread. `pairing`: what was compared with what; `none` is the weakest.
    """

    ratio: Estimate | None
    answer: Answer
    reason: str
    pairing: Pairing
    band: float
    decided_on: tuple[float, float] | None = None


def decide(lo: float, hi: float, *, band: float = BAND, aa_spread: float = 0.0) -> tuple[Answer, str]:
    """Answer and reason code for a ratio that lies between lo and hi.

    The band reaches from 1 / (1 + w) to 1 + w. w is `band` for `same`, and the larger of `band` and
    `aa_spread` for `faster` and `slower`: what two measurements of one case differ by is no difference.
    """
    wide = max(band, aa_spread)
    if hi < 1 / (1 + wide):
        return "faster", "faster"
    if lo > 1 + wide:
        return "slower", "slower"
    if lo >= 1 / (1 + band) and hi <= 1 + band:
        return "same", "same"
    if hi < 1 / (1 + band) or lo > 1 + band:
        return "undecided", "aa_spread"
    return "undecided", "interval_meets_band"


def paired_ratio(
    a: Iterable[Samples],
    b: Iterable[Samples],
    *,
    by: Literal["round", "launch"] = "round",
    spread: Spread | None = None,
    aa_spread: float = 0.0,
    band: float = BAND,
) -> Comparison:
    """Compare two cases measured in the same launches: in the same rounds, or by launch alone (cases of
    different settings, which live in different processes).

    What disturbs a round (drift, a neighbour) disturbs both and cancels. `spread`: of such pairs in this
    run (`pair_spread`); without it two launches stand alone and the interval is wide.
    """
    if by == "round":
        pairs = of_pairs(slowest_rank(a), slowest_rank(b))
    else:
        pairs = of_launches(summarise(a), summarise(b))
    if pairs is None:
        return Comparison(ratio=None, answer="undecided", reason="not_paired", pairing=by, band=band)
    return _answer(*moments(pairs, spread), n=pairs.n, pairing=by, band=band, aa_spread=aa_spread)


def unpaired_ratio(
    a: Iterable[Samples] | Launches,
    b: Iterable[Samples] | Launches,
    *,
    spread_a: Spread | None = None,
    spread_b: Spread | None = None,
    aa_spread: float = 0.0,
    band: float = BAND,
) -> Comparison:
    """Compare two cases of different runs: nothing cancels, and what differs between the runs besides
    the cases (another day, another driver) is in the ratio.
    """
    first = a if isinstance(a, Launches) else summarise(a)
    second = b if isinstance(b, Launches) else summarise(b)
    if first is None or second is None:
        return Comparison(ratio=None, answer="undecided", reason="not_ok", pairing="none", band=band)
    n = min(first.n, second.n)
    found = unpaired_moments(first, second, spread_a, spread_b)
    return _answer(*found, n=n, pairing="none", band=band, aa_spread=aa_spread)


def unpaired_moments(
    a: Launches, b: Launches, spread_a: Spread | None = None, spread_b: Spread | None = None
) -> tuple[float, float, float]:
    """Log ratio of two independent cases, its variance and degrees of freedom (Welch, Satterthwaite)."""
    mean_a, var_a, free_a = moments(a, spread_a)
    mean_b, var_b, free_b = moments(b, spread_b)
    if free_a <= 0 or free_b <= 0:
        return mean_a - mean_b, var_a + var_b, 0.0
    shares = var_a**2 / free_a + var_b**2 / free_b
    free = (var_a + var_b) ** 2 / shares if shares > 0 else min(free_a, free_b)
    return mean_a - mean_b, var_a + var_b, free


def _answer(
    mean: float, variance: float, free: float, *, n: int, pairing: Pairing, band: float, aa_spread: float
) -> Comparison:
    lo, hi = interval(mean, variance, free)
    decided_on = interval(mean, variance, free, LEVEL)
    answer, reason = decide(*decided_on, band=band, aa_spread=aa_spread)
    if free <= 0:  # one replay each: a ratio, but no idea of its error
        answer, reason = "undecided", "no_interval"
    return Comparison(
        ratio=Estimate(value=float(np.exp(mean)), lo=lo, hi=hi, n=n, unit="ratio"),
        answer=answer,
        reason=reason,
        pairing=pairing,
        band=max(band, aa_spread),
        decided_on=decided_on,
    )


def aa_spread(cases: Iterable[Sequence[Samples]]) -> float | None:
    """What two measurements of one case differ by, relative: the 95 % quantile over the cases.

    Every case is set against itself, its even rounds against its odd ones; the difference is scaled by
    1 / sqrt(2), as each side has only half of the rounds. None where no case has two rounds a launch.
    """
    found = []
    for samples in cases:
        pairs = _against_itself(samples)
        if pairs is not None:
            found.append(abs(float(np.mean(pairs.log))) / np.sqrt(2))
    return float(np.expm1(np.quantile(found, 0.95))) if found else None


def _against_itself(samples: Sequence[Samples]) -> Launches | None:
    even: dict[tuple[int, int], Sequence[float]] = {}
    odd: dict[tuple[int, int], Sequence[float]] = {}
    position: dict[int, int] = {}
    for (launch, _), us in slowest_rank(samples).items():
        nth = position[launch] = position.get(launch, -1) + 1
        (odd if nth % 2 else even)[launch, nth // 2] = us
    return of_launches(of_rounds(even), of_rounds(odd))
