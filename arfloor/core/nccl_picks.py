"""Where NCCL picks badly: sizes at which another setting of NCCL itself is clearly faster than its choice."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from arfloor.core import units
from arfloor.core.cases import Ran, Result, record

BACKEND = "nccl"
TOLERANCE = 1.1


@record
class Pick:
    """NCCL's choice at one size, and the fastest of its own other settings, in the same processes."""

    default: Result
    best: Result

    @property
    def loss(self) -> float:
        """How many times longer the choice takes."""
        return _us(self.default) / _us(self.best)

    @property
    def expected_us(self) -> float | None:
        """What NCCL's own table expects of its choice."""
        return self.default.ran.predicted_us if self.default.ran else None


def bad_picks(results: Iterable[Result], tolerance: float = TOLERANCE) -> tuple[Pick, ...]:
    """Sizes, rising, at which the choice takes `tolerance` times the best and the intervals lie apart.

    Compared are results of one path, settings, devices, dtype and mode.
    """
    groups: dict[tuple[object, ...], list[Result]] = defaultdict(list)
    for r in results:
        c = r.case
        if c.backend == BACKEND and r.status == "ok" and r.latency is not None:
            key = (c.path, c.settings, c.devices, c.groups, c.dtype, c.mode, c.nbytes)
            groups[key].append(r)
    found = []
    for rivals in groups.values():
        default = next((r for r in rivals if r.case.variant == "default"), None)
        if default is None or default.latency is None:
            continue
        pick = Pick(default=default, best=min(rivals, key=_us))
        assert pick.best.latency is not None
        if pick.loss >= tolerance and pick.best.latency.hi < default.latency.lo:
            found.append(pick)
    return tuple(sorted(found, key=lambda p: p.default.case.nbytes))


def sentence(picks: Iterable[Pick]) -> str | None:
    """One sentence for the picks of one section: which sizes, and the worst of them in figures."""
    picks = tuple(picks)
    if not picks:
        return None
    worst = max(picks, key=lambda p: p.loss)
    expects = f", where it expects {units.us(worst.expected_us)}" if worst.expected_us else ""
    sizes = ", ".join(units.size(p.default.case.nbytes) for p in picks)
    return (
        f"NCCL picks badly at {sizes}: at {units.size(worst.default.case.nbytes)} its choice "
        f"{_what(worst.default.ran)}takes {units.us(_us(worst.default))}{expects}; "
        f"its own {worst.best.case.variant} takes {units.us(_us(worst.best))} ({worst.loss:.2f}x)"
    )


def _what(ran: Ran | None) -> str:
    if ran is None or ran.algorithm is None:
        return ""
    channels = f" on {ran.channels} channels" if ran.channels else ""
    return f"({ran.algorithm}/{ran.protocol}{channels}) "


def _us(result: Result) -> float:
    return result.latency.value if result.latency else float("inf")
