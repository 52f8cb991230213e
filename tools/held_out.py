"""How well a run's latencies are predicted where they were not fitted.

python tools/held_out.py RUN [ANOTHER RUN OF THE SAME BOX]

Fitted on every second size (either half), then on all variants but one: the others predicted, counted when
within 10 %. With another run, how many of the same cases it repeats within 10 %: no prediction of it can
be expected to do better. And the other run by this one's costs and its own probes: all cases, and those of
our kernels whose plan was not among the fitted.

Where the run tells what tuning timed (tuning.jsonl), the finalists of the fitted sizes are fitted too, and
those of the others predicted; and how many of the chosen plans tuning and sweep measured within 10 %.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Callable

from arfloor import rundir
from arfloor.core.cases import Result
from arfloor.core.costs import HeldOut, finalists, fit_segments, held_out
from arfloor.core.errors import InputError

WITHIN = 0.1


def repeated(results: list[Result], other: dict[str, float]) -> dict[str, bool]:
    """By case id, whether another run measured it within 10 % of this one."""
    found = {}
    for r in results:
        if r.case.id in other and r.latency is not None:
            found[r.case.id] = abs(other[r.case.id] / r.latency.value - 1) <= WITHIN
    return found


def show(title: str, results: list[Result], got: HeldOut, again: dict[str, bool]) -> None:
    by_id = {r.case.id: r for r in results}
    rows: dict[tuple[str, str], list[tuple[str, float]]] = defaultdict(list)
    for case_id, error in got.errors:
        rows[by_id[case_id].case.path, by_id[case_id].case.label.split(" [")[0]].append((case_id, error))
    print(f"{title}: {got.within(WITHIN)} of {len(got.errors) + len(got.unpredicted)} within 10 %")
    for (path, label), errors in sorted(rows.items()):
        good = sum(abs(e) <= WITHIN for _, e in errors)
        known = [again[i] for i, _ in errors if i in again]
        noise = f", other run {sum(known)} of {len(known)}" if known else ""
        missed = "  ".join(f"{by_id[i].case.nbytes} B {e:+.1%}" for i, e in errors if abs(e) > WITHIN)
        print(f"  {path:<5} {label:<22} {good:>3} of {len(errors)}{noise}  {missed}")


def show_finalists(run: rundir.Run, got: HeldOut, held: list[Result]) -> None:
    """Predictions of what tuning timed, of sizes that were not fitted."""
    rows: dict[str, list[bool | None]] = defaultdict(list)
    for r in held:
        us = got.fitted.predict_us(r, run.primitives)
        near = abs(us / r.latency.value - 1) <= WITHIN if us is not None and r.latency is not None else None
        rows[r.case.path].append(near)
    for path, found in sorted(rows.items()):
        few = f", {found.count(None)} of kinds too few to fit" if None in found else ""
        print(f"  {path:<5} {'finalists of tuning':<22} {found.count(True):>3} of {len(found)}{few}")


def show_agreement(results: list[Result], timed: tuple[Result, ...]) -> None:
    """How well tuning and the sweep agree on the plans that the sweep ran."""
    by_plan = {(r.case.path, r.case.nbytes, r.ran.algorithm): r for r in timed if r.ran}
    agree: dict[str, list[bool]] = defaultdict(list)
    for r in results:
        twin = by_plan.get((r.case.path, r.case.nbytes, (r.ran.algorithm if r.ran else None) or ""))
        if r.case.backend == r.case.path and twin and twin.latency and r.latency:
            agree[r.case.path].append(abs(twin.latency.value / r.latency.value - 1) <= WITHIN)
    for path, found in sorted(agree.items()):
        print(f"{path}: tuning and sweep measured {sum(found)} of {len(found)} plans within 10 %")


def across(run: rundir.Run, other: rundir.Run) -> None:
    """Costs of one run, asked about the other."""
    fitted = [*in_graphs(run), *finalists(rundir.tunings(run.path), run.results)]
    costs, plans = fit_segments(fitted, run.primitives), {r.ran.algorithm for r in fitted if r.ran}
    print(f"fitted on {run.path}, predicted {other.path}")
    groups: dict[tuple[str, str], list[tuple[Result, float]]] = defaultdict(list)
    for r in in_graphs(other):
        predicted = costs.predict_us(r, other.primitives)
        if predicted is not None and r.latency is not None:
            groups[r.case.path, r.case.backend].append((r, predicted / r.latency.value - 1))
    for (path, backend), errors in sorted(groups.items()):
        new = [e for r, e in errors if r.ran and r.ran.algorithm not in plans]
        good, known = (sum(abs(e) <= WITHIN for e in some) for some in (new, [e for _, e in errors]))
        print(
            f"  {path:<5} {backend:<22} {known:>3} of {len(errors)}, of plans not fitted {good} of {len(new)}"
        )


def in_graphs(run: rundir.Run) -> list[Result]:
    return [r for r in run.results if r.case.mode == "graph" and r.status == "ok"]


def _of_sizes(sizes: frozenset[int]) -> Callable[[Result], bool]:
    return lambda result: result.case.nbytes in sizes


def _all_but(variant: str) -> Callable[[Result], bool]:
    return lambda result: result.case.variant != variant


def main(paths: list[str]) -> None:
    """Raises InputError."""
    run = rundir.load(paths[0])
    results = in_graphs(run)
    if not results:
        raise InputError(f"{paths[0]}: expected cases timed in CUDA graphs, found none; give a run of GPUs")
    other = rundir.load(paths[1]) if len(paths) > 1 else None
    latencies = {r.case.id: r.latency.value for r in other.results if r.latency is not None} if other else {}
    again = repeated(results, latencies)
    timed = finalists(rundir.tunings(run.path), run.results)
    show_agreement(results, timed)
    sizes = sorted({r.case.nbytes for r in results})
    for half, name in ((0, "odd"), (1, "even")):
        fitted = frozenset(sizes[half::2])
        got = held_out(results, run.primitives, fitted=_of_sizes(fitted), also=timed)
        show(f"fitted on every second size, predicted the {name} ones", results, got, again)
        show_finalists(run, got, [r for r in timed if r.case.nbytes not in fitted])
    for variant in sorted({r.case.variant for r in results if r.case.backend == "nccl"}):
        chosen = [r for r in results if r.case.backend == "nccl"]
        got = held_out(chosen, run.primitives, fitted=_all_but(variant))
        show(f"fitted on all variants of nccl but {variant}, predicted that", chosen, got, again)
    if other is not None:
        across(run, other)


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    try:
        main(sys.argv[1:])
    except InputError as error:
        print(f"held_out: {error}", file=sys.stderr)
        sys.exit(2)
