"""What does a captured graph's place cost, and how long must ranks wait until a late launch is over?

    torchrun --standalone --nproc-per-node=2 microbench/capture_levels.py
    NCCL_P2P_DISABLE=1 torchrun --standalone --nproc-per-node=2 microbench/capture_levels.py
    NCCL_GRAPH_MIXING_SUPPORT=0 torchrun --standalone --nproc-per-node=2 microbench/capture_levels.py

Chains of 8 and 40 of NCCL's all-reduces and of our own, captured 60 times over; each graph is replayed a few
times, then again with rank 1's host 50 us late. The device barrier that starts a chain has its ranks meet
twice: `apart` us lie between.

What to look for, a line a size, implementation and `apart`: `mean` and `median` over captures of the cost of
one more operation, the slowest rank deciding; `sd`, by how much captures differ, and `within`, replays of one
capture, in per cent; `next`, the correlation of one capture with the next; `late`, what a late host changes;
then how many captures lie how far above the least, in steps of 0.5 us an operation.

Expected, as two H200s gave: NCCL's captures on levels 1 us an operation apart, sd 6 to 8 % at 8 KiB over
NVLink and 5 % over the host, within 1 %; ours and NCCL without its events (the last command) below 3 % and
1 %. A late host adds 1 to 3 % where ranks meet 0 or 50 us apart, and less than 0.5 % from 100 us on:
launching 40 of NCCL's operations takes a host 130 us.

Expected to take about 30 s on two GPUs, of which ten are starting; lines are printed a size at a time.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Sequence

import torch
from gpu_ranks import GpuRank, barriers_apart, command_line, join, pause

from arfloor.backends.host import Host
from arfloor.backends.nccl import Nccl
from arfloor.backends.peer import Peer
from arfloor.core.slopes import chain_us, slopes_us
from arfloor.runtime.barrier import DeviceBarrier
from arfloor.runtime.chains import Chain, Op
from arfloor.runtime.timing_gpu import FEW, MANY

SIZES = [8 << 10, 256 << 10]
APART_US = [0.0, 50.0, 150.0]
LATE_US = 50.0
CAPTURES, REPLAYS = 60, 3
STEP_US = 0.5

Times = tuple[list[float], list[float]]


def replayed(chain: Chain, before: Callable[[], None]) -> list[float]:
    """REPLAYS of a chain behind one that does not count, this rank's us; `before` runs before each."""
    found = []
    for _ in range(REPLAYS + 1):
        before()
        found.append(chain.replay_us())
    return found[1:]


def captured(ranks: GpuRank, op: Op, barrier: DeviceBarrier) -> dict[str, Times]:
    """One capture's times of both chains, in time and with rank 1 late."""
    chains = Chain(op, MANY, barrier, graph=True), Chain(op, FEW, barrier, graph=True)
    late_us = LATE_US if ranks.rank == 1 else 0.0
    found: dict[str, Times] = {
        name: (replayed(chains[0], before), replayed(chains[1], before))
        for name, before in (("prompt", lambda: None), ("late", lambda: pause(late_us)))
    }
    for chain in chains:
        chain.close()
    barrier.check()
    return found


def slopes(captures: Sequence[Sequence[Times]]) -> list[tuple[float, ...]]:
    """By capture, each replay's us of one more operation, from every rank's times (rank, capture)."""
    joint = [tuple(chain_us([rank[i] for rank in at]) for i in (0, 1)) for at in zip(*captures, strict=True)]
    return [slopes_us(many, few, MANY, FEW) for many, few in joint]


def described(prompt: Sequence[Sequence[float]], late: Sequence[Sequence[float]]) -> str:
    """Figures of a line, from each capture's slopes in time and with a late rank."""
    each = [statistics.median(us) for us in prompt]
    mean, late_mean = (statistics.fmean(map(statistics.median, found)) for found in (prompt, late))
    within = statistics.fmean(statistics.pvariance(us) for us in prompt) ** 0.5
    steps = Counter(round((us - min(each)) / STEP_US) for us in each)
    following = statistics.correlation(each[:-1], each[1:]) if len({*each}) > 2 else 0.0
    counts = " ".join(f"{steps[i]}" for i in range(max(steps) + 1))
    return (
        f"{mean:>7.2f} {statistics.median(each):>7.2f} {100 * statistics.pstdev(each) / mean:>5.1f} "
        f"{100 * within / mean:>6.1f} {following:>5.2f} {100 * (late_mean / mean - 1):>+6.1f} %  {counts}"
    )


def study(ranks: GpuRank, name: str, op: Op, barriers: dict[float, DeviceBarrier], nbytes: int) -> None:
    """The lines of one size and implementation."""
    for slot in range(op.slots):
        op.run(slot)
    torch.cuda.synchronize()
    mine: dict[float, list[dict[str, Times]]] = {apart: [] for apart in barriers}
    for _ in range(CAPTURES):
        for apart, barrier in barriers.items():
            mine[apart].append(captured(ranks, op, barrier))
    for apart, found in mine.items():
        everyone = ranks.group.all_gather(found)
        prompt, late = (
            slopes([[capture[way] for capture in rank] for rank in everyone]) for way in ("prompt", "late")
        )
        ranks.say(f"{nbytes:>8} {name:>5} {apart:>6.0f} {described(prompt, late)}")


def main() -> None:
    chosen = command_line(__doc__, limit_s=60).parse_args()
    ranks = join(chosen.limit_s)
    ranks.say(f"{ranks.world} GPUs, path {ranks.path}, bfloat16, {CAPTURES} captures, us")
    ranks.say("    size    op  apart    mean  median  sd %  within  next   late    captures by level")
    barriers = barriers_apart(ranks, APART_US)
    own = Peer() if ranks.path == "peer" else Host()
    for nbytes in SIZES:
        if ranks.over(f"{nbytes} B"):
            break
        for name, op in (
            ("nccl", Nccl().prepare(ranks.case("nccl", "default", nbytes), ranks.group, 4)),
            ("ours", own.prepare(ranks.case(own.name, "auto", nbytes, inplace=False), ranks.group, 4)),
        ):
            study(ranks, name, op, barriers, nbytes)
            op.close()
    ranks.leave()


if __name__ == "__main__":
    main()
