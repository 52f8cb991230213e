"""What to do after an answer: find out what is unexplained, cheapest step first; get what a switch needs."""

from __future__ import annotations

from arfloor.core import units
from arfloor.core.obtain import how_to_get
from arfloor.core.whatif.partition import UNEXPLAINED
from arfloor.core.whatif.switch import Switch
from arfloor.report import phrases
from arfloor.report.whatif.latencies import OURS, PREDICTED
from arfloor.report.whatif.question import Whatif


def contradiction(answer: Whatif) -> str:
    """Says so where less was profiled than the reduces take when they run alone; else empty."""
    part = _unexplained(answer)
    if part is None or part.share.estimate.hi >= 0:
        return ""
    less = units.percent(-part.share.estimate.value)
    return (
        f"Find out first: the profile shows {less} of the step less "
        "than these reduces take when they run alone, so one of the two is not about this server: check "
        "the load that was profiled, the box that the latencies are of, and the implementation in use."
    )


def find_out(answer: Whatif) -> list[str]:
    """The steps that tell what most of a profiled time is, the cheapest first; none where it is explained."""
    part, parts = _unexplained(answer), answer.analysis.partition
    profiled = sum(p.us.estimate.value for p in parts.reduce_parts)
    if part is None or part.share.estimate.lo <= 0:
        return []
    if part.us.estimate.value < profiled / 2 and answer.analysis.verdict.decision != "find_out_first":
        return []
    steps = [] if answer.latencies.origin == "measured" else [_sweep(answer, profiled)]
    if answer.situation.waiting_input(parts.sequences) is None:
        told = "traces of all ranks on aligned clocks tell how long ranks wait for each other; give it as"
        steps.append(f"{told} --waiting US@{parts.sequences}")
    return steps


def _sweep(answer: Whatif, profiled_us: float) -> str:
    s, sequences = answer.situation, answer.analysis.sequences
    nbytes, each = s.shape.message_nbytes(sequences), profiled_us / s.shape.reduces
    alone = s.curve.latency(nbytes).estimate.value
    whose = "predicted" if answer.latencies.origin == "predicted" else "another box's (published)"
    again = ", then the same with NCCL_P2P_LEVEL=SYS, which is worth a try in the server as well"
    again = again if answer.latencies.pcie else ""
    return (
        f"these latencies are {whose}: measure yours, some ten minutes on the GPUs that serve: "
        f"`torchrun --standalone --nproc-per-node={s.tp} -m arfloor.sweep`{again}; give --run RUN here. "
        f"If {s.curve.backend} takes near {units.number(each)} us at {units.size(nbytes)}, transport "
        f"explains it; if near {units.number(alone)}, something else must"
    )


def _unexplained(answer: Whatif):
    return next((p for p in answer.analysis.partition.parts if p.name == UNEXPLAINED), None)


def to_get(answer: Whatif) -> list[str]:
    """How to get the implementations that are switched to, where it is known."""
    chains = [i for chain in answer.asked for i in chain]
    names = dict.fromkeys(i.to.backend for i in chains if isinstance(i, Switch))
    return [f"To get {name}: {how}." for name in names if (how := _how(name))]


def _how(name: str) -> str:
    """What to set or call for an implementation by its short label; empty where nobody knows."""
    backend, _, variant = name.partition(" ")
    if backend in (PREDICTED, *OURS):
        return "`arfloor.allreduce.AllReduce` in your program (docs/allreduce.md)"
    if backend != "nccl" or not variant or "[" in variant:
        return how_to_get(name)
    advice = phrases.nccl_environment(variant)
    return f"`{advice}`" if advice else ""
