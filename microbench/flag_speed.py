"""How fast is a flag?

    torchrun --standalone --nproc-per-node=2 microbench/flag_speed.py

One thread on each of two GPUs plays ping-pong: it writes a number into memory that the other polls, and
waits for the answer in memory that it polls itself. Half a round is the time of a flag one way. The
flags lie in the other GPU's memory (peer) or in pinned host memory (host), and are written and read
either relaxed, or released and acquired, which also orders the data around them.

What to look for: no reduce can be faster than one flag, and one with n rounds not faster than n. What
release and acquire add to relaxed is the price of a fence; protocols that carry their flag inside the
data (LL, lines) do without it.

About 12 s on two GPUs, of which ten are starting. What two H200s gave stands in docs/measurements.md.
"""

from __future__ import annotations

from gpu_ranks import command_line, join

from arfloor.primitives.gpu import flags


def main() -> None:
    chosen = command_line(__doc__, limit_s=60).parse_args()
    ranks = join(chosen.limit_s)
    ranks.say(f"{'path':<12} {'pair':<16} {'ordering':<16} {'one way us':>10}  95 % interval")
    for path in ("peer", "host"):
        for p in flags(ranks, path):
            where = f"{p.path}/{p.link}"
            if p.estimate is None:
                ranks.say(f"{where:<12} not measured: {p.reason} {p.source}")
                continue
            e = p.estimate
            pair = f"{p.src} - {p.dst}"
            ranks.say(f"{where:<12} {pair:<16} {p.access:<16} {e.value:>10.2f}  [{e.lo:.2f}, {e.hi:.2f}]")
    ranks.leave()


if __name__ == "__main__":
    main()
