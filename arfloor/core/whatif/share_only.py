"""What a profiled share alone allows: Amdahl's law, with nothing known of model, step or reduce."""

from __future__ import annotations

from arfloor.core.cases import Estimate, record
from arfloor.core.whatif.curves import LatencyCurve, latency_us

FASTER = (1.5, 2.0, 4.0)
FREE = float("inf")


def gain_at_most(share: Estimate, faster: float) -> Estimate:
    """Tok/s over today's, less 1, if all of `share` ran `faster` times as fast: what waits does not.

    Amdahl (1967): 1 / (1 - s + s / r) - 1.
    """
    value, lo, hi = (1 / (1 - s + s / faster) - 1 for s in (share.value, share.lo, share.hi))
    return Estimate(value=value, lo=lo, hi=hi, n=0, unit="of today")


@record
class AtSize:
    """What a message of `nbytes` takes now and at best, us, and what that allows at most.

    `best`: the fastest alternative, None where the one in use is; `floor_us`, `floor_gain`: of the best
    known schedule, None where the links are not known."""

    nbytes: int
    now_us: float
    best: str | None
    best_us: float
    gain: Estimate
    floor_us: float | None
    floor_gain: Estimate | None


def at_size(
    share: Estimate,
    nbytes: int,
    now: LatencyCurve,
    alternatives: tuple[LatencyCurve, ...],
    floor: LatencyCurve | None,
) -> AtSize:
    """Bounds at one message size. Raises MissingInput where `now` does not know that size."""
    us = now.latency(nbytes).estimate.value
    known = [(value, c.backend) for c in alternatives if (value := latency_us(c, nbytes)) is not None]
    best_us, best = min([(us, ""), *known])
    floor_us = None if floor is None else latency_us(floor, nbytes)
    return AtSize(
        nbytes=nbytes,
        now_us=us,
        best=best or None,
        best_us=best_us,
        gain=gain_at_most(share, us / best_us),
        floor_us=floor_us,
        floor_gain=None if floor_us is None else gain_at_most(share, max(us / floor_us, 1.0)),
    )
