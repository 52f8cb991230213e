"""What a library really runs: every case once, apart from anything timed, with the library's log on.

A backend takes part by offering two methods (see `arfloor.backends.base.Probing`). A probe that fails
costs the knowledge of what ran, never a measurement.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from arfloor.core.cases import Case, Ran, RanRecord
from arfloor.core.plan import BlockPlan
from arfloor.rundir import Writer
from arfloor.runtime.agree import together


def see_what_runs(bench: Any, writer: Writer, rows: Sequence[BlockPlan], log: Path) -> None:
    """Run each variant once a block on every rank; rank 0 appends what it saw to `ran.jsonl`."""
    for name, backend in bench.backends.items():
        if hasattr(backend, "probe_environment"):
            # the library reads these at its first use, which comes later in this process
            os.environ.update(backend.probe_environment(log.with_name(f"{log.name}-{name}.log")))
    for row in rows:
        for variant in dict.fromkeys((c.backend, c.variant, c.path) for c in row.cases):
            # a deadline each: a grid's first block makes dozens of communicators
            bench.progress.line("phase", name="probe of what runs", deadline_s=bench.timeout_s)
            cases = [c for c in row.cases if (c.backend, c.variant, c.path) == variant]
            ran = _probe(bench, cases[0])
            # at once: what is known stays known when a later variant hangs
            if bench.rank == 0 and ran is not None:
                writer.ran([RanRecord(case_id=c.id, ran=ran) for c in cases])


def _probe(bench: Any, case: Case) -> Ran | None:
    """None when the log says nothing, or when the case cannot be set up: timing it will say why."""
    ran, failure = together(
        bench.group, bench.progress, "probe", lambda: bench.backends[case.backend].probe(case, bench.group)
    )
    return None if failure is not None else ran
