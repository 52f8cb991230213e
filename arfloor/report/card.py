"""The Markdown card: at most 30 lines that one pastes into an issue or a forum."""

from __future__ import annotations

import re
from collections.abc import Sequence

from arfloor.core import units
from arfloor.core.cases import Primitive, Result, Verdict
from arfloor.core.verdict import DEFAULT_BACKEND, caveats, doubt, is_correct, is_noisy, ratio_span
from arfloor.report import libraries, phrases
from arfloor.report import why as whys
from arfloor.report.model import (
    HEADLINE_NBYTES,
    Report,
    Row,
    Section,
    attainable,
    size_span,
    slow_probes,
    status_spans,
)

MAX_LINES = 30

_SIZES = (8_192, 65_536, 262_144, 1_048_576)


def render(report: Report, worth: str = "") -> str:
    """The card as Markdown, at most `MAX_LINES` lines. Prints nothing that was not measured.

    `worth`: a line on what it is worth (`arfloor.report.worth`).
    """
    shown = report.headline()[:2]
    partial = f" ({report.partial})" if report.partial else ""
    lines = [f"### arfloor: all-reduce floor of {report.box}{partial}", ""]
    if not shown:
        lines += ["**Nothing was measured and correct; no verdict.**", ""]
    for section in shown:
        lines += _section(section, report.primitives, report.caveats, alone=len(shown) == 1)
    lines += [*([worth] if worth else []), *_broken(report)]
    lines.append(f"<sub>{_footnote(report, shown)}</sub>")
    return "\n".join(lines) + "\n"


def _section(
    section: Section, primitives: Sequence[Primitive], told: Sequence[str], *, alone: bool
) -> list[str]:
    found = whys.why(section, primitives)
    row = found.row
    sizes = _SIZES if alone else _SIZES[1:]
    rows = sorted({section.nearest(s).nbytes: section.nearest(s) for s in sizes}.items())
    spans = status_spans(section)
    everywhere = "; ".join(f"{status.replace('_', ' ')} {size_span(found)}" for status, found in spans)
    return [
        f"**{section.title}. {_three_numbers(row.verdict)}**",
        f"{_answer(row.verdict)}{f' By size: {everywhere}.' if len(spans) > 1 else ''}",
        "",
        *_table(section, [r for _, r in rows]),
        *_paragraph(
            [
                *_advice(section, found),
                *([f"But: {'; '.join(told)}."] if told else []),
                *_slow_probes([r for _, r in rows]),
                *_floor(row),
                *_why(found),
                *_libraries(section, row),
            ],
            alone,
        ),
        "",
    ]


def _libraries(section: Section, row: Row) -> list[str]:
    """All libraries at the headline's size, where more than a few were measured; else what a mark means."""
    if libraries.rows_of(section):
        return [libraries.line(row)]
    marked = any(libraries.differs(r.verdict.best) for r in section.rows)
    return [f"{libraries.NOTE}."] if marked else []


def _slow_probes(rows: Sequence[Row]) -> list[str]:
    """What the marked figures of the table are."""
    said = slow_probes(rows)
    return [f"\\{said}."] if said else []


def _paragraph(lines: list[str], alone: bool) -> list[str]:
    """A line each where there is room, else all in one."""
    return ["", *(lines if alone else [" ".join(lines)])] if lines else []


def _why(found: whys.Why) -> list[str]:
    """What the default spends its time on: only where it is known what ran, and the parts add up to less
    than was measured. A card is pasted without the caveats that the full report has room for."""
    apart = found.default
    if apart is None or apart.gap.assumed or apart.gap.unexplained.value < 0:
        return []
    return [f"The default's {whys.sum_of_parts(apart)}."]


