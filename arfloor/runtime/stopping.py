"""How many replays come next, and when a case has been timed enough. Pure; decided on rank 0 alone."""

from __future__ import annotations

from collections.abc import Sequence

from arfloor.core.statistics import LEAST_ROUNDS, stop_reason

# a budget is spent in about so many rounds, so that a case is seen at several moments of its block; a timer
# may want another number
ROUNDS = 8
MOST_REPLAYS = 250
# replays of a round that costs time before its first: of fewer, one disturbed replay decides the median
LEAST_REPLAYS = 3
# a case so slow that its least rounds would cost more than this many budgets stops early
OVERDRAFT = 2.0


def replays_a_round(replay_s: float, budget_s: float, *, rounds: int = ROUNDS, setup_s: float = 0.0) -> int:
    """Replays of one round, from the wall time of one replay with all that surrounds it.

    `setup_s`: what a round costs besides. Where that leaves little of a round's share of the budget, replays
    are added for up to twice that time, LEAST_REPLAYS at most: a budget then buys fewer rounds.
    """
    replay_s = max(replay_s, 1e-9)
    fill = int((budget_s / rounds - setup_s) / replay_s)
    least = min(LEAST_REPLAYS, round(2 * setup_s / replay_s))
    return max(1, least, min(fill, MOST_REPLAYS))


def decide(
    taken: Sequence[Sequence[float]],
    *,
    spent_s: float,
    budget_s: float,
    interval: float,
    rounds: int = ROUNDS,
    setup_s: float = 0.0,
) -> tuple[str | None, int]:
    """(stop, replays of the next round). stop: None to go on, `interval` reached, or `budget` spent.

    `taken`: samples of each round so far; `setup_s`: the part of `spent_s` that went into setting rounds up.
    """
    stop = stop_reason(taken, spent_s=spent_s, budget_s=budget_s, target=interval)
    if stop == "budget" and len(taken) < LEAST_ROUNDS and spent_s < OVERDRAFT * budget_s:
        stop = None  # fewer rounds give no honest interval
    if stop is not None:
        return stop, 0
    replay_s = (spent_s - setup_s) / max(1, sum(len(r) for r in taken))
    each_s = setup_s / max(1, len(taken))
    return None, replays_a_round(replay_s, budget_s, rounds=rounds, setup_s=each_s)
