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
ranks the second phase of `two` buys nothing over NVLink. A `*` is the fastest of its row.

Expected to take about a minute a path on two GPUs, of which ten seconds are starting; a row is printed when
it is measured. Two H200s, us (docs/measurements.md has the whole table, and what was predicted):

    host    8 KiB    ll 3.9, line16 4.9, line64 3.5, line128 3.6, flag 6.5, two 6.0, auto 3.8, NCCL 17
    host    256 KiB  ll 22, line128 13.7, line512 13.2, flag 16, two 12.7, auto 11.2, NCCL 42
    NVLink  8 KiB    ll 2.7, line16 3.0, flag 4.0, pull 4.2, auto 2.7, NCCL 12
    NVLink  256 KiB  line64 3.7, line128 3.8, flag 5.0, pull 5.6, auto 3.8, NCCL 14
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
