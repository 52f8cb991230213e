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
"""

from __future__ import annotations

from gpu_ranks import join

SIZES = [2 << 10, 8 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20]
COLUMNS = ["ll", "line16", "line64", "line128", "line512", "flag", "pull", "line128-two", "auto"]


def main() -> None:
    ranks = join()
    columns = [c for c in COLUMNS if not (ranks.path == "host" and c == "pull")]
    ranks.say(f"{ranks.world} GPUs, path {ranks.path}, bfloat16, us (half the 95 % interval)")
    ranks.say(f"{'size':>9}  " + "  ".join(f"{c:>13}" for c in [*columns, "nccl"]))
    for nbytes in SIZES:
        found = [ranks.ours(column, nbytes) for column in columns]
        found.append(ranks.nccl("default", nbytes))
        best = min(e.value for e in found)
        cells = [f"{e.value:.2f} ({(e.hi - e.lo) / 2:.2f}){'*' if e.value == best else ' '}" for e in found]
        ranks.say(f"{nbytes:>9}  " + "  ".join(f"{c:>13}" for c in cells))
    ranks.leave()


if __name__ == "__main__":
    main()
