"""How much longer a run takes: the plan's seconds, corrected by what its starts and blocks took so far.

Starts of a set of workers and blocks of cases are learnt apart, and those of each launcher apart: on a busy
machine a start takes several times what was planned while blocks keep their budget. What one launcher has
not shown yet is taken from what all showed, and what nobody showed from the plan.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Literal

from arfloor.core.plan import RunPlan, block_s, start_s

Kind = Literal["start", "block"]

# how many starts and blocks as planned the first observation is weighed against, so that one slow block
# does not multiply the rest of the run
PRIOR: dict[Kind, float] = {"start": 1.0, "block": 8.0}
# launchers differ: what one took says a little about the others
FAR = 4.0


class Pace:
    """Told when launches begin and blocks are written; `now` is any clock in seconds."""

    def __init__(self, plan: RunPlan, now: float) -> None:
        self._launcher = {launch.index: launch.launcher for launch in plan.launches}
        self._starts = {launch.index: start_s(launch) for launch in plan.launches}
        self._blocks = {
            (row.block.id, launch.launch): (launch.index, block_s(launch, row))
            for launch in plan.launches
            if not launch.probe
            for row in launch.blocks
        }
        self._unit: dict[Kind, float] = {
            "start": _mean(list(self._starts.values())),
            "block": _mean([seconds for _, seconds in self._blocks.values()]),
        }
        # (kind, launcher) -> seconds spent and seconds planned
        self._seen: dict[tuple[Kind, str], tuple[float, float]] = defaultdict(lambda: (0.0, 0.0))
        self._mark, self._open = now, -1

    def began(self, index: int, now: float) -> None:
        """The workers of a launch are being started: the first time or again."""
        self._close(now)
        self._open = index

    def wrote(self, block: str, launch: int, now: float) -> None:
        """A block of a launch (its `LaunchPlan.launch`) is written."""
        index, planned = self._blocks.pop((block, launch), (-1, 0.0))
        if self._open >= 0:
            self._close(max(self._mark, now - planned))
            self._mark = now
        elif index >= 0:
            self._book("block", self._launcher[index], now - self._mark, planned)
            self._mark = now

    def left_s(self) -> float:
        """Seconds from the last event on."""
        starts = sum(s * self._factor("start", self._launcher[i]) for i, s in self._starts.items())
        blocks = sum(s * self._factor("block", self._launcher[i]) for i, s in self._blocks.values())
        return starts + blocks

    def _close(self, now: float) -> None:
        """What was open is over: a start, or a probe launch, which is one as a whole."""
        if self._open >= 0:
            planned = self._starts.pop(self._open, 0.0)
            self._book("start", self._launcher[self._open], now - self._mark, planned)
            self._mark = now
        self._open = -1

    def _book(self, kind: Kind, launcher: str, spent: float, planned: float) -> None:
        before = self._seen[kind, launcher]
        self._seen[kind, launcher] = (before[0] + spent, before[1] + planned)

    def _factor(self, kind: Kind, launcher: str) -> float:
        """Seconds that one planned second takes."""
        prior = PRIOR[kind] * self._unit[kind]
        every = [seen for (k, _), seen in self._seen.items() if k == kind]
        of_all = _ratio(sum(s for s, _ in every), sum(p for _, p in every), FAR * prior, 1.0)
        return _ratio(*self._seen[kind, launcher], prior, of_all)


def _ratio(spent: float, planned: float, prior: float, otherwise: float) -> float:
    whole = planned + prior
    return (spent + prior * otherwise) / whole if whole > 0 else otherwise


def _mean(values: list[float]) -> float:
    return sum(values) / len(values) if values else 0.0
