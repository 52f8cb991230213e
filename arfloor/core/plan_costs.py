"""What one-shot packets of our own take over the host, by what their plan is.

    t = launch + flag + c + s x h + max(sending, k x first + max(k x rest, trips x w))

launch, flag and the three ways of the link come from probes, packets by packets (a tag, or the flags of LL,
travel too):

- `s`: steps in which the lanes of a packet add up their hashes, log2 of the lanes: none for LL and 16 bytes;
- `sending`: a pace bounds the rate at which tiles leave: tiles x pace / clock;
- `first`: what is sent before anything comes: out and then in, each at the rate of one direction alone. All
  of it where a warp has one tile and no pace; the part by which the pace is faster than the link where it has
  one; of several tiles a warp the first, or as many as it sends ahead;
- `rest`: both directions at once;
- `trips`: how often a warp waits anew before it sends another tile; never where it sends ahead.

Fitted by least squares on relative residuals: c what an operation costs beyond a flag, h a step of the hash,
w a further wait, k what the link takes of its probes' time. k may be below 1, as the probe of both directions
mixes them by chance: down to what any engine reached both ways. Rates are those of the largest probes: what a
smaller one takes longer is its start and its slowest packet, which are in c. Lag and window are not in it:
as terms of their own they explained nothing on the runs of two H200s. The clock is assumed
(`polls.CYCLES_A_US`), as no run tells it; only plans with a pace depend on it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt
from scipy.optimize import least_squares

from arfloor.core.cases import Primitive, Result, record
from arfloor.core.plans import extent
from arfloor.core.polls import CYCLES_A_US
from arfloor.core.rates import launch_us, usable
from arfloor.core.shared_uplink import Uplink, uplink_of
from arfloor.core.trips import plan_of, plan_trips

LEAST = 4
"""Results that a fit needs: as many as it has figures."""
MOST_FACTOR = 1.5
"""Of k: a link that took half as long again as probed would be another link."""
# of c, h, w and k. From 144 others within a factor of three the fits of recorded runs end in the same place;
# w must be above 0, where it would show no slope
_START = (1.0, 0.05, 1.0, 1.0)


@record
class PlanCosts:
    """Fitted costs of our one-shot packets over the host, from `n` results; worst relative residual.

    us: `round_us` an operation beyond its flag, `hash_us` a step of the hash, `trip_us` a further wait (None
    where no plan had one). `wire_factor`: what the link takes of the time that its probes take.
    """

    round_us: float
    hash_us: float
    trip_us: float | None
    wire_factor: float
    n: int
    worst_residual: float


@record
class _Parts:
    known_us: float
    hash_steps: float
    sending_us: float
    first_us: float
    rest_us: float
    further_trips: int
    measured_us: float


def applies(result: Result) -> bool:
    """Whether a result is of one-shot packets over the host, whose plan is known."""
    plan = plan_of(result)
    return result.case.path == "host" and plan is not None and plan.shot == 1 and plan.protocol != "flag"


def hash_steps(result: Result) -> float:
    """Steps in which the lanes of a packet add up their hashes; 0 for LL, flags, and what is not ours."""
    plan = plan_of(result)
    return 0.0 if plan is None else math.log2(plan.packet // 16)


def fit(results: Iterable[Result], primitives: Sequence[Primitive]) -> PlanCosts | None:
    """Fit the correct ones of results to which all this `applies`; None below `LEAST`, or without probes."""
    timed = [r for r in results if r.status == "ok" and r.latency is not None]
    parts = [p for r in timed if (p := _parts(r, primitives)) is not None]
    if len(parts) < LEAST:
        return None
    measured = np.array([p.measured_us for p in parts])
    hashed = len({p.hash_steps for p in parts}) > 1  # else a step cannot be told from the rest
    waits = any(p.further_trips for p in parts)
    least = _least_factor(primitives)
    bounds = ([0.0, 0.0, 0.0, least], [np.inf, np.inf if hashed else 1e-9, np.inf, MOST_FACTOR])
    c, h, w, k = _START
    start = [c, h if hashed else 0.0, w, max(least, k)]
    found = least_squares(lambda x: _predicted(parts, x) / measured - 1, start, bounds=bounds)
    c, h, w, k = map(float, found.x)
    return PlanCosts(
        round_us=c,
        hash_us=h if hashed else 0.0,
        trip_us=w if waits else None,
        wire_factor=k,
        n=len(parts),
        worst_residual=float(np.max(np.abs(found.fun))),
    )


def predict_us(result: Result, primitives: Sequence[Primitive], costs: PlanCosts) -> float | None:
    """Latency in us of a case by its plan, not by its own latency; None without probes, or where a plan waits
    more often than any that was fitted."""
    parts = _parts(result, primitives)
    if parts is None or (parts.further_trips and costs.trip_us is None):
        return None
    figures = (costs.round_us, costs.hash_us, costs.trip_us or 0.0, costs.wire_factor)
    return float(_predicted([parts], figures)[0])


def _predicted(parts: Sequence[_Parts], figures: Sequence[float]) -> npt.NDArray[np.float64]:
    c, h, w, k = figures
    known, steps, sending, first, rest, trips = np.array(
        [
            (p.known_us, p.hash_steps, p.sending_us, p.first_us, p.rest_us, float(p.further_trips))
            for p in parts
        ]
    ).T
    body = np.maximum(sending, k * first + np.maximum(k * rest, w * trips))
    return np.asarray(known + c + h * steps + body)


def _parts(result: Result, primitives: Sequence[Primitive]) -> _Parts | None:
    case, plan = result.case, plan_of(result)
    probes = usable(primitives, path=case.path, devices=case.devices)
    try:
        uplink = uplink_of(probes)
    except ValueError:
        return None
    if plan is None:
        return None
    tiles = extent(plan, case.world, case.nbytes)[2]
    one_way_us, both_us = _wire_us(uplink, case.nbytes * plan.packet / plan.payload / 1e3, case.world)
    sending_us = tiles * plan.pace / CYCLES_A_US
    first = min(1.0, max(plan.lookahead, 1) * plan.warps / tiles) * max(0.0, 1 - sending_us / both_us)
    return _Parts(
        known_us=launch_us(probes, case.mode) + uplink.flag_us,
        hash_steps=hash_steps(result),
        sending_us=sending_us,
        first_us=first * one_way_us,
        rest_us=(1 - first) * both_us,
        further_trips=plan_trips(plan, case.nbytes, case.world) - 1,
        measured_us=result.latency.value if result.latency else 0.0,
    )


def _wire_us(uplink: Uplink, kilobytes: float, world: int) -> tuple[float, float]:
    """us of a message that every rank writes once and reads of all others: out then in, and both at once."""
    inwards = kilobytes * (world - 1)
    return kilobytes / uplink.write_gbps + inwards / uplink.read_gbps, inwards / uplink.both_gbps


def _least_factor(primitives: Sequence[Primitive]) -> float:
    """The probes of multiprocessors both ways, as a share of those of the fastest engine."""
    both = [
        (p.engine, p.estimate.value)
        for p in usable(primitives, path="host")
        if p.kind == "stream" and p.active in ("all", "both_ways") and p.estimate is not None
    ]
    ours = max((rate for engine, rate in both if engine == "sm"), default=1.0)
    return ours / max((rate for _, rate in both), default=ours)
