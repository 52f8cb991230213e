"""All that can be said of a described box before anything is measured on it, as data and sentences.

A report renders it; every figure in it is predicted, and says so.
"""

from __future__ import annotations

from collections.abc import Sequence

from arfloor.core import units
from arfloor.core.cases import Estimate, Path, record
from arfloor.core.choose import (
    Choice,
    Crossover,
    Interference,
    best_subsets,
    contrast,
    crossovers,
    interference,
)
from arfloor.core.predict import Prediction, default_path, path_assumed, predict
from arfloor.core.rig import Rig, Series, select, topology
from arfloor.core.rig_words import link_words, words
from arfloor.core.topology import islands

SIZES = tuple(1 << k for k in range(10, 23))
HEADLINE_NBYTES = 262_144


@record
class Outlook:
    """One box, world and path: predictions by size, and the choices that follow.

    `choices` is empty when all GPUs take part; `groups` is empty when no second group of that size is
    left; `source` says what the description is; `series` are latencies that others published for this
    world and path; `notes` are the box's own, `assumed` names the figures that nobody measured.
    """

    rig: str
    title: str
    source: str
    world: int
    path: Path
    rows: tuple[Prediction, ...]
    headline: Prediction
    crossovers: tuple[Crossover, ...]
    choices: tuple[Choice, ...]
    groups: tuple[Interference, ...]
    series: tuple[Series, ...]
    assumed: tuple[str, ...]
    notes: tuple[str, ...]
    sentences: tuple[str, ...]


def outlook(
    rig: Rig,
    *,
    world: int,
    path: Path | None = None,
    sizes: Sequence[int] = SIZES,
    headline: int = HEADLINE_NBYTES,
    source: str = "a description of the box",
) -> Outlook:
    """Predict a box for `world` ranks. Raises ValueError for a world or path that it does not have.

    The best set of GPUs is taken, and the second group is the best of those left.
    """
    select(rig, None, world)
    way = path or default_path(rig)
    choices = best_subsets(rig, world, headline, path=way)
    chosen = choices[0].gpus
    rows = tuple(predict(rig, ranks=chosen, path=way, nbytes=n) for n in sizes)
    top = predict(rig, ranks=chosen, path=way, nbytes=headline)
    crossed = crossovers(rig, ranks=chosen, path=way)
    groups = _groups(rig, chosen, way, headline)
    assumed = tuple(sorted(n for n, f in rig.figures.items() if f.origin == "assumed"))
    others = choices if world < len(rig.gpus) else ()
    return Outlook(
        rig=rig.name,
        title=rig.title,
        source=source,
        world=world,
        path=way,
        rows=rows,
        headline=top,
        crossovers=crossed,
        choices=others,
        groups=groups,
        series=tuple(s for s in rig.series if (s.world, s.path) == (world, way)),
        assumed=assumed,
        notes=rig.notes,
        sentences=_sentences(rig, top, crossed, others, groups, assumed, path_assumed(rig, path)),
    )


def _groups(rig: Rig, chosen: tuple[str, ...], path: Path, nbytes: int) -> tuple[Interference, ...]:
    """The chosen group beside one of the GPUs left, a group a switch or node, and both groups interleaved."""
    rest = tuple(g for g in rig.gpus if g not in chosen)
    if len(rest) < len(chosen):
        return ()
    size = len(chosen)
    both = [g for g in rig.gpus if g in chosen or g in rest[:size]]
    graph = topology(rig)
    levels = [[i[:size] for i in islands(graph, level) if len(i) >= size] for level in ("switch", "socket")]
    nodes = next((level for level in levels if len(level) > 1), [])
    divided = [(chosen, rest[:size]), (tuple(both[::2]), tuple(both[1::2]))]
    divided[1:1] = [(nodes[0], nodes[1])] if nodes else []
    pairs = {frozenset(map(frozenset, groups)): groups for groups in reversed(divided)}
    return tuple(interference(rig, groups, nbytes, path=path) for groups in reversed(pairs.values()))


