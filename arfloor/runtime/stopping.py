"""How many replays come next, and when a case has been timed enough. Pure; decided on rank 0 alone."""

from __future__ import annotations

from collections.abc import Sequence

from arfloor.core.statistics import LEAST_ROUNDS, stop_reason

# a budget is spent in about so many rounds, so that a case is seen at several moments of its block; a timer
# may want another number
ROUNDS = 8
MOST_REPLAYS = 250
# a case so slow that its least rounds would cost more than this many budgets stops early
OVERDRAFT = 2.0


def replays_a_round(replay_s: float, budget_s: float, *, rounds: int = ROUNDS) -> int:
    """Replays of one round, from the wall time of one replay with all that surrounds it."""
    return max(1, min(int(budget_s / rounds / max(replay_s, 1e-9)), MOST_REPLAYS))


def decide(
    taken: Sequence[Sequence[float]],
    *,
    spent_s: float,
    budget_s: float,
    interval: float,
    rounds: int = ROUNDS,
) -> tuple[str | None, int]:
    """(stop, replays of the next round). stop: None to go on, `interval` reached, or `budget` spent.

    `taken`: samples of each round so far.
    """
    stop = stop_reason(taken, spent_s=spent_s, budget_s=budget_s, target=interval)
    if stop == "budget" and len(taken) < LEAST_ROUNDS and spent_s < OVERDRAFT * budget_s:
        stop = None  # fewer rounds give no honest interval
    if stop is not None:
        return stop, 0
    replay_s = spent_s / max(1, sum(len(r) for r in taken))
    return None, replays_a_round(replay_s, budget_s, rounds=rounds)
