"""Does it matter which pages the slab got?

    NCCL_P2P_DISABLE=1 torchrun --standalone --nproc-per-node=2 microbench/slab_luck.py
    torchrun --standalone --nproc-per-node=2 microbench/slab_luck.py

One plan, set up many times over: the same kernel and inputs; `slabs`, a slab of its own each time, or
`places`, another place in one slab, whose regions of 2 MiB hold many. All take turns behind the device
barrier, in several captures, and every one is verified first.

What to look for, a line a size, plan and kind: `apart`, the standard deviation between slabs or places (what
the captures' noise explains taken off), and `captures`, that within one, in per cent; the median of each,
over captures; then the first three again, each timed alone, as in a sweep's round. Where they differ and
captures do not, a plan that tuning found fastest was lucky in part, and a program that takes the fastest of a
few keeps the luck: for nothing, if places do.

Expected: over the host, up to 32 KiB, slabs apart by 3 to 7 % and captures by less than 1 (a plan's two
launches in a sweep were up to 14 % apart, either way and differently at each size, within a launch known to
0.8 %; over NVLink 1 % apart); alone what they took in turns. Whether places differ like slabs nobody knows.

Expected to take about 35 s over the host and 15 s over NVLink on two GPUs, of which ten are starting; a row
is printed when it is measured.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable, Sequence

import torch
from gpu_ranks import GpuRank, command_line, interleaved_us, join, payloads

from arfloor.backends.ours import Endpoint, kernel
from arfloor.core.plans import Plan, layout, parse
from arfloor.runtime import slabs

PLANS: dict[str, dict[int, tuple[str, ...]]] = {
    "host": {
        1536: ("line16t32-one-1x128-lag250", "line16t32-one-1x128"),
        8192: ("line128t64-one-9x64-lag250",),
        32768: ("line512t64-one-9x256-pace32-lag150",),
    },
    "peer": {8192: ("ll-one-8x128",)},
}
EACH, CAPTURES, REPLAYS, SLOTS = 12, 4, 15, 4


class Setup:
    """`SLOTS` reductions of one plan at one place of one slab, over buffers that all set-ups share."""

    def __init__(
        self, plan: Plan, ranks: GpuRank, slab: slabs.Slab, offset: int, buffers: list[torch.Tensor]
    ) -> None:
        nbytes = buffers[0].nbytes
        self.end = Endpoint(
            plan=plan,
            path=ranks.path,
            dtype="bfloat16",
            rank=ranks.rank,
            pointers=tuple(pointer + offset for pointer in slab.pointers),
            max_nbytes=nbytes,
            spin_s=3.0,
            function=kernel(plan, ranks.world, "bfloat16", ranks.path, ranks.rank),
        )
        self.outputs = [torch.full_like(x, float("nan")) for x in buffers]
        self._operations = [
            self.end.bind(x.data_ptr(), y.data_ptr(), nbytes)
            for x, y in zip(buffers, self.outputs, strict=True)
        ]

    def run(self, slot: int) -> None:
        """Enqueue one slot's reduction."""
        self._operations[slot].launch(torch.cuda.current_stream().cuda_stream)

    def right(self, expected: Sequence[torch.Tensor]) -> bool:
        """Whether every slot's sum is exact."""
        for slot in range(SLOTS):
            self.run(slot)
        torch.cuda.synchronize()
        same = all(torch.equal(y, sum_) for y, sum_ in zip(self.outputs, expected, strict=True))
        return same and self.end.error() is None


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


def study(ranks: GpuRank, nbytes: int, name: str, kind: str) -> str:
    """One line; a wrong sum ends the script."""
    plan = parse(name)
    each = layout(plan, ranks.world, ranks.path, nbytes).nbytes
    stride = max(-(-each // 4096) * 4096, slabs.ALIGNMENT // EACH // 4096 * 4096)
    count = EACH if kind == "slabs" else 1
    held = [
        slabs.slab(ranks.path, ranks.group, each if kind == "slabs" else EACH * stride) for _ in range(count)
    ]
    inputs, sums = payloads(ranks, SLOTS, nbytes, high=8)
    places = [(slab, 0) for slab in held] if kind == "slabs" else [(held[0], i * stride) for i in range(EACH)]
    setups = {str(i): Setup(plan, ranks, slab, at, inputs) for i, (slab, at) in enumerate(places)}
    ranks.group.barrier()
    if not all(ranks.group.all_gather(all(s.right(sums) for s in setups.values()))):
        ranks.fail(f"{name}: wrong sum at {nbytes} B; a wrong reduce has no latency")
    runs: dict[str, Callable[[int], None]] = {key: setup.run for key, setup in setups.items()}
    taken: dict[str, list[float]] = {key: [] for key in setups}
    for _ in range(CAPTURES):
        for key, us in interleaved_us(ranks, runs, replays=REPLAYS).items():
            taken[key].append(statistics.median(us))
    alone = [
        statistics.median(interleaved_us(ranks, {k: runs[k]}, replays=REPLAYS)[k]) for k in ("0", "1", "2")
    ]
    for setup in setups.values():
        setup.end.close()
    ranks.group.barrier()
    for slab in held:
        slab.close()
    apart, within = spreads(list(taken.values()))
    medians = " ".join(f"{statistics.median(us):.2f}" for us in taken.values())
    singly = " ".join(f"{us:.2f}" for us in alone)
    return f"apart {apart:.1f} %, captures {within:.1f} %; {medians}; alone {singly}"


def main() -> None:
    chosen = command_line(__doc__, limit_s=60).parse_args()
    ranks = join(chosen.limit_s)
    ranks.say(f"{ranks.world} GPUs, path {ranks.path}, bfloat16, {EACH} set-ups, {CAPTURES} captures, us")
    for nbytes, names in PLANS[ranks.path].items():
        for name, kind in itertools.product(names, ("slabs", "places")):
            if ranks.over(f"{nbytes} B, {name}"):
                ranks.leave()
            ranks.say(f"{nbytes:>7} {name} {kind}: {study(ranks, nbytes, name, kind)}")
    ranks.leave()


if __name__ == "__main__":
    main()