def _sentences(
    rig: Rig,
    top: Prediction,
    crossed: Sequence[Crossover],
    choices: Sequence[Choice],
    groups: Sequence[Interference],
    assumed: Sequence[str],
    of_path: str,
) -> tuple[str, ...]:
    floor = top.floor
    said = [
        f"Predicted, not measured: at {units.size(top.nbytes)} the wires allow {_us(floor.attainable)} "
        f"({floor.algorithm}; no software below {units.us(floor.bound.value)}), "
        f"our kernels {_us(top.kernels)}."
    ]
    said += [of_path] if of_path else []
    if top.nccl is not None:
        times = top.nccl.value / floor.attainable.value
        said.append(
            f"NCCL's own formula picks {top.nccl_choice} and gives {_us(top.nccl)}, "
            f"{units.ratio(times)} the floor."
        )
    said += [crossing(c) for c in crossed]
    if len(choices) > 1:
        said += _which(rig, choices[0].gpus, choices[-1].gpus, top)
    for g in groups:
        names = " and ".join("+".join(group) for group in g.groups)
        if g.slowdown.hi < 1.05:
            said.append(f"{names} reducing at once do not disturb each other.")
        else:
            how = "slow each other down" if g.slowdown.value >= 1.05 else "may slow each other down:"
            said.append(
                f"{names} reducing at the same moment {how} {units.ratio(g.slowdown.value)} "
                f"[{g.slowdown.lo:.2f}, {g.slowdown.hi:.2f}]."
            )
    said += _divided(groups)
    if assumed:
        said.append(
            f"Assumed, not measured: {'; '.join(words(rig, assumed))}. A sweep on the box replaces them."
        )
    return tuple(said)


def _which(rig: Rig, best: tuple[str, ...], worst: tuple[str, ...], top: Prediction) -> list[str]:
    """Which set of GPUs to take, what the other waits for, and what would turn the choice round."""
    found = contrast(rig, best, worst, top.nbytes, top.path)
    if found.ratio.hi < 1.02:
        return [f"Which {len(best)} GPUs take part makes no difference."]
    edge = found.waits_for
    held = f", waiting for {link_words(edge.kind)} ({edge.src} to {edge.dst})" if edge else ""
    spread = f"{units.ratio(found.ratio.value)} {units.ends(found.ratio.lo, found.ratio.hi)}"
    said = [f"Take {', '.join(best)}: {', '.join(worst)} would take {spread} as long{held}."]
    if found.turns:
        ends = [f"{words(rig, [name])[0]} at its {end} end" for name, end in found.turns]
        said.append(f"It would be the other way round with {' or '.join(ends)}.")
    return said


def _divided(groups: Sequence[Interference]) -> list[str]:
    """Which division of the GPUs suits two groups that reduce at once."""
    if len(groups) < 2:
        return []
    order = sorted(groups, key=lambda g: g.together.value)
    worst = order[-1].together.value / order[0].together.value
    if worst < 1.05:
        return ["Two such groups that reduce at once take as long however the GPUs are divided."]
    names = " and ".join("+".join(group) for group in order[0].groups)
    return [
        f"For two such groups at once take {names}: divided otherwise, up to {units.ratio(worst)} as long."
    ]


def crossing(c: Crossover) -> str:
    """`From 36.0 KiB [30.1 KiB, 40 KiB] on, two-shot beats one-shot.`"""
    value, lo, hi = (units.size(round(x)) for x in (c.nbytes.value, c.nbytes.lo, c.nbytes.hi))
    return f"From {value}{'' if lo == hi else f' [{lo}, {hi}]'} on, {c.second} beats {c.first}."


def _us(e: Estimate) -> str:
    return f"{units.us(e.value)} {units.ends(e.lo, e.hi)}"
