"""Predictions held against measurements: how far each missed, and which miss asks for an explanation."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from arfloor.core.cases import Estimate, record

LIMIT = 0.20
"""A miss beyond this share of the prediction is to be explained."""


@record
class Expected:
    """A prediction: `key` finds its measurement, `label` says what it is, `estimate` holds the interval."""

    key: tuple[str, ...]
    label: str
    estimate: Estimate


@record
class Miss:
    """A prediction and what was measured of it; None where nothing was."""

    expected: Expected
    measured: float | None

    @property
    def share(self) -> float | None:
        """measured / predicted - 1."""
        return None if self.measured is None else self.measured / self.expected.estimate.value - 1

    @property
    def inside(self) -> bool:
        """Whether the measurement lies in the predicted interval."""
        e = self.expected.estimate
        return self.measured is not None and e.lo <= self.measured <= e.hi

    @property
    def to_explain(self) -> bool:
        """Whether it is off by more than `LIMIT`."""
        return self.share is not None and abs(self.share) > LIMIT


def misses(expected: Iterable[Expected], measured: Mapping[tuple[str, ...], float]) -> tuple[Miss, ...]:
    """Every prediction with its measurement, in the order of the predictions."""
    return tuple(Miss(expected=e, measured=measured.get(e.key)) for e in expected)
