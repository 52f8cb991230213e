"""When a case has been timed enough, and how much comes next. Pure; decided on rank 0 alone."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

# a round is this share of a case's budget, so that a case is seen at several moments of its block
ROUNDS = 8
LEAST_ROUNDS = 4
MOST_REPLAYS = 250


def half_width(rounds: Sequence[Sequence[float]]) -> float:
    """Half the 95 % interval of the median over the median.

    The interval is the distribution-free one from order statistics (ranks n/2 -+ 0.98 sqrt(n)):
    cheap enough to ask after every round. Samples of one round are alike, so it is the wider of that
    interval over all replays and the one that the rounds' medians give.
    """
    values = np.sort(np.concatenate([np.asarray(r, dtype=float) for r in rounds]))
    medians = np.asarray([np.median(r) for r in rounds])
    middle = float(np.median(values))
    if middle <= 0 or values.size < 2:
        return float("inf")
    reach = 0.98 * np.sqrt(values.size)
    low = values[max(0, int(np.floor(values.size / 2 - reach)))]
    high = values[min(values.size - 1, int(np.ceil(values.size / 2 + reach)))]
    # standard error of a median of k medians, normal theory: 1.2533 s / sqrt(k)
    between = (
        1.96 * 1.2533 * float(np.std(medians, ddof=1)) / np.sqrt(medians.size) if medians.size > 1 else 0
    )
    return max(float(high - low) / 2, between) / middle


def decide(
    rounds: Sequence[Sequence[float]], *, spent_s: float, budget_s: float, interval: float, replays: int
) -> tuple[str | None, int]:
    """(stop, replays of the next round). stop: None to go on, `interval` reached, or `budget` spent."""
    if len(rounds) >= LEAST_ROUNDS:
        if half_width(rounds) <= interval:
            return "interval", 0
        if spent_s >= budget_s:
            return "budget", 0
    done = sum(len(r) for r in rounds)
    per_replay_s = spent_s / max(1, done)
    fitting = int(budget_s / ROUNDS / max(per_replay_s, 1e-9))
    # the first round is a single replay whose exchange dominates: grow in steps
    return None, max(1, min(fitting, 20 * replays, MOST_REPLAYS))
