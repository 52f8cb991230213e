"""What an implementation adds to the schedule it follows, fitted on some results and asked about others.

    t = launch + hops + rounds * c + k * wire + bytes / (channels * g)

launch, hops and wire come from probes (the protocol's own bytes count as wire); c is what a round
costs beyond a flag, k what is lost of the wire, g what one channel or block moves. All three are at
least 0, k at least 1; fitted by least squares on relative residuals, so that small sizes count.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np
from scipy.optimize import nnls

from arfloor.core.cases import Primitive, Result, record
from arfloor.core.gap import packet_factor, schedule_of
from arfloor.core.rates import RateTable, usable


@record
class Costs:
    """Fitted costs of one implementation on one path, from `n` results, and their worst relative residual.

    `channel_gbps` is None when the channels cost nothing that could be seen.
    """

    round_us: float
    wire_factor: float
    channel_gbps: float | None
    n: int
    worst_residual: float


@record
class _Features:
    known_us: float
    rounds: int
    wire_us: float
    channel_us: float  # at 1 GB/s a channel
    measured_us: float


def fit_costs(results: Iterable[Result], primitives: Sequence[Primitive]) -> Costs | None:
    """Fit the correct results of one implementation, path and world; None with fewer than three."""
    rows = [f for r in results if (f := _features(r, primitives)) is not None]
    if len(rows) < 3:
        return None
    measured = np.array([f.measured_us for f in rows])
    # k = 1 + an excess >= 0: an implementation cannot beat the wire it was probed on
    beyond = np.array([f.measured_us - f.known_us - f.wire_us for f in rows])
    columns = np.array([[f.rounds, f.wire_us, f.channel_us] for f in rows])
    found, _ = nnls(columns / measured[:, None], beyond / measured)
    predicted = measured - beyond + columns @ found
    return Costs(
        round_us=float(found[0]),
        wire_factor=1 + float(found[1]),
        channel_gbps=float(1 / found[2]) if found[2] > 0 else None,
        n=len(rows),
        worst_residual=float(np.max(np.abs(predicted / measured - 1))),
    )


def predict_us(result: Result, primitives: Sequence[Primitive], costs: Costs) -> float | None:
    """Latency in us of a case by what it ran as, not by its own latency; None without probes."""
    f = _features(result, primitives, timed=False)
    if f is None:
        return None
    channel = f.channel_us / costs.channel_gbps if costs.channel_gbps else 0.0
    return f.known_us + f.rounds * costs.round_us + f.wire_us * costs.wire_factor + channel


@record
class HeldOut:
    """How well results that were not fitted are predicted: relative errors by case id, and the worst."""

    costs: Costs
    errors: tuple[tuple[str, float], ...]

    @property
    def worst(self) -> float:
        return max((abs(e) for _, e in self.errors), default=0.0)


def held_out(
    results: Sequence[Result], primitives: Sequence[Primitive], *, fitted: Callable[[Result], bool]
) -> HeldOut | None:
    """Fit the results that `fitted` chooses and predict the others; None when too few are left to fit."""
    costs = fit_costs([r for r in results if fitted(r)], primitives)
    if costs is None:
        return None
    errors = []
    for r in results:
        if not fitted(r) and r.status == "ok" and r.latency is not None:
            predicted = predict_us(r, primitives, costs)
            if predicted is not None:
                errors.append((r.case.id, predicted / r.latency.value - 1))
    return HeldOut(costs=costs, errors=tuple(errors))


def _features(result: Result, primitives: Sequence[Primitive], *, timed: bool = True) -> _Features | None:
    case = result.case
    if timed and (result.status != "ok" or result.latency is None):
        return None
    probes = usable(primitives, path=case.path, devices=case.devices)
    table = RateTable.of(probes, path=case.path, world=case.world)
    if table is None:
        return None
    schedule, _ = schedule_of(result)
    edges = [
        table.edge_us("out", schedule.out_bytes, schedule.traffic)[0].value,
        table.edge_us("in", schedule.in_bytes, schedule.traffic)[0].value,
    ]
    launches = [p.estimate.value for p in probes if p.kind == "launch" and p.estimate is not None]
    launch = min(launches, default=0.0) if case.mode != "isolated" else 0.0
    packet = packet_factor(result) or 1.0
    channels = (result.ran.channels if result.ran else None) or 1
    moved = max(schedule.out_bytes, schedule.in_bytes) * packet
    return _Features(
        known_us=launch + schedule.rounds * table.latency[0].value,
        rounds=schedule.rounds,
        wire_us=max(edges) * packet,
        channel_us=moved / channels / 1e3,
        measured_us=result.latency.value if result.latency else 0.0,
    )
