"""Latency against size as a few straight lines, with what they cannot tell.

t(S) = alpha + beta * S in each of at most three segments (a library switches algorithm or protocol with
size). See `arfloor.core.lines` for the fit of one line and docs/statistics.md for why each step is taken.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.special import chdtri, ndtri, stdtrit

from arfloor.core import units
from arfloor.core.cases import Estimate
from arfloor.core.curves import Criteria, Fit, Line, Outlier, Segment
from arfloor.core.launches import Z
from arfloor.core.lines import Bools, Floats, fit_lines, log_likelihood, low_line, noise_of, partition

LEAST = 4  # sizes that a chosen segment needs: two parameters, and two to check them
FLOOR = 1e-3  # relative noise below which nothing is believed to be measured
KNOT = 3  # parameters that a knot found by search counts for (Ninomiya 2015); alpha and beta count for 1
WILD = 0.4  # an end point this far off in log is an outlier; nearer, it may begin another segment

__all__ = ["Fit", "Line", "Outlier", "Segment", "fit"]


@dataclass(frozen=True, slots=True)
class _Data:
    nbytes: Floats
    us: Floats
    se: Floats  # standard error of log(us), from the points' own intervals
    sd: Floats  # the same with the noise that they do not explain


@dataclass(frozen=True, slots=True)
class _Noise:
    own: Floats  # standard deviation of each log latency on its own
    common: float  # and of what moves all of them together
    widen: float  # factor on the half-width of intervals


def fit(
    points: Sequence[tuple[int, Estimate]],
    *,
    max_segments: int = 3,
    knots: Sequence[int] = (),
    quantile: float = 0.1,
    draws: int = 200,
    seed: int = 0,
) -> Fit:
    """Fit latency (Estimates in us) against message size (bytes).

    `knots`: sizes at which a new segment is known to begin (from a library's log); without them at most
    `max_segments` are chosen, each of at least four sizes, as many as AICc and BIC both ask for.
    Raises ValueError on fewer than two different sizes, a size given twice, or a latency that is not
    positive.
    """
    everything = _prepare(points)
    begins, criteria = _begins(everything, knots, max_segments)
    far = _outlying(everything, begins)
    data = everything
    if np.any(far):  # they have no say: neither in the lines, nor in the knots, nor in the noise
        data = _with_noise(everything.nbytes[~far], everything.us[~far], everything.se[~far])
        begins, criteria = _begins(data, knots, max_segments)
    lines = _lines(data, begins)
    scatter, excess = _scatter(data, begins, lines)
    segments = _segments(data, begins, lines, _noise_model(data, begins, scatter, excess), draws, seed)
    error, worst = _leave_one_out(data, begins, lines)
    alpha, beta = low_line(everything.nbytes, everything.us, quantile)
    found = Fit(
        segments=segments,
        knots=tuple(int(data.nbytes[b]) for b in begins[1:]),
        knots_from="given" if knots else "chosen",
        outliers=(),
        n=len(data.us),
        scatter=scatter,
        misfit=_believed(data, begins, scatter, excess),
        loo_error=error,
        loo_worst=worst,
        unidentified=_unidentified(segments) + (() if knots else _doubtful_knots(data, begins)),
        low=Line(alpha_us=alpha, beta_us_per_byte=beta, quantile=quantile),
        criteria=criteria,
    )
    named = zip(everything.nbytes[far].tolist(), everything.us[far].tolist(), strict=True)
    return replace(found, outliers=tuple(_outlier(found, int(size), us) for size, us in named))


def _outlier(found: Fit, nbytes: int, us: float) -> Outlier:
    return Outlier(nbytes=nbytes, us=us, expected_us=found.predict(nbytes).value)


def _prepare(points: Sequence[tuple[int, Estimate]]) -> _Data:
    ordered = sorted(points, key=lambda p: p[0])
    sizes = [p[0] for p in ordered]
    if len(set(sizes)) < 2 or len(set(sizes)) != len(sizes):
        raise ValueError(
            f"fit: expected at least two sizes, each once, found {sizes}; merge the points of one size first"
        )
    us = np.array([p[1].value for p in ordered], dtype=float)
    if not np.all(us > 0):
        raise ValueError(f"fit: expected positive latencies, found {float(us.min())} us")
    nbytes = np.array(sizes, dtype=float)
    lo = np.array([p[1].lo for p in ordered], dtype=float)
    hi = np.array([p[1].hi for p in ordered], dtype=float)
    se = np.log(np.maximum(hi, us) / np.clip(lo, us * 1e-3, us)) / (2 * Z)
    return _with_noise(nbytes, us, se)


def _with_noise(nbytes: Floats, us: Floats, se: Floats) -> _Data:
    rough = max(0.0, noise_of(nbytes, us) ** 2 - float(np.median(se**2)))
    return _Data(nbytes, us, se, np.sqrt(se**2 + rough + FLOOR**2))


def _begins(data: _Data, knots: Sequence[int], most: int) -> tuple[tuple[int, ...], Criteria]:
    return (_given(data, knots), ()) if knots else _choose(data, most)


def _given(data: _Data, knots: Sequence[int]) -> tuple[int, ...]:
    begins = {0} | {int(np.searchsorted(data.nbytes, k)) for k in knots}
    return tuple(sorted(b for b in begins if b < len(data.us)))


def _choose(data: _Data, most: int) -> tuple[tuple[int, ...], Criteria]:
    n = len(data.us)
    tried, criteria = partition(data.nbytes, data.us, data.sd, most, LEAST), []
    for begins in tried:
        loss = _deviance(data, begins)
        k = 2 * len(begins) + KNOT * (len(begins) - 1) + 1
        aicc = loss + 2 * k + 2 * k * (k + 1) / (n - k - 1) if n - k - 1 > 0 else None
        criteria.append((len(begins), aicc, loss + k * float(np.log(n))))
    by_aicc = int(np.argmin([np.inf if aicc is None else aicc for _, aicc, _ in criteria]))
    by_bic = int(np.argmin([bic for _, _, bic in criteria]))
    return tried[min(by_aicc, by_bic)], tuple(criteria)


def _deviance(data: _Data, begins: Sequence[int]) -> float:
    z = np.log(data.us / _evaluate(data, begins, _lines(data, begins))) / data.sd
    return -2 * log_likelihood(z, np.log(data.sd), FLOOR / float(np.max(data.sd)))


def _doubtful_knots(data: _Data, begins: tuple[int, ...]) -> tuple[str, ...]:
    """Knots that could as well lie one size away: the deviance rises by less than 3.84 (95 % of chi^2)."""
    found, best = [], _deviance(data, begins)
    for nth, knot in enumerate(begins[1:], start=1):
        near = [knot]
        for moved in (knot - 1, knot + 1):
            other = (*begins[:nth], moved, *begins[nth + 1 :])
            lengths = np.diff([*other, len(data.us)])
            if lengths.min() >= 2 and _deviance(data, other) < best + 3.84:
                near.append(moved)
        if len(near) > 1:
            lo, hi = int(data.nbytes[min(near)]), int(data.nbytes[max(near)])
            found.append(
                f"where part {nth + 1} begins: anywhere from {units.size(lo)} to {units.size(hi)} fits"
            )
    return tuple(found)


def _masks(n: int, begins: Sequence[int]) -> Bools:
    index = np.arange(n)
    ends = [*begins[1:], n]
    return np.array([(index >= b) & (index < e) for b, e in zip(begins, ends, strict=True)])


def _lines(data: _Data, begins: Sequence[int]) -> list[tuple[float, float]]:
    masks = _masks(len(data.us), begins)
    alpha, beta = fit_lines(data.nbytes, np.broadcast_to(data.us, masks.shape), data.sd, masks)
    return list(zip(alpha.tolist(), beta.tolist(), strict=True))


def _evaluate(data: _Data, begins: Sequence[int], lines: Sequence[tuple[float, float]]) -> Floats:
    out = np.empty(len(data.us))
    for mask, (alpha, beta) in zip(_masks(len(out), begins), lines, strict=True):
        out[mask] = np.maximum(alpha + beta * data.nbytes[mask], 1e-12)
    return out


def _outlying(data: _Data, begins: Sequence[int]) -> Bools:
    """Points far off the robust fit: beyond five times the typical residual, beyond 5 %, and beyond
    the point's own interval. An end point must be wilder, since it may be all that is seen of another
    segment. None where so few points are left over that any could be the wild one, or where more than a
    fifth of them are: then the lines are wrong, not the points."""
    n, free = len(data.us), len(data.us) - 2 * len(begins)
    if free < 3:
        return np.zeros(n, dtype=bool)
    r = np.abs(np.log(data.us / _evaluate(data, begins, _lines(data, begins))))
    typical = max(1.4826 * float(np.median(r)) * np.sqrt(n / free), FLOOR)
    least = np.full(n, 0.05)
    least[[0, -1]] = WILD
    far = np.asarray((r > 5 * typical) & (r > least) & (r > Z * data.se))
    return far if far.sum() <= n / 5 else np.zeros(n, dtype=bool)


def _scatter(data: _Data, begins: Sequence[int], lines: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Standard deviation of the log residuals, and its part that the points' intervals do not explain."""
    residual = np.log(data.us / _evaluate(data, begins, lines))
    scatter = float(np.sqrt(np.sum(residual**2) / max(1, len(data.us) - 2 * len(begins))))
    return scatter, float(np.sqrt(max(0.0, scatter**2 - float(np.mean(data.se**2)))))


def _segments(
    data: _Data,
    begins: Sequence[int],
    lines: Sequence[tuple[float, float]],
    noise: _Noise,
    draws: int,
    seed: int,
) -> tuple[Segment, ...]:
    """Intervals by a parametric bootstrap: new points about the fitted lines, refitted."""
    # a Latin hypercube: each point's draws have exactly their stated spread, so that 200 are enough
    strata = np.argsort(np.random.default_rng(seed).random((draws, len(data.us) + 1)), axis=0)
    normal = ndtri((strata + 0.5) / draws)
    moves = normal[:, 1:] * noise.own + normal[:, :1] * noise.common
    worlds = _evaluate(data, begins, lines) * np.exp(moves)
    out = []
    for mask, (alpha, beta) in zip(_masks(len(data.us), begins), lines, strict=True):
        n = int(mask.sum())
        drawn = fit_lines(
            data.nbytes[mask],
            worlds[:, mask],
            data.sd[mask],
            np.ones((draws, n), dtype=bool),
            start=(alpha, beta),
            iterations=8,
        )
        cov = np.cov(np.stack(drawn)) * noise.widen**2
        out.append(
            Segment(
                start=int(data.nbytes[mask][0]),
                end=int(data.nbytes[mask][-1]),
                n=n,
                alpha=_interval(alpha, drawn[0], noise.widen, n, "us"),
                beta=_interval(beta, drawn[1], noise.widen, n, "us/B"),
                cov=(float(cov[0, 0]), float(cov[0, 1]), float(cov[1, 1])),
            )
        )
    return tuple(out)


def _believed(data: _Data, begins: Sequence[int], scatter: float, excess: float) -> float:
    """The excess of the scatter where chance makes so large a one in at most 5 % of fits, else 0."""
    free = max(1, len(data.us) - 2 * len(begins))
    usual = float(np.mean(data.se**2)) * float(chdtri(free, 0.05)) / free
    return excess if scatter**2 > usual else 0.0


def _noise_model(data: _Data, begins: Sequence[int], scatter: float, excess: float) -> _Noise:
    """What a bootstrap world is drawn from.

    Points that scatter far less than their intervals allow share what moves them (a launch that was slow
    at every size): the excess is drawn once for all. Where the scatter itself is the estimate of the
    noise, its few degrees of freedom widen the interval as Student's t does.
    """
    free = max(1, len(data.us) - 2 * len(begins))
    explained = float(np.mean(data.se**2))
    if explained > 0 and scatter**2 * free < explained * float(chdtri(free, 0.99)):
        own = np.full(len(data.us), scatter)
        return _Noise(own=own, common=float(np.sqrt(explained - scatter**2)), widen=1.0)
    total = explained + excess**2
    share = excess**2 / total if total > 0 else 0.0
    widen = float(stdtrit(free / share**2, 0.975)) / Z if share > 0 else 1.0
    return _Noise(own=np.sqrt(data.se**2 + excess**2), common=0.0, widen=widen)


def _interval(value: float, drawn: Floats, widen: float, n: int, unit: str) -> Estimate:
    lo, hi = np.quantile(drawn, [0.025, 0.975])
    return Estimate(
        value=value,
        lo=max(0.0, float(value + widen * (min(lo, value) - value))),
        hi=float(value + widen * (max(hi, value) - value)),
        n=n,
        unit=unit,
    )


def _leave_one_out(
    data: _Data, begins: Sequence[int], lines: Sequence[tuple[float, float]]
) -> tuple[float | None, float | None]:
    errors: list[float] = []
    for mask, line in zip(_masks(len(data.us), begins), lines, strict=True):
        chosen = np.flatnonzero(mask)
        if len(chosen) < 3:
            continue
        rows = np.broadcast_to(data.us[chosen], (len(chosen), len(chosen)))
        alpha, beta = fit_lines(
            data.nbytes[chosen],
            rows,
            data.sd[chosen],
            ~np.eye(len(chosen), dtype=bool),
            start=line,
            iterations=15,
        )
        predicted = alpha + beta * data.nbytes[chosen]
        errors += np.abs(predicted / data.us[chosen] - 1).tolist()
    if not errors:
        return None, None
    return float(np.median(errors)), float(max(errors))


def _unidentified(segments: Sequence[Segment]) -> tuple[str, ...]:
    found = []
    for i, s in enumerate(segments, start=1):
        where = f"from {units.size(s.start)} to {units.size(s.end)}"
        if s.n < 3:
            found.append(f"part {i}, {where}: of {s.n} sizes; any line fits, its error cannot be known")
        if s.alpha.lo <= 0 or s.alpha.hi > 3 * s.alpha.lo:
            share = units.percent(s.alpha.value / max(s.us(s.start), 1e-12), 0)
            ends = f"{units.number(s.alpha.lo)} to {units.us(s.alpha.hi)}"
            found.append(
                f"the fixed cost {where} is uncertain, {ends}; it is {share} of the smallest's latency"
            )
        if s.beta.lo <= 0 or s.beta.hi > 3 * s.beta.lo:
            share = units.percent(s.beta.value * s.end / max(s.us(s.end), 1e-12), 0)
            found.append(
                f"the rate {where} is uncertain{_rate(s.beta)}; bytes are {share} of the largest's latency"
            )
    return tuple(found)


def _rate(beta: Estimate) -> str:
    """`, 27.5 GB/s or more`: what an interval in us a byte says of a rate."""
    if beta.hi <= 0:
        return ""
    least = units.number(1e-3 / beta.hi)
    return f", {least} to {units.number(1e-3 / beta.lo)} GB/s" if beta.lo > 0 else f", {least} GB/s or more"
