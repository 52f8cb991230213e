"""Medians, bootstrap intervals and the reduction of samples over ranks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

import numpy as np

from arfloor.core.cases import Estimate, Samples


def max_over_ranks(samples: Iterable[Samples]) -> dict[tuple[int, int], np.ndarray]:
    """Per (launch, round): the latency of each replay in us, the slowest rank deciding.

    A round is dropped when its ranks timed different numbers of replays (a torn record).
    """
    by_round: dict[tuple[int, int], list[tuple[float, ...]]] = defaultdict(list)
    for s in samples:
        by_round[(s.launch, s.round)].append(s.us)
    return {
        key: np.max(np.asarray(rows, dtype=float), axis=0)
        for key, rows in sorted(by_round.items())
        if rows[0] and len({len(r) for r in rows}) == 1
    }


def median_estimate(
    values: Sequence[float] | np.ndarray, *, unit: str = "us", seed: int = 0, resamples: int = 1000
) -> Estimate:
    """Median with a 95 % percentile-bootstrap interval. Raises ValueError on no values."""
    data = np.asarray(values, dtype=float)
    if data.size == 0:
        raise ValueError("median_estimate: expected at least one value, found none")
    rng = np.random.default_rng(seed)
    medians = np.median(data[rng.integers(0, data.size, (resamples, data.size))], axis=1)
    lo, hi = np.quantile(medians, [0.025, 0.975])
    return Estimate(value=float(np.median(data)), lo=float(lo), hi=float(hi), n=int(data.size), unit=unit)


def latency(samples: Iterable[Samples], *, seed: int = 0) -> Estimate | None:
    """Latency of one case: max over ranks, then the median over replays, rounds and launches."""
    rounds = max_over_ranks(samples)
    if not rounds:
        return None
    return median_estimate(np.concatenate(list(rounds.values())), seed=seed)
