"""Worlds whose truth is known, and how often the statistics find it.

python -m tests.worlds [WORLDS]      prints the coverage table of docs/statistics.md

Latencies are drawn here; nothing was measured. The truth of a case is the median of its replays' own
distribution, the slowest rank deciding, at the middle of the luck of launches and rounds.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from functools import cache

import numpy as np

from arfloor.core.cases import Estimate
from arfloor.core.fits import fit
from arfloor.core.launches import Launches, estimate, interval, moments, of_pairs, of_rounds
from arfloor.core.ratios import LEVEL, decide, unpaired_moments
from arfloor.core.spread import launch_spread
from arfloor.core.statistics import stop_reason

SIZES = tuple(round(s) for s in np.geomspace(256, 16 << 20, 24))


@dataclass(frozen=True, kw_only=True)
class World:
    """How a run is drawn: standard deviations of log latency at each level, and what disturbs it."""

    launches: int = 2
    rounds: int = 10
    replays: int = 12
    ranks: int = 2
    cases: int = 24
    launch: float = 0.003  # luck of a case in a launch
    process: float = 0.0  # luck of a launch that all of its cases share
    round: float = 0.003
    replay: float = 0.01
    spikes: float = 0.0  # share of replays that take up to several times as long
    drift: float = 0.0  # change of log latency from the first to the last round of a launch
    late: float = 0.0  # one rank is later than the others by this share

    def draw(self, rng: np.random.Generator, us: float = 20.0) -> np.ndarray:
        """Latencies in us, shape (cases, launches, rounds, replays), the slowest rank deciding."""
        shape = (self.cases, self.launches, self.rounds)
        level = (
            rng.normal(size=(self.cases, self.launches, 1)) * self.launch
            + rng.normal(size=(1, self.launches, 1)) * self.process
            + rng.normal(size=shape) * self.round
            + np.linspace(-self.drift / 2, self.drift / 2, self.rounds)
        )
        return us * np.exp(level[..., None] + self._replays(rng, (*shape, self.replays)))

    def _replays(self, rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        noise = rng.normal(size=(self.ranks, *shape)) * self.replay
        if self.spikes:
            noise += (rng.random(noise.shape) < self.spikes) * rng.exponential(0.5, noise.shape)
        noise[0] += np.log1p(self.late)
        return noise.max(axis=0)

    def truth(self, us: float = 20.0) -> float:
        return us * float(np.exp(_middle(self)))


@cache
def _middle(world: World) -> float:
    return float(np.median(world._replays(np.random.default_rng(12345), (1_000_000,))))


STATISTICS = {
    "two launches": World(),
    "two launches, launches differ by 1 %": World(launch=0.01),
    "two launches, their luck shared by all cases": World(launch=0.002, process=0.005),
    "two launches, launches do not differ": World(launch=0.0),
    "spikes in one replay of ten": World(spikes=0.1),
    "drift of 3 % in a launch": World(drift=0.03),
    "one rank late by 20 %, eight ranks": World(late=0.2, ranks=8),
    "a noisy machine": World(launch=0.05, round=0.1, replay=0.3),
    "five launches of five rounds": World(launches=5, rounds=5),
    "one launch": World(launches=1, launch=0.0),
    "two launches, one case alone": World(cases=1),
    "two launches, three cases": World(cases=3),
    "three launches, one case alone": World(cases=1, launches=3),
}


def rounds_of(us: np.ndarray) -> dict[tuple[int, int], list[float]]:
    """Replays by (launch, round) from an array of shape (launches, rounds, replays)."""
    return {(i, j): us[i, j].tolist() for i in range(us.shape[0]) for j in range(us.shape[1])}


def latency_coverage(world: World, worlds: int, seed: int = 0) -> tuple[float, float]:
    """Share of intervals that contain the truth, over all cases of all worlds; median half-width."""
    rng, truth, inside, widths = np.random.default_rng(seed), world.truth(), 0, []
    for _ in range(worlds):
        cases = [_launches(us) for us in world.draw(rng)]
        spread = launch_spread(cases)
        for case in cases:
            found = estimate(case, spread)
            inside += found.lo <= truth <= found.hi
            widths.append((found.hi / found.lo) ** 0.5 - 1)
    return inside / len(widths), float(np.median(widths))


def percentile_coverage(world: World, worlds: int, seed: int = 0) -> tuple[float, float]:
    """What the plain hierarchical percentile bootstrap would cover: launches, rounds and replays drawn
    again with replacement, the median of all, 2.5 % to 97.5 %. For comparison; arfloor does not use it."""
    rng, truth, inside, widths = np.random.default_rng(seed), world.truth(), 0, []
    count = (200, world.launches, world.rounds, world.replays)
    for _ in range(worlds):
        us = replace(world, cases=1).draw(rng)[0]
        i = rng.integers(0, world.launches, count[:2])[:, :, None, None]
        j = rng.integers(0, world.rounds, count[:3])[..., None]
        medians = np.median(us[i, j, rng.integers(0, world.replays, count)].reshape(200, -1), axis=1)
        lo, hi = np.quantile(medians, [0.025, 0.975])
        inside += lo <= truth <= hi
        widths.append((hi / lo) ** 0.5 - 1)
    return inside / worlds, float(np.median(widths))


def mixed_coverage(worlds: int, seed: int = 0) -> float:
    """Coverage of the cases of a library whose launches differ by 5 %, judged by a spread common with as
    many cases of one whose launches differ by 0.1 %. For comparison; arfloor keeps families apart."""
    rng, inside, total = np.random.default_rng(seed), 0, 0
    calm, wild = World(cases=4, launch=0.001), World(cases=4, launch=0.05)
    for _ in range(worlds):
        cases = [_launches(us) for us in wild.draw(rng)]
        spread = launch_spread(cases + [_launches(us) for us in calm.draw(rng)])
        intervals = [estimate(case, spread) for case in cases]
        inside += sum(e.lo <= wild.truth() <= e.hi for e in intervals)
        total += len(cases)
    return inside / total


def stopping_coverage(worlds: int, *, round_: float = 0.02, seed: int = 0) -> tuple[float, float, float]:
    """Coverage where every case of a launch stops by itself at a 1 % interval, looked at after each round:
    within the first launch, over two launches, and the mean number of rounds at the stop."""
    world = World(rounds=80, replays=8, cases=12, round=round_)
    rng, truth, within, over, stops = np.random.default_rng(seed), world.truth(), 0, 0, []
    for _ in range(worlds):
        luck = rng.normal(size=(world.cases, world.launches, 1, 1)) * world.launch
        us = replace(world, launch=0.0).draw(rng) * np.exp(luck)
        cases = []
        for case, its_luck in zip(us, luck, strict=True):
            stop = [_stop(rounds) for rounds in case]
            kept = {key: replays for key, replays in rounds_of(case).items() if key[1] < stop[key[0]]}
            stops.append(len(kept) / world.launches)
            first = estimate(_found(of_rounds({k: v for k, v in kept.items() if k[0] == 0})))
            within += first.lo <= truth * float(np.exp(its_luck[0].item())) <= first.hi
            cases.append(_found(of_rounds(kept)))
        spread = launch_spread(cases)
        intervals = [estimate(case, spread) for case in cases]
        over += sum(e.lo <= truth <= e.hi for e in intervals)
    return within / len(stops), over / len(stops), float(np.mean(stops))


def _stop(rounds: np.ndarray) -> int:
    looks = range(5, len(rounds))
    return next((k for k in looks if stop_reason(rounds[:k].tolist(), spent_s=0, budget_s=1)), len(rounds))


def _launches(us: np.ndarray) -> Launches:
    return _found(of_rounds(rounds_of(us)))


def _found(launches: Launches | None) -> Launches:
    assert launches is not None
    return launches


@dataclass(frozen=True, kw_only=True)
class Called:
    """What comparisons of pairs with a known ratio came to."""

    covered: float  # intervals that contain the true ratio
    called: float  # pairs called faster or slower
    right: float  # of the pairs whose interval allows it, those called the right way
    allowed: float  # pairs whose 99 % interval is narrower than the way from the band to the truth


def comparisons(world: World, ratio: float, worlds: int, seed: int = 0, *, paired: bool = True) -> Called:
    """Compare cases with ones that are `ratio` times as slow, over all pairs of all worlds.

    paired: both interleaved in the same rounds; else each in a run of its own.
    """
    rng = np.random.default_rng(seed)
    covered = called = right = allowed = 0
    gap = abs(np.log(ratio)) - np.log(1.02)
    for _ in range(worlds):
        slow, quick = world.draw(rng, 20.0 * ratio), world.draw(rng)
        for mean, variance, free in (_paired if paired else _unpaired)(slow, quick):
            lo, hi = interval(mean, variance, free)
            covered += lo <= ratio <= hi
            low, high = interval(mean, variance, free, LEVEL)
            answer, _ = decide(low, high)
            called += answer in ("faster", "slower")
            if np.log(high / low) < gap:
                allowed += 1
                right += answer == ("slower" if ratio > 1 else "faster")
    pairs = worlds * world.cases
    return Called(
        covered=covered / pairs,
        called=called / pairs,
        right=right / allowed if allowed else float("nan"),
        allowed=allowed / pairs,
    )


Moments = list[tuple[float, float, float]]


def _paired(a: np.ndarray, b: np.ndarray) -> Moments:
    pairs = [of_pairs(rounds_of(x), rounds_of(y)) for x, y in zip(a, b, strict=True)]
    spread = launch_spread(pairs)
    return [moments(pair, spread) for pair in pairs]


def _unpaired(a: np.ndarray, b: np.ndarray) -> Moments:
    first, second = [_launches(us) for us in a], [_launches(us) for us in b]
    spreads = launch_spread(first), launch_spread(second)
    return [unpaired_moments(x, y, *spreads) for x, y in zip(first, second, strict=True)]


# -- fits --------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Curve:
    """A true curve: (from size, alpha us, GB/s) for each segment, with relative noise on every point."""

    segments: tuple[tuple[int, float, float], ...] = ((0, 7.0, 12.0),)
    noise: float = 0.003
    stated: bool = True  # whether the points' intervals state the noise
    outlier: float = 1.0  # factor on one of the points
    common: float = 0.0  # noise that all points share (a launch slow at every size), stated as well

    def us(self, nbytes: float) -> float:
        _, alpha, gbps = max(s for s in self.segments if s[0] <= nbytes)
        return alpha + nbytes / gbps / 1e3

    def points(self, rng: np.random.Generator) -> list[tuple[int, Estimate]]:
        moves = rng.normal(size=len(SIZES)) * self.noise + rng.normal() * self.common
        us = np.array([self.us(s) for s in SIZES]) * np.exp(moves)
        if self.outlier != 1:
            us[rng.integers(1, len(SIZES) - 1)] *= self.outlier
        half = 1.96 * float(np.hypot(self.noise, self.common)) if self.stated else 0.0
        return [
            (s, Estimate(value=u, lo=u * float(np.exp(-half)), hi=u * float(np.exp(half)), n=1, unit="us"))
            for s, u in zip(SIZES, us.tolist(), strict=True)
        ]


CURVES = {
    "one line": Curve(),
    "one line, noise not stated": Curve(stated=False),
    "one line, noise 3 %": Curve(noise=0.03),
    "one line, one point 3 times too slow": Curve(outlier=3.0),
    "one line, all points slow together": Curve(common=0.006),
    "one switch": Curve(segments=((0, 9.0, 2.0), (60_000, 25.0, 12.0))),
    "two switches": Curve(segments=((0, 9.0, 2.0), (10_000, 20.0, 8.0), (500_000, 45.0, 25.0))),
}


@dataclass(frozen=True, kw_only=True)
class Fitted:
    """What fits of one curve came to, over many worlds (shares)."""

    alpha: float  # intervals of every alpha that contain the truth
    beta: float
    predicted: float  # intervals of predictions at measured sizes that contain the truth
    segments: float  # worlds with the right number of segments
    digits: float  # median over worlds of -log10 of the worst relative error of alpha and beta


def fits(curve: Curve, worlds: int, seed: int = 0) -> Fitted:
    """Fit a curve again and again. alpha and beta are looked at where the number of segments is right."""
    rng = np.random.default_rng(seed)
    alphas, betas, predictions, digits, right = [], [], [], [], 0
    for _ in range(worlds):
        found = fit(curve.points(rng))
        nbytes = int(rng.choice(SIZES))
        predicted = found.predict(nbytes)
        predictions.append(predicted.lo <= curve.us(nbytes) <= predicted.hi)
        if len(found.segments) != len(curve.segments):
            continue
        right += 1
        errors = [1e-9]
        for segment, (_, alpha, gbps) in zip(found.segments, curve.segments, strict=True):
            alphas.append(segment.alpha.lo <= alpha <= segment.alpha.hi)
            betas.append(segment.beta.lo <= 1e-3 / gbps <= segment.beta.hi)
            errors += [abs(segment.alpha.value / alpha - 1), abs(segment.beta.value * gbps * 1e3 - 1)]
        digits.append(-np.log10(max(errors)))
    return Fitted(
        alpha=float(np.mean(alphas)),
        beta=float(np.mean(betas)),
        predicted=float(np.mean(predictions)),
        segments=right / worlds,
        digits=float(np.median(digits)),
    )


def main(worlds: int) -> None:
    _print_latency(worlds)
    _print_ratios(max(1, worlds // 5))
    _print_fits(worlds)


def _print_latency(worlds: int) -> None:
    print(f"latency, {worlds} worlds each{'':29}coverage  half-width")
    for name, world in STATISTICS.items():
        covered, width = latency_coverage(world, worlds)
        print(f"  {name:50}{covered:8.1%}{width:11.2%}", flush=True)
    for name in ("two launches", "two launches, launches differ by 1 %"):
        covered, width = percentile_coverage(STATISTICS[name], worlds)
        print(f"  {f'(percentile bootstrap, {name})':50}{covered:8.1%}{width:11.2%}", flush=True)
    print(f"  {'(one spread for a calm and a wild library, the wild)':50}{mixed_coverage(worlds):8.1%}")
    within, over, rounds = stopping_coverage(max(1, worlds // 10))
    print(f"  stopped at a 1 % interval{'':25}{over:8.1%}   ({rounds:.0f} rounds; in a launch {within:.1%})")


def _print_ratios(worlds: int) -> None:
    print(f"\nratio, {worlds} runs of 24 pairs each{'':29}coverage  called  right of allowed")
    for paired in (True, False):
        for name in [n for n, w in STATISTICS.items() if w.cases > 1]:
            for ratio in (1.0, 1.05):
                c = comparisons(STATISTICS[name], ratio, worlds, paired=paired)
                label = f"{'paired' if paired else 'unpaired'} {ratio:.2f} {name}"
                of = f"{c.right:10.1%} of {c.allowed:.0%}" if ratio != 1 and c.allowed else ""
                print(f"  {label:60}{c.covered:8.1%}{c.called:8.2%}{of}", flush=True)


def _print_fits(worlds: int) -> None:
    print(f"\nfit, {worlds} worlds each{'':22}alpha    beta  predicted  segments  digits")
    for name, curve in CURVES.items():
        f = fits(curve, worlds)
        shares = f"{f.alpha:8.1%}{f.beta:8.1%}{f.predicted:11.1%}{f.segments:10.1%}"
        print(f"  {name:38}{shares}{f.digits:8.1f}", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 1000)
