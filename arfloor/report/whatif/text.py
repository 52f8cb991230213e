"""The answer for a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from arfloor.core import units
from arfloor.core.cases import Estimate
from arfloor.core.whatif.partition import Partition
from arfloor.core.whatif.scenario import Scenario, Stage
from arfloor.report.whatif.assumed import assumptions, on_top
from arfloor.report.whatif.layout import NARROWEST, table, wrap
from arfloor.report.whatif.next_steps import contradiction, find_out, to_get
from arfloor.report.whatif.question import Counter, Whatif

_INDENT = "  "
_SWITCHES = 6  # that could be asked about, before the text only counts them


def render(answer: Whatif, *, width: int = 120) -> str:
    """All of it, at most `width` columns (80, where `width` is less); no table narrows below its figures."""
    inner = max(width, NARROWEST) - len(_INDENT)
    blocks = [
        _heading(answer, inner),
        _partition(answer.analysis.partition, inner),
        _everywhere(answer, inner),
        [line for counter in answer.counters for line in _counter(counter, inner)],
        _changes(answer, inner),
        _verdict(answer, inner),
        _assumptions(answer, inner),
    ]
    return "\n\n".join("\n".join(_INDENT + line for line in block) for block in blocks if block) + "\n"


def _heading(answer: Whatif, width: int) -> list[str]:
    a, s = answer.analysis, answer.situation
    step_ms, tok_s = units.ms(a.token_us.estimate.value), units.number(a.tok_s.estimate.value)
    lines = [f"{s.shape.name}  TP{s.tp}  concurrency {a.sequences}  {step_ms} ms a step  {tok_s} tok/s"]
    where = f"A(S): {s.curve.backend} of {answer.latencies.label}; it is what a reduce of S bytes takes alone"
    lines += wrap(where, width)
    for caveat in on_top(answer):
        lines += wrap(f"{caveat}.", width, first="But: ")
    return lines


def _partition(parts: Partition, width: int) -> list[str]:
    share = sum(p.share.estimate.value for p in parts.reduce_parts)
    kind = "profiled" if parts.profiled else "by itself (no share given)"
    rows = [(f"all-reduce, {units.percent(share)} {kind}", "ms a step", "share", "known from")]
    for part in parts.parts:
        indent = "" if part is parts.parts[-1] else "  "
        share_of = units.percent(part.share.estimate.value)
        rows.append((indent + part.name, _span_ms(part.us.estimate), share_of, part.known_from))
    return table(rows, "<>><", width)


def _everywhere(answer: Whatif, width: int) -> list[str]:
    lines: list[str] = []
    if len(answer.everywhere) > 1:
        profiled = any(parts.profiled for parts in answer.everywhere)
        head = ("concurrency", "tok/s", "message", "alone, us", "all of them", "profiled, us", "all of them")
        rows = [head, *(_one_concurrency(answer, parts) for parts in answer.everywhere)]
        columns = len(head) if profiled else len(head) - 2
        lines = table([row[:columns] for row in rows], ">" * columns, width)
        legend = (
            f"alone: a reduce by itself, A(S); all of them: the {answer.situation.shape.reduces} of a step, "
            "as a share of it"
        )
        legend += "; profiled: a reduce in the server, with all that it waits" if profiled else ""
        lines += wrap(legend, width)
    return lines + [line for reason in answer.skipped for line in wrap(f"left out: {reason}", width)]


def _one_concurrency(answer: Whatif, parts: Partition) -> tuple[str, ...]:
    shape = answer.situation.shape
    nbytes = shape.message_nbytes(parts.sequences)
    alone = answer.situation.curve.latency(nbytes).estimate.value
    step_us = parts.step_us.estimate.value
    in_step = sum(p.us.estimate.value for p in parts.reduce_parts)
    seen = (units.number(in_step / shape.reduces), units.percent(in_step / step_us))
    return (
        str(parts.sequences),
        units.number(parts.sequences / step_us * 1e6),
        units.size(nbytes),
        units.number(alone),
        units.percent(shape.reduces * alone / step_us),
        *(seen if parts.profiled else ("", "")),
    )


def _counter(counter: Counter, width: int) -> list[str]:
    ratio = counter.read_gbps / counter.reduces_gbps
    read, reduces = (units.number(x * 1e3) for x in (counter.read_gbps, counter.reduces_gbps))
    return [
        *wrap(
            f"PCIe counter at concurrency {counter.concurrency}: {read} MB/s read; "
            f"the reduces cause {reduces} MB/s a direction and GPU (ring): {ratio:.2g}x",
            width,
        ),
        *wrap("a nearly idle link says nothing about the share: latency, not bandwidth, is spent", width),
    ]


def _changes(answer: Whatif, width: int) -> list[str]:
    stages = [
        (("+ " if i else "") + stage.label, stage)
        for scenario in (*answer.analysis.scenarios, answer.analysis.free)
        for i, stage in enumerate(scenario.stages)
    ]
    head = ("what would change", "tok/s", "gain [95 %]", "reduces", "KiB", "loses when")
    rows = [head, *(_stage(label, stage) for label, stage in stages)]
    lines = table(rows, "<>>>><", width)
    if max(map(len, lines)) > width:  # counts go beneath, beside when it loses
        folded = [(*r[:3], f"{r[3]} reduces, {r[4]} KiB; loses when: {r[5]}") for r in rows[1:]]
        lines = table([(*head[:3], "reduces, KiB; loses when"), *folded], "<>><", width)
    legend = (
        "reduces: of a step, over the tokens that one sequence gets out of it; KiB: messages of a step, over "
        "the tokens of all sequences"
    )
    told = " ".join((answer.analysis.verdict.sentence, *answer.analysis.verdict.also, *lines))
    explained = "C(b): what a step of b tokens takes without its reduces"
    return [*lines, *wrap(legend, width), *([explained] if "C(" in told else [])]


def _stage(label: str, stage: Stage) -> tuple[str, ...]:
    return (
        _short(label),
        units.number(stage.tok_s.estimate.value),
        units.gain(stage.gain.estimate),
        units.count(stage.reduces_per_token),
        units.count(stage.nbytes_per_token / 1024),
        stage.loses_when,
    )


def _short(label: str, most: int = 44) -> str:
    """A label with many settings, cut for the table; JSON has all of it."""
    return label if len(label) <= most else label[: most - 3] + "..."


def _verdict(answer: Whatif, width: int) -> list[str]:
    verdict = answer.analysis.verdict
    lines = wrap(f"Verdict: {verdict.sentence}.", width)
    lines += _bullets((f"{more}." for more in verdict.also), width)
    for line in (*to_get(answer), _could_ask(answer), contradiction(answer)):
        lines += wrap(line, width)
    steps = find_out(answer)
    if steps:
        lines.append("How to find out, the cheapest first:")
        for number, step in enumerate(steps, start=1):
            lines += wrap(f"{step}.", width, first=f"{number}. ")
    return lines + wrap(_widest(answer.analysis.scenarios), width)


def _could_ask(answer: Whatif) -> str:
    if answer.given:
        return ""
    switches = [c for c in answer.could_ask if c.startswith("switch:")]
    others = [c for c in answer.could_ask if not c.startswith("switch:")]
    more = [f"{len(switches) - _SWITCHES} more that --format json names"] if len(switches) > _SWITCHES else []
    told = ", ".join((*switches[:_SWITCHES], *more, *others))
    return f"No change was given; --apply takes {told}."


def _widest(scenarios: Sequence[Scenario]) -> str:
    budgets = [(s, s.gain.budget[0]) for s in scenarios if s.gain.budget]
    if not budgets:
        return ""
    scenario, first = max(budgets, key=lambda pair: pair[1].width)
    return (
        f"Widest interval: {scenario.label}, mostly from {first.input.name} ({first.input.origin}), which "
        f"alone moves it by {first.down * 100:+.1f} to {first.up * 100:+.1f} % of today's tok/s."
    )


def _assumptions(answer: Whatif, width: int) -> list[str]:
    told = assumptions(answer)
    return ["Assumed, not measured, the weightiest first:", *_bullets(told, width)] if told else []


def _bullets(texts: Iterable[str], width: int) -> list[str]:
    return [line for text in texts for line in wrap(text, width, first="- ")]


def _span_ms(e: Estimate) -> str:
    value, lo, hi = (units.ms(x) for x in (e.value, e.lo, e.hi))
    return value if lo == hi else f"{value} [{lo}, {hi}]"
