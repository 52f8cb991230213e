"""What does staging save?

    torchrun --standalone --nproc-per-node=4 microbench/staging_saves.py

Four or eight GPUs that all write to all others at once put several streams through the same ports. Staged,
a rank sends to one other and receives from one other at a time, and moves on when the packet from behind
has come. Two shapes, each staged and not; and the island-aware one, which sends a chunk across the middle
once (as float32 partial sums) where the others send it several times. Over the peer path only: through host
memory a message is written once whatever the number of ranks, so there is nothing to stage.

What to look for: over NVLink, where every pair has its own way through the switch, staging only adds round
trips. Over PCIe, where streams share a host bridge, dense pushes reach 0.57 to 0.64 of the link in
published data, staged ones 0.93. At small sizes staging loses everywhere: it is all latency.

Expected to take about 50 s on four GPUs, of which fifteen are starting; a row is printed when it is measured.
Predicted for four H200s over NVLink: docs/four-gpus.md, which counts no round trips of staging, has staged
and dense alike; here staged one-shot is expected to lose by two flags, 1.3 us, at 8 KiB, and staging to lose
at every size.
"""

from __future__ import annotations

from gpu_ranks import add_sizes, command_line, join

SIZES = [8 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20]
COLUMNS = ["line128", "line128-staged", "line512-two", "line512-two-staged", "islands"]


def main() -> None:
    parser = command_line(__doc__, limit_s=120)
    add_sizes(parser, SIZES)
    chosen = parser.parse_args()
    ranks = join(chosen.limit_s)
    if ranks.world < 3 or ranks.path != "peer":
        ranks.fail("staging is for three or more GPUs that address each other: start 4 or 8 ranks")
    columns = COLUMNS if ranks.world % 2 == 0 else COLUMNS[:-1]
    ranks.say(f"{ranks.world} GPUs, path {ranks.path}, bfloat16, us (half the 95 % interval)")
    ranks.say(f"{'size':>9}  " + "  ".join(f"{c:>18}" for c in columns))
    for nbytes in chosen.sizes:
        if ranks.over(f"{nbytes} B"):
            break
        found = [ranks.ours(column, nbytes) for column in columns]
        cells = [f"{e.value:.2f} ({(e.hi - e.lo) / 2:.2f})" for e in found]
        ranks.say(f"{nbytes:>9}  " + "  ".join(f"{c:>18}" for c in cells))
    ranks.leave()


if __name__ == "__main__":
    main()
