"""From results and primitives to verdicts: the one place where floors, checks and comparisons meet.

The order matters. A result below its bound is impossible, so it is demoted before anything else looks
at it; a correct result below *attainable* proves a probe slow, so attainable follows it down; only
then are default and best judged.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

from arfloor.core.cases import Case, Primitive, Result, Verdict, record
from arfloor.core.floor import Cut, Floor, check_bound, floor, raise_attainable
from arfloor.core.verdict import Compare, compare_unpaired, group_key, group_order, is_correct, judge


@record
class Judged:
    """One group: its verdict, its floor (None without primitives), and its results by rising latency."""

    verdict: Verdict
    floor: Floor | None
    results: tuple[Result, ...]


def judge_all(
    results: Iterable[Result],
    primitives: Sequence[Primitive],
    *,
    cuts: Sequence[Cut] = (),
    compare: Compare = compare_unpaired,
) -> tuple[Judged, ...]:
    """Judge every group of all-reduce results: same world, path, size, dtype, mode and devices.

    Ordered by path, world, devices, mode, dtype and size. `cuts` are those of the box's topology.
    """
    groups: dict[tuple[object, ...], list[Result]] = defaultdict(list)
    for result in results:
        if result.case.op == "all_reduce":
            groups[group_key(result.case)].append(result)
    ordered = sorted(groups.values(), key=lambda members: group_order(members[0].case))
    return tuple(_judge_group(members, primitives, cuts, compare) for members in ordered)


def floor_of(case: Case, primitives: Iterable[Primitive], cuts: Sequence[Cut] = ()) -> Floor | None:
    """The floor of a case's group from the probes between its devices; None where there are none.

    Of several groups that reduce at once the first stands for all: links between groups carry nothing.
    """
    ranks = case.groups[0] if case.groups else range(len(case.devices))
    return floor(
        primitives,
        path=case.path,
        world=case.world,
        nbytes=case.nbytes,
        dtype=case.dtype,
        mode=case.mode,
        devices=[case.devices[rank] for rank in ranks],
        cuts=cuts,
    )


def _judge_group(
    members: Sequence[Result], primitives: Sequence[Primitive], cuts: Sequence[Cut], compare: Compare
) -> Judged:
    found = floor_of(members[0].case, primitives, cuts)
    checked = members
    if found is not None:
        checked = [check_bound(r, found) for r in members]
        found = raise_attainable(found, [r for r in checked if is_correct(r)])
    ordered = tuple(sorted(checked, key=_by_latency))
    return Judged(verdict=judge(ordered, found, compare), floor=found, results=ordered)


def _by_latency(result: Result) -> tuple[bool, float, str]:
    return (result.latency is None, result.latency.value if result.latency else 0.0, result.case.id)
