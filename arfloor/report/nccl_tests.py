"""The measured cases in the shape of nccl-tests' output, for eyes and scripts that know it.

A line above each table says whose figures they are, which `arfloor import` reads back (`core.exported`).
"""

from __future__ import annotations

from collections import defaultdict

from arfloor.core.cases import Result
from arfloor.core.exported import MARK, Exported
from arfloor.core.verdict import is_correct
from arfloor.report.model import Report, Section
from arfloor.rundir import to_json

_TYPES = {"float32": "float", "float16": "half", "bfloat16": "bfloat16"}

NOTE = "by arfloor: latencies alone; intervals, samples, link probes and what really ran are left out"


def render(report: Report) -> str:
    """One table a section and implementation. Times in us, algbw = bytes / time, busbw = algbw 2(n-1)/n."""
    lines = [f"# {NOTE}"]
    for section in report.sections:
        by_label: dict[str, dict[int, dict[bool, Result]]] = defaultdict(lambda: defaultdict(dict))
        for row in section.rows:
            for result in row.results:
                if result.status in ("ok", "wrong"):
                    by_label[result.case.label][row.nbytes][result.case.inplace] = result
        for label, sizes in sorted(by_label.items()):
            lines += _table(section, label, sizes, report.manifest.machine.device_name)
    return "\n".join(lines) + "\n"


def _table(section: Section, label: str, sizes: dict[int, dict[bool, Result]], device: str) -> list[str]:
    half = f"{'time':>8}{'algbw':>8}{'busbw':>8}{'#wrong':>8}"
    unit = f"{'(us)':>8}{'(GB/s)':>8}{'(GB/s)':>8}{'':>8}"
    case = next(iter(next(iter(sizes.values())).values())).case
    lines = [
        f"# {label}: {section.title}",
        f"{MARK} {to_json(Exported(case=case, link=section.link, device=device))}",
        f"#{'':>61}{'out-of-place':>20}{'':>12}{'in-place':>18}",
        f"#{'size':>12}{'count':>14}{'type':>10}{'redop':>8}{'root':>8}  {half}{half}",
        f"#{'(B)':>12}{'(elements)':>14}{'':>26}  {unit}{unit}",
    ]
    for nbytes, found in sorted(sizes.items()):
        numel = next(iter(found.values())).case.numel
        cells = _half(found.get(False), section.world) + _half(found.get(True), section.world)
        kind = _TYPES[section.dtype]
        lines.append(f" {nbytes:>12}{numel:>14}{kind:>10}{'sum':>8}{-1:>8}  {cells}")
    return [*lines, ""]


def _half(result: Result | None, world: int) -> str:
    if result is None:
        return f"{'N/A':>8}" * 4
    wrong = f"{result.check.wrong if result.check else 'N/A':>8}"
    if not is_correct(result) or result.latency is None:
        return f"{'N/A':>8}" * 3 + wrong
    algbw = result.case.nbytes / result.latency.value / 1e3
    busbw = algbw * 2 * (world - 1) / world
    return f"{result.latency.value:>8.2f}{algbw:>8.2f}{busbw:>8.2f}{wrong}"