def _answer(v: Verdict) -> str:
    """The verdict in a line, with the ratios that decided."""
    now, left = v.headroom_now, v.headroom_left
    rest = f"{units.ratio(left.value)} the attainable" if left else ""
    notes = " ".join(["", *caveats(v)])
    # figures that others published were not measured on the reader's box
    switch = "Measure, then switch" if v.best and v.best.origin == "published" else "Switch now"
    if is_noisy(v) and now:
        return (
            f"**The machine was busy: measure again.** {phrases.which(v.best)} beats the default, by "
            f"{ratio_span(now)}.{notes}"
        )
    if v.status == "switch" and now and v.default and v.default.latency and v.attainable:
        far = units.ratio(v.default.latency.value / v.attainable.value)
        return (
            f"**{switch}:** {ratio_span(now)} is on the table; {rest} remains after it. "
            f"The default is {far} the attainable.{notes}"
        )
    if v.status == "switch" and now:
        return f"**{switch}:** {ratio_span(now)} is on the table; no floor is known.{notes}"
    if v.status == "at_floor":
        return f"**Accept the floor:** {phrases.which(v.best)} is {rest}; little more is to be had.{notes}"
    if v.status == "gap":
        return f"**A gap remains:** nothing measured beats the default, and it is {rest}.{notes}"
    if v.status == "undecided" and v.reason != "interval_meets_floor":
        return f"**Undecided:** the best is {doubt(v)}; measure more launches.{notes}"
    heading = "no floor is known" if v.reason == "no_floor" else v.status.replace("_", " ")
    return f"**{heading.capitalize()}.** {v.sentence}"


def _advice(section: Section, found: whys.Why) -> list[str]:
    """What to set at the headline size, or at the sizes where something beats the default."""
    row = found.row
    if is_noisy(row.verdict):
        return [found.lever.sentence] if found.lever else []
    if row.verdict.status == "switch":
        gains = phrases.options(row.verdict, row.results)
        if found.lever and found.lever.kind == "setting" and len(gains) > 1:
            how, gain = gains[-1]
            if how in found.lever.sentence:
                return [found.lever.sentence]
            return [f"{found.lever.sentence} Best: {how} ({units.ratio(gain)})."]
        verb = "Set" if gains and re.match(r"`\w+=", gains[0][0]) else "Use"
        return [f"{verb} {', or '.join(f'{how}: {units.ratio(gain)}' for how, gain in gains)}."]
    if found.lever:
        return [found.lever.sentence]
    better = [r for r in section.rows if r.verdict.status == "switch"]
    if not better:
        return []
    most = max(better, key=_now)
    how = phrases.to_set(most.verdict)
    sizes = size_span([r.nbytes for r in better])
    return [f"At {sizes}: {how} (up to {units.ratio(_now(most))}, at {units.size(most.nbytes)})."]


def _now(row: Row) -> float:
    return row.verdict.headroom_now.value if row.verdict.headroom_now else 0.0


def _floor(row: Row) -> list[str]:
    if row.floor is None or row.floor.slow_probe:
        return []
    parts = " + ".join(
        f"{units.number(t.us.value)} {t.name}" for t in row.floor.terms.attainable if t.us.value
    )
    return [
        f"The attainable {units.us(row.floor.attainable.value)} ({row.floor.algorithm}): {parts}, "
        f"{'as probed' if row.floor.origin == 'measured' else row.floor.origin}."
    ]


def _three_numbers(v: Verdict) -> str:
    """Default, best and floor at the headline size, leaving out what was not measured."""
    parts = []
    if v.default and v.default.latency:
        parts.append(f"the default takes {units.us(v.default.latency.value)}")
    if v.best and v.best.latency and v.best is not v.default:
        parts.append(f"the best measured {units.us(v.best.latency.value)}")
    if v.best and v.best is v.default:
        parts[-1] += " and is the best measured"
    if v.attainable and v.bound:
        parts.append(
            f"the wires need {units.us(v.attainable.value)} (no software below {units.us(v.bound.value)})"
        )
    return f"At {units.size(v.nbytes)}{_batch(v)} {', '.join(parts)}."


