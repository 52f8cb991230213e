"""What does a tear look like?

    torchrun --standalone --nproc-per-node=2 microbench/torn_lines.py
    NCCL_P2P_DISABLE=1 torchrun --standalone --nproc-per-node=2 microbench/torn_lines.py

A line of 32 to 512 bytes is written by one instruction of neighbouring lanes, 16 bytes a lane, its tag last.
Nothing promises that it arrives as one. Two builds of the same kernel reduce the same inputs: one counts
the lines that a poll found neither old nor new, and polls them again, as our kernels do; the other trusts
a tag that is only a sequence number, and its wrong sums are counted.

What to look for: over NVLink, nothing. Through host memory, lines longer than the 64 bytes of a cache
line are seen in halves: rarely, but a decode step reduces tens of thousands of lines a millisecond. A tag
that hashes its line makes a tear a poll in vain; a tag that does not makes it a wrong token.

Expected to take about 25 s a path on two GPUs, of which ten are starting; a row is printed when it is
counted. Two H200s, 12,800 sums a row: lines of 32 and 64 bytes none; through host memory without the hash a
fifth of the sums wrong at 128 bytes and nearly all at 256 and 512, where 2 and 7 lines in 100 were torn. Over
NVLink nothing is expected, and was not run.
"""

from __future__ import annotations

import torch
from gpu_ranks import GpuRank, command_line, join, payloads

from arfloor.backends import tune
from arfloor.backends.ours import Reducer
from arfloor.core.plans import Plan
from arfloor.core.tuning import fitted

NBYTES, REPLAYS, SLOTS = 256 << 10, 400, 16
LINES = (32, 64, 128, 256, 512)


def reduce_many(ranks: GpuRank, plan: Plan, **macros: int) -> tuple[int, int]:
    """(wrong sums, torn lines) of REPLAYS x SLOTS reductions, each with a payload of its own."""
    reducer = Reducer(
        plan=plan,
        path=ranks.path,
        dtype="bfloat16",
        group=ranks.group,
        device=ranks.rank,
        max_nbytes=NBYTES,
        extra={f"ARF_{name}": value for name, value in macros.items()},
    )
    wrong = torch.zeros((), dtype=torch.int64, device="cuda")
    inputs, expected = payloads(ranks, SLOTS, NBYTES, high=60)
    outputs = [torch.empty_like(x) for x in inputs]
    bound = [reducer.bind(x.data_ptr(), y.data_ptr(), NBYTES) for x, y in zip(inputs, outputs, strict=True)]
    torch.cuda.synchronize()
    ranks.group.barrier()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        for slot in range(SLOTS):
            bound[slot].launch(torch.cuda.current_stream().cuda_stream)
            wrong += (outputs[slot] != expected[slot]).any()
    for _ in range(REPLAYS):
        graph.replay()
    torch.cuda.synchronize()
    reducer.check()
    mine = [int(wrong), reducer.end.torn_lines()]
    reducer.close()
    counts = ranks.group.all_gather(mine)
    return sum(c[0] for c in counts), sum(c[1] for c in counts)


def main() -> None:
    chosen = command_line(__doc__, limit_s=90).parse_args()
    ranks = join(chosen.limit_s)
    total = REPLAYS * SLOTS * ranks.world
    facts = tune.facts_of(ranks.path, ranks.world, ranks.rank)
    ranks.say(f"{ranks.world} GPUs, path {ranks.path}, {NBYTES} B, {total} sums a row")
    ranks.say(f"{'line':>5}  {'lines':>11}  {'torn, seen by the hash':>22}  {'sums wrong without it':>21}")
    for line in LINES:
        if ranks.over(f"{line} bytes"):
            break
        plan = fitted(Plan(protocol="line", line=line), facts, NBYTES, 8)
        seen_wrong, torn = reduce_many(ranks, plan, COUNT_TEARS=1)
        if seen_wrong:
            ranks.fail(f"{plan.name}: {seen_wrong} wrong sums with the hash, which is a fault")
        wrong, _ = reduce_many(ranks, plan, UNSAFE_HASH=1)
        lines = -(-NBYTES // plan.payload) * REPLAYS * SLOTS * ranks.world * (ranks.world - 1)
        ranks.say(f"{line:>5}  {lines:>11}  {torn:>22}  {wrong:>21}")
    ranks.leave()


if __name__ == "__main__":
    main()
