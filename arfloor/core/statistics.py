"""The statistics of a run in one place: estimates, ratios, spreads, when to stop, when it is warm.

docs/statistics.md says why each method was chosen and how often its intervals cover the truth.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

import numpy as np

from arfloor.core.cases import Estimate, Samples
from arfloor.core.launches import (
    Floats,
    Launches,
    Spread,
    estimate,
    interval,
    max_over_ranks,
    median,
    of_pairs,
    over_rounds,
    slowest_rank,
    summarise,
)
from arfloor.core.ratios import Answer, Comparison, aa_spread, decide, paired_ratio, unpaired_ratio
from arfloor.core.spread import launch_spread

__all__ = [
    "Answer",
    "Comparison",
    "Launches",
    "Spread",
    "aa_spread",
    "decide",
    "estimate",
    "latency",
    "launch_spread",
    "max_over_ranks",
    "median_estimate",
    "pair_spread",
    "paired_ratio",
    "stop_reason",
    "summarise",
    "unpaired_ratio",
    "warmup",
]

TARGET = 0.01  # relative half-width of the interval at which a case has been measured enough
LEAST_ROUNDS = 5
NARROW_ROUNDS = 10  # of fewer, an interval is too often narrow by luck


def latency(samples: Iterable[Samples], *, spread: Spread | None = None) -> Estimate | None:
    """Latency of one case in us: max over ranks, then the median over replays, the trimmed geometric mean
    over rounds, the geometric mean over launches; None without a usable round.

    The 95 % interval: over rounds by the Winsorized variance (over replays by the bootstrap where a launch
    has one round); over launches by Student's t on what each launch says, since resampling two launches
    knows only three outcomes and covers far too rarely. `spread` (`launch_spread` of the run's cases) lets
    the launches of other cases help to say how much launches differ. A single launch cannot say it: its
    interval is within-launch.
    """
    launches = summarise(samples)
    return None if launches is None else estimate(launches, spread)


def median_estimate(
    values: Sequence[float] | Floats, *, unit: str = "us", seed: int = 0, resamples: int = 1000
) -> Estimate:
    """Median of one flat list with a 95 % percentile-bootstrap interval. Raises ValueError on no values.

    For values without launches and rounds (a probe's repeats); `latency` is for cases.
    """
    data = np.asarray(values, dtype=float)
    if data.size == 0:
        raise ValueError("median_estimate: expected at least one value, found none")
    rng = np.random.default_rng(seed)
    medians = np.median(data[rng.integers(0, data.size, (resamples, data.size))], axis=1)
    lo, hi = np.quantile(medians, [0.025, 0.975])
    return Estimate(value=float(np.median(data)), lo=float(lo), hi=float(hi), n=int(data.size), unit=unit)


def pair_spread(pairs: Iterable[tuple[Sequence[Samples], Sequence[Samples]]]) -> Spread | None:
    """Spread between launches of paired log ratios, over many pairs of one run; see `launch_spread`."""
    found = [of_pairs(slowest_rank(a), slowest_rank(b)) for a, b in pairs]
    return launch_spread([f for f in found if f is not None])


def stop_reason(
    rounds: Sequence[Sequence[float]],
    *,
    spent_s: float,
    budget_s: float,
    target: float = TARGET,
    least: int = NARROW_ROUNDS,
) -> Literal["interval", "budget"] | None:
    """Whether a case has been measured enough in this launch, and why; None to go on.

    `rounds`: for each round so far the replays in us, the slowest rank deciding (`max_over_ranks`), so
    every rank that calls it with the same numbers agrees; normally rank 0 calls it and broadcasts the
    answer. `interval`: the 95 % interval within this launch is within -+target of the value, after at
    least `least` rounds. `budget`: spent_s has reached budget_s.
    """
    logs = np.log(np.maximum([median(r) for r in rounds if len(r)], 1e-6))
    if len(logs) >= least:
        said = over_rounds(logs)
        lo, hi = interval(0.0, said.noise, said.free)
        if hi - 1 <= target and 1 - lo <= target:
            return "interval"
    return "budget" if spent_s >= budget_s else None


def warmup(us: Sequence[float]) -> int:
    """How many leading replays are warm-up, at most half of them; 0 where none stand out.

    MSER (White 1997) on log latencies: drop as many as make the mean of the rest most certain. Spikes are
    first cut off at five median absolute deviations of the second half, and what is dropped must differ
    from what is kept by three standard errors.
    """
    n = len(us)
    if n < 8:
        return 0
    log = np.log(np.maximum(us, 1e-6))
    steady = log[n // 2 :]
    middle = float(np.median(steady))
    reach = max(5 * 1.4826 * float(np.median(np.abs(steady - middle))), 1e-4)
    log = np.clip(log, middle - reach, middle + reach)
    cuts = np.arange(n // 2 + 1)
    score = np.array([np.var(log[d:]) / (n - d) for d in cuts])
    cut = int(np.argmin(score))
    if cut == 0:
        return 0
    kept, dropped = log[cut:], log[:cut]
    error = float(np.std(kept, ddof=1)) * np.sqrt(1 / len(kept) + 1 / cut)
    return cut if abs(float(np.mean(dropped) - np.mean(kept))) > 3 * error else 0
