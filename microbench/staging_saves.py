"""What does staging save?

    torchrun --standalone --nproc-per-node=4 microbench/staging_saves.py

Four or eight GPUs that all write to all others at once put several streams through the same ports. Staged,
a rank sends to one other and receives from one other at a time, and moves on when the packet from behind
has come. Two shapes, each staged and not; and the island-aware one, which sends a chunk across the middle
once (as float32 partial sums) where the others send it several times.

What to look for: over NVLink, where every pair has its own way through the switch, staging only adds round
trips. Over PCIe, where streams share a host bridge, dense pushes reach 0.57 to 0.64 of the link in
published data, staged ones 0.93. At small sizes staging loses everywhere: it is all latency.
"""

from __future__ import annotations

from gpu_ranks import join

SIZES = [8 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20]
COLUMNS = ["line128", "line128-staged", "line512-two", "line512-two-staged", "islands"]


def main() -> None:
    ranks = join()
    if ranks.world < 3 or ranks.path != "peer":
        raise SystemExit("staging is for three or more GPUs that address each other: start 4 or 8 ranks")
    columns = COLUMNS if ranks.world % 2 == 0 else COLUMNS[:-1]
    ranks.say(f"{ranks.world} GPUs, path {ranks.path}, bfloat16, us (half the 95 % interval)")
    ranks.say(f"{'size':>9}  " + "  ".join(f"{c:>18}" for c in columns))
    for nbytes in SIZES:
        found = [ranks.ours(column, nbytes) for column in columns]
        cells = [f"{e.value:.2f} ({(e.hi - e.lo) / 2:.2f})" for e in found]
        ranks.say(f"{nbytes:>9}  " + "  ".join(f"{c:>18}" for c in cells))
    ranks.leave()


if __name__ == "__main__":
    main()
