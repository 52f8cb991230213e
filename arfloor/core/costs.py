"""What an implementation adds to the schedule it follows, fitted on some results and asked about others.

    t = launch + hops + rounds * (c + (trips - 1) * w) + k * wire + bytes / (channels * g)

launch, hops and wire come from probes (the protocol's own bytes count as wire); c is what a round
costs beyond a flag, w what it costs a worker to wait once more (`arfloor.core.trips`), k what is lost of the
wire, g what one channel or block moves. All are at least 0, k at least 1; fitted by least squares on
relative residuals, so that small sizes count.

A library that changes its algorithm or protocol with the size is as many implementations: each is fitted by
itself, over all sizes and variants that ran it, as its log says. No figure belongs to a size.

Packets of our own also pay for each step of their hash, rounds * s * h, where lines of several lengths ran.
And over the host one-shot packets have a formula to themselves, as their plans say more
(`arfloor.core.plan_costs`).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np
from scipy.optimize import nnls

from arfloor.core import plan_costs
from arfloor.core.cases import Estimate, Primitive, Ran, Result, Tuning, record
from arfloor.core.gap import packet_factor, schedule_of
from arfloor.core.plan_costs import PlanCosts
from arfloor.core.plans import parse
from arfloor.core.rates import RateTable, launch_us, usable
from arfloor.core.trips import plan_of, trips

LEAST = 4
"""Results that a fit needs: as many as it has figures, but for the step of the hash."""

Segment = tuple[object, ...]


@record
class Costs:
    """Fitted costs of one implementation on one path, from `n` results, and their worst relative residual.

    `hash_us`: a step of the hash; 0 where no packets, or of one length only, ran (then it is in `round_us`).
    `channel_gbps` is None when the channels cost nothing that could be seen.
    """

    round_us: float
    trip_us: float
    hash_us: float
    wire_factor: float
    channel_gbps: float | None
    n: int
    worst_residual: float


@record
class _Features:
    known_us: float
    rounds: int
    further_trips: int
    hash_steps: float
    wire_us: float
    channel_us: float  # at 1 GB/s a channel
    measured_us: float

    @property
    def fitted(self) -> tuple[float, float, float, float, float]:
        return self.rounds, self.further_trips, self.hash_steps, self.wire_us, self.channel_us


def segment_of(result: Result) -> Segment:
    """What must be alike for two results to have the same costs: where it ran, and which code did.

    Our own packets (LL and lines of any length) are one kernel, whatever the plan.
    """
    case = result.case
    protocol = ((result.ran.protocol if result.ran else None) or "").lower()
    if plan_of(result) is not None and protocol.startswith(("line", "ll")):
        protocol = "packets"
    where = (case.path, case.settings, case.devices, case.groups, case.mode)
    return (*where, case.backend, schedule_of(result)[0].name, protocol)


def fit_costs(results: Iterable[Result], primitives: Sequence[Primitive]) -> Costs | None:
    """Fit the correct results of one implementation, path and world; None with fewer than `LEAST`."""
    rows = [f for r in results if (f := _features(r, primitives)) is not None]
    if len(rows) < LEAST:
        return None
    measured = np.array([f.measured_us for f in rows])
    # k = 1 + an excess >= 0: an implementation cannot beat the wire it was probed on
    beyond = np.array([f.measured_us - f.known_us - f.wire_us for f in rows])
    columns = np.array([f.fitted for f in rows])
    if len({f.hash_steps for f in rows}) == 1:
        columns[:, 2] = 0.0
    found, _ = nnls(columns / measured[:, None], beyond / measured)
    predicted = measured - beyond + columns @ found
    return Costs(
        round_us=float(found[0]),
        trip_us=float(found[1]),
        hash_us=float(found[2]),
        wire_factor=1 + float(found[3]),
        channel_gbps=float(1 / found[4]) if found[4] > 0 else None,
        n=len(rows),
        worst_residual=float(np.max(np.abs(predicted / measured - 1))),
    )


def predict_us(result: Result, primitives: Sequence[Primitive], costs: Costs) -> float | None:
    """Latency in us of a case by what it ran as, not by its own latency; None without probes."""
    f = _features(result, primitives, timed=False)
    if f is None:
        return None
    channel = 1 / costs.channel_gbps if costs.channel_gbps else 0.0
    figures = (costs.round_us, costs.trip_us, costs.hash_us, costs.wire_factor, channel)
    return f.known_us + sum(x * figure for x, figure in zip(f.fitted, figures, strict=True))


@record
class Fitted:
    """Costs by segment, and for segments of too few results what multiplies the library's own prediction."""

    costs: Mapping[Segment, Costs | PlanCosts]
    scales: Mapping[Segment, float]

    def predict_us(self, result: Result, primitives: Sequence[Primitive]) -> float | None:
        """Latency in us of a case by what it ran as; None where its segment could not be fitted."""
        key = segment_of(result)
        costs = self.costs.get(key)
        if isinstance(costs, PlanCosts):
            return plan_costs.predict_us(result, primitives, costs)
        if costs is not None:
            return predict_us(result, primitives, costs)
        expected = result.ran.predicted_us if result.ran else None
        return None if expected is None or key not in self.scales else expected * self.scales[key]


