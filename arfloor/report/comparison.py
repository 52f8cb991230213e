"""Two runs side by side, for a terminal and for programs (`arfloor compare A B`)."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from io import StringIO

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from arfloor.core import units
from arfloor.core.cases import DType, Estimate, Mode, Path, record
from arfloor.core.compare import ComparedCase, tally
from arfloor.core.ratios import Answer
from arfloor.core.reasons import explain
from arfloor.core.verdict import short_label
from arfloor.report import phrases
from arfloor.report.fitting import fitting, keep_whole
from arfloor.report.model import link_of
from arfloor.report.rows import triple
from arfloor.rundir import Run, adapter, blocks_done

_STYLE = {"faster": "bold green", "slower": "bold red", "same": "dim", "undecided": "magenta"}

# reasons in the few words that a table has room for
_SHORT = {
    "aa_spread": "one case repeated differs as much",
    "only_in_a": "only in A",
    "only_in_b": "only in B",
    "not_ok": "not correct in both",
    "no_interval": "no interval stated",
}
FEW = 12
"""Undecided cases that are shown where nothing else is to be."""


@record
class CompareRow:
    """One case of two runs. Latencies in microseconds with 95 % intervals; null where not measured.

    `ratio` = second / first: below 1 the second run is faster. `reason` and `caveat` are codes of
    `arfloor.core.reasons`; `answer` speaks of the second run.
    """

    world: int
    path: Path
    nbytes: int
    dtype: DType
    mode: Mode
    case: str
    a_us: float | None
    a_us_lo: float | None
    a_us_hi: float | None
    b_us: float | None
    b_us_lo: float | None
    b_us_hi: float | None
    ratio: float | None
    ratio_lo: float | None
    ratio_hi: float | None
    answer: Answer
    reason: str
    caveat: str | None


def row_of(compared: ComparedCase) -> CompareRow:
    """One compared case as a flat row."""
    a, b, ratio = triple(compared.a), triple(compared.b), triple(compared.ratio)
    return CompareRow(
        world=compared.case.world,
        path=compared.case.path,
        nbytes=compared.case.nbytes,
        dtype=compared.case.dtype,
        mode=compared.case.mode,
        case=compared.case.id,
        a_us=a[0],
        a_us_lo=a[1],
        a_us_hi=a[2],
        b_us=b[0],
        b_us_lo=b[1],
        b_us_hi=b[2],
        ratio=ratio[0],
        ratio_lo=ratio[1],
        ratio_hi=ratio[2],
        answer=compared.answer,
        reason=compared.reason,
        caveat=compared.caveat,
    )


def to_json(rows: tuple[ComparedCase, ...]) -> str:
    """The rows as a JSON list. Raises ValueError if a number is not finite."""
    return json.dumps([asdict(row_of(r)) for r in rows], indent=1, allow_nan=False) + "\n"


def json_schema() -> dict[str, object]:
    """The JSON Schema of `to_json`'s output (published as docs/schemas/compare.schema.json)."""
    return adapter(list[CompareRow]).json_schema(mode="serialization")


def to_text(
    a: Run,
    b: Run,
    rows: tuple[ComparedCase, ...],
    *,
    every: bool = False,
    width: int = 140,
    color: bool = False,
) -> str:
    """What differs between the runs, the cases that changed (or, with `every`, all), and the tally."""
    stream = StringIO()
    console = Console(
        file=stream, width=width, force_terminal=color, highlight=False, emoji=False, markup=False
    )
    console.print(Text(f"A: {_name(a)}\nB: {_name(b)}"))
    nothing = _incomparable(a, b, rows)
    if nothing and not every:
        console.print(Text(nothing))
        return stream.getvalue()
    for line in differences(a, b):
        console.print(Text(f"   {line}"))
    shown = list(rows) if every else _worth_showing(rows)
    if shown:
        kinds = ((True, True), (False, True), (False, False))
        console.print(fitting(console, [_table(shown, alike=alike, ends=ends) for alike, ends in kinds]))
    console.print(Text(f"\n{_summary(rows)}"))
    if not every and len(shown) < len(rows):
        console.print(Text(_not_shown([r for r in rows if r not in shown])))
    return "\n".join(line.rstrip() for line in stream.getvalue().splitlines()) + "\n"


def _incomparable(a: Run, b: Run, rows: tuple[ComparedCase, ...]) -> str:
    """Why nothing can be said of the two, in a line; empty where something can."""
    if a.results and a.results == b.results and a.samples == b.samples:
        return "A and B are the same run: nothing to compare."
    if rows and all(r.reason in ("only_in_a", "only_in_b") for r in rows):
        has, had = _kinds(a), _kinds(b)
        if has == had:
            has, had = _kinds(a, modes=True), _kinds(b, modes=True)
        both = f"both have {has}, but no case alike" if has == had else f"A has {has}; B has {had}"
        return f"Nothing in common: {both}. --all lists the cases."
    return ""


def _kinds(run: Run, *, modes: bool = False) -> str:
    """`cpu float32, 2 ranks`: what a run's cases are, without their sizes and implementations."""
    found = dict.fromkeys(
        f"{c.path} {c.dtype}{f' {c.mode}' if modes else ''}, {c.world} ranks"
        for c in (r.case for r in run.results)
    )
    more = f" and {len(found) - 3} more" if len(found) > 3 else ""
    return f"{'; '.join(list(found)[:3])}{more}" if found else "no case"


