"""What does a captured operation of NCCL cost, and how does it depend on what the graph did before?

    torchrun --standalone --nproc-per-node=2 microbench/graph_ends.py
    NCCL_GRAPH_MIXING_SUPPORT=0 torchrun --standalone --nproc-per-node=2 microbench/graph_ends.py

Chains of 8 and 40 of NCCL's all-reduces in a CUDA graph, timed by events on every rank behind the device
barrier, which lets the ranks go at once, or after 50 or 150 us, in which the GPU can fetch what follows. NCCL
leaves an event of its own in the graph with every call, and the next call waits for it; not so with
NCCL_GRAPH_MIXING_SUPPORT=0, which asks something of the program (`arfloor.core.demands`; graphs one behind
the other on a stream, as here, are allowed). Last, the same graph after itself.

What to look for: (chain of 40 - chain of 8) / 32, the cost of one more operation, by the time the graph had
waited; readings in two heaps, `late` being the share of the upper one and `gap` how far it lies above the
lower. `behind` is what a graph adds when another follows.

About 20 s on two GPUs, of which ten are starting; a line is printed when it is measured. What two H200s gave
stands in docs/measurements.md.
"""

from __future__ import annotations

import itertools
import statistics

import torch
from gpu_ranks import GpuRank, barriers_apart, command_line, join

from arfloor.backends.nccl import Nccl
from arfloor.core.cases import Case
from arfloor.runtime.barrier import DeviceBarrier
from arfloor.runtime.chains import Chain
from arfloor.runtime.timing_gpu import FEW, MANY

SIZES = [8 << 10, 256 << 10]
SETTLES_US = [0.0, 50.0, 150.0]
CAPTURES, REPLAYS, BEHIND = 4, 15, 20


def behind_us(chain: Chain) -> float:
    """Time a graph when twenty follow each other without the host waiting, on this rank."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    for _ in range(BEHIND):
        chain.start()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end)) * 1e3 / BEHIND


def heaps(readings: list[float], gap_us: float) -> str:
    """The lower heap's median, how much lies more than `gap_us` above its start, and how far above."""
    start = sorted(readings)[len(readings) // 20]
    upper = [us for us in readings if us > start + gap_us]
    lower = statistics.median(us for us in readings if us <= start + gap_us)
    gap = statistics.median(upper) - lower if upper else 0.0
    return f"{lower:>9.1f} {len(upper) / len(readings):>6.2f} {gap:>6.1f}"


def study(ranks: GpuRank, case: Case, count: int, barrier: DeviceBarrier, settle_us: float) -> None:
    """One line a rank: both heaps, and what the same graph takes when the next one follows."""
    op = Nccl().prepare(case, ranks.group, 4)
    readings: list[float] = []
    followed: list[float] = []
    for _ in range(CAPTURES):
        chain = Chain(op, count, barrier, graph=True)
        chain.replay_us()
        ranks.group.barrier()
        readings += [chain.replay_us() for _ in range(REPLAYS)]
        followed.append(behind_us(chain))
        chain.close()
    line = f"{heaps(readings, 0.9 * count)} {statistics.median(followed) - statistics.median(readings):>8.1f}"
    name = f"{case.nbytes:>9} {count:>4} {settle_us:>7.0f}"
    for rank, shown in enumerate(ranks.group.all_gather(line)):
        ranks.say(f"{name} {rank:>5} {shown}")
    op.close()


def main() -> None:
    chosen = command_line(__doc__, limit_s=90).parse_args()
    ranks = join(chosen.limit_s)
    ranks.say(f"NCCL default, {ranks.world} GPUs, path {ranks.path}, bfloat16, us")
    ranks.say("     size  ops settles  rank     lower   late    gap   behind")
    barriers = barriers_apart(ranks, SETTLES_US)
    for nbytes in SIZES:
        case = ranks.case("nccl", "default", nbytes)
        for settle_us, count in itertools.product(SETTLES_US, (FEW, MANY)):
            if ranks.over(f"{nbytes} B, {count} operations, settled {settle_us:g} us"):
                ranks.leave()
            study(ranks, case, count, barriers[settle_us], settle_us)
    ranks.leave()


if __name__ == "__main__":
    main()
