"""Arithmetic on `Estimate`s: intervals add, scale and divide end by end.

Ends are combined as if all errors went the same way, so an interval is never too narrow; sample
counts combine to the smallest (the weakest link), units are the caller's business and checked by name.
"""

from __future__ import annotations

from collections.abc import Iterable

from arfloor.core.cases import Estimate


def exact(value: float, unit: str = "us") -> Estimate:
    """A value without uncertainty (a count, a definition)."""
    return Estimate(value=value, lo=value, hi=value, n=0, unit=unit)


def between(lo: float, hi: float, unit: str = "us") -> Estimate:
    """A value known only as a range: its middle, with the range as interval. Raises when lo > hi."""
    if lo > hi:
        raise ValueError(f"between: expected lo <= hi, found {lo} > {hi}")
    return Estimate(value=(lo + hi) / 2, lo=lo, hi=hi, n=0, unit=unit)


def _count(estimates: Iterable[Estimate]) -> int:
    return min((e.n for e in estimates if e.n > 0), default=0)


def total(estimates: Iterable[Estimate], unit: str = "us") -> Estimate:
    """Sum; zero when there are none."""
    parts = tuple(estimates)
    return Estimate(
        value=sum(e.value for e in parts),
        lo=sum(e.lo for e in parts),
        hi=sum(e.hi for e in parts),
        n=_count(parts),
        unit=unit,
    )


def scaled(estimate: Estimate, factor: float) -> Estimate:
    """Estimate times a factor >= 0."""
    return Estimate(
        value=estimate.value * factor,
        lo=estimate.lo * factor,
        hi=estimate.hi * factor,
        n=estimate.n,
        unit=estimate.unit,
    )


def product(a: Estimate, b: Estimate, unit: str) -> Estimate:
    """Product of two positive estimates."""
    return Estimate(value=a.value * b.value, lo=a.lo * b.lo, hi=a.hi * b.hi, n=_count((a, b)), unit=unit)


def quotient(a: Estimate, b: Estimate, unit: str = "ratio") -> Estimate:
    """Quotient of two positive estimates."""
    return Estimate(value=a.value / b.value, lo=a.lo / b.hi, hi=a.hi / b.lo, n=_count((a, b)), unit=unit)


def smallest(estimates: Iterable[Estimate]) -> Estimate:
    """Minimum, end by end: what is at least achieved when the best may be chosen afterwards."""
    return _extreme(tuple(estimates), largest=False)


def largest(estimates: Iterable[Estimate]) -> Estimate:
    """Maximum, end by end: when all parts must finish."""
    return _extreme(tuple(estimates), largest=True)


def _extreme(parts: tuple[Estimate, ...], *, largest: bool) -> Estimate:
    if not parts:
        raise ValueError("expected at least one estimate, found none")
    pick = max if largest else min
    return Estimate(
        value=pick(e.value for e in parts),
        lo=pick(e.lo for e in parts),
        hi=pick(e.hi for e in parts),
        n=_count(parts),
        unit=parts[0].unit,
    )


def transfer_us(nbytes: float, gbps: Estimate) -> Estimate:
    """Time of nbytes at a rate in GB/s (1e9 B/s), in us. Raises ValueError when the rate is not positive."""
    if gbps.lo <= 0:
        raise ValueError(f"transfer_us: expected a positive rate in GB/s, found {gbps.lo}")
    return Estimate(
        value=nbytes / gbps.value / 1e3,
        lo=nbytes / gbps.hi / 1e3,
        hi=nbytes / gbps.lo / 1e3,
        n=gbps.n,
        unit="us",
    )
