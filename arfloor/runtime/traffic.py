"""The traffic check: link counters over a long run of one case (see `arfloor.core.traffic`)."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from typing import Any

from arfloor.core.cases import Case
from arfloor.core.traffic import expected_nbytes, sentence, traffic_mark
from arfloor.runtime import health

# the size that is checked: large enough to stand out of a launch's own bytes, and decode's own
NBYTES = 262_144
RUN_S = 0.25
# in one block, of which each costs half a second: of more, one a backend is checked
MOST_CASES = 12
# between two readings; the PCIe counters wrap at 4 GiB (see `health.moved`)
MOST_BYTES = 2**31
# counters are refreshed at intervals
SETTLE_S = 0.1


def wanted(case: Case, launch: int) -> bool:
    """One size, one launch, graphs: one check a case and path is enough."""
    return launch == 0 and case.nbytes == NBYTES and case.mode == "graph" and case.path != "cpu"


def chosen(cases: Mapping[Case, float]) -> list[Case]:
    """Which of a block's cases are checked, by their latencies in us: all, or the fastest of each backend.

    Settings of one library take one path; where there are many, one stands for the others. Pure.
    """
    if len(cases) <= MOST_CASES:
        return list(cases)
    fastest: dict[str, Case] = {}
    for case in sorted(cases, key=lambda c: (cases[c], c.id)):
        fastest.setdefault(case.backend, case)
    return list(fastest.values())


def count(bench: Any, case: Case, timer: Any, us: float) -> tuple[str | None, str]:
    """(mark or None, what the counters saw) on this rank.

    Every rank runs the case's captured chain for at most RUN_S at once; `us` is the case's latency, known
    on every rank alike. Nothing is exchanged here, so a rank that raises leaves none waiting.
    """
    ordinal = int(bench.device.partition(":")[2])
    _, most = expected_nbytes(case.path, case.world, case.nbytes)
    operations = min(RUN_S * 1e6 / max(us, 1.0), MOST_BYTES / most)
    replays = max(1, math.floor(operations / timer.chained))
    time.sleep(SETTLE_S)
    before = health.link_bytes(ordinal)
    timer.repeat(replays)
    time.sleep(SETTLE_S)
    seen = health.moved(before, health.link_bytes(ordinal), replays * timer.chained)
    nvlink = health.nvlink_between_all(bench.group.world)
    mark = traffic_mark(seen, path=case.path, nvlink=nvlink, world=case.world, nbytes=case.nbytes)
    return mark, sentence(seen)