def _worth_showing(rows: tuple[ComparedCase, ...]) -> list[ComparedCase]:
    """What changed; where nothing surely did, the undecided ones that are furthest from equal."""
    changed = [r for r in rows if r.answer in ("faster", "slower")]
    if changed:
        return changed
    open_ones = [r for r in rows if r.answer == "undecided" and r.ratio]
    far = sorted(open_ones, key=lambda r: -abs(math.log(r.ratio.value)) if r.ratio else 0.0)[:FEW]
    return [r for r in rows if r in far]


def differences(a: Run, b: Run) -> list[str]:
    """Machine, versions and environment that are not the same in both: what else a ratio may be due to."""
    first, second = a.manifest, b.manifest
    pairs = [
        ("paths", _paths(a), _paths(b)),
        ("device", first.machine.device_name, second.machine.device_name),
        ("ranks", str(first.machine.world), str(second.machine.world)),
    ]
    unsaid = []
    for what, old, new in (
        ("versions", first.versions, second.versions),
        ("environment", first.env, second.env),
    ):
        if bool(old) != bool(new):  # an imported run, or one that was kept: nobody noted them
            unsaid.append(f"{what}: {'B' if old else 'A'} names none")
            continue
        pairs += [(k, old.get(k, "absent"), new.get(k, "absent")) for k in sorted({*old, *new})]
    return [f"{name}: {old} -> {new}" for name, old, new in pairs if old != new] + unsaid


def _name(run: Run) -> str:
    partial = phrases.partial(len(blocks_done(run)), run.planned)
    paths = _paths(run)
    name = f"{run.manifest.run_id}, {phrases.when(run.manifest)}, {phrases.box(run.manifest.machine)}"
    name += f", {paths}" if paths else ""
    return f"{name}, {partial}" if partial else name


def _paths(run: Run) -> str:
    """`peer/nvlink, host/pcie`: the paths that a run has cases of, with their links where those are known."""
    ways = sorted({r.case.path for r in run.results}, key=("peer", "host", "cpu").index)
    named = [(w, link_of((r for r in run.results if r.case.path == w), run.primitives, w)) for w in ways]
    return ", ".join(f"{way}/{link}" if link else way for way, link in named)


def _table(rows: list[ComparedCase], *, alike: bool, ends: bool) -> Table:
    """`alike`: also columns in which all rows say the same; `ends`: also the latencies' intervals."""
    told = {
        "path": [r.case.path for r in rows],
        "mode": [r.case.mode for r in rows],
        "dtype": [r.case.dtype for r in rows],
    }
    columns = {name: cells for name, cells in told.items() if alike or len(set(cells)) > 1}
    same = [cells[0] for name, cells in told.items() if name not in columns]
    caption = "B / A with its 95 % interval; the answer is taken on the 99 % one"
    if same:
        caption = f"all {', '.join(same)}; {caption}"
    if not ends:
        caption += "; the latencies' own intervals need a wider terminal (or COLUMNS=160)"
    table = Table(
        box=box.SIMPLE_HEAD, caption=caption, caption_justify="left", pad_edge=alike, padding=(0, int(alike))
    )
    for name in columns:
        table.add_column(name, no_wrap=True)
    table.add_column("size", justify="right", no_wrap=True)
    table.add_column("case", overflow="fold", min_width=12)
    for name in ("A us", "B us", "B / A"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("B is", overflow="fold", min_width=9)
    us = phrases.interval if ends else _value
    for at, r in enumerate(rows):
        table.add_row(
            *(cells[at] for cells in columns.values()),
            units.size(r.case.nbytes),
            short_label(r.case),
            us(r.a),
            us(r.b),
            f"{r.ratio.value:.3f} [{r.ratio.lo:.3f}, {r.ratio.hi:.3f}]" if r.ratio else "",
            Text(_said(r), style=_STYLE[r.answer]),
        )
    keep_whole(table)
    return table


def _said(r: ComparedCase) -> str:
    reason = _SHORT.get(r.reason, r.reason.replace("_", " "))
    if not r.ratio:
        return reason
    # that its interval meets the band is what undecided means
    usual = r.reason in (r.answer, "interval_meets_band")
    return r.answer if usual else f"{r.answer} ({reason})"


def _value(estimate: Estimate | None) -> str:
    return units.number(estimate.value) if estimate else ""


def _summary(rows: tuple[ComparedCase, ...]) -> str:
    counts = tally(rows)
    order = ("faster", "slower", "same", "undecided")
    told = [f"{counts[answer]} {answer}" for answer in order if counts.get(answer)]
    told += [f"{n} where {explain(reason)}" for reason, n in sorted(counts.items()) if reason not in order]
    unpaired = any(r.caveat == "unpaired" for r in rows)
    weak = " Different runs share no rounds, so nothing is paired: whatever else changed is in B / A."
    return f"B against A: {'; '.join(told) or 'no cases'}.{weak if unpaired else ''}"


def _not_shown(rows: list[ComparedCase]) -> str:
    """What the cases are that the table leaves out, so that nobody takes silence for sameness."""
    ratios = sorted(r.ratio.value for r in rows if r.ratio)
    if not ratios:
        return "Not shown: cases without a ratio; --all lists them."
    quarter = len(ratios) // 4
    middle = f", half of them {ratios[quarter]:.3f} to {ratios[-1 - quarter]:.3f}" if quarter else ""
    widths = sorted(r.ratio.hi / r.ratio.lo for r in rows if r.ratio and r.ratio.lo > 0)
    reach = units.percent(widths[len(widths) // 2] ** 0.5 - 1) if widths else "nothing"
    of = f" of {len(ratios)} of them" if len(ratios) < len(rows) else ""
    span = f"{ratios[0]:.3f} to {ratios[-1]:.3f}{middle}"
    return (
        f"Not shown: {len(rows)} cases; B / A{of} is {span}, and the intervals reach {reach} either way "
        "(median). --all lists them."
    )