def fit_segments(results: Iterable[Result], primitives: Sequence[Primitive]) -> Fitted:
    """Fit every segment by itself; one with fewer than `LEAST` results scales the library's own model."""
    segments: dict[Segment, list[Result]] = defaultdict(list)
    for r in results:
        if r.status == "ok" and r.latency is not None:
            segments[segment_of(r)].append(r)
    costs = {k: found for k, rows in segments.items() if (found := _fit(rows, primitives)) is not None}
    few = {k: rows for k, rows in segments.items() if k not in costs}
    return Fitted(costs=costs, scales={k: s for k, rows in few.items() if (s := _scale(rows)) is not None})


def _fit(results: Sequence[Result], primitives: Sequence[Primitive]) -> Costs | PlanCosts | None:
    by_plan = all(plan_costs.applies(r) for r in results)
    return plan_costs.fit(results, primitives) if by_plan else fit_costs(results, primitives)


def finalists(tunings: Iterable[Tuning], results: Iterable[Result]) -> tuple[Result, ...]:
    """What tuning timed of our kernels, as results of cases like those of the same path and size in graphs.

    Each has the median of its replays, without an interval (one value), and the plan's name as variant. A
    choice of a size that has no result, and a name that is no plan, are left out.
    """
    like = {
        (r.case.path, r.case.world, r.case.dtype, r.case.nbytes): r
        for r in results
        if r.case.mode == "graph" and r.case.backend == r.case.path and r.status == "ok"
    }
    found = []
    for tuning in tunings:
        model = like.get((tuning.path, tuning.world, tuning.dtype, tuning.nbytes))
        if model is None:
            continue
        for name, (median_us, _) in tuning.finalists_us.items():
            try:
                plan = parse(name)
            except ValueError:
                continue
            latency = Estimate(value=median_us, lo=median_us, hi=median_us, n=1, unit="us")
            ran = Ran(algorithm=name, protocol=plan.packets, channels=plan.blocks)
            case = replace(model.case, variant=name)
            found.append(Result(case=case, status="ok", latency=latency, ran=ran))
    return tuple(found)


def _scale(results: Iterable[Result]) -> float | None:
    """Geometric mean of measured over what the library expects; None where it expects nothing."""
    logs = [
        math.log(r.latency.value / r.ran.predicted_us)
        for r in results
        if r.latency is not None and r.ran is not None and r.ran.predicted_us
    ]
    return math.exp(sum(logs) / len(logs)) if logs else None


@record
class HeldOut:
    """How well results that were not fitted are predicted: relative errors by case id, and the worst.

    `unpredicted`: ids of those whose segment was not among the fitted.
    """

    fitted: Fitted
    errors: tuple[tuple[str, float], ...]
    unpredicted: tuple[str, ...] = ()

    @property
    def worst(self) -> float:
        return max((abs(e) for _, e in self.errors), default=0.0)

    def within(self, share: float = 0.1) -> int:
        """How many are predicted within a share of what was measured."""
        return sum(abs(e) <= share for _, e in self.errors)


def held_out(
    results: Sequence[Result],
    primitives: Sequence[Primitive],
    *,
    fitted: Callable[[Result], bool],
    also: Sequence[Result] = (),
) -> HeldOut:
    """Fit the results that `fitted` chooses, segment by segment, and predict the other correct ones.

    `also`: further results to fit where `fitted` chooses them, and not asked about (`finalists`).
    What a held-out case ran as is known from a log that times nothing; its latency is not looked at.
    """
    found = fit_segments([r for r in (*results, *also) if fitted(r)], primitives)
    errors, unpredicted = [], []
    for r in results:
        if fitted(r) or r.status != "ok" or r.latency is None:
            continue
        predicted = found.predict_us(r, primitives)
        if predicted is None:
            unpredicted.append(r.case.id)
        else:
            errors.append((r.case.id, predicted / r.latency.value - 1))
    return HeldOut(fitted=found, errors=tuple(errors), unpredicted=tuple(unpredicted))


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
    packet = packet_factor(result) or 1.0
    channels = (result.ran.channels if result.ran else None) or 1
    moved = max(schedule.out_bytes, schedule.in_bytes) * packet
    return _Features(
        known_us=launch_us(probes, case.mode) + schedule.rounds * table.latency[0].value,
        rounds=schedule.rounds,
        further_trips=schedule.rounds * (trips(result) - 1),
        hash_steps=schedule.rounds * plan_costs.hash_steps(result),
        wire_us=max(edges) * packet,
        channel_us=moved / channels / 1e3,
        measured_us=result.latency.value if result.latency else 0.0,
    )
