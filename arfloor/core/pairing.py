"""How default and candidate are compared inside one run: by the samples of their common launches."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

from arfloor.core.cases import Case, Result, Samples
from arfloor.core.launches import Launches, Spread, of_launches, of_pairs, of_rounds, slowest_rank
from arfloor.core.ratios import aa_spread, paired_ratio
from arfloor.core.spread import spreads
from arfloor.core.verdict import (
    Answer,
    Compare,
    Comparison,
    compare_unpaired,
    default_result,
    group_key,
    is_correct,
)


def paired_compare(results: Sequence[Result], samples: Iterable[Samples]) -> Compare:
    """A comparison for `arfloor.core.judgement.judge_all` that pairs the samples of a run.

    Cases of one block were interleaved and are paired by round; cases of different settings lived in
    different processes and are paired by launch. How much such ratios differ between launches is learnt
    from all of the run's cases of the family against their defaults; the A/A spread from the cases of the
    same group. Falls back to `compare_unpaired` where the two share no samples.
    """
    timed: dict[str, list[Samples]] = defaultdict(list)
    for s in samples:
        timed[s.case_id].append(s)
    groups: dict[object, list[Result]] = defaultdict(list)
    for r in results:
        if is_correct(r) and timed[r.case.id]:
            groups[group_key(r.case)].append(r)
    spread_of = _spreads(groups.values(), timed)
    aa = {key: aa_spread(timed[r.case.id] for r in members) or 0.0 for key, members in groups.items()}

    def compare(default: Result, candidate: Result) -> Comparison:
        by: Literal["round", "launch"] = "round" if _interleaved(default, candidate) else "launch"
        found = paired_ratio(
            timed[default.case.id],
            timed[candidate.case.id],
            by=by,
            # against the default itself there is no spread to learn: then it is the other one's
            spread=spread_of.get((candidate.case.id, by), spread_of.get((default.case.id, by))),
            aa_spread=aa.get(group_key(default.case), 0.0),
        )
        if found.ratio is None:
            return compare_unpaired(default, candidate)
        # a verdict speaks of the candidate: it is faster where the default is slower
        return Comparison(
            answer=_OPPOSITE[found.answer],
            ratio=found.ratio,
            pairing=by,
            reason=found.reason,
            decided_on=found.decided_on,
            band=found.band,
        )

    return compare


_OPPOSITE: dict[Answer, Answer] = {
    "faster": "slower",
    "slower": "faster",
    "same": "same",
    "undecided": "undecided",
}


def _interleaved(a: Result, b: Result) -> bool:
    return a.block_id == b.block_id and a.case.settings == b.case.settings


def _spreads(
    groups: Iterable[Sequence[Result]], timed: Mapping[str, Sequence[Samples]]
) -> dict[tuple[str, str], Spread | None]:
    """Spread between launches of the ratios to the default, by the case's id and the way of pairing."""
    found: dict[str, list[Launches]] = {"round": [], "launch": []}
    cases: dict[str, list[Case]] = {"round": [], "launch": []}
    for members in groups:
        default = default_result(members)
        if default is None:
            continue
        rounds = slowest_rank(timed[default.case.id])
        launches = of_rounds(rounds)
        for other in members:
            if other is default:
                continue
            by = "round" if _interleaved(default, other) else "launch"
            theirs = slowest_rank(timed[other.case.id])
            pairs = of_pairs(rounds, theirs) if by == "round" else of_launches(launches, of_rounds(theirs))
            if pairs is not None:
                found[by].append(pairs)
                cases[by].append(other.case)
    return {
        (case.id, by): spread
        for by in found
        for case, spread in zip(cases[by], spreads(cases[by], found[by]), strict=True)
    }
