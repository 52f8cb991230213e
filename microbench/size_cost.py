"""What does a size cost?

    torchrun --standalone --nproc-per-node=2 microbench/size_cost.py
    mpirun -n 2 python microbench/size_cost.py

One all-reduce of float32 between CPU ranks, from 1 KiB to 4 MiB. A barrier, then one reduce on every
rank's own clock; per replay the slowest rank counts, and the median over replays is reported. The
model is t(S) = alpha + beta S, in up to three pieces: a fixed price per call, and a price per byte
that changes where the library changes its algorithm or the data leaves a cache.

What to look for: the fixed price dominates well past 100 KB. At decode sizes an all-reduce costs
what a call costs, and a faster wire would hardly help.

About five seconds and the start; a size is printed when it is measured, the model at the end.
"""

from __future__ import annotations

import time

import numpy as np
from cpu_ranks import Ranks, help_only, join, say

from arfloor.core.fits import fit
from arfloor.core.statistics import median_estimate

SIZES = [1024 * 2**k for k in range(13)]
REPLAYS, WARM_UP = 60, 10
WITHIN = 0.1  # what is further off the model is said


def time_reduce(ranks: Ranks, nbytes: int) -> np.ndarray:
    """Latencies in us of REPLAYS reduces, shape (REPLAYS,), the slowest rank of each."""
    data = np.ones(nbytes // 4, dtype=np.float32)
    taken = np.empty(WARM_UP + REPLAYS)
    for replay in range(WARM_UP + REPLAYS):
        data.fill(1.0)
        ranks.barrier()
        begin = time.perf_counter_ns()
        ranks.all_reduce(data)
        taken[replay] = (time.perf_counter_ns() - begin) / 1e3
    if not np.all(data == ranks.world):
        raise SystemExit(f"{ranks.name}: wrong sum at {nbytes} B; a wrong reduce has no latency")
    return ranks.slowest(taken)[WARM_UP:]


def main() -> None:
    help_only(__doc__)
    ranks = join()
    say(ranks, f"{ranks.name}, {ranks.world} CPU ranks, float32, one host")
    say(ranks, f"{'size':>10}  {'median us':>10}  {'95 % interval':>20}")
    points = []
    for nbytes in SIZES:
        e = median_estimate(time_reduce(ranks, nbytes))
        points.append((nbytes, e))
        say(ranks, f"{nbytes:>10}  {e.value:>10.1f}  {f'[{e.lo:.1f}, {e.hi:.1f}]':>20}")
    model = fit(points)
    for piece in model.segments:
        alpha, beta = piece.alpha.value, piece.beta.value
        say(ranks, f"from {piece.start} B: alpha {alpha:.1f} us, beta {beta * 1e3:.3f} us per kB")
    for nbytes, e in points:
        off = e.value / model.predict(nbytes).value - 1
        if abs(off) > WITHIN:
            say(ranks, f"{nbytes} B: {off:+.0%} off the model")
    for outlier in model.outliers:
        say(ranks, f"outlier: {outlier.us:.1f} us at {outlier.nbytes} B, expected {outlier.expected_us:.1f}")
    ranks.close()


if __name__ == "__main__":
    main()
