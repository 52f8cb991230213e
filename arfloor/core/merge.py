"""Several launches of one case become one result."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace

from arfloor.core.cases import BlockRecord, Check, Result, Samples
from arfloor.core.launches import Launches, Spread, estimate, of_latencies, summarise
from arfloor.core.spread import spreads

# a case is as bad as its worst launch: `wrong` must never be averaged away
_SEVERITY = ("wrong", "failed", "timeout", "ok", "unsupported", "skipped")


def merge_results(records: Iterable[BlockRecord], samples: Iterable[Samples]) -> tuple[Result, ...]:
    """One result per case: the worst launch's status, and the latency over all launches' samples.

    A later record of the same block and launch replaces an earlier one. Where the samples are
    missing (a published run), the latency of the record stands; of several records, their mean.
    """
    latest = {(r.block.id, r.launch): r for r in records}
    by_case: dict[str, list[Result]] = defaultdict(list)
    for record in latest.values():
        for result in record.results:
            by_case[result.case.id].append(result)
    timed: dict[str, list[Samples]] = defaultdict(list)
    for s in samples:
        timed[s.case_id].append(s)
    launches = {
        k: found
        for k, results in by_case.items()
        if (found := summarise(timed.get(k, ())) or of_latencies([r.latency for r in results])) is not None
    }
    judged_by = spreads([by_case[k][0].case for k in launches], list(launches.values()))
    spread = dict(zip(launches, judged_by, strict=True))
    return tuple(_merge_one(results, launches.get(k), spread.get(k)) for k, results in by_case.items())


def _merge_one(results: list[Result], launches: Launches | None, spread: Spread | None) -> Result:
    worst = min(results, key=lambda r: _SEVERITY.index(r.status))
    if worst.status != "ok":
        return replace(worst, latency=None, check=_worst_check(results))
    marks = tuple(sorted({m for r in results for m in r.marks}))
    latency = worst.latency if launches is None else estimate(launches, spread)
    return replace(worst, latency=latency, check=_worst_check(results), marks=marks)


def _worst_check(results: list[Result]) -> Check | None:
    checks = [r.check for r in results if r.check is not None]
    if not checks:
        return None
    worst = max(checks, key=lambda c: (c.wrong, c.max_error))
    return replace(
        worst,
        wrong=sum(c.wrong for c in checks),
        bitwise_equal=all(c.bitwise_equal for c in checks),
    )
