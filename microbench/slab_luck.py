"""Does it matter which pages the slab got?

    NCCL_P2P_DISABLE=1 torchrun --standalone --nproc-per-node=2 microbench/slab_luck.py
    torchrun --standalone --nproc-per-node=2 microbench/slab_luck.py

One plan, set up many times over: the same kernel, buffers of the same size, a slab of its own each time. All
take turns behind the device barrier, in several captures.

What to look for, a line a size and plan: `slabs`, the standard deviation between slabs (what the captures'
noise explains taken off), and `captures`, that within a slab, in per cent; the median of every slab, over
captures; then the first three slabs again, each timed alone, as in a sweep's round. Where slabs differ and
captures do not, a plan that tuning found fastest was lucky in part, and a program that takes the fastest of a
few slabs keeps the luck.

Expected: over the host, up to 32 KiB, slabs apart by 3 to 7 % (a plan took 0.1 to 0.6 us more in a sweep than
in its tuning 15 times of 22, and never 0.1 us less), captures by 1 to 2 %, and alone what they took in turns;
over NVLink no difference.

About 25 s over the host and 15 s over NVLink on two GPUs, of which ten are starting; a plan is printed when
it is measured.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence

from gpu_ranks import command_line, interleaved_us, join

from arfloor.backends.prepared_reduce import PreparedReduce
from arfloor.core.plans import parse
from arfloor.runtime import verify

PLANS: dict[str, dict[int, tuple[str, ...]]] = {
    "host": {
        1536: ("line16t32-one-1x128-lag250", "line16t32-one-1x128"),
        8192: ("line128t64-one-9x64-lag250",),
        32768: ("line512t64-one-9x256-pace32-lag150",),
    },
    "peer": {8192: ("ll-one-8x128",)},
}
SLABS, CAPTURES, REPLAYS = 12, 4, 15


def spreads(by_slab: Sequence[Sequence[float]]) -> tuple[float, float]:
    """(between slabs, within a slab) as standard deviations in per cent, from a latency a slab and capture.

    One-way analysis of variance with random effects: the variance between slabs' means holds a share of that
    within, 1 / captures, which is taken off.
    """
    captures = len(by_slab[0])
    middle = statistics.fmean(us for slab in by_slab for us in slab)
    within = statistics.fmean(statistics.variance(slab) for slab in by_slab)
    between = statistics.variance([statistics.fmean(slab) for slab in by_slab]) - within / captures
    return 100 * max(0.0, between) ** 0.5 / middle, 100 * within**0.5 / middle


def main() -> None:
    chosen = command_line(__doc__, limit_s=60).parse_args()
    ranks = join(chosen.limit_s)
    ranks.say(f"{ranks.world} GPUs, path {ranks.path}, bfloat16, {SLABS} slabs, {CAPTURES} captures, us")
    for nbytes, names in PLANS[ranks.path].items():
        for name in names:
            if ranks.over(f"{nbytes} B, {name}"):
                ranks.leave()
            case = ranks.case(ranks.path, name, nbytes, inplace=False)
            slabs = {
                str(i): PreparedReduce(case, ranks.group, 4, parse(name), ranks.rank) for i in range(SLABS)
            }
            for op in slabs.values():
                check = verify.check_rank(op, case, ranks.rank, between=ranks.group.barrier)
                if any(ranks.group.all_gather(check.wrong)):
                    ranks.fail(f"{name}: wrong sum at {nbytes} B; a wrong reduce has no latency")
            runs: dict[str, Callable[[int], None]] = {key: op.run for key, op in slabs.items()}
            taken: dict[str, list[float]] = {key: [] for key in slabs}
            for _ in range(CAPTURES):
                for key, us in interleaved_us(ranks, runs, replays=REPLAYS).items():
                    taken[key].append(statistics.median(us))
            between, within = spreads(list(taken.values()))
            alone = [
                statistics.median(interleaved_us(ranks, {k: runs[k]}, replays=REPLAYS)[k])
                for k in list(runs)[:3]
            ]
            medians = " ".join(f"{statistics.median(us):.2f}" for us in taken.values())
            ranks.say(
                f"{nbytes:>7} {name}: slabs {between:.1f} %, captures {within:.1f} %; {medians}; alone "
                + " ".join(f"{us:.2f}" for us in alone)
            )
            for op in slabs.values():
                op.close()
    ranks.leave()


if __name__ == "__main__":
    main()
