"""The answer for a terminal."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable

from arfloor.core import units
from arfloor.core.cases import Estimate
from arfloor.core.decode import ModelShape
from arfloor.core.whatif.partition import UNEXPLAINED, Partition
from arfloor.core.whatif.scenario import Scenario, Stage
from arfloor.core.whatif.uncertainty import Input
from arfloor.report.whatif.question import Counter, Whatif

_INDENT = "  "


def render(answer: Whatif) -> str:
    """All of it, at most about 120 columns."""
    blocks = [
        [_heading(answer)],
        _partition(answer.analysis.partition),
        _everywhere(answer),
        [line for counter in answer.counters for line in _counter(counter)],
        _changes(answer),
        _verdict(answer),
        _assumptions(answer),
    ]
    return "\n\n".join("\n".join(_INDENT + line for line in block) for block in blocks if block) + "\n"


def _heading(answer: Whatif) -> str:
    a, s = answer.analysis, answer.situation
    step_ms = a.token_us.estimate.value / 1e3
    left = f"{s.shape.name}  TP{s.tp}  concurrency {a.sequences}  {units.number(step_ms)} ms a step"
    return (
        f"{left}  {a.tok_s.estimate.value:g} tok/s      A(S): {s.curve.backend} of {answer.latencies.label}"
    )


def _partition(parts: Partition) -> list[str]:
    share = sum(p.share.estimate.value for p in parts.reduce_parts)
    kind = "profiled" if parts.profiled else "at standalone latency (no share profiled)"
    rows = [(f"all-reduce, {units.percent(share)} {kind}", "ms a step", "share", "known from")]
    for part in parts.parts:
        indent = "" if part is parts.parts[-1] else "  "
        rows.append(
            (
                indent + part.name,
                _span(part.us.estimate, 1e-3),
                units.percent(part.share.estimate.value),
                part.known_from,
            )
        )
    return _table(rows, align="<>><")


def _everywhere(answer: Whatif) -> list[str]:
    rows = [("concurrency", "tok/s", "message", "us a reduce", "explained by transport", "of the step")]
    for parts in answer.everywhere:
        rows.append(_one_concurrency(answer, parts))
    lines = _table(rows, align=">>>>>>") if len(answer.everywhere) > 1 else []
    return lines + [f"left out: {reason}" for reason in answer.skipped]


def _one_concurrency(answer: Whatif, parts: Partition) -> tuple[str, ...]:
    shape = answer.situation.shape
    nbytes = shape.message_nbytes(parts.sequences)
    standalone = answer.situation.curve.latency(nbytes).estimate
    step_us = parts.step_us.estimate.value
    explained = shape.reduces * standalone.value
    in_situ = sum(p.us.estimate.value for p in parts.reduce_parts) / shape.reduces
    return (
        str(parts.sequences),
        f"{parts.sequences / step_us * 1e6:.4g}",
        units.size(nbytes),
        units.number(in_situ) + ("" if parts.profiled else " (standalone)"),
        f"{units.number(explained / 1e3)} ms",
        units.percent(explained / step_us),
    )


def _counter(counter: Counter) -> list[str]:
    ratio = counter.read_gbps / counter.reduces_gbps
    return [
        f"PCIe counter at concurrency {counter.concurrency}: {counter.read_gbps * 1e3:.4g} MB/s read; "
        f"the reduces cause {counter.reduces_gbps * 1e3:.4g} MB/s a direction and GPU (ring): {ratio:.2g}x",
        "a nearly idle link says nothing about the share: latency, not bandwidth, is spent",
    ]


def _changes(answer: Whatif) -> list[str]:
    rows = [("what would change", "tok/s", "gain [95 %]", "reduces/token", "KiB/token", "loses when")]
    for scenario in (*answer.analysis.scenarios, answer.analysis.free):
        for i, stage in enumerate(scenario.stages):
            rows.append(_stage(stage, plus=i > 0))
    lines = _table(rows, align="<>>>><")
    told = answer.analysis.verdict.sentence + "".join(lines)
    return lines + (["C(b): what a step of b tokens takes without its reduces"] if "C(" in told else [])


def _stage(stage: Stage, *, plus: bool) -> tuple[str, ...]:
    return (
        _short(("+ " if plus else "") + stage.label),
        units.number(stage.tok_s.estimate.value),
        units.gain(stage.gain.estimate),
        f"{stage.reduces_per_token:.4g}",
        f"{stage.nbytes_per_token / 1024:.4g}",
        stage.loses_when,
    )


def _short(label: str, most: int = 46) -> str:
    """A label with many settings, cut for the table; JSON has all of it."""
    return label if len(label) <= most else label[: most - 3] + "..."


def _verdict(answer: Whatif) -> list[str]:
    verdict = answer.analysis.verdict
    lines = textwrap.wrap(f"Verdict: {verdict.sentence}.", 112)
    for more in verdict.also:
        lines += textwrap.wrap(f"- {more}.", 112, subsequent_indent="  ")
    first = find_out_first(answer.analysis.partition)
    lines += textwrap.wrap(first, 112) if first else []
    widest = _widest(answer.analysis.scenarios)
    return lines + (textwrap.wrap(widest, 112) if widest else [])


def find_out_first(parts: Partition) -> str:
    """Says so where most of the profiled time is unexplained, or less was profiled than can be."""
    profiled = sum(p.share.estimate.value for p in parts.reduce_parts)
    unexplained = next((p for p in parts.parts if p.name == UNEXPLAINED), None)
    if unexplained is not None and unexplained.share.estimate.hi < 0:
        less = units.percent(-unexplained.share.estimate.value)
        return (
            f"Find out first: the profile shows {less} of the step less "
            "than these reduces take when they run alone, so one of the two is not about this server: check "
            "the load that was profiled, the box that the latencies are of, and the implementation in use."
        )
    if unexplained is None or unexplained.share.estimate.value < profiled / 2:
        return ""
    return (
        f"Find out first: {units.percent(unexplained.share.estimate.value)} of the step, more than half of "
        "what was profiled, is not explained by transport. Traces of all ranks on aligned clocks tell "
        f"whether it is waiting; give what they show as --waiting US@{parts.sequences}."
    )


def _widest(scenarios: Iterable[Scenario]) -> str:
    budgets = [(s, s.gain.budget[0]) for s in scenarios if s.gain.budget]
    if not budgets:
        return ""
    scenario, first = max(budgets, key=lambda pair: pair[1].width)
    return (
        f"Widest interval: {scenario.label}, mostly from {first.input.name} ({first.input.origin}): "
        f"{first.down * 100:+.1f} to {first.up * 100:+.1f} points."
    )


def _assumptions(answer: Whatif) -> list[str]:
    lines = ["Assumed, not measured:"]
    seen: dict[str, None] = {}
    for item in answer.analysis.inputs:
        if item.origin == "assumed":
            seen.setdefault(_assumed(item))
    for scenario in (*answer.analysis.scenarios, answer.analysis.free):
        for stage in scenario.stages:
            for text in stage.assumptions:
                seen.setdefault(f"{stage.label}: {text}")
    for text in _of_model(answer.situation.shape):
        seen.setdefault(text)
    for caveat in answer.latencies.caveats:
        seen.setdefault(f"latencies: {caveat}")
    for text in seen:
        lines += textwrap.wrap(text, 112, initial_indent="- ", subsequent_indent="  ")
    return lines if seen else []


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


def _assumed(item: Input) -> str:
    e = item.estimate
    interval = f"{units.number(e.value)} [{units.number(e.lo)}, {units.number(e.hi)}]"
    return f"{item.name}: {interval} {e.unit}; {item.source}"


def _span(e: Estimate, scale: float) -> str:
    value, lo, hi = (units.number(x * scale) for x in (e.value, e.lo, e.hi))
    return value if lo == hi else f"{value} [{lo}, {hi}]"


def _table(rows: list[tuple[str, ...]], align: str) -> list[str]:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = []
    for row in rows:
        cells = [
            cell.rjust(width) if side == ">" else cell.ljust(width)
            for cell, width, side in zip(row, widths, align, strict=True)
        ]
        lines.append("   ".join(cells).rstrip())
    return lines
