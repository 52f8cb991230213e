"""What an answer takes for granted, the weightiest first."""

from __future__ import annotations

from arfloor.core import units
from arfloor.core.decode import ModelShape
from arfloor.core.whatif.uncertainty import Input
from arfloor.report.whatif.question import Whatif

ON_TOP = 2
"""Caveats that stand at the top of an answer from others' or predicted latencies; the rest end the list."""


def on_top(answer: Whatif) -> tuple[str, ...]:
    """The weightiest caveats of latencies that were not measured here; none of a run's own."""
    return () if answer.latencies.origin == "measured" else answer.latencies.caveats[:ON_TOP]


def assumptions(answer: Whatif) -> list[str]:
    """A sentence each: numbers by how far they move an answer, then changes, the model, the latencies."""
    moved = _moved(answer)
    numbers = {i.name: i for i in answer.analysis.inputs if i.origin == "assumed"}
    heavy = sorted(numbers.values(), key=lambda i: -moved.get(i.name, (0.0, ""))[0])
    told = [_number(i) + moved.get(i.name, (0.0, ""))[1] for i in heavy]
    stages = [stage for s in answer.analysis.scenarios for stage in s.stages]
    for stage in (*stages, *answer.analysis.free.stages):
        if stage.assumptions:
            told.append(f"{stage.label}: {'; '.join(stage.assumptions)}")
    told += _of_model(answer.situation.shape)
    told += [f"latencies: {c}" for c in answer.latencies.caveats[len(on_top(answer)) :]]
    return list(dict.fromkeys(told))


def _moved(answer: Whatif) -> dict[str, tuple[float, str]]:
    """By an input's name: how far it alone moves a gain, and that in words, of the change it moves most."""
    found: dict[str, tuple[float, str]] = {}
    for scenario in (*answer.analysis.scenarios, answer.analysis.free):
        for c in scenario.gain.budget:
            if c.width > found.get(c.input.name, (0.0, ""))[0]:
                ends = f"{c.down * 100:+.1f} to {c.up * 100:+.1f} %"
                found[c.input.name] = (c.width, f" (alone moves {scenario.label} by {ends} of today's tok/s)")
    return found


def _number(item: Input) -> str:
    e = item.estimate
    interval = f"{units.number(e.value)} [{units.number(e.lo)}, {units.number(e.hi)}]"
    return f"{item.name}: {interval} {e.unit}; {item.source}"


_FIGURES = {
    "hidden": "hidden size",
    "mtp_layers": "draft (MTP) layers",
    "residual": "residual stream",
    "reduces_per_layer": "reduces a layer",
    "other_reduces": "reduces a step outside the layers",
    "separate_shared_reduces": "reduces of the shared experts apart",
    "activation_bytes": "bytes of an element",
}
"""Words for the figures of a model's shape; the others read as they are named."""


def _of_model(shape: ModelShape) -> list[str]:
    """The figures of a model that nobody published, with their values and why they are these."""
    why = dict(shape.sources)
    told = []
    for figure in shape.assumed:
        name = _FIGURES.get(figure, figure.replace("_", " "))
        because = f"; {why[figure]}" if figure in why else ""
        told.append(f"{shape.name}: {name}: {getattr(shape, figure)}{because}")
    return told
