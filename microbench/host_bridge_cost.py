"""What does the host bridge cost?

    torchrun --standalone --nproc-per-node=2 microbench/host_bridge_cost.py

Without peer access every byte between two GPUs goes up to host memory and down again. This probes both
ways (a flag, and streams of loads, stores and copies alone and all at once), then says what an
all-reduce of 256 KiB needs at those figures: by stores to the peer, and through the host, where a rank
writes its message once and reads every other's.

What to look for: one direction alone comes near the link's rate; writing and reading at once, as a
reduce does, does not. The host's memory and its bridge then set the pace, not the cable.

About 30 s on two GPUs, of which ten are starting; all is printed at the end. What two H200s gave stands in
docs/measurements.md.
"""

from __future__ import annotations

from gpu_ranks import command_line, join

from arfloor.core.cases import Primitive
from arfloor.primitives.gpu import measure

NBYTES = 256 << 10


def best(found: list[Primitive], kind: str, **wanted: object) -> float:
    """The best figure of a kind: least for times, most for rates; NaN where nothing was measured."""
    values = [
        p.estimate.value
        for p in found
        if p.kind == kind and p.estimate and all(getattr(p, k) == v for k, v in wanted.items())
    ]
    return (min if kind == "pingpong" else max)(values, default=float("nan"))


def main() -> None:
    chosen = command_line(__doc__, limit_s=60).parse_args()
    ranks = join(chosen.limit_s)
    found = measure(ranks, budget_s=20.0)
    ranks.say(f"{'':<34} {'peer':>8} {'host':>8}")
    rows = [("flag one way, relaxed, us", "pingpong", {"access": "relaxed"})]
    rows += [("flag one way, release/acquire, us", "pingpong", {"access": "acquire_release"})]
    for engine, name in (("sm", "SM"), ("ce", "copy engine")):
        for access in ("write", "read"):
            for active in ("one_way", "both_ways", "all"):
                wanted = {"engine": engine, "access": access, "active": active}
                rows.append((f"{name} {access}, {active.replace('_', ' ')}, GB/s", "stream", wanted))
    for title, kind, wanted in rows:
        peer, host = (best(found, kind, path=path, **wanted) for path in ("peer", "host"))
        ranks.say(f"{title:<34} {peer:>8.2f} {host:>8.2f}")
    n, direct = ranks.world, {"path": "peer", "access": "write", "active": "both_ways"}
    peer = best(found, "pingpong", path="peer") + (n - 1) * NBYTES / best(found, "stream", **direct) / 1e3
    through = {"path": "host", "access": "read", "active": "all"}
    host = best(found, "pingpong", path="host") + (n - 1) * NBYTES / best(found, "stream", **through) / 1e3
    ranks.say(f"one-shot all-reduce of {NBYTES} B needs about {peer:.1f} us (peer), {host:.1f} us (host)")
    ranks.leave()


if __name__ == "__main__":
    main()
