"""The answer to "all-reduce is 19 % of my profile": bounds from the share, and what would sharpen them."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from arfloor.core import units
from arfloor.core.cases import Estimate, record
from arfloor.core.decode import ModelShape
from arfloor.core.whatif.curves import TableCurve
from arfloor.core.whatif.share_only import FASTER, FREE, AtSize, at_size, gain_at_most
from arfloor.report.whatif import inputs
from arfloor.report.whatif.assumed import ON_TOP
from arfloor.report.whatif.latencies import Latencies
from arfloor.report.whatif.layout import NARROWEST, table, wrap

_SIZES = tuple(1024 << i for i in range(0, 11, 2))


@record
class ShareOnly:
    """A share, the concurrency it was profiled at where it was said, and what of a box is known."""

    share: Estimate
    concurrency: int | None
    shape: ModelShape | None
    latencies: Latencies | None
    in_use: str | None
    sizes: tuple[AtSize, ...]
    worth: float

    @property
    def free(self) -> Estimate:
        """Amdahl's bound."""
        return gain_at_most(self.share, FREE)


def read_share(text: str) -> tuple[Estimate, int | None]:
    """`0.19@64` or `0.19`. Raises MissingInput for anything else."""
    if "@" in text:
        ((concurrency, share),) = inputs.shares([text])
        return share, concurrency
    return inputs.share(text.strip()), None


def answer(
    text: str,
    *,
    shape: ModelShape | None = None,
    latencies: Latencies | None = None,
    using: str | None = None,
    worth: float,
) -> ShareOnly:
    """Bounds from `--share` alone; with a box also by message size, which a model and a concurrency fix."""
    share, concurrency = read_share(text)
    sizes: tuple[AtSize, ...] = ()
    now = None
    if latencies is not None:
        now = latencies.in_use(using)
        sizes = _by_size(share, concurrency, shape, latencies, now)
    return ShareOnly(
        share=share,
        concurrency=concurrency,
        shape=shape,
        latencies=latencies,
        in_use=now and now.backend,
        sizes=sizes,
        worth=worth,
    )


def _by_size(
    share: Estimate, concurrency: int | None, shape: ModelShape | None, known: Latencies, now: TableCurve
) -> tuple[AtSize, ...]:
    least, most = now.points[0][0], now.points[-1][0]
    wanted = tuple(n for n in _SIZES if least <= n <= most)
    if shape is not None and concurrency is not None:
        wanted = (shape.message_nbytes(concurrency),)
    sure = now.origin == "predicted"
    others = tuple(c for c in known.curves if c is not now and (sure or c.origin != "predicted"))
    return tuple(at_size(share, n, now, others, known.attainable) for n in wanted)


def render(found: ShareOnly, *, width: int = 120) -> str:
    """For a terminal, at most `width` columns (80, where `width` is less)."""
    inner = max(width, NARROWEST) - 2
    blocks = [_heading(found), _amdahl(found, inner), _sizes(found, inner), _verdict(found, inner)]
    return "\n\n".join("\n".join("  " + line for line in block) for block in blocks if block) + "\n"


def _heading(found: ShareOnly) -> list[str]:
    at = f" at concurrency {found.concurrency}" if found.concurrency else ""
    return [f"all-reduce, {found.share.value * 100:.4g} % of a profile{at}: bounds from the share alone"]


def _amdahl(found: ShareOnly, width: int) -> list[str]:
    rows = [("if every all-reduce were", "tok/s at most")]
    rows += [(f"{r:g}x as fast", units.gain(gain_at_most(found.share, r))) for r in FASTER]
    rows.append(("free", units.gain(found.free)))
    said = (
        "at most: where all of the profiled time is the reduce itself. What is waiting for other ranks stays"
    )
    return [*table(rows, "<>", width), *wrap(said, width)]


def _sizes(found: ShareOnly, width: int) -> list[str]:
    if found.latencies is None:
        return []
    lines = wrap(f"What a reduce takes alone: {found.in_use} of {found.latencies.label}", width)
    if found.latencies.origin != "measured":
        for caveat in found.latencies.caveats[:ON_TOP]:
            lines += wrap(f"{caveat}.", width, first="But: ")
    head = ("message", "now, us", "fastest, us", "at most", "floor, us", "at most", "fastest")
    rows = [head, *(_size(s) for s in found.sizes)]
    return [*lines, *table(rows, ">>>>>><", width)]


def _size(s: AtSize) -> tuple[str, ...]:
    def most(e: Estimate | None) -> str:
        return "" if e is None else f"{e.value * 100:+.1f} %"

    floor = "" if s.floor_us is None else units.number(s.floor_us)
    figures = (units.size(s.nbytes), units.number(s.now_us), units.number(s.best_us), most(s.gain))
    return (*figures, floor, most(s.floor_gain), s.best or "(the one in use)")


def verdict(found: ShareOnly) -> str:
    """What the share alone decides: the floor is accepted where not even free reduces are worth the work."""
    if found.free.hi < found.worth:
        return (
            f"accept the floor, because even free reduces would give {units.gain(found.free)}, under the "
            f"{found.worth * 100:g} % that is worth the work"
        )
    most = f"{units.gain(found.free)}, which no software reaches"
    if (
        len(found.sizes) == 1
        and found.sizes[0].floor_us is not None
        and found.sizes[0].floor_gain is not None
    ):
        floor = f"{units.number(found.sizes[0].floor_us)} us"
        most = f"{units.gain(found.sizes[0].floor_gain)}, at the {floor} that the links allow"
    return (
        "a share alone decides nothing here: a faster reduce gives from nothing, if all of that time is "
        f"waiting, to {most}"
    )


def sharper(found: ShareOnly) -> list[str]:
    """Which inputs would sharpen it, and what each adds; the first says most."""
    at = found.concurrency or "CONCURRENCY"
    told = [f"--tok-s {at}:TOK_S: how long a step is, so how long a reduce takes in the server"]
    if found.shape is None:
        told.append("--model NAME (or a config.json): how many reduces a step has, and of how many bytes")
    if found.concurrency is None:
        told.append("--share SHARE@CONCURRENCY: how many sequences were in flight, so how large a message is")
    if found.latencies is None:
        told.append("--tp RANKS and --run RUN or --topology BOX: what a reduce takes alone, so what waits")
    elif found.latencies.origin != "measured":
        told.append("--run RUN of a sweep on your own GPUs: ten minutes, instead of others' figures")
    return told


def _verdict(found: ShareOnly, width: int) -> list[str]:
    lines = wrap(f"Verdict: {verdict(found)}.", width)
    lines.append("What would sharpen it:")
    return lines + [line for text in sharper(found) for line in wrap(text, width, first="- ")]


def document(found: ShareOnly) -> dict[str, Any]:
    """For programs."""
    return {
        "schema": 1,
        "kind": "whatif-share",
        "share": asdict(found.share),
        "concurrency": found.concurrency,
        "model": found.shape.name if found.shape else None,
        "latencies": found.latencies
        and {
            "label": found.latencies.label,
            "origin": found.latencies.origin,
            "in_use": found.in_use,
            "caveats": list(found.latencies.caveats),
        },
        "at_most": [{"faster": r, "gain": asdict(gain_at_most(found.share, r))} for r in FASTER],
        "free": asdict(found.free),
        "sizes": [asdict(s) for s in found.sizes],
        "verdict": verdict(found),
        "sharper": [text.partition(": ")[0] for text in sharper(found)],
    }


def to_json(found: ShareOnly) -> str:
    """The document as text."""
    return json.dumps(document(found), indent=1, allow_nan=False) + "\n"
