"""The rows of `arfloor report RUN --format json` and of report.json: one a verdict, no NaN."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict

from arfloor.core.cases import DType, Estimate, Mode, Origin, Path, VerdictStatus, record
from arfloor.core.verdict import short_label
from arfloor.report.model import Report, Row
from arfloor.rundir import adapter


@record
class ReportRow:
    """One size of one path. Latencies in microseconds with their 95 % interval; null where not known.

    `default_case`, `best_case`: ids of cases in results.jsonl; null where nothing was measured.
    `default_label`, `best_label`: what people call them. `headroom_now` = default / best,
    the mean of the paired rounds' ratios where the run has them (on a noisy machine that is not the
    ratio of the two latencies), `headroom_left` = best / attainable. `reason` is a code of
    `arfloor.core.reasons`. `origin`: measured, published, or predicted, where default is NCCL by its own
    formula, best the quicker of it and our kernels, and `gpus` names those that take part.
    `best_ranks_equal`: whether all ranks got best's result bit for bit; null where nothing was checked.
    `tied_labels`: those that cannot be told from best, by the verdicts' rule.
    `blocks_measured`, `blocks_planned`: of the whole run, equal in all of its rows; fewer measured than
    planned: it is partial. Null where the run does not say what was planned.
    `caveats`: what the source of published figures says of them; null where there are none.
    """

    world: int
    path: Path
    nbytes: int
    dtype: DType
    mode: Mode
    default_us: float | None
    default_us_lo: float | None
    default_us_hi: float | None
    default_case: str | None
    default_label: str | None
    best_us: float | None
    best_us_lo: float | None
    best_us_hi: float | None
    best_case: str | None
    best_label: str | None
    attainable_us: float | None
    attainable_us_lo: float | None
    attainable_us_hi: float | None
    attainable_algorithm: str | None
    bound_us: float | None
    bound_us_lo: float | None
    bound_us_hi: float | None
    headroom_now: float | None
    headroom_left: float | None
    status: VerdictStatus
    reason: str
    origin: Origin
    gpus: tuple[str, ...] | None = None
    best_ranks_equal: bool | None = None
    tied_labels: tuple[str, ...] | None = None
    blocks_measured: int | None = None
    blocks_planned: int | None = None
    caveats: tuple[str, ...] | None = None


def row_of(
    row: Row,
    origin: Origin,
    blocks: tuple[int | None, int | None] = (None, None),
    caveats: tuple[str, ...] = (),
) -> ReportRow:
    """One row of a section, flat; `blocks`: measured and planned of its run."""
    v = row.verdict
    default = triple(v.default.latency if v.default else None)
    best = triple(v.best.latency if v.best else None)
    attainable, bound = triple(v.attainable), triple(v.bound)
    return ReportRow(
        world=v.world,
        path=v.path,
        nbytes=v.nbytes,
        dtype=v.dtype,
        mode=v.mode,
        default_us=default[0],
        default_us_lo=default[1],
        default_us_hi=default[2],
        default_case=v.default.case.id if v.default else None,
        default_label=short_label(v.default.case) if v.default else None,
        best_us=best[0],
        best_us_lo=best[1],
        best_us_hi=best[2],
        best_case=v.best.case.id if v.best else None,
        best_label=short_label(v.best.case) if v.best else None,
        attainable_us=attainable[0],
        attainable_us_lo=attainable[1],
        attainable_us_hi=attainable[2],
        attainable_algorithm=v.attainable_algorithm,
        bound_us=bound[0],
        bound_us_lo=bound[1],
        bound_us_hi=bound[2],
        headroom_now=v.headroom_now.value if v.headroom_now else None,
        headroom_left=v.headroom_left.value if v.headroom_left else None,
        status=v.status,
        reason=v.reason,
        origin=origin,
        best_ranks_equal=v.best.check.bitwise_equal if v.best and v.best.check else None,
        tied_labels=tuple(short_label(r.case) for r in row.tied),
        blocks_measured=blocks[0],
        blocks_planned=blocks[1],
        caveats=caveats or None,
    )


def rows(report: Report) -> list[ReportRow]:
    """Every verdict of the report as a row, in the report's order."""
    blocks = report.blocks if report.blocks[1] is not None else (None, None)
    origin, caveats = report.manifest.origin, report.caveats
    return [row_of(row, origin, blocks, caveats) for s in report.sections for row in s.rows]


def render(report: Report) -> str:
    """The rows as a JSON list. Raises ValueError if a number is not finite."""
    return dumps(rows(report))


def dumps(found: Sequence[ReportRow]) -> str:
    """Rows as a JSON list. Raises ValueError if a number is not finite."""
    return json.dumps([asdict(row) for row in found], indent=1, allow_nan=False) + "\n"


def json_schema() -> dict[str, object]:
    """The JSON Schema of `render`'s output (published as docs/schemas/report.schema.json)."""
    return adapter(list[ReportRow]).json_schema(mode="serialization")


def triple(estimate: Estimate | None) -> tuple[float | None, float | None, float | None]:
    """Value, lo and hi; nulls where there is none."""
    return (estimate.value, estimate.lo, estimate.hi) if estimate else (None, None, None)
