"""Why latencies miss the floor, what to do next, and where the best choice changes: one section, in words.

The pure parts are `arfloor.core.gap`, `nccl_picks` and `crossing`; here they are asked about what a
section holds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from arfloor.core import units
from arfloor.core.cases import Primitive, Result
from arfloor.core.choose import Crossover
from arfloor.core.crossing import measured_crossovers
from arfloor.core.gap import ChoiceCost, Gap, Lever, choice_cost, next_lever, why_gap
from arfloor.core.outlook import crossing
from arfloor.core.verdict import is_correct, is_noisy, ratio_span
from arfloor.report import phrases
from arfloor.report.model import HEADLINE_NBYTES, Row, Section
from arfloor.report.series import Series, series


@dataclass(frozen=True, slots=True, kw_only=True)
class Apart:
    """One result and its parts."""

    result: Result
    gap: Gap

    @property
    def label(self) -> str:
        return phrases.label(self.result.case)

    @property
    def notes(self) -> str:
        """What was assumed, and in words by how much the parts are more than the whole where they are."""
        return "; ".join(note for note in (self._claim, self.gap.assumed) if note)

    @property
    def _claim(self) -> str:
        over, rest = self.gap.claimed, self.gap.unexplained
        if over is not None:
            more = f"{units.us(over.value)} [{units.number(over.lo)}, {units.number(over.hi)}] more"
            return f"the parts claim {more} than was measured: a probe was slow, or something else ran"
        return "what is unexplained may be nothing" if rest.value < 0 else ""

    def us(self, name: str) -> str:
        """One part in us; empty where it has none. `unexplained` has its interval, or is none in words."""
        for t in self.gap.terms:
            if t.name == name:
                if name != "unexplained":
                    return units.number(t.us.value)
                if self.gap.claimed is not None:
                    return "none"
                return f"{units.number(t.us.value)} [{units.number(t.us.lo)}, {units.number(t.us.hi)}]"
        return ""


PARTS = ("launch", "hops", "wire", "additions", "protocol", "channels", "unexplained")


@dataclass(frozen=True, slots=True, kw_only=True)
class Why:
    """At the size nearest to the headline: parts of the default and of each backend's fastest, the lever.

    `choices`: what NCCL chose by size against the best of its own settings, where its log was read.
    `crossovers`: where the fastest of the named implementations changes.
    """

    row: Row
    default: Apart | None
    apart: tuple[Apart, ...]
    lever: Lever | None
    choices: tuple[ChoiceCost, ...]
    crossovers: tuple[Crossover, ...]

    @property
    def parts(self) -> tuple[str, ...]:
        """Names of the parts that any of the results has."""
        have = {t.name for a in self.apart for t in a.gap.terms}
        return tuple(p for p in PARTS if p in have)


def why(section: Section, primitives: Sequence[Primitive], drawn: Sequence[Series] | None = None) -> Why:
    """Everything about one section. `drawn`: its series, where they are fitted already."""
    row = section.nearest(HEADLINE_NBYTES)
    correct = [r for r in row.results if is_correct(r)]
    default = row.verdict.default if row.verdict.default in correct else None
    fastest: dict[str, Result] = {}
    for r in correct:  # by rising latency
        fastest.setdefault(r.case.backend, r)
    wanted = [r for r in (default, *fastest.values()) if r is not None]
    unique = list({r.case.id: r for r in wanted}.values())
    apart = [
        Apart(result=r, gap=gap)
        for r in unique
        if (gap := why_gap(r, primitives, siblings=correct)) is not None
    ]
    own = next((a for a in apart if a.result is default), None)
    lever = None
    if default is not None and row.verdict.status in ("switch", "gap"):
        best, ratio = row.verdict.best, row.verdict.headroom_now
        paired = {best.case.id: ratio} if best is not None and ratio is not None else {}
        gap = own.gap if own else None
        lever = next_lever(default, correct, gap, advice=phrases.how_to_get, paired=paired)
    if is_noisy(row.verdict):
        lever = _repeat(row)
    fits = {s.label: s.fit for s in (drawn if drawn is not None else series(section)) if s.fit is not None}
    return Why(
        row=row,
        default=own,
        apart=tuple(apart),
        lever=lever,
        choices=_choices(section),
        crossovers=measured_crossovers(fits),
    )


def _repeat(row: Row) -> Lever:
    """A gain that the machine was too busy to tell is no advice yet."""
    how = phrases.to_set(row.verdict)
    said = f"Measure again on a quieter machine or with more launches; then, if it is still faster: {how}."
    return Lever(kind="repeat", ratio=row.verdict.headroom_now, sentence=said)


def sum_of_parts(apart: Apart) -> str:
    """`41.6 us = 1.30 launch + 7.08 wire + ... + 10.4 unexplained`; says what had to be assumed."""
    ran = apart.result.ran
    what = {
        "protocol": ran.protocol if ran and ran.protocol else "",
        "channels": next((t.source for t in apart.gap.parts if t.name == "channels"), ""),
    }
    what["channels"] = what["channels"].replace(" channels", "")
    text = f"{units.us(apart.gap.measured.value)} ="
    for number, t in enumerate(t for t in apart.gap.terms if abs(t.us.value) >= 0.0005):
        sign = "-" if t.us.value < 0 else "+" if number else ""
        note = f" ({what[t.name]})" if what.get(t.name) else ""
        text += f"{' ' + sign if sign else ''} {units.number(abs(t.us.value))} {t.name}{note}"
    return f"{text} ({apart.gap.assumed})" if apart.gap.assumed else text


def _choices(section: Section) -> tuple[ChoiceCost, ...]:
    found = []
    for row in section.rows:
        default = row.verdict.default
        if default is not None and is_correct(default) and default.ran and default.ran.algorithm:
            cost = choice_cost(default, [r for r in row.results if is_correct(r)])
            found += [cost] if cost else []
    return tuple(found)


def _without_channels(chosen: str) -> str:
    return chosen.rpartition(" ")[0] if chosen.endswith("ch") else chosen


def _chosen(made: Sequence[str]) -> str:
    """`RING/LL 4ch`, or `RING/LL 1 to 24ch` where the channels vary with the size."""
    counts = sorted({int(c.rpartition(" ")[2].removesuffix("ch")) for c in made if c.endswith("ch")})
    if len(counts) < 2:
        return made[0]
    return f"{_without_channels(made[0])} {counts[0]} to {counts[-1]}ch"


def choices_line(choices: Sequence[ChoiceCost]) -> str:
    """`NCCL's own choice: RING/LL 1 to 4ch at 8 KiB to 256 KiB; surely faster: its ...`.

    For each choice of algorithm and protocol the size at which another setting of its own gains most,
    where one surely does.
    """
    if not choices:
        return ""
    made, beaten = [], []
    for _, members in groupby(choices, key=lambda c: _without_channels(c.chosen)):
        run = list(members)
        made.append(f"{_chosen([c.chosen for c in run])} at {units.size(run[0].nbytes)}")
        made[-1] += f" to {units.size(run[-1].nbytes)}" if len(run) > 1 else ""
        surely = [c for c in run if c.ratio.lo > 1.02]
        if surely:
            worst = max(surely, key=lambda c: c.ratio.value)
            expects = f" and it expects {units.us(worst.expected_us)}" if worst.expected_us else ""
            took = f", where its choice takes {units.us(worst.chosen_us)}{expects}"
            gain = f"{ratio_span(worst.ratio)} at {units.size(worst.nbytes)}{took}"
            beaten.append(f"its {worst.best}, {gain}")
    rest = f"surely faster: {'; '.join(beaten)}" if beaten else "no other setting of its own is surely faster"
    return f"NCCL's own choice: {', '.join(made)}; {rest}"


def crossing_lines(found: Sequence[Crossover]) -> list[str]:
    """A sentence a crossover."""
    return [crossing(c) for c in found]
