"""Samples of one case (or of a pair of cases) boiled down to one number a launch, with its noise.

Latencies are handled as logarithms: noise is relative, and a ratio becomes a difference. What a launch
says is the trimmed mean over its rounds of the median over a round's replays, so neither a disturbed replay
nor a disturbed round moves it. A mean, since rounds may fall on a few levels (docs/statistics.md).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtridf, stdtrit

from arfloor.core.cases import Estimate, Samples

Floats = NDArray[np.float64]
EXCESS = 1.2  # see over_replays
LEAST_US = 1e-6  # noise can carry a slope to 0 or below, which has no logarithm
Z = 1.959964  # 97.5 % quantile of the normal
RESAMPLES = 200  # enough for a standard deviation (5 %); quantiles come from Student's t


@dataclass(frozen=True, slots=True, kw_only=True)
class Launches:
    """One case in each of its launches.

    ids: the launches, ascending; log: what each says, in log(us) (for a pair: log of the ratio), shape
    (launches,); noise: variance of each of these within its launch; free: degrees of freedom behind
    `noise`; n: replays in all.
    """

    ids: tuple[int, ...]
    log: Floats
    noise: Floats
    free: float
    n: int

    @property
    def between(self) -> float:
        """Variance of one launch's value, seen from the launches' disagreement; 0 for a single launch."""
        return float(np.var(self.log, ddof=1)) if len(self.log) > 1 else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """How much launches of one case differ beyond what their rounds show, learnt from many cases.

    sd: standard deviation of log latency between launches; within: the share of the noise seen within a
    launch that counts besides; free: for how many degrees of freedom of one's own both count. shared:
    the share of a launch's variance that all cases of a process have in common, known from shared_free
    degrees of freedom only.
    """

    sd: float
    within: float
    free: float
    shared: float
    shared_free: float


def max_over_ranks(samples: Iterable[Samples]) -> dict[tuple[int, int], Floats]:
    """Per (launch, round): the latency of each replay in us, the slowest rank deciding.

    A round is dropped when its ranks timed different numbers of replays (a torn record).
    """
    return {key: np.asarray(replays, dtype=float) for key, replays in slowest_rank(samples).items()}


def slowest_rank(samples: Iterable[Samples]) -> dict[tuple[int, int], tuple[float, ...]]:
    """As `max_over_ranks`, in tuples. A round whose slopes a stall made negative says nothing: dropped."""
    # plain Python: for tens of replays it is several times faster than an array a round
    by_round: dict[tuple[int, int], list[tuple[float, ...]]] = defaultdict(list)
    for s in samples:
        by_round[s.launch, s.round].append(s.us)
    return {
        key: rows[0] if len(rows) == 1 else tuple(map(max, *rows))
        for key, rows in sorted(by_round.items())
        if rows[0] and len({len(r) for r in rows}) == 1 and median(rows[0]) > 0
    }


def median(values: Sequence[float]) -> float:
    """Median of a few numbers, faster than an array's."""
    ordered, middle = sorted(values), len(values) // 2
    return ordered[middle] if len(values) % 2 else (ordered[middle - 1] + ordered[middle]) / 2


def _least(us: float) -> float:
    return max(us, LEAST_US)


def summarise(samples: Iterable[Samples]) -> Launches | None:
    """The launches of one case; None without a usable round."""
    return of_rounds(slowest_rank(samples))


def of_latencies(latencies: Sequence[Estimate | None]) -> Launches | None:
    """Launches of which only the latencies are left, each with its 95 % interval; None without two."""
    told = [x for x in latencies if x is not None and 0 < x.lo <= x.value <= x.hi]
    if len(told) < len(latencies) or len({x.value for x in told}) < 2:
        return None
    return stated(told)


