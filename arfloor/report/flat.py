"""Every result of a run as one CSV row, for spreadsheets and data frames."""

from __future__ import annotations

import csv
import io

from arfloor.core.cases import Result
from arfloor.rundir import Run

COLUMNS = (
    "case_id",
    "backend",
    "variant",
    "settings",
    "path",
    "world",
    "nbytes",
    "numel",
    "dtype",
    "mode",
    "inplace",
    "status",
    "reason",
    "us",
    "us_lo",
    "us_hi",
    "n",
    "algorithm",
    "protocol",
    "channels",
    "transport",
    "origin",
)


def render(run: Run) -> str:
    """All results, those without a latency with empty cells."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(COLUMNS)
    for result in run.results:
        writer.writerow(_cells(result))
    return stream.getvalue()


def _cells(result: Result) -> tuple[object, ...]:
    case, time, ran = result.case, result.latency, result.ran
    return (
        case.id,
        case.backend,
        case.variant,
        " ".join(f"{k}={v}" for k, v in case.settings),
        case.path,
        case.world,
        case.nbytes,
        case.numel,
        case.dtype,
        case.mode,
        int(case.inplace),
        result.status,
        result.reason or "",
        *((time.value, time.lo, time.hi, time.n) if time else ("", "", "", "")),
        *((ran.algorithm, ran.protocol, ran.channels, ran.transport) if ran else ("", "", "", "")),
        result.origin,
    )
