"""What do blocks and threads cost, and is a grid that nobody timed predictable?

    torchrun --standalone --nproc-per-node=2 microbench/grid_cost.py
    NCCL_P2P_DISABLE=1 torchrun --standalone --nproc-per-node=2 microbench/grid_cost.py

One of our kernels, lines of 128 bytes one-shot, over blocks x threads x message. The links are probed; every
second case, like the black squares of a board, is fitted (`arfloor.core.costs`: a cost a round, one for each
further time that a warp waits, the wire, bytes a block); the white ones are predicted by what they are, and
compared. Every result is verified before it is timed.

What to look for: errors within 10 % on the white squares. A warp that has two lines waits for two round trips
where the links have long been idle: grids that just fit the message are the fast ones.

About 40 s a path on two GPUs with `--rounds 1`, of which ten are starting; times are printed a grid when they
are measured, the fit at the end. What two H200s gave stands in docs/measurements.md.
"""

from __future__ import annotations

from gpu_ranks import GpuRank, command_line, join

from arfloor.core.cases import Estimate, Ran, Result
from arfloor.core.costs import held_out
from arfloor.core.plans import Plan
from arfloor.primitives import gpu

BLOCKS, THREADS, SIZES = (8, 16, 32, 64), (128, 256, 512), (16 << 10, 64 << 10, 256 << 10, 1 << 20)
WITHIN = 0.1


def result(ranks: GpuRank, plan: Plan, nbytes: int, latency: Estimate) -> Result:
    """A measurement as the fits take it: what ran, and how long it took."""
    case = ranks.case(ranks.path, plan.name, nbytes, inplace=False)
    ran = Ran(algorithm=plan.name, protocol=f"line{plan.line}", channels=plan.blocks)
    return Result(case=case, status="ok", latency=latency, ran=ran)


def main() -> None:
    parser = command_line(__doc__, limit_s=120)
    parser.add_argument("--rounds", type=int, default=2, help="rounds of ten replays a case (%(default)s)")
    chosen = parser.parse_args()
    ranks = join(chosen.limit_s)
    probes = gpu.measure(ranks, budget_s=4.0, paths=(ranks.path,))
    results: list[Result] = []
    black: set[str] = set()
    for i, blocks in enumerate(BLOCKS):
        for j, threads in enumerate(THREADS):
            plan = Plan(protocol="line", line=128, blocks=blocks, threads=threads)
            for k, nbytes in enumerate(SIZES):
                latency = ranks.ours(plan.name, nbytes, rounds=chosen.rounds)
                results.append(result(ranks, plan, nbytes, latency))
                if (i + j + k) % 2 == 0:
                    black.add(results[-1].case.id)
            taken = "  ".join(f"{r.latency.value:8.2f}" for r in results[-len(SIZES) :] if r.latency)
            ranks.say(f"timed: {blocks:>3}x{threads:<4} {taken} us")
    got = held_out(results, probes, fitted=lambda r: r.case.id in black)
    errors = dict(got.errors)
    ranks.say(f"path {ranks.path}, line128 one-shot: {got.within(WITHIN)} of {len(errors)} within 10 %")
    for costs in got.fitted.costs.values():
        ranks.say(f"{costs}")
    ranks.say("us; the error of the prediction in brackets where not fitted")
    ranks.say(f"{'grid':>7}  " + "  ".join(f"{n >> 10:>9} KiB" for n in SIZES))
    for at in range(0, len(results), len(SIZES)):
        row = results[at : at + len(SIZES)]
        cells = [
            f"{r.latency.value:.2f}" + (f" ({errors[r.case.id]:+.0%})" if r.case.id in errors else "")
            for r in row
            if r.latency is not None
        ]
        ranks.say(f"{row[0].case.variant.split('-')[2]:>7}  " + "  ".join(f"{c:>13}" for c in cells))
    ranks.leave()


if __name__ == "__main__":
    main()
