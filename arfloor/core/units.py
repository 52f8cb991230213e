"""How numbers are written for people: sizes in binary units, microseconds and ratios in three digits."""

from __future__ import annotations

from arfloor.core.cases import Estimate

_SIZES = ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))


def size(nbytes: int) -> str:
    """`262144` -> `256 KiB`; sizes that are no round number keep one decimal: `1.5 KiB`, `1000 B`."""
    for unit, name in _SIZES:
        if nbytes >= unit:
            count = nbytes / unit
            return f"{count:.0f} {name}" if count == round(count) else f"{count:.1f} {name}"
    return f"{nbytes} B"


def number(value: float) -> str:
    """Three significant digits without an exponent: 0.123, 1.23, 12.3, 123, 1234."""
    if value == 0:
        return "0"
    magnitude = abs(value)
    decimals = 0 if magnitude >= 99.95 else 1 if magnitude >= 9.995 else 2 if magnitude >= 0.9995 else 3
    return f"{value:.{decimals}f}"


def count(value: float) -> str:
    """`87` where it is whole, else three digits: `51.4`."""
    return str(round(value)) if abs(value - round(value)) < 1e-6 else number(value)


def ms(us: float) -> str:
    """Microseconds as milliseconds without their unit; 43.5 us is 0.044, however it was computed."""
    return number(us / 1e3 * (1 + 1e-9))


def us(value: float) -> str:
    """Microseconds with their unit; from 10 ms on, milliseconds."""
    return f"{value / 1000:.1f} ms" if value >= 10_000 else f"{number(value)} us"


def ratio(value: float) -> str:
    """A ratio to two decimals below 10, one above: `1.26x`, `12.3x`, `140x`."""
    if value >= 99.95:
        return f"{value:.0f}x"
    return f"{value:.1f}x" if value >= 9.995 else f"{value:.2f}x"


def percent(share: float, decimals: int = 1) -> str:
    """`19.0 %` of 0.19."""
    return f"{share * 100:.{decimals}f} %"


def gain(change: Estimate) -> str:
    """`+1.5 % [+1.0, +5.8]` of a relative change; `+1.5 %` where its interval is a point."""
    value, lo, hi = (f"{x * 100:+.1f}" for x in (change.value, change.lo, change.hi))
    return f"{value} %" if change.lo == change.hi else f"{value} % [{lo}, {hi}]"


SANE = 100.0
"""An interval whose ends are further apart than this factor says nothing."""


def ends(lo: float, hi: float) -> str:
    """`[9.32, 12.4]`, the ends of an interval of a positive value; `[unknown]` where it says nothing."""
    return f"[{number(lo)}, {number(hi)}]" if known(lo, hi) else "[unknown]"


def known(lo: float, hi: float) -> bool:
    """Whether an interval of a positive value is narrow enough to say anything."""
    return lo > 0 and hi <= SANE * lo
