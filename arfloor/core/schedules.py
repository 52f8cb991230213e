"""The schedules an all-reduce can follow, as what they put on the wires: design table of rounds and bytes.

Rounds are one-way latencies that cannot be overlapped; bytes are per rank and direction. Peer shapes
move data between ranks, host shapes through host memory, which acts as a multicast: a rank writes its
data once and every other rank reads it.
"""

from __future__ import annotations

from typing import Literal

from arfloor.core.cases import Path, record

Traffic = Literal["dense", "staged"]


@record
class Schedule:
    """One algorithm at one world and size.

    rounds: dependent one-way latencies. out_bytes, in_bytes: per rank and direction. added_bytes:
    bytes of operands that a rank adds. traffic: `dense` when a rank talks to all others at once,
    `staged` when it has one stream in and one out at a time.
    """

    name: str
    rounds: int
    out_bytes: float
    in_bytes: float
    added_bytes: float
    traffic: Traffic


def schedules(path: Path, world: int, nbytes: int) -> tuple[Schedule, ...]:
    """All schedules of a path for `world` ranks and `nbytes` a rank. Raises ValueError on one rank."""
    if world < 2:
        raise ValueError(f"an all-reduce needs at least 2 ranks, found {world}")
    return _host(world, nbytes) if path == "host" else _peer(world, nbytes)


def _peer(n: int, size: int) -> tuple[Schedule, ...]:
    once = float((n - 1) * size)
    twice = 2 * (n - 1) / n * size
    share = (n - 1) / n * size
    shapes = [
        ("one-shot", 1, once, once, "dense"),
        ("two-shot", 2, twice, share, "dense"),
        ("ring", 2 * (n - 1), twice, share, "staged"),
    ]
    if n > 2:  # with two ranks, staging changes nothing
        shapes += [
            ("one-shot staged", 1, once, once, "staged"),
            ("two-shot staged", 2, twice, share, "staged"),
        ]
    return tuple(
        Schedule(
            name=name,
            rounds=rounds,
            out_bytes=moved,
            in_bytes=moved,
            added_bytes=added,
            traffic="dense" if traffic == "dense" else "staged",
        )
        for name, rounds, moved, added, traffic in shapes
    )


def _host(n: int, size: int) -> tuple[Schedule, ...]:
    once = float((n - 1) * size)
    share = (n - 1) / n * size
    return (
        Schedule(
            name="one-shot",
            rounds=1,
            out_bytes=float(size),
            in_bytes=once,
            added_bytes=once,
            traffic="dense",
        ),
        Schedule(
            name="two-shot",
            rounds=2,
            out_bytes=float(size),
            in_bytes=2 * share,
            added_bytes=share,
            traffic="dense",
        ),
    )