def _batch(v: Verdict) -> str:
    """The decode batch that makes this message at hidden 4096, where it is a whole one."""
    per_token = 4096 * 2
    if v.dtype == "float32" or v.nbytes % per_token:
        return ""
    return f" (batch {v.nbytes // per_token} x 4096 x {v.dtype})"


def _table(section: Section, rows: list[Row]) -> list[str]:
    library = DEFAULT_BACKEND[section.path]
    tuned = [_library_best(row, library) for row in rows]
    with_tuned = any(t is not None for t in tuned)
    with_floor = any(row.verdict.attainable for row in rows)
    default = section.nearest(HEADLINE_NBYTES).verdict.default
    ran = phrases.ran(default.ran) if default else ""
    header = ["size", f"default ({library}{': ' + ran if ran else ''})"]
    header += [f"{library} best"] if with_tuned else []
    header += ["best"] + (["attainable", "bound"] if with_floor else [])
    header += ["now"] + (["left"] if with_floor else [])
    lines = [f"| {' | '.join(header)} |", "|" + "---:|" * len(header)]
    for row, library_best in zip(rows, tuned, strict=True):
        v = row.verdict
        cells = [units.size(v.nbytes), _cell(v.default)]
        cells += [_named(library_best)] if with_tuned else []
        cells += [_named(v.best, bold=True)]
        if with_floor:
            cells += [attainable(row).replace("*", "\\*")]
            cells += [_number(v.bound.value if v.bound else None)]
        cells += [phrases.now(v)]
        if with_floor:
            cells += [phrases.left(v)]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def _library_best(row: Row, library: str) -> Result | None:
    """The fastest setting of the default's own library, when there is one besides the default."""
    own = [r for r in row.results if r.case.backend == library and is_correct(r)]
    return own[0] if len(own) > 1 else None


def _cell(result: Result | None) -> str:
    return f"{units.us(result.latency.value)}" if result and result.latency else ""


def _number(value: float | None) -> str:
    return "" if value is None else units.number(value)


def _named(result: Result | None, *, bold: bool = False) -> str:
    if result is None or result.latency is None:
        return ""
    value = units.number(result.latency.value)
    return f"{f'**{value}**' if bold else value} {libraries.marked(result)}"


def _broken(report: Report) -> list[str]:
    """One line for checks, one for what failed."""
    checks = [r for s in report.sections for row in s.rows for r in row.results if r.check and is_correct(r)]
    lines = []
    if checks:
        equal = sum(1 for r in checks if r.check and r.check.bitwise_equal)
        exact = "all ranks bit-equal" if equal == len(checks) else f"ranks bit-equal in {equal}"
        lines.append(f"Checks: {len(checks)} cases correct, {exact}.")
    if report.broken:
        named = "; ".join(
            f"{f.label} at {size_span(f.sizes)}: {f.status}, {f.explanation}" for f in report.broken[:3]
        )
        more = f"; {len(report.broken) - 3} more" if len(report.broken) > 3 else ""
        lines.append(f"Failed: {named}{more}.")
    return [*lines, ""] if lines else []


def _footnote(report: Report, shown: tuple[Section, ...]) -> str:
    manifest = report.manifest
    modes = sorted({s.mode for s in shown})
    how = {
        "graph": "graph slopes, max over ranks",
        "eager": "eager, host clock after a barrier, max over ranks",
        "isolated": "isolated ops on device timestamps",
    }
    others = [s.title for s in report.sections if s not in shown]
    parts = [
        phrases.versions(manifest),
        "; ".join(how[m] for m in modes),
        f"{manifest.launches} launch{'es' if manifest.launches != 1 else ''}"
        if report.origin == "measured"
        else phrases.occasion(manifest),
        f"also measured: {'; '.join(others[:3])}{' ...' if len(others) > 3 else ''}" if others else "",
        f"run {manifest.run_id}",
    ]
    return ", ".join(part for part in parts if part)
