"""Latency of a reduce against its size, and the rest of the step against the tokens in it."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from typing import Protocol

from arfloor.core.cases import Estimate, Origin, record
from arfloor.core.curves import Fit
from arfloor.core.decode import MissingInput
from arfloor.core.whatif.uncertainty import Draw, Input

FITTED_FROM = 8
"""Number of sizes from which a curve is fitted; with fewer, lines in log-log join the points."""


class LatencyCurve(Protocol):
    """A(S) of one implementation. `latency` raises MissingInput outside the range that is known;
    `points` are the measured (bytes, microseconds), in increasing size."""

    @property
    def backend(self) -> str: ...
    @property
    def origin(self) -> Origin: ...
    @property
    def source(self) -> str: ...
    @property
    def points(self) -> tuple[tuple[int, Estimate], ...]: ...
    def latency(self, nbytes: int) -> Input: ...


def latency_us(curve: LatencyCurve, nbytes: int) -> float | None:
    """A curve's latency at a size, in us; None outside the range that is known."""
    try:
        return curve.latency(nbytes).estimate.value
    except MissingInput:
        return None


@record
class TableCurve:
    """A(S) from measured points: the point itself where its size was measured, `fit` in between, or
    straight lines in log-log where there are too few sizes to fit.

    `points` are (bytes, microseconds) in increasing size. Points that the fit names as outliers are
    set aside: one published NCCL series has 71 us at 64 KiB between 16 and 25.
    """

    backend: str
    points: tuple[tuple[int, Estimate], ...]
    origin: Origin
    source: str
    set_aside: tuple[tuple[int, Estimate], ...] = ()
    fit: Fit | None = None

    def latency(self, nbytes: int) -> Input:
        """Latency in us at `nbytes`, named by backend and size."""
        return Input(
            name=f"A[{self.backend}]({nbytes} B)",
            estimate=self._estimate(nbytes),
            origin=self.origin,
            source=self.source,
        )

    def _estimate(self, nbytes: int) -> Estimate:
        sizes = [size for size, _ in self.points]
        if not sizes or not sizes[0] <= nbytes <= sizes[-1]:
            known = f"{sizes[0]} to {sizes[-1]} B" if sizes else "no size at all"
            raise MissingInput(
                f"A(S) of {self.backend} at {nbytes} B: measured are {known} ({self.source}); "
                "measure that size, or choose a concurrency whose messages lie in the range"
            )
        right = bisect_left(sizes, nbytes)
        if sizes[right] == nbytes:
            return self.points[right][1]
        if self.fit is not None:
            return self.fit.predict(nbytes)
        (s0, a), (s1, b) = self.points[right - 1], self.points[right]
        weight = math.log(nbytes / s0) / math.log(s1 / s0)
        value, lo, hi = (
            math.exp((1 - weight) * math.log(u) + weight * math.log(v))
            for u, v in ((a.value, b.value), (a.lo, b.lo), (a.hi, b.hi))
        )
        return Estimate(value=value, lo=lo, hi=hi, n=min(a.n, b.n), unit="us")


def table_curve(
    backend: str, points: Sequence[tuple[int, Estimate]], *, origin: Origin, source: str
) -> TableCurve:
    """A TableCurve of `points` in any order. Raises MissingInput on none."""
    ordered = tuple(sorted(points, key=lambda p: p[0]))
    if not ordered:
        raise MissingInput(f"A(S) of {backend}: no measured size in {source}")
    if len(ordered) < FITTED_FROM:
        return TableCurve(backend=backend, points=ordered, origin=origin, source=source)
    from arfloor.core.fits import fit  # scipy, which a short table does not need

    fitted = fit(ordered)
    wild = {outlier.nbytes for outlier in fitted.outliers}
    return TableCurve(
        backend=backend,
        points=tuple(p for p in ordered if p[0] not in wild),
        origin=origin,
        source=source,
        set_aside=tuple(p for p in ordered if p[0] in wild),
        fit=fitted,
    )


Known = Sequence[tuple[int, float]]


def compute_ratio(known: Known, nominal: Known, at: int, want: int, draw: Draw) -> float:
    """C(want) / C(at), with C the part of a step outside the reduces, from `known` (tokens, us).

    `at` must be among the known. Where `want` is not, C(want) lies in a bracket that needs no model:
    C does not fall with the tokens, and tokens can always be run in pieces, so C(k b) <= ceil(k) C(b).
    The value is the straight line through the two nearest points of `nominal` (the known at their
    values), kept within their bracket; the place within it is an input of its own, assumed to be
    anywhere.
    """
    table = dict(known)
    if want == at:
        return 1.0
    if want in table:
        return table[want] / table[at]
    low, high = _bracket(nominal, want)
    line = _straight_line(sorted(nominal), want, (low + high) / 2)
    place = 0.5 if high == low else (min(max(line, low), high) - low) / (high - low)
    position = Input(
        name=f"C({want} tokens a step)",
        estimate=Estimate(value=place, lo=0.0, hi=1.0, n=0, unit="of the bracket"),
        origin="assumed",
        source=f"no tok/s is given at {want} tokens a step; C rises with the tokens and can be run in pieces",
    )
    low, high = _bracket(known, want)
    return (low + draw(position) * (high - low)) / table[at]


def _bracket(known: Known, want: int) -> tuple[float, float]:
    """Least and most that C(want) can be; both rise with every known C."""
    low = max(cost if tokens <= want else cost / math.ceil(tokens / want) for tokens, cost in known)
    high = min(cost * math.ceil(want / tokens) for tokens, cost in known)
    return low, max(low, high)


def _straight_line(known: Known, want: int, otherwise: float) -> float:
    if len(known) < 2:
        return otherwise
    right = min(max(bisect_left([t for t, _ in known], want), 1), len(known) - 1)
    (t0, c0), (t1, c1) = known[right - 1], known[right]
    return c0 + (c1 - c0) * (want - t0) / (t1 - t0)
