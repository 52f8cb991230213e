"""What do 8 bits an element on the wire save, and what do they lose?

    NCCL_P2P_DISABLE=1 torchrun --standalone --nproc-per-node=2 microbench/quantised_wire.py
    torchrun --standalone --nproc-per-node=2 microbench/quantised_wire.py

Our kernels with the message as it is, tuned for its size, and with int8 and fp8 (e4m3) elements and a scale
for 14 of them, each at the best of a few paces. Slopes over chained operations in CUDA graphs, common to
all ranks, all interleaved; every result is held to its bound first (`arfloor.core.lossy`). Errors are of
sums of normal values, against float64: the largest as a share of the largest sum, and root mean square over
root mean square.

What to look for: 1.75 times fewer bytes can save at most 43 % of what the wire takes, nothing of the
latency; so little at 64 KiB, more at 1 MiB, and over NVLink perhaps less than the packing costs. bfloat16
itself rounds a sum by up to 0.4 %, which is what to hold the errors against.

Expected to take about 40 s over the host and 30 s over NVLink on two GPUs, of which ten are starting; a size
is printed when it is measured. Predicted for two H200s over the host, of 16 bits: 0.85 to 1.0 at 64 KiB, 0.7
to 0.8 at 256 KiB, 0.6 to 0.7 at 1 MiB; over NVLink 1.0 to 1.15 at 64 KiB and 0.85 to 1.05 at 1 MiB. int8
errors below 0.8 % of the largest sum and rms 0.5 %, fp8 below 4 % and 2.2 % (16 bits: 0.25 % and 0.18 %), as
a simulation of the formats gives.
"""

from __future__ import annotations

import statistics
from dataclasses import replace

import numpy as np
import torch
from gpu_ranks import GpuRank, add_sizes, command_line, interleaved_us, join

from arfloor.backends import tune
from arfloor.backends.prepared_reduce import PreparedReduce
from arfloor.core import units
from arfloor.core.lossy import FAMILIES
from arfloor.core.plans import Plan, Wire
from arfloor.core.statistics import median_estimate
from arfloor.core.tuning import fitted
from arfloor.runtime import verify
from arfloor.runtime.timing_gpu import barrier_for

SIZES = [65536, 262144, 1048576]
PACES = (0, 18, 25, 28, 34)
SLOTS, QUICK, REPLAYS = 4, 7, 41


def candidates(ranks: GpuRank, wire: Wire, nbytes: int) -> list[Plan]:
    """512-byte lines, a tile a warp; over the host at several paces of sending."""
    facts = tune.facts_of(ranks.path, ranks.world, ranks.rank)
    paced = [Plan(protocol="line", line=512, wire=wire, pace=pace) for pace in PACES]
    warps = 4 if nbytes <= 1 << 17 else 16
    if ranks.path == "peer":
        return list(dict.fromkeys(fitted(paced[0], facts, nbytes, w) for w in (4, 8, 16)))
    return list(dict.fromkeys(replace(fitted(p, facts, nbytes, warps), lag=150) for p in paced))


def prepared(ranks: GpuRank, plan: Plan, nbytes: int) -> PreparedReduce | None:
    """A plan's operation, or None, said, where its result is wrong on any rank. Collective."""
    case = ranks.case(ranks.path, plan.name, nbytes, inplace=False)
    op = PreparedReduce(case, ranks.group, SLOTS, plan, ranks.rank)
    check = verify.check_rank(op, case, ranks.rank, between=ranks.group.barrier)
    wrong = ranks.group.all_gather(check.wrong)
    if not any(wrong):
        return op
    ranks.say(f"  {plan.name}: {sum(wrong)} wrong elements, not timed")
    op.close()
    return None


def errors(ranks: GpuRank, op: PreparedReduce) -> tuple[float, float]:
    """(largest error / largest sum, rms error / rms sum) of normal values, on this rank."""
    terms = [verify.payload("random", op.case, 0, r, SLOTS) for r in range(ranks.world)]
    op.write(0, terms[ranks.rank])
    ranks.group.barrier()
    op.run(0)
    total = np.sum(terms, axis=0)
    off = op.read(0) - total
    return (
        float(np.max(np.abs(off)) / np.max(np.abs(total))),
        float(np.sqrt(np.mean(off**2) / np.mean(total**2))),
    )


def one_size(ranks: GpuRank, nbytes: int) -> None:
    barrier = barrier_for(ranks, ranks.path)
    plain = tune.choose(
        ranks.group, path=ranks.path, device=ranks.rank, dtype="bfloat16", nbytes=nbytes, barrier=barrier
    ).plan
    wanted: dict[str, list[Plan]] = {"16 bits": [plain]}
    wanted |= {wire: candidates(ranks, wire, nbytes) for wire in FAMILIES}
    ops = {
        (label, plan.name): op
        for label, plans in wanted.items()
        for plan in plans
        if (op := prepared(ranks, plan, nbytes)) is not None
    }
    quick = interleaved_us(ranks, {n: op.run for (_, n), op in ops.items()}, slots=SLOTS, replays=QUICK)
    best = {
        label: min(
            (n for at, n in ops if at == label), key=lambda n: statistics.median(quick[n]), default=None
        )
        for label in wanted
    }
    if best["16 bits"] is None:
        ranks.fail(f"{plain.name}: wrong at {nbytes} B, and there is nothing to compare with")
    runs = {label: ops[label, name].run for label, name in best.items() if name is not None}
    times = interleaved_us(ranks, runs, slots=SLOTS, replays=REPLAYS)
    ranks.say(f"{units.size(nbytes)} over {ranks.path}")
    for label, us in times.items():
        op = ops[label, str(best[label])]
        found = median_estimate(us)
        largest, rms = errors(ranks, op)
        ratio = found.value / median_estimate(times["16 bits"]).value
        ranks.say(
            f"  {label:<8} {found.value:7.2f} us (+-{(found.hi - found.lo) / 2:.2f})  {ratio:.3f} of 16 bits"
            f"  error {largest:.2%} of the largest, rms {rms:.3%}  {op.plan.name}"
        )
    for op in ops.values():
        for reducer in op.reducers:
            reducer.check()
        op.close()


def main() -> None:
    parser = command_line(__doc__, limit_s=90)
    add_sizes(parser, SIZES)
    chosen = parser.parse_args()
    ranks = join(chosen.limit_s)
    with torch.cuda.device(ranks.rank):
        for nbytes in chosen.sizes:
            if ranks.over(f"{nbytes} B"):
                break
            one_size(ranks, nbytes)
    ranks.leave()


if __name__ == "__main__":
    main()
