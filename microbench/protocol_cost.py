"""What does a protocol cost?

    torchrun --standalone --nproc-per-node=2 microbench/protocol_cost.py
    NCCL_P2P_DISABLE=1 torchrun --standalone --nproc-per-node=2 microbench/protocol_cost.py

NCCL moves a message in one of three ways. LL puts 4 bytes of flag beside every 4 bytes of data: no
fence, twice the bytes. LL128 puts 8 bytes of flag beside 120 of data: no fence, but it needs a link
that never splits a 128-byte store. Simple moves plain data and signals with fences: all the bandwidth,
the longest delay. Each is timed as a ring, on the channels that NCCL chooses and on 16; the slope over
chained operations in a CUDA graph, the slowest rank of two or more.

What to look for: Simple pays its price at every size below a few hundred KiB. LL doubles the bytes, and
shows it as soon as the wire counts: much sooner over PCIe than over NVLink. How many channels share the
work often matters more than the protocol. A `*` is the fastest of its row.

About 30 s a path on two GPUs, of which ten are starting; a row is printed when it is measured. What two H200s
gave stands in docs/measurements.md.
"""

from __future__ import annotations

from gpu_ranks import add_sizes, command_line, join

SIZES = [8 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20]
VARIANTS = [
    "default",
    "ring-ll",
    "ring-ll-16ch",
    "ring-ll128",
    "ring-ll128-16ch",
    "ring-simple",
    "ring-simple-16ch",
]


def main() -> None:
    parser = command_line(__doc__, limit_s=90)
    add_sizes(parser, SIZES)
    chosen = parser.parse_args()
    ranks = join(chosen.limit_s)
    ranks.say(f"{ranks.world} GPUs, path {ranks.path}, bfloat16, us (half the 95 % interval)")
    ranks.say(f"{'size':>9}  " + "  ".join(f"{v:>17}" for v in VARIANTS))
    for nbytes in chosen.sizes:
        if ranks.over(f"{nbytes} B"):
            break
        found = [ranks.nccl(variant, nbytes) for variant in VARIANTS]
        best = min(e.value for e in found)
        cells = [f"{e.value:.1f} ({(e.hi - e.lo) / 2:.1f}){'*' if e.value == best else ' '}" for e in found]
        ranks.say(f"{nbytes:>9}  " + "  ".join(f"{c:>17}" for c in cells))
    ranks.leave()


if __name__ == "__main__":
    main()
