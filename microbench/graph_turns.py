"""Does it matter whether a captured graph follows itself or another graph?

    torchrun --standalone --nproc-per-node=2 microbench/graph_turns.py
    NCCL_P2P_DISABLE=1 torchrun --standalone --nproc-per-node=2 microbench/graph_turns.py

Chains of 8 and 40 of NCCL's all-reduces, captured a dozen times over. The same captures are replayed in three
ways: `row`, one chain several times, then the other (as sweeps do); `turns`, the two alternating (as sweeps
did); `other`, each replay after a graph of another size (as a server's, whose batch changes).

What to look for, a line a size and way: `slope`, the cost of one more operation, the median over captures of
what the slowest rank says, and `sd`, by how much captures differ, in per cent; the same two where the least
over ranks is a chain's time; `late`, the share of a rank's replays of the long chain that took 40 us more
than the least of their capture, and `gap`, how much more they took; `apart`, by how much the ranks' readings
of one replay differ.

Expected, from two sweeps (`turns`: late 0.5 on each rank by itself, gap 70 us, sd 6 to 9 %) and from
`graph_ends.py` (`row`: no upper heap, ranks within 2 us): `row` has one heap and an sd below 2 %.

Expected to take about 15 s on two GPUs, of which ten are starting; a size is printed when it is measured.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence

import torch
from gpu_ranks import GpuRank, command_line, join

from arfloor.backends.nccl import Nccl
from arfloor.runtime.chains import Chain
from arfloor.runtime.timing_gpu import FEW, MANY, barrier_for

SIZES = [8 << 10, 256 << 10]
OTHER = 64 << 10
CAPTURES, REPLAYS = 12, 5
WAYS = ("row", "turns", "other")

Chains = tuple[Chain, Chain]
Times = tuple[list[float], list[float]]


def in_a_row(chains: Chains) -> Times:
    """Each chain REPLAYS times behind a first that does not count; this rank's us, long chain first."""
    found: Times = ([], [])
    for chain, into in zip(chains, found, strict=True):
        chain.replay_us()
        into += [chain.replay_us() for _ in range(REPLAYS)]
    return found


def after(between: Callable[[], object], chains: Chains) -> Times:
    """The chains in turns, `between` run before every replay."""
    found: Times = ([], [])
    for _ in range(REPLAYS + 1):
        for chain, into in zip(chains, found, strict=True):
            between()
            into.append(chain.replay_us())
    return found[0][1:], found[1][1:]


def study(ranks: GpuRank, nbytes: int, other: Chain) -> dict[str, list[Times]]:
    """By way, this rank's times of every capture."""
    op = Nccl().prepare(ranks.case("nccl", "default", nbytes), ranks.group, 4)
    for slot in range(op.slots):
        op.run(slot)
    torch.cuda.synchronize()
    barrier = barrier_for(ranks, ranks.path)
    found: dict[str, list[Times]] = {way: [] for way in WAYS}
    for capture in range(CAPTURES):
        chains = Chain(op, MANY, barrier, graph=True), Chain(op, FEW, barrier, graph=True)
        first = capture % len(WAYS)
        for way in (*WAYS[first:], *WAYS[:first]):
            times = {
                "row": lambda: in_a_row(chains),  # noqa: B023 - called at once
                "turns": lambda: after(lambda: None, chains),  # noqa: B023
                "other": lambda: after(other.replay_us, chains),  # noqa: B023
            }[way]()
            found[way].append(times)
        for chain in chains:
            chain.close()
    op.close()
    return found


def slope(many: Sequence[float], few: Sequence[float]) -> float:
    """Us of one more operation."""
    return (statistics.median(many) - statistics.median(few)) / (MANY - FEW)


def described(captures: Sequence[Sequence[Times]]) -> str:
    """A line of figures from every rank's times of every capture, indexed (rank, capture)."""
    figures = []
    for joint in (max, min):
        found = []
        for ranks in zip(*captures, strict=True):
            many, few = ([joint(at) for at in zip(*(rank[i] for rank in ranks), strict=True)] for i in (0, 1))
            found.append(slope(many, few))
        middle = statistics.median(found)
        figures.append(f"{middle:>8.2f} {100 * statistics.pstdev(found) / middle:>5.1f}")
    late, gap = zip(*(lateness([times[0] for times in rank]) for rank in captures), strict=True)
    pairs = [
        max(at) - min(at)
        for ranks in zip(*captures, strict=True)
        for at in zip(*(rank[0] for rank in ranks), strict=True)
    ]
    shares = "/".join(f"{share:.2f}" for share in late)
    return f"{' '.join(figures)} {shares:>10} {max(gap):>6.1f} {statistics.median(pairs):>6.1f}"


def lateness(captures: Sequence[Sequence[float]]) -> tuple[float, float]:
    """Of one rank's readings by capture: the share that is late (see above), and by how much, in us."""
    above = [us - min(capture) for capture in captures for us in capture]
    late = [us for us in above if us > MANY]
    return len(late) / len(above), statistics.median(late) if late else 0.0


def main() -> None:
    chosen = command_line(__doc__, limit_s=60).parse_args()
    ranks = join(chosen.limit_s)
    ranks.say(f"NCCL default, {ranks.world} GPUs, path {ranks.path}, bfloat16, {CAPTURES} captures, us")
    ranks.say("    size    way    slope  sd %    least  sd %       late    gap  apart")
    case = ranks.case("nccl", "default", OTHER)
    op = Nccl().prepare(case, ranks.group, 4)
    for slot in range(op.slots):
        op.run(slot)
    torch.cuda.synchronize()
    other = Chain(op, FEW, barrier_for(ranks, ranks.path), graph=True)
    for nbytes in SIZES:
        if ranks.over(f"{nbytes} B"):
            break
        found = ranks.group.all_gather(study(ranks, nbytes, other))
        for way in WAYS:
            ranks.say(f"{nbytes:>8} {way:>6} {described([rank[way] for rank in found])}")
    other.close()
    op.close()
    ranks.leave()


if __name__ == "__main__":
    main()
