"""Settings that ask something of the program that uses them: fast, but not for everyone.

NCCL_GRAPH_MIXING_SUPPORT=0 (NCCL 2.13 and later): NCCL then leaves no event in a captured graph, by which a
call would wait for the one before, whichever graph or stream that is in. The NCCL user guide (environment
variables) says what is no longer supported: a communicator in graphs on streams that nothing orders, and an
uncaptured call while a graph with calls on the same communicator is under way, in the same stream too. From
2.29 on a communicator's configuration can say so for itself (`graphUsageMode` 1, one graph); the variable
sets mode 0 there, for which a captured call is noted in NCCL's log.
"""

from __future__ import annotations

from arfloor.core.cases import Case, Settings, record

GRAPH_MIXING_OFF: Settings = (("NCCL_GRAPH_MIXING_SUPPORT", "0"),)


@record
class Demand:
    """`setting` as typed; `condition` begins with "only where" and ends a sentence; `short` is for tables."""

    setting: str
    condition: str
    short: str

    @property
    def sentence(self) -> str:
        """What a reader of figures must know."""
        return f"{self.setting} is for some programs: {self.condition}"


GRAPH_MIXING = Demand(
    setting="NCCL_GRAPH_MIXING_SUPPORT=0",
    condition="only where graphs that use a communicator run one after another, and no call outside a graph "
    "is made on it while one runs, not even in the same stream",
    short="one graph at a time, no other calls meanwhile",
)
_DEMANDS = {GRAPH_MIXING_OFF[0]: GRAPH_MIXING}


def demand_of(case: Case) -> Demand | None:
    """What the program must keep to for this case to be right for it; None where it asks nothing."""
    return next((_DEMANDS[s] for s in case.settings if s in _DEMANDS), None)
