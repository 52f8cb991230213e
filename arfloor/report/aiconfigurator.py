"""A run as AIConfigurator's custom_allreduce_perf.txt: `message_size` in elements, `latency` in ms."""

from __future__ import annotations

import csv
import io
from typing import Literal

from arfloor import __version__
from arfloor.core.cases import Result
from arfloor.report.model import Report

COLUMNS = (
    "framework",
    "version",
    "device",
    "op_name",
    "kernel_source",
    "allreduce_dtype",
    "num_gpus",
    "message_size",
    "latency",
    "backend",
)
_DTYPES = {"float32": "float", "float16": "half", "bfloat16": "bfloat16"}

Which = Literal["best", "default"]


def render(report: Report, which: Which) -> str:
    """One row a size of every section, the best or the default case; sizes without one are left out."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(COLUMNS)
    for section in report.sections:
        for row in section.rows:
            result = row.verdict.best if which == "best" else row.verdict.default
            if result is not None and result.latency is not None:
                writer.writerow(_cells(report, result))
    return stream.getvalue()


def _cells(report: Report, result: Result) -> tuple[object, ...]:
    case = result.case
    assert result.latency is not None  # for the type checker: the caller asked
    return (
        "arfloor",
        __version__,
        report.manifest.machine.device_name,
        "all_reduce",
        case.label,
        _DTYPES[case.dtype],
        case.world,
        case.numel,
        f"{result.latency.value / 1000:.6f}",
        f"{case.path}_{case.mode}",
    )
