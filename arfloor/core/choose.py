"""Choices on a described box: which GPUs, what groups do to each other, where the best schedule changes."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from arfloor.core.cases import Edge, Estimate, Path, record
from arfloor.core.patterns import HOST, PEER, Model, Phase, Timing, phases
from arfloor.core.predict import default_path, interval, models, predict_floor, timings
from arfloor.core.rig import End, Figure, Rig, select
from arfloor.core.topology import islands, resource


@record
class Choice:
    """A set of GPUs and what it attains."""

    gpus: tuple[str, ...]
    attainable: Estimate
    algorithm: str


def best_subsets(rig: Rig, world: int, nbytes: int, *, path: Path | None = None) -> tuple[Choice, ...]:
    """Which `world` GPUs to take, best first: one choice for each way of spreading them over the islands.

    Sets that take as many GPUs from every switch and socket are alike; the first of them stands for all.
    """
    select(rig, None, world)
    chosen: dict[tuple[tuple[int, ...], ...], tuple[str, ...]] = {}
    graph = models(rig)[1].graph
    levels = [islands(graph.topology, level) for level in ("switch", "socket")]
    for gpus in itertools.combinations(rig.gpus, world):
        spread = tuple(tuple(sorted(sum(g in i for g in gpus) for i in level)) for level in levels)
        chosen.setdefault(spread, gpus)
    found = []
    for gpus in chosen.values():
        floor = predict_floor(rig, ranks=gpus, path=path, nbytes=nbytes)
        found.append(Choice(gpus=gpus, attainable=floor.attainable, algorithm=floor.algorithm))
    return tuple(sorted(found, key=lambda c: (c.attainable.value, c.gpus)))


@record
class Contrast:
    """How much longer one set of GPUs takes than another.

    `ratio` spans what any one figure at either end of its interval makes of it, since figures err apart from
    each other; `turns` are the figures that, alone, turn the choice round, each with the end that does.
    `waits_for` is the link that the slower set waits for, where several of its GPUs share one (else None).
    """

    ratio: Estimate
    waits_for: Edge | None
    turns: tuple[tuple[str, End], ...]


def contrast(rig: Rig, faster: Sequence[str], slower: Sequence[str], nbytes: int, path: Path) -> Contrast:
    """The slower set's attainable over the faster one's, and why."""

    def ratio(described: Rig) -> float:
        model = Model(described)
        launch = described.figures[described.launch].at("value")
        return (launch + _best(model, slower, path, nbytes).us) / (
            launch + _best(model, faster, path, nbytes).us
        )

    seen: dict[tuple[str, End], float] = {}
    for name in _figures(rig):
        ends: tuple[End, End] = ("slow", "fast")
        for end in ends:
            seen[name, end] = ratio(replace(rig, figures={**rig.figures, name: _at(rig.figures[name], end)}))
    value = ratio(rig)
    spread = Estimate(
        value=value, lo=min([value, *seen.values()]), hi=max([value, *seen.values()]), n=0, unit="ratio"
    )
    model = Model(rig)
    held = _best(model, slower, path, nbytes)
    edge = next((e for e in model.graph.topology.edges if resource(e) == held.bottleneck), None)
    own = edge is None or not {edge.src, edge.dst}.isdisjoint(rig.gpus) or held.wire_us < held.latency_us
    return Contrast(
        ratio=spread,
        waits_for=None if own else edge,
        turns=tuple(key for key, at_end in seen.items() if (at_end < 1) != (value < 1)),
    )


def _best(model: Model, ranks: Sequence[str], path: Path, nbytes: int) -> Timing:
    known = PEER if path == "peer" else HOST
    steps = {name: phases(model, name, ranks, path, nbytes) for name in known}
    return min((model.time(name, s, path) for name, s in steps.items() if s), key=lambda t: t.us)


def _figures(rig: Rig) -> tuple[str, ...]:
    """The figures that times rest on."""
    names = [n for k in rig.links for n in (k.write, k.read or k.write, k.latency)]
    names += [rig.launch, *(d.share for d in rig.derates), *(c.rate for c in rig.collapses)]
    return tuple(dict.fromkeys(names))


def _at(figure: Figure, end: End) -> Figure:
    value = figure.at(end)
    return replace(figure, value=value, lo=value, hi=value)


@record
class Interference:
    """What groups that reduce at once do to each other: time together over time alone, per group."""

    groups: tuple[tuple[str, ...], ...]
    algorithm: str
    alone: Estimate
    together: Estimate
    slowdown: Estimate


def interference(
    rig: Rig, groups: Sequence[Sequence[str]], nbytes: int, *, path: Path | None = None
) -> Interference:
    """Groups of GPUs (two TP4 groups, say) reducing at the same time by the schedule best for one alone.

    The phases of all groups coincide, which is the worst case: a reduce that meets no other pays
    nothing. Raises ValueError when a GPU is in two groups.
    """
    members = [g for group in groups for g in group]
    if len(set(members)) != len(members) or len(groups) < 2:
        raise ValueError(
            f"interference: expected at least two disjoint groups, found {[list(g) for g in groups]}"
        )
    way = path or default_path(rig)
    floor = predict_floor(rig, ranks=groups[0], path=way, nbytes=nbytes, mode="isolated")
    times: dict[str, list[float]] = {"alone": [], "together": []}
    for model in models(rig):
        steps = [phases(model, floor.algorithm, group, way, nbytes) for group in groups]
        alone = model.time(floor.algorithm, steps[0], way).us
        merged = [
            replace(column[0], transfers=tuple(t for phase in column for t in phase.transfers))
            for column in zip(*steps, strict=True)
        ]
        together = _together(model, floor.algorithm, merged, groups, way)
        times["alone"].append(alone)
        times["together"].append(together)
    alone_us, together_us = (interval(*times[k]) for k in ("alone", "together"))
    ratios = [t / a for a, t in zip(times["alone"], times["together"], strict=True)]
    slowdown = Estimate(value=ratios[1], lo=min(ratios), hi=max(ratios), n=0, unit="ratio")
    return Interference(
        groups=tuple(tuple(g) for g in groups),
        algorithm=floor.algorithm,
        alone=alone_us,
        together=together_us,
        slowdown=slowdown,
    )


def _together(
    model: Model, algorithm: str, merged: Sequence[Phase], groups: Sequence[Sequence[str]], path: Path
) -> float:
    # flags go between members of a group only: the latency is that of the slowest group alone
    wire = model.time(algorithm, merged, path).wire_us
    latency = max(
        model.time(algorithm, phases(model, algorithm, group, path, 1), path).latency_us for group in groups
    )
    return wire + latency


@record
class Crossover:
    """From this size on, `second` is faster than `first`. The interval spans the ends of the figures."""

    first: str
    second: str
    nbytes: Estimate


def crossovers(
    rig: Rig,
    *,
    world: int = 0,
    ranks: Sequence[str] | None = None,
    path: Path | None = None,
    smallest_nbytes: int = 1024,
    largest_nbytes: int = 4 << 20,
) -> tuple[Crossover, ...]:
    """Where the best schedule changes between two sizes, with intervals; empty when one is best throughout.

    All schedules are straight lines in the size, so neighbours on the lower envelope cross once. The
    interval is that of figures which err alike for both; ends beyond the range are cut to it.
    """
    chosen = select(rig, ranks, world)
    way = path or default_path(rig)
    span = (smallest_nbytes, largest_nbytes)
    lines = [_lines(rig, chosen, way, end, span) for end in range(3)]
    order = _envelope(lines[1], span)
    found = []
    for first, second in itertools.pairwise(order):
        sizes = [_crossing(lines[e][first], lines[e][second], span) for e in range(3)]
        estimate = Estimate(value=sizes[1], lo=min(sizes), hi=max(sizes), n=0, unit="B")
        found.append(Crossover(first=first, second=second, nbytes=estimate))
    return tuple(found)


def _lines(
    rig: Rig, ranks: Sequence[str], path: Path, end: int, span: tuple[int, int]
) -> dict[str, tuple[float, float]]:
    """Latency and us per byte of each algorithm at one end."""
    timed = timings(rig, ranks, path, span[1])
    return {name: (t[end].latency_us, t[end].wire_us / span[1]) for name, t in timed.items()}


def _envelope(lines: dict[str, tuple[float, float]], span: tuple[int, int]) -> list[str]:
    order: list[str] = []
    for size in np.geomspace(*span, 200):
        best = min(lines, key=lambda name: lines[name][0] + lines[name][1] * size)
        if not order or order[-1] != best:
            order.append(best)
    return order


def _crossing(first: tuple[float, float], second: tuple[float, float], span: tuple[int, int]) -> float:
    slope = first[1] - second[1]
    if slope <= 0:  # at this end of the figures the second never overtakes
        return float(span[1])
    return float(min(max((second[0] - first[0]) / slope, span[0]), span[1]))