def stated(latencies: Sequence[Estimate]) -> Launches:
    """Each positive latency as a launch, with the noise that its 95 % interval states."""
    return Launches(
        ids=tuple(range(len(latencies))),
        log=np.log([x.value for x in latencies]),
        noise=np.array([(np.log(x.hi / x.lo) / (2 * Z)) ** 2 for x in latencies]),
        free=1e9,
        n=sum(x.n for x in latencies),
    )


def of_rounds(rounds: Mapping[tuple[int, int], Sequence[float]]) -> Launches | None:
    """Launches from the replays (us, positive) of each (launch, round)."""
    by_launch: dict[int, list[float]] = defaultdict(list)
    replays: dict[int, Sequence[float]] = {}
    n = 0
    for (launch, _), us in rounds.items():
        by_launch[launch].append(median(us))
        replays[launch] = us
        n += len(us)
    # a launch of one round has only its replays to tell how noisy it is
    said = {
        k: over_rounds(_logs(v)) if len(v) > 1 else over_replays(_logs(replays[k]))
        for k, v in by_launch.items()
    }
    return _of_said(said, n)


def of_pairs(
    a: Mapping[tuple[int, int], Sequence[float]],
    b: Mapping[tuple[int, int], Sequence[float]],
) -> Launches | None:
    """Launches of log(a / b), pairing the rounds that both have; None where they share none."""
    by_launch: dict[int, list[float]] = defaultdict(list)
    n = 0
    for key in a.keys() & b.keys():
        by_launch[key[0]].append(float(np.log(_least(median(a[key])) / _least(median(b[key])))))
        n += len(a[key])
    if by_launch and max(map(len, by_launch.values())) == 1:
        return of_launches(
            of_rounds({k: a[k] for k in b if k in a}), of_rounds({k: b[k] for k in a if k in b})
        )
    return _of_said({k: over_rounds(np.asarray(v)) for k, v in by_launch.items()}, n)


def of_launches(a: Launches | None, b: Launches | None) -> Launches | None:
    """Launches of log(a / b), paired by launch alone: weaker than by round, since a launch's rounds of
    `a` and `b` ran at different times."""
    if a is None or b is None or not set(a.ids) & set(b.ids):
        return None
    ids = tuple(sorted(set(a.ids) & set(b.ids)))
    i, j = [a.ids.index(k) for k in ids], [b.ids.index(k) for k in ids]
    return Launches(
        ids=ids,
        log=a.log[i] - b.log[j],
        noise=a.noise[i] + b.noise[j],
        free=min(a.free, b.free),
        n=min(a.n, b.n),
    )


def _logs(us: Sequence[float]) -> Floats:
    return np.log(np.maximum(us, LEAST_US))


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """A value in log(us), the variance of its error, and the degrees of freedom behind that variance."""

    log: float
    noise: float
    free: float


def _of_said(said: Mapping[int, Said], n: int) -> Launches | None:
    if not said:
        return None
    ids = tuple(sorted(said))
    # a single value does not know its noise: it is taken to be as noisy as the other launches
    known = [s.noise for s in said.values() if s.free > 0]
    typical = sum(known) / len(known) if known else 0.0
    return Launches(
        ids=ids,
        log=np.array([said[k].log for k in ids]),
        noise=np.array([said[k].noise if said[k].free > 0 else typical for k in ids]),
        free=min(said[k].free for k in ids),
        n=n,
    )


