"""Regimes that a probe detects: posted writes that collapse where reads of the same bytes do not.

Seen in public: two GPUs behind one switch writing to two root complexes at 2.7 GB/s in all, where one
alone reaches 37 and reads reach 51; a 16-GPU box that reads at 52 and writes at 2.6 GB/s.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from arfloor.core.cases import Path, Primitive, record
from arfloor.core.rates import BEST

# Reads and writes of one healthy link differ by headers and requests, at most a factor of two.
COLLAPSE_SHARE = 0.25


@record
class WriteCollapse:
    """Writes of a pattern run at `write_gbps` where `other_gbps` is seen of reads, or of one stream."""

    path: Path
    src: str
    dst: str
    active: str
    write_gbps: float
    other_gbps: float
    against: str
    sentence: str


def write_collapses(primitives: Iterable[Primitive]) -> tuple[WriteCollapse, ...]:
    """Pairs whose writes collapse, worst first; one finding a pair and pattern.

    Writes are compared with reads of the same bytes in the same pattern, and in patterns of several
    streams also with one stream alone, of which several should keep more than a quarter.
    """
    best: dict[tuple[Path, str, str, str, str], float] = defaultdict(float)
    for p in primitives:
        if p.kind == "stream" and p.status == "ok" and p.estimate is not None and p.active != BEST:
            key = (p.path, p.src, p.dst, p.active, p.access)
            best[key] = max(best[key], p.estimate.value)
    found = []
    for (path, src, dst, active, access), gbps in best.items():
        if access != "write":
            continue
        others = {"reads of the same pattern": best.get((path, src, dst, active, "read"), 0.0)}
        if path == "host":  # a reader of host memory pulls the other way
            others["reads of the same pattern"] = best.get((path, dst, src, active, "read"), 0.0)
        elif active == "both_ways":
            others["one stream alone"] = best.get((path, src, dst, "one_way", "write"), 0.0)
        against, rate = max(others.items(), key=lambda item: item[1])
        if gbps < COLLAPSE_SHARE * rate:
            found.append(_finding(path, src, dst, active, gbps, rate, against))
    return tuple(sorted(found, key=lambda c: c.write_gbps / c.other_gbps))


def _finding(
    path: Path, src: str, dst: str, active: str, gbps: float, rate: float, against: str
) -> WriteCollapse:
    sentence = (
        f"{src} > {dst}, {active}: writes reach {gbps:.3g} GB/s where {against} reach {rate:.3g}: "
        "posted writes collapse here; use a pull variant, or an island-aware one that keeps writes apart"
    )
    return WriteCollapse(
        path=path,
        src=src,
        dst=dst,
        active=active,
        write_gbps=gbps,
        other_gbps=rate,
        against=against,
        sentence=sentence,
    )
