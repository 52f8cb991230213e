"""Two runs side by side: which case became faster, which slower, and which of that is chance.

compare(before, after) works on anything with `results` and `samples` (a loaded run directory). The runs
were made at different times, so nothing is paired: whatever else changed between them is in the ratio.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Protocol

from arfloor.core.cases import Case, Estimate, Result, Samples, record
from arfloor.core.launches import Launches, Spread, stated, summarise
from arfloor.core.ratios import BAND, Answer, Comparison, aa_spread, unpaired_ratio
from arfloor.core.spread import spreads
from arfloor.core.verdict import group_key, group_order, is_correct


class Recorded(Protocol):
    """What is needed of a run: one result a case, and the samples behind them where there are any."""

    @property
    def results(self) -> Sequence[Result]: ...
    @property
    def samples(self) -> Sequence[Samples]: ...


@record
class ComparedCase:
    """One case in two runs.

    `ratio`: latency in the second run over that in the first, `answer` about the second (`faster`: its
    latency fell), `reason` a code of `arfloor.core.reasons`, `caveat` the code of what weakens the
    answer. `band`: half-width of the band of equality, widened to the A/A spread that either run shows in
    its cases of the same size.
    """

    case: Case
    a: Estimate | None
    b: Estimate | None
    ratio: Estimate | None
    answer: Answer
    reason: str
    band: float
    caveat: str | None = None


def compare(a: Recorded, b: Recorded, *, band: float = BAND) -> tuple[ComparedCase, ...]:
    """One row per case of either run, by path, world, mode, dtype and size.

    A case is the same when every field of it is (its id). The answer is taken on the 99 % interval of the
    unpaired ratio, each run's cases telling how much its launches differ; where a run has no samples (a
    published one), the interval of its latency stands, and a latency without interval decides nothing.
    """
    first, second = _Run(a), _Run(b)
    ids = {**first.results, **second.results}
    rows = [_row(first, second, case_id, band) for case_id in ids]
    return tuple(sorted(rows, key=lambda r: (*group_order(r.case), r.case.id)))


class _Run:
    def __init__(self, run: Recorded) -> None:
        self.results = {r.case.id: r for r in run.results}
        by_case: dict[str, list[Samples]] = defaultdict(list)
        for s in run.samples:
            by_case[s.case_id].append(s)
        self.launches: dict[str, Launches] = {}
        for case_id, result in self.results.items():
            if is_correct(result) and (found := summarise(by_case[case_id])) is not None:
                self.launches[case_id] = found
        judged_by = spreads([self.results[k].case for k in self.launches], list(self.launches.values()))
        self.spreads = dict(zip(self.launches, judged_by, strict=True))
        groups: dict[object, list[str]] = defaultdict(list)
        for k in self.launches:
            groups[group_key(self.results[k].case)].append(k)
        self.aa_spread = {
            key: aa_spread(by_case[k] for k in members) or 0.0 for key, members in groups.items()
        }

    def believed(self, case_id: str) -> tuple[Launches | None, Spread | None]:
        """Launches of a case and the spread to judge them by; a latency without samples is one launch
        with the noise that its interval states."""
        if case_id in self.launches:
            return self.launches[case_id], self.spreads[case_id]
        latency = self.results[case_id].latency
        if latency is None or not latency.lo < latency.hi or latency.lo <= 0:
            return None, None
        return stated([latency]), None


def _row(first: _Run, second: _Run, case_id: str, band: float) -> ComparedCase:
    a, b = first.results.get(case_id), second.results.get(case_id)
    found = _comparison(first, second, case_id, a, b, band)
    either = a if a is not None else b
    assert either is not None
    return ComparedCase(
        case=either.case,
        a=a.latency if a is not None and is_correct(a) else None,
        b=b.latency if b is not None and is_correct(b) else None,
        ratio=found.ratio,
        answer=found.answer,
        reason=found.reason,
        band=found.band,
        caveat="unpaired" if found.ratio is not None else None,
    )


def _comparison(
    first: _Run, second: _Run, case_id: str, a: Result | None, b: Result | None, band: float
) -> Comparison:
    if a is None or b is None:
        return _open("only_in_b" if a is None else "only_in_a", band)
    if not (is_correct(a) and is_correct(b)):
        return _open("not_ok", band)
    launches_a, spread_a = first.believed(case_id)
    launches_b, spread_b = second.believed(case_id)
    if launches_a is None or launches_b is None:
        return _open("no_interval", band)
    key = group_key(a.case)
    wide = max(first.aa_spread.get(key, 0.0), second.aa_spread.get(key, 0.0))
    return unpaired_ratio(
        launches_b, launches_a, spread_a=spread_b, spread_b=spread_a, aa_spread=wide, band=band
    )


def _open(reason: str, band: float) -> Comparison:
    return Comparison(ratio=None, answer="undecided", reason=reason, pairing="none", band=band)


def tally(rows: Iterable[ComparedCase]) -> dict[str, int]:
    """How many rows have each answer; cases that only one run has, or that failed, by their reason."""
    counts: dict[str, int] = defaultdict(int)
    for row in rows:
        counts[row.answer if row.ratio is not None else row.reason] += 1
    return dict(counts)
