"""Which protocol wins where?

    torchrun --standalone --nproc-per-node=2 microbench/which_protocol_wins.py
    NCCL_P2P_DISABLE=1 torchrun --standalone --nproc-per-node=2 microbench/which_protocol_wins.py

Our own kernels, one shape a column, each with a grid by rule of thumb. How does a reader know that data
has arrived? `flag`: a sequence number, written after the data with a release, read with an acquire. `ll`:
a flag beside every 4 bytes. `line`: a hashed tag that ends a line of 16 to 512 bytes. `pull`: as flag, but
the reader fetches. `two`: reduce-scatter, then all-gather, instead of everything to everyone. The last two
columns are what measuring finds, and NCCL as it comes.

What to look for: the release of `flag` costs about a microsecond and a half at every size, because it
waits for all its data to land. `ll` needs no fence and no hash, wins while the wire does not count, and
then loses by the bytes it doubles. Longer lines waste fewer bytes on tags and win as messages grow. At two
ranks the second phase of `two` buys nothing. A `*` is the fastest of its row.

Expected to take about a minute a path on two GPUs, of which ten seconds are starting; a row is printed when
it is measured. Predicted for two H200s by what docs/kernels.md has measured of these shapes one at a time,
us:

    host    8 KiB    ll, line16 3.8 to 4.2, line128 3.5, flag 6.5, two 5.9, auto 3.3 to 3.8, NCCL 16
    host    256 KiB  line128 12 to 13, line512 11 to 12, ll 19, flag 16, two 16, auto 10 to 11, NCCL 41
    host    1 MiB    line512 below line128, flag 46, auto 32 to 34, NCCL 68
    NVLink  8 KiB    ll 2.6, line16 2.7, flag 3.7, pull 4.8, auto 2.6 to 2.8, NCCL 12
    NVLink  256 KiB  line128 3.7, flag 5.0, pull 5.1, auto 3.7 to 3.8, NCCL 13
    NVLink  1 MiB    line512 6.1, flag 8.4, pull 9.5, auto 6.1, NCCL 20
"""

from __future__ import annotations

from gpu_ranks import add_sizes, command_line, join

SIZES = [2 << 10, 8 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20]
COLUMNS = ["ll", "line16", "line64", "line128", "line512", "flag", "pull", "line128-two", "auto"]


def main() -> None:
    parser = command_line(__doc__, limit_s=120)
    add_sizes(parser, SIZES)
    chosen = parser.parse_args()
    ranks = join(chosen.limit_s)
    columns = [c for c in COLUMNS if not (ranks.path == "host" and c == "pull")]
    ranks.say(f"{ranks.world} GPUs, path {ranks.path}, bfloat16, us (half the 95 % interval)")
    ranks.say(f"{'size':>9}  " + "  ".join(f"{c:>14}" for c in [*columns, "nccl"]))
    for nbytes in chosen.sizes:
        if ranks.over(f"{nbytes} B"):
            break
        found = [ranks.ours(column, nbytes) for column in columns]
        found.append(ranks.nccl("default", nbytes))
        best = min(e.value for e in found)
        cells = [f"{e.value:.2f} ({(e.hi - e.lo) / 2:.2f}){'*' if e.value == best else ' '}" for e in found]
        ranks.say(f"{nbytes:>9}  " + "  ".join(f"{c:>14}" for c in cells))
    ranks.leave()


if __name__ == "__main__":
    main()