def trimmed(values: Sequence[float] | Floats) -> Floats:
    """Ascending, without the greatest and the least tenth: at least one value each of four and more."""
    n = len(values)
    cut = max(1, n // 10) if n >= 4 else 0
    return np.sort(np.asarray(values, dtype=float))[cut : n - cut]


def over_rounds(values: Floats) -> Said:
    """The mean of the `trimmed` values.

    Its variance by the Winsorized values (Tukey and McLaughlin 1963): degrees of freedom of those left.
    """
    n = len(values)
    kept = trimmed(values)
    if n < 2:
        return Said(log=float(kept[0]), noise=0.0, free=0.0)
    pulled = np.clip(values, kept[0], kept[-1])
    noise = float(np.var(pulled, ddof=1)) * n / len(kept) ** 2
    return Said(log=float(np.mean(kept)), noise=noise, free=len(kept) - 1.0)


@lru_cache(maxsize=64)
def _draws(n: int) -> NDArray[np.intp]:
    return np.random.default_rng(n).integers(0, n, (RESAMPLES, n))


def over_replays(values: Floats) -> Said:
    """The median, and its variance by resampling.

    For 3 to 60 normal values the resampled variance is 1.1 to 1.4 times the true one, hence EXCESS; for
    two values it is half of it.
    """
    n = len(values)
    if n < 2:
        return Said(log=float(values[0]), noise=0.0, free=0.0)
    drawn = np.sort(values[_draws(n)], axis=1)
    medians = (drawn[:, (n - 1) // 2] + drawn[:, n // 2]) / 2
    noise = float(np.var(medians)) * (2.0 if n == 2 else 1 / EXCESS)
    return Said(log=median(values.tolist()), noise=noise, free=freedom(n))


def freedom(n: int) -> float:
    """Degrees of freedom of the resampled variance of a median of n values.

    The relative error of the bootstrap variance of a median falls only as n^(-1/4) (Hall and Martin
    1988), so its degrees of freedom grow as sqrt(n); 1 + sqrt(n) was measured for 5 to 60 normal values.
    0 for a single value: it says nothing of its noise.
    """
    return min(n - 1.0, 1 + float(np.sqrt(n)))


def moments(launches: Launches, spread: Spread | None = None) -> tuple[float, float, float]:
    """Mean over launches, its variance, and the degrees of freedom of that variance.

    With a `spread`, the launches' own disagreement is averaged with it, each counting for its degrees of
    freedom (moderated variance, Smyth 2004). Of the variance that all cases share, there were only as
    many observations as launches, so the quantile is weighted between that of the few and that of the
    many degrees of freedom (Cochran and Cox 1950). Of a single launch of a single replay no spread says
    how noisy it was: 0 degrees of freedom.
    """
    count = len(launches.log)
    noise = float(np.mean(launches.noise))
    mean = float(np.mean(launches.log))
    if spread is not None and (count > 1 or launches.free > 0):
        prior, own = spread.free, count - 1
        variance = (prior * (spread.sd**2 + spread.within * noise) + own * launches.between) / (prior + own)
        few, many = stdtrit(spread.shared_free, 0.975), stdtrit(prior + own, 0.975)
        quantile = spread.shared * few + (1 - spread.shared) * many
        return mean, variance / count, float(stdtridf(0.975, quantile))
    if count > 1:
        return mean, launches.between / count, count - 1.0
    return mean, noise, launches.free


def interval(mean: float, variance: float, free: float, level: float = 0.95) -> tuple[float, float]:
    """exp of the mean -+ Student's t half-width at `level`; without degrees of freedom, just exp(mean)."""
    if free <= 0:
        return float(np.exp(mean)), float(np.exp(mean))
    half = float(stdtrit(free, 0.5 + level / 2)) * float(np.sqrt(variance))
    half = min(half, 50.0)  # exp(50) is beyond any latency; more would overflow into infinity
    return float(np.exp(mean - half)), float(np.exp(mean + half))


def estimate(launches: Launches, spread: Spread | None = None, *, unit: str = "us") -> Estimate:
    """Geometric mean over launches with its 95 % interval.

    A single value has no spread of its own: lo = hi = value and n = 1, which says nothing of its error.
    """
    mean, variance, free = moments(launches, spread)
    # twelve digits: the way through the logarithm cost the last bits
    value, lo, hi = (float(f"{x:.12g}") for x in (np.exp(mean), *interval(mean, variance, free)))
    return Estimate(value=value, lo=lo, hi=hi, n=launches.n, unit=unit)
