"""Which streams run at once when links between GPUs, or to host memory, are probed; pure.

Patterns: `one_way`, one rank, one direction; `both_ways`, on the peer path every rank to its next at
once, on the host path one GPU writing and reading at once; `all`, on the host path every GPU writing
and reading at once, on the peer path (from three GPUs on) every rank to every other at once. A
stream's `src` is where the bytes come from, `dst` where they go: a load by cuda:0 from host memory is
host > cuda:0. In patterns of several streams the time is that until the last has ended.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from arfloor.core.cases import Path, record


@record
class Stream:
    """One stream of a pattern. `rank` is whose GPU moves the bytes, `other` the far end (-1: host)."""

    rank: int
    other: int
    engine: str
    access: str


@record
class Pattern:
    """Streams that run at once; `active` is the pattern's name in the records."""

    active: str
    streams: tuple[Stream, ...]


def patterns(path: Path, world: int, engine: str) -> list[Pattern]:
    """The patterns to probe on a path. Pure, equal on all ranks."""
    found: list[Pattern] = []
    ranks = range(world)
    if path == "host":
        for access in ("write", "read"):
            found += [_pattern("one_way", [(r, -1, access)], engine) for r in ranks]
            found.append(_pattern("all_one_way", [(r, -1, access) for r in ranks], engine))
        found += [_pattern("both_ways", [(r, -1, a) for a in ("write", "read")], engine) for r in ranks]
        found.append(_pattern("all", [(r, -1, a) for r in ranks for a in ("write", "read")], engine))
        return found
    pairs = [(r, o) for r in ranks for o in ranks if r != o]
    if world > 4:  # a probe a pair would take too long: neighbours and opposites stand for them
        pairs = sorted({(r, (r + step) % world) for r in ranks for step in (1, world // 2)})
    for access in ("write", "read"):
        found += [_pattern("one_way", [(r, o, access)], engine) for r, o in pairs]
        found.append(_pattern("both_ways", [(r, (r + 1) % world, access) for r in ranks], engine))
        if world > 2:
            dense = [(r, o, access) for r in ranks for o in ranks if r != o]
            found.append(_pattern("all", dense, engine))
    return found


def _pattern(active: str, streams: Sequence[tuple[int, int, str]], engine: str) -> Pattern:
    return Pattern(
        active=active,
        streams=tuple(Stream(rank=r, other=o, engine=engine, access=a) for r, o, a in streams),
    )


def ends(stream: Stream) -> tuple[str, str]:
    """(src, dst): where the bytes come from and where they go."""
    near = f"cuda:{stream.rank}"
    far = "host" if stream.other < 0 else f"cuda:{stream.other}"
    return (near, far) if stream.access == "write" else (far, near)


def rates_gbps(slopes: Sequence[float], nbytes: int) -> list[float]:
    """GB/s from the cost of one more pass over `nbytes`, in us; slopes lost in noise are left out."""
    return [nbytes / us / 1e3 for us in slopes if us > 0 and math.isfinite(us)]
