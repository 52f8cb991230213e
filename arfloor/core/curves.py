"""A fitted latency curve: its segments, what it predicts, and what it cannot tell."""

from __future__ import annotations

from typing import Literal

import numpy as np

from arfloor.core.cases import Estimate, record
from arfloor.core.launches import Z

Criteria = tuple[tuple[int, float | None, float], ...]


@record
class Segment:
    """One straight piece, over the sizes start..end (bytes, both measured).

    `alpha` in us; `beta` in us a byte; `cov`: variance of alpha, covariance, variance of beta.
    """

    start: int
    end: int
    n: int
    alpha: Estimate
    beta: Estimate
    cov: tuple[float, float, float]

    @property
    def gbps(self) -> float | None:
        """1 / beta in GB/s of message bytes; None where beta is 0."""
        return 1e-3 / self.beta.value if self.beta.value > 0 else None

    def us(self, nbytes: float) -> float:
        """The line at a size, in us, inside the segment or not."""
        return self.alpha.value + self.beta.value * nbytes

    def variance(self, nbytes: float) -> float:
        """Variance of the logarithm of the line at a size."""
        aa, ab, bb = self.cov
        return max(0.0, aa + 2 * nbytes * ab + nbytes * nbytes * bb) / max(self.us(nbytes), 1e-12) ** 2


@record
class Outlier:
    """A size whose latency is far off the line through the others; it had no say in the fit."""

    nbytes: int
    us: float
    expected_us: float


@record
class Line:
    """alpha + beta * S below which lies the share `quantile` of the points: how low it gets, at times.

    It describes the measurements. It is no bound, and says nothing about what is attainable.
    """

    alpha_us: float
    beta_us_per_byte: float
    quantile: float


@record
class Fit:
    """Segments by size, and how far to trust them.

    `knots` are the sizes at which the later segments begin, `given` (from a log) or `chosen`. `scatter`:
    standard deviation of log residuals; `misfit`: the part of it that the intervals of the points do not
    explain. `loo_error`, `loo_worst`: median and largest relative error when each size is predicted
    without itself. `unidentified`: sentences. `criteria`: (segments, AICc, BIC) for each number tried.
    """

    segments: tuple[Segment, ...]
    knots: tuple[int, ...]
    knots_from: Literal["given", "chosen"]
    outliers: tuple[Outlier, ...]
    n: int
    scatter: float
    misfit: float
    loo_error: float | None
    loo_worst: float | None
    unidentified: tuple[str, ...]
    low: Line
    criteria: Criteria = ()

    @property
    def range(self) -> tuple[int, int]:
        """Smallest and largest size fitted, in bytes."""
        return self.segments[0].start, self.segments[-1].end

    def in_range(self, nbytes: int) -> bool:
        """Whether a prediction at this size lies between measured sizes."""
        return self.range[0] <= nbytes <= self.range[1]

    def note(self, nbytes: int) -> str:
        """What a reader must know about a prediction at this size; empty when nothing."""
        lo, hi = self.range
        if nbytes < lo or nbytes > hi:
            return f"{nbytes} B is outside the fitted range {lo} to {hi} B: extrapolated"
        if len(self._at(nbytes)) > 1:
            return f"{nbytes} B lies where the fit switches segment: the interval spans both"
        return ""

    def predict(self, nbytes: int) -> Estimate:
        """Latency in us at a size, with a 95 % interval of the line and of its misfit.

        Between two segments the interval spans both. Outside the fitted range the end segment is
        extended, its interval widened by a tenth for each doubling beyond, and n is 0: no measurement
        stands there (`note` says so in words). Raises ValueError when nbytes is negative.
        """
        if nbytes < 0:
            raise ValueError(f"Fit.predict: expected nbytes >= 0, found {nbytes}")
        rows = []
        segments = self._at(nbytes)
        for segment in segments:
            sd = float(np.sqrt(segment.variance(nbytes) + self.misfit**2 + self._beyond(nbytes) ** 2))
            value, half = segment.us(nbytes), min(Z * sd, 50.0)  # exp(50): beyond any latency, yet finite
            rows.append((value, value * np.exp(-half), value * np.exp(half)))
        value = float(np.exp(np.mean([np.log(max(r[0], 1e-12)) for r in rows])))
        return Estimate(
            value=value,
            lo=float(min(r[1] for r in rows)),
            hi=float(max(r[2] for r in rows)),
            n=sum(s.n for s in segments) if self.in_range(nbytes) else 0,
            unit="us",
        )

    def _beyond(self, nbytes: int) -> float:
        lo, hi = self.range
        doublings = max(np.log2(lo / max(nbytes, 1)), np.log2(max(nbytes, 1) / hi), 0.0)
        return 0.1 / Z * float(doublings)

    def _at(self, nbytes: int) -> tuple[Segment, ...]:
        for left, right in zip(self.segments, self.segments[1:], strict=False):
            if nbytes <= left.end:
                return (left,)
            if nbytes < right.start:
                return (left, right)
        return (self.segments[-1],)
