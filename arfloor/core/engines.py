"""Which fast all-reduce each serving engine can use on a box, and the gate that refuses it.

Every gate is a condition that an engine's own source states; `source` names repository, file and
version (a release or the commit read). Engines change: a row speaks of that version and no other.
"""

from __future__ import annotations

from itertools import permutations
from typing import Literal

from arfloor.core.box import Box, GpuFacts, Pair
from arfloor.core.cases import Machine, record
from arfloor.core.engine_rows import IMPLEMENTATIONS, Implementation
from arfloor.core.gates import View

Outcome = Literal["usable", "refused", "unknown"]


@record
class EngineUse:
    """Whether `implementation` of `engine` runs for the first `world` GPUs of a box.

    `gate` is the condition that decided (refused, or unknown for want of a fact); `then` is what runs
    instead; `enable` is how to turn it on when usable, else the setting that gets past the gate, where there
    is one.
    """

    engine: str
    implementation: str
    world: int
    outcome: Outcome
    gate: str
    then: str
    enable: str
    source: str


def gate_rows() -> tuple[tuple[str, str, str, str, str], ...]:
    """(engine, implementation, its gates, what runs otherwise, source): the table of docs/doctor.md."""
    return tuple(
        (i.engine, i.name, "; ".join(g.needs for g in i.gates), i.then, i.source) for i in IMPLEMENTATIONS
    )


def engine_table(box: Box) -> tuple[EngineUse, ...]:
    """One row per implementation and each world of 2, 4, 8 and all GPUs that fits; () below two GPUs."""
    count = len(box.gpus)
    worlds = sorted({w for w in (2, 4, 8, count) if 2 <= w <= count})
    return tuple(_use(i, View(box, w)) for w in worlds for i in IMPLEMENTATIONS)


def refusal(engine: str, implementation: str, machine: Machine, world: int) -> tuple[str, str] | None:
    """(reason code, sentence) of the gate that refuses an implementation on a run's machine; None: usable as
    far as the run knows. Gates on what a run does not know (handle types, say) refuse nothing here.

    Raises KeyError on a name that the table does not have.
    """
    row = next((i for i in IMPLEMENTATIONS if (i.engine, i.name) == (engine, implementation)), None)
    if row is None:
        raise KeyError(f"{engine} {implementation}: not in the table of engines")
    view = View(_box_of(machine, world), world)
    for gate in row.gates:
        if gate.holds(view) is False:
            return gate.code, f"{engine} {implementation} needs {gate.needs} ({row.source})"
    return None


def _box_of(machine: Machine, world: int) -> Box:
    """A machine's facts as a box: GPUs alike, every pair alike."""
    told = machine.facts.get("p2p")
    status = None if told is None else "OK" if told else "NS"
    nvlink = machine.facts.get("nvlink")
    forbidden = machine.facts.get("multicast_forbidden")
    ids = [f"gpu{rank}" for rank in range(world)]
    return Box(
        source="run",
        gpus=tuple(
            GpuFacts(
                id=name,
                compute_capability=machine.compute_capability,
                multicast=False if forbidden else None,
            )
            for name in ids
        ),
        pairs=tuple(
            Pair(
                a=a,
                b=b,
                nvlinks=1 if nvlink else 0,
                relation=None if nvlink is None else "SYS",
                read=status,
                write=status,
            )
            for a, b in permutations(ids, 2)
        ),
    )


def _use(implementation: Implementation, view: View) -> EngineUse:
    outcome: Outcome = "usable"
    gate = enable = ""
    for candidate in implementation.gates:
        held = candidate.holds(view)
        if held is False:
            outcome, gate = "refused", f"needs {candidate.needs}"
            enable = candidate.remedy(view)
            break
        if held is None and outcome == "usable":
            outcome, gate = "unknown", f"needs {candidate.needs}, which is not known here"
            enable = candidate.remedy(view)
    return EngineUse(
        engine=implementation.engine,
        implementation=implementation.name,
        world=view.world,
        outcome=outcome,
        gate=gate,
        then=implementation.then if outcome == "refused" else "",
        enable=implementation.enable if outcome == "usable" else enable,
        source=implementation.source,
    )
