"""How far is a ping-pong from a reduce?

    torchrun --standalone --nproc-per-node=2 microbench/pingpong_to_reduce.py
    mpirun -n 2 python microbench/pingpong_to_reduce.py

The plainest all-reduce between two ranks sends everything once each way and adds it: the yardstick
here is half a ping-pong's round trip of the same size plus the additions. It is no bound. A reduce
that splits the message lets each rank add one half, sends both halves at once and may add straight
from the other's memory, so a good library can come out below 1. Half a round trip is timed on
rank 0, the additions alone on every rank, the reduce from a barrier to its return on the slowest
rank; the three are interleaved so that a busy machine disturbs them alike.

What to look for: well above 1 at small sizes means rounds and wake-ups; at large sizes, copies.

About five seconds and the start; a size is printed when it is measured.
"""

from __future__ import annotations

import time

import numpy as np
from cpu_ranks import Ranks, help_only, join, say

SIZES = [1024, 8192, 65536, 262144, 1048576, 4194304]
REPLAYS, WARM_UP = 60, 10


def half_round_trip_us(ranks: Ranks, data: np.ndarray) -> float:
    """One way, as half of there and back; only rank 0's value means anything."""
    begin = time.perf_counter_ns()
    if ranks.rank == 0:
        ranks.send(data, 1)
        ranks.receive(data, 1)
    elif ranks.rank == 1:
        ranks.receive(data, 0)
        ranks.send(data, 0)
    return (time.perf_counter_ns() - begin) / 2e3


def addition_us(data: np.ndarray, other: np.ndarray) -> float:
    """Adding the other rank's contribution, as the reduce must."""
    begin = time.perf_counter_ns()
    np.add(data, other, out=data)
    return (time.perf_counter_ns() - begin) / 1e3


def reduce_us(ranks: Ranks, data: np.ndarray) -> float:
    """One all-reduce behind a barrier."""
    ranks.barrier()
    begin = time.perf_counter_ns()
    ranks.all_reduce(data)
    return (time.perf_counter_ns() - begin) / 1e3


def measure(ranks: Ranks, nbytes: int) -> tuple[float, float, float]:
    """Medians in us of (half round trip, addition, reduce) at one size."""
    data = np.zeros(nbytes // 4, dtype=np.float32)
    other = np.zeros_like(data)
    rows = np.empty((WARM_UP + REPLAYS, 3))
    for row in rows:
        row[0] = half_round_trip_us(ranks, data)
        row[1] = addition_us(data, other)
        row[2] = reduce_us(ranks, data)
    kept = rows[WARM_UP:]
    slowest = ranks.slowest(np.ascontiguousarray(kept[:, 1:]).ravel()).reshape(-1, 2)
    addition, reduce = np.median(slowest, axis=0)
    return float(np.median(kept[:, 0])), float(addition), float(reduce)


def main() -> None:
    help_only(__doc__)
    ranks = join()
    if ranks.world != 2:
        raise SystemExit(f"expected 2 ranks, found {ranks.world}: a ping-pong has two ends")
    say(ranks, f"{ranks.name}, 2 CPU ranks, float32, one host; medians of {REPLAYS}, us")
    say(ranks, f"{'size':>10}  {'half ping-pong':>14}  {'additions':>9}  {'reduce':>9}  {'to yardstick':>14}")
    for nbytes in SIZES:
        wire, add, reduce = measure(ranks, nbytes)
        ratio = reduce / (wire + add)
        say(ranks, f"{nbytes:>10}  {wire:>14.1f}  {add:>9.1f}  {reduce:>9.1f}  {ratio:>13.2f}x")
    ranks.close()


if __name__ == "__main__":
    main()
