"""How much launches differ, learnt from all cases of a run at once.

Two launches of one case say almost nothing about how much launches differ: with one degree of freedom an
honest interval is 12.7 standard errors wide. The cases of a run say it together. Each case's variance
between launches is taken as drawn about a common one (an empirical-Bayes prior as in Smyth 2004, `limma`),
fitted here by maximum likelihood. Cases that share a process also share some of its luck; of that part
there are only as many observations as launches, and the interval is widened for it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Sequence

import numpy as np
from scipy.special import gammaln

from arfloor.core.cases import Case
from arfloor.core.launches import Floats, Launches, Spread

TINY = 1e-10  # variance of a relative difference of 1e-5, below any timer's resolution
FREE = np.array([1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0])
WITHIN = np.array([0.1, 0.2, 0.3, 0.5, 0.7, 1.0])
LEAST = 2  # cases with two launches or more, below which nothing is pooled


def launch_spread(cases: Sequence[Launches], groups: Sequence[Hashable] | None = None) -> Spread | None:
    """Spread between launches over the cases of a run.

    `groups` names, for each case, the processes that it ran in (its settings); cases of one group may
    share a launch's luck. None with fewer than two cases of two launches: then each stands alone.
    """
    kept = [(c, g) for c, g in zip(cases, groups or [0] * len(cases), strict=True) if len(c.log) > 1]
    if len(kept) < LEAST:
        return None
    used = [c for c, _ in kept]
    between = np.array([max(c.between, TINY) for c in used])
    noise = np.array([max(float(np.mean(c.noise)), TINY) for c in used])
    free = np.array([len(c.log) - 1.0 for c in used])
    variance, within, prior = _most_likely(between, noise, free)
    shared, shared_free = _shared(kept, np.sqrt(variance + within * noise))
    return Spread(
        sd=float(np.sqrt(variance)),
        within=within,
        free=min(prior, float(free.sum())),
        shared=shared,
        shared_free=shared_free,
    )


def spreads(cases: Sequence[Case], launches: Sequence[Launches]) -> list[Spread | None]:
    """The spread to judge each case by: that of its family, the cases of one backend, path and mode.

    Families are kept apart because launches of one library may differ tenfold more than those of
    another, and a common spread would be too narrow for the one and too wide for the other.
    """
    members: dict[Hashable, list[int]] = defaultdict(list)
    for i, case in enumerate(cases):
        members[case.backend, case.path, case.mode].append(i)
    found: list[Spread | None] = [None] * len(cases)
    for indices in members.values():
        spread = launch_spread([launches[i] for i in indices], [cases[i].settings for i in indices])
        for i in indices:
            found[i] = spread
    return found


def _most_likely(between: Floats, noise: Floats, free: Floats) -> tuple[float, float, float]:
    """Variance between launches, factor on the noise within them, degrees of freedom of the prior.

    between / (variance + factor * noise) follows an F distribution with (free, prior) degrees of freedom.
    The factor falls below 1 where rounds differ in a way that all launches repeat (drift).
    """
    variances = np.concatenate([[0.0], np.geomspace(1e-8, max(float(between.max()), 1e-7), 40)])
    v = (variances[:, None, None] + WITHIN[:, None] * noise)[:, :, None, :]
    q = between / v
    d, p = free, FREE[:, None]
    constant = gammaln((d + p) / 2) - gammaln(p / 2) - (d / 2) * np.log(p)
    likelihood = constant + (d / 2) * np.log(q) - (d + p) / 2 * np.log1p(d * q / p)
    shape = (len(variances), len(WITHIN), len(FREE))
    i, j, k = np.unravel_index(int(np.argmax(likelihood.sum(axis=-1))), shape)
    return float(variances[i]), float(WITHIN[j]), float(FREE[k])


def _shared(kept: Sequence[tuple[Launches, Hashable]], sd: Floats) -> tuple[float, float]:
    """Share of the variance between launches that moves all cases of a process together, and the degrees
    of freedom behind it.

    The mean over n cases of standardised deviations has variance (1 + (n - 1) share) / n.
    """
    together: dict[Hashable, list[Floats]] = defaultdict(list)
    for (case, group), scale in zip(kept, sd.tolist(), strict=True):
        together[group, case.ids].append(np.clip((case.log - case.log.mean()) / scale, -3, 3))
    weight = moved = free = 0.0
    for rows in together.values():
        n, own = len(rows), len(rows[0]) - 1
        free += own
        moved += n * float(np.sum(np.mean(rows, axis=0) ** 2)) - own
        weight += (n - 1) * own
    share = moved / weight if weight else 1.0
    return min(1.0, max(0.0, share)), free
