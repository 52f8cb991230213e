"""Straight lines t(S) = alpha + beta * S, many at once, robust and in log space.

A latency spans decades, and its noise is relative: residuals are log(t) - log(alpha + beta * S). The loss
is the negative log-likelihood of Student's t with four degrees of freedom, so that a wild point pulls a
bounded amount and then ever less (iteratively reweighted least squares; Lange, Little and Taylor 1989).
All functions work on whole batches of rows: a search over segments or a bootstrap is one call.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

TAILS = 4.0  # degrees of freedom of the loss: near normal for small residuals, forgiving for large ones


def fit_lines(
    nbytes: Floats,
    us: Floats,
    sd: Floats,
    use: Bools,
    *,
    start: tuple[float, float] | None = None,
    iterations: int = 40,
) -> tuple[Floats, Floats]:
    """Fit one line per row.

    nbytes: shape (n,); us: (rows, n), positive; sd: (n,), the noise of log(us); use: (rows, n), the points
    of each row (at least one). `start` is an (alpha, beta) to begin from. Returns alpha (us) and beta (us a
    byte), shape (rows,), both at least zero.
    """
    unit = float(nbytes.max()) or 1.0
    x = nbytes / unit
    log_us = np.log(us)
    t = us if start is None else np.broadcast_to(start[0] + start[1] * nbytes, us.shape)
    alpha, beta = np.zeros(len(us)), np.zeros(len(us))
    count = use.sum(axis=1)
    for step in range(iterations):
        residual = log_us - np.log(t)
        z = np.abs(residual / sd)
        # a row whose residuals are all larger than its noise says is judged by its own median residual:
        # otherwise every point would look wild and none would lead the fit
        typical = np.sort(np.where(use, z, np.inf), axis=1)[np.arange(len(us)), (count - 1) // 2]
        scale = np.maximum(1.0, 1.4826 * typical)[:, None]
        weight = use * (TAILS + 1) / (TAILS + (z / scale) ** 2) / (t * sd) ** 2
        # Gauss-Newton: log(us) - log(t) is linear about t, so solve for a line through t * (1 + residual)
        target = t * (1 + np.maximum(residual, -0.9))
        new_alpha, new_beta = _solve(x, target, weight)
        moved = np.max(np.abs(new_alpha - alpha) + np.abs(new_beta - beta)) if step else np.inf
        alpha, beta = new_alpha, new_beta
        t = np.maximum(alpha[:, None] + beta[:, None] * x, 1e-12)
        if moved < 1e-7 * float(np.max(alpha + beta)):
            break
    return alpha, beta / unit


def _solve(x: Floats, y: Floats, weight: Floats) -> tuple[Floats, Floats]:
    """Weighted least squares per row with alpha, beta >= 0 (on a boundary the other one is refitted)."""
    s, sx, sxx = weight.sum(1), weight @ x, weight @ x**2
    wy = weight * y
    sy, sxy = wy.sum(1), wy @ x
    det = s * sxx - sx * sx
    # one usable size alone cannot tell alpha from beta: then all of it is alpha
    flat = det <= 1e-12 * s * sxx
    safe = np.where(flat, 1.0, det)
    alpha = np.where(flat, sy / s, (sxx * sy - sx * sxy) / safe)
    beta = np.where(flat, 0.0, (s * sxy - sx * sy) / safe)
    only_beta, only_alpha = alpha < 0, beta < 0
    beta = np.where(only_beta, sxy / np.maximum(sxx, 1e-300), np.where(only_alpha, 0.0, beta))
    alpha = np.where(only_beta, 0.0, np.where(only_alpha, sy / s, alpha))
    return np.maximum(alpha, 0.0), np.maximum(beta, 0.0)


def noise_of(nbytes: Floats, us: Floats) -> float:
    """Noise of log(us) that no choice of segments can explain: how far points lie off their neighbours.

    Each inner point is compared with the straight line between its two neighbours, which fits exactly
    wherever the three share a segment; the median over the points passes over knots and outliers
    (a difference-based variance estimate, Gasser, Sroka and Jennen-Steinmetz 1986). 0 below 3 points.
    """
    if len(us) < 3:
        return 0.0
    share = (nbytes[1:-1] - nbytes[:-2]) / (nbytes[2:] - nbytes[:-2])
    line = (1 - share) * us[:-2] + share * us[2:]
    left, right = (1 - share) * us[:-2] / line, share * us[2:] / line
    z = np.log(us[1:-1] / line) / np.sqrt(1 + left**2 + right**2)
    return float(1.4826 * np.median(np.abs(z)))


def partition(nbytes: Floats, us: Floats, sd: Floats, pieces: int, least: int) -> list[tuple[int, ...]]:
    """The best partitions into 1, 2 .. `pieces` runs of at least `least` points, by the robust loss.

    Returns, for each number of runs that fits, the index at which each run begins (the first is 0).
    Every run is fitted once in one batch; dynamic programming then finds the best sets exactly.
    """
    n = len(us)
    runs = [(i, j) for i in range(n) for j in range(i + least, n + 1)]
    if not runs:
        return [(0,)]
    index = np.arange(n)
    use = np.array([(index >= i) & (index < j) for i, j in runs])
    rows = np.broadcast_to(us, use.shape)
    alpha, beta = fit_lines(nbytes, rows, sd, use, iterations=15)
    z = np.log(rows / np.maximum(alpha[:, None] + beta[:, None] * nbytes, 1e-12)) / sd
    loss = np.sum(use * (TAILS + 1) / 2 * np.log1p(z**2 / TAILS), axis=1)
    cost = dict(zip(runs, loss.tolist(), strict=True))
    best: dict[int, tuple[float, tuple[int, ...]]] = {j: (cost[0, j], (0,)) for j in range(least, n + 1)}
    found = [best[n][1]]
    for _ in range(pieces - 1):
        following: dict[int, tuple[float, tuple[int, ...]]] = {}
        for j in range(n + 1):
            options = [(best[i][0] + cost[i, j], (*best[i][1], i)) for i in best if (i, j) in cost]
            if options:
                following[j] = min(options)
        if n not in following:
            break
        best = following
        found.append(best[n][1])
    return found


def log_likelihood(z: Floats, log_sd: Floats, floor: float) -> float:
    """Log-likelihood, up to a constant, of residuals z (in units of exp(log_sd)) under the loss, at the
    common factor on the noise that makes it largest, but no less than `floor`."""
    factor = max(floor, float(np.sqrt(np.mean(z**2))))
    for _ in range(30):
        weight = (TAILS + 1) / (TAILS + (z / factor) ** 2)
        factor = max(floor, float(np.sqrt(np.mean(weight * z**2))))
    loss = (TAILS + 1) / 2 * np.log1p((z / factor) ** 2 / TAILS)
    return -float(np.sum(loss + log_sd + np.log(factor)))


def low_line(nbytes: Floats, us: Floats, quantile: float) -> tuple[float, float]:
    """Line with a share `quantile` of the points below it: quantile regression on log residuals.

    An optimum passes through two of the points (or one, where alpha or beta is 0), so all are tried.
    """
    first, second = np.triu_indices(len(us), k=1)
    beta = (us[second] - us[first]) / (nbytes[second] - nbytes[first])
    zero = np.zeros(len(us))
    alphas = np.concatenate([us[first] - beta * nbytes[first], us, zero])
    betas = np.concatenate([beta, zero, us / np.maximum(nbytes, 1.0)])
    keep = (alphas >= 0) & (betas >= 0)
    alphas, betas = alphas[keep], betas[keep]
    r = np.log(us) - np.log(np.maximum(alphas[:, None] + betas[:, None] * nbytes, 1e-12))
    best = int(np.argmin(np.sum(np.maximum(quantile * r, (quantile - 1) * r), axis=1)))
    return float(alphas[best]), float(betas[best])
