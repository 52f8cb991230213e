"""Which plans to measure for a message, and which to take unmeasured: pure functions of shared facts.

Every rank computes the same candidates, so ranks that tune together never disagree about what runs next.
What is known by measurement stands in docs/kernels.md; the rules here follow from it:

- A warp should have one tile of the message where the GPU holds enough warps: a second round costs a round
  trip. So grids fit the message exactly.
- Small messages are all latency: short packets, few blocks. Large ones are all wire: long lines.
- Over the host, sends are paced to the rate at which the link carries both directions; the rate is the
  link's own, so a spread of paces is tried, then refined around the best; once known at one size, a spread
  of a few suffices at the next.
- From 96 KiB on, a block's warps poll in turn (`window`): polls in vain load the link that the sends need.
- From 512 KiB on no pace is kept: paced plans win a chain by a tenth, collapse on some replays, and lose a
  decode step. Warps with several tiles, one sent ahead, clock themselves.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from arfloor.core.cases import Path
from arfloor.core.plans import Plan, ceil_div, extent, flaw, max_threads, parse

PACES = (14, 19, 26, 35, 47, 64, 87, 118)
"""SM cycles a 512-byte tile: at 2 GHz from 73 down to 9 GB/s, a factor of about 1.35 apart."""
NEAR = (0.85, 1.0, 1.15)
"""Factors of a pace that won at another size."""
BETWEEN = (0.8, 0.9, 1.1, 1.2)
"""Factors of a pace that reach to the next ones tried."""
IN_TURN_NBYTES = 96 << 10
AHEAD_NBYTES = 512 << 10
AHEAD = ((3, 4), (4, 8), (8, 8))
"""Tiles a warp and warps a block of plans that send one tile ahead."""

LUCKY_NBYTES, SETUPS = 64 << 10, 6
"""Over the host, up to this size, so many set-ups of a plan are timed to keep the fastest."""

SMALL_TILES = 40
FAMILIES = ("line16", "line64", "line128", "line512", "ll", "flag", "pull", "line128-two", "line512-two")
MANY_RANK_FAMILIES = ("line128-staged", "line512-two-staged", "islands")


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What the choice of plans may depend on; equal on all ranks."""

    path: Path
    world: int
    multiprocessors: int


def fitted(plan: Plan, facts: Facts, nbytes: int, warps_a_block: int, rounds: int = 1) -> Plan:
    """The plan with a grid whose warps have `rounds` tiles each, in blocks of `warps_a_block` warps.

    Keeps to what is resident at once (as many threads a multiprocessor as a block may have, for registers);
    a message too large for that gets more rounds and a lookahead of one.
    """
    tiles = extent(plan, facts.world, nbytes)[2]
    if plan.protocol == "flag":
        tiles = ceil_div(extent(plan, facts.world, nbytes)[1], 32)
    threads = min(32 * warps_a_block, max_threads(plan, facts.world))
    warps = threads // 32
    most = max(1, facts.multiprocessors * max_threads(plan, facts.world) // threads)
    blocks = min(most, ceil_div(tiles, warps * rounds))
    alone = tiles <= blocks * warps
    lookahead = 0 if alone else max(1, plan.lookahead)
    return replace(plan, blocks=blocks, threads=threads, lookahead=lookahead, pace=plan.pace if alone else 0)


def family(name: str, facts: Facts, nbytes: int) -> Plan:
    """A named shape with a grid by rule of thumb. Raises ValueError on an unknown name."""
    shapes = {
        "line16": Plan(protocol="line", line=16, tag_bits=32),
        "line64": Plan(protocol="line", line=64, tag_bits=32),
        "line128": Plan(protocol="line", line=128),
        "line512": Plan(protocol="line", line=512),
        "ll": Plan(protocol="ll"),
        "flag": Plan(protocol="flag"),
        "pull": Plan(protocol="flag", pull=True),
        "line128-two": Plan(protocol="line", line=128, shot=2),
        "line512-two": Plan(protocol="line", line=512, shot=2),
        "line128-staged": Plan(protocol="line", line=128, staged=True),
        "line512-two-staged": Plan(protocol="line", line=512, shot=2, staged=True),
        "islands": Plan(protocol="line", line=128, shot=4),
        "int8": Plan(protocol="line", line=512, wire="int8"),
        "fp8": Plan(protocol="line", line=512, wire="fp8"),
    }
    if name not in shapes:
        raise ValueError(f"expected one of {', '.join(shapes)}, got {name!r}")
    return _by_rule(shapes[name], facts, nbytes)


def families(facts: Facts) -> tuple[str, ...]:
    """Names of `family` that exist for a path and world."""
    names = FAMILIES + (MANY_RANK_FAMILIES if facts.world > 2 else ())
    return tuple(n for n in names if not flaw(family(n, facts, 65536), facts.world, facts.path))


def _by_rule(plan: Plan, facts: Facts, nbytes: int) -> Plan:
    if plan.protocol == "flag":
        return fitted(plan, facts, nbytes, 16, rounds=1 if nbytes <= 1 << 18 else 2)
    made = fitted(plan, facts, nbytes, _warps(facts, nbytes))
    return replace(made, lag=200) if facts.path == "host" and plan.shot == 1 else made


def _warps(facts: Facts, nbytes: int) -> int:
    if nbytes <= 1 << 14:
        return 4
    return 4 if nbytes <= 1 << 18 else 16 if facts.path == "host" else 8


def rule_of_thumb(facts: Facts, nbytes: int) -> Plan:
    """A good plan without measuring. Over the host it cannot know the link's pace and clocks itself instead:
    several tiles a warp, one sent ahead."""
    if facts.world > 2:
        # about where docs/four-gpus.md expects two-shot to overtake over the host and over PCIe; not measured
        small = nbytes <= (1 << 18) // facts.world
        return family("line128" if small else "line512-two", facts, nbytes)
    if facts.path == "peer":
        name = "ll" if nbytes <= 1 << 14 else "line16" if nbytes <= 1 << 17 else "line128"
        return family(name if nbytes < 1 << 19 else "line512", facts, nbytes)
    if nbytes <= 1 << 17:
        return family("line128", facts, nbytes)
    long = Plan(protocol="line", line=512, lookahead=1)
    rounds = 8 if nbytes >= 1 << 20 else 3
    return replace(fitted(long, facts, nbytes, 8 if rounds == 8 else 4, rounds), lookahead=1)


def setups(path: Path, nbytes: int) -> int:
    """How many times to set a plan up: small messages over the host differ by where their slab lies."""
    return SETUPS if path == "host" and nbytes <= LUCKY_NBYTES else 1


def candidates(facts: Facts, nbytes: int, known: Plan | None = None) -> tuple[Plan, ...]:
    """Plans to measure first; the rule of thumb is always among them.

    `known`: what won at another size of the same path and world; its pace is the link's, and is kept to.
    """
    made = [rule_of_thumb(facts, nbytes)]
    if facts.world > 2:
        made += [family(n, facts, nbytes) for n in families(facts)]
        made += list(_many(facts, nbytes))
    elif facts.path == "peer":
        made += list(_peer_pair(facts, nbytes))
    else:
        pace = known.pace if known is not None else 0
        near = tuple(round(pace * factor) for factor in NEAR)
        made += list(_host_pair(facts, nbytes, near if pace else PACES))
    return _valid(made, facts)


def _many(facts: Facts, nbytes: int) -> Iterable[Plan]:
    """Of three ranks and more. A rank reads several times what it writes over the host, and both phases of a
    two-shot use both directions, so tiles sent ahead of those waited for keep the ways busy; short messages
    are all latency, and with a lag fewer polls are in the way of what they wait for."""
    two = [Plan(protocol="line", line=n, shot=2) for n in (128, 512)]
    yield from (fitted(replace(p, lookahead=1), facts, nbytes, w, 2) for p in two for w in (4, 8))
    if facts.path == "peer":
        return
    yield from (fitted(replace(two[1], lookahead=a), facts, nbytes, 8, r) for a, r in ((1, 4), (2, 4)))
    if nbytes < 1 << 19:
        one = Plan(protocol="line", line=512, lookahead=1)
        yield from (fitted(one, facts, nbytes, w, r) for w, r in ((4, 2), (4, 3), (8, 4)))
    if nbytes <= 1 << 15:
        for front in (Plan(protocol="line", line=128), Plan(protocol="ll")):
            yield fitted(front, facts, nbytes, 4)
            yield replace(fitted(front, facts, nbytes, 2), lag=250)


def _peer_pair(facts: Facts, nbytes: int) -> Iterable[Plan]:
    short = (Plan(protocol="ll"), Plan(protocol="line", line=16, tag_bits=32))
    long = (Plan(protocol="line", line=128), Plan(protocol="line", line=512))
    medium = (Plan(protocol="line", line=64, tag_bits=32),)
    fronts = short + medium if nbytes <= 1 << 15 else medium + long + short[1:]
    for front in fronts if nbytes < 1 << 19 else long:
        for warps in (4, 8) if nbytes < 1 << 19 else (8, 16):
            yield fitted(front, facts, nbytes, warps)
    if nbytes >= 1 << 17:
        yield family("pull", facts, nbytes)
        yield family("flag", facts, nbytes)


def _host_pair(facts: Facts, nbytes: int, paces: Sequence[int]) -> Iterable[Plan]:
    long, line128 = Plan(protocol="line", line=512), Plan(protocol="line", line=128)
    if extent(long, facts.world, nbytes)[2] <= SMALL_TILES:
        for front in (line128, Plan(protocol="line", line=16, tag_bits=32), Plan(protocol="ll")):
            for warps, lag in ((4, 0), (4, 250), (2, 250)):
                yield replace(fitted(front, facts, nbytes, warps), lag=lag)
        return
    for warps, pace in itertools.product((4, 8), paces if nbytes < AHEAD_NBYTES else ()):
        plan = replace(fitted(replace(long, pace=pace), facts, nbytes, warps), lag=150)
        yield replace(plan, window=_window(warps, nbytes) if nbytes >= IN_TURN_NBYTES else 0)
    for rounds, warps in AHEAD if nbytes < AHEAD_NBYTES else (*AHEAD, (3, 8), (4, 4), (8, 4), (16, 8)):
        yield replace(fitted(long, facts, nbytes, warps, rounds), lookahead=1)


def _window(warps: int, nbytes: int) -> int:
    """How many warps of a block poll at a time, to begin with: fewer the larger the message is, since a
    turn costs a round trip, and a large message leaves time for many."""
    return max(1, min(warps - 1, round(3 * warps / 8 * (1 << 18) / nbytes)))


def repaced(order: Sequence[str], facts: Facts) -> tuple[Plan, ...]:
    """The two best grids of the first round, at paces between those tried. `order`: plans, best first."""
    best = distinct(order, 2)
    made = [replace(p, pace=max(1, round(p.pace * f))) for p in best if p.pace for f in BETWEEN]
    return tuple(p for p in _valid(made, facts) if p.name not in order)


def refined(order: Sequence[str], facts: Facts) -> tuple[Plan, ...]:
    """Plans close around the best: its pace a little off, other windows, a longer lag. None without pace."""
    best = parse(order[0]) if order else None
    if best is None or not best.pace:
        return ()
    warps = best.threads // 32
    windows = {max(1, best.window - 1), best.window, best.window + 1} if best.window else {0, warps - 1}
    made = [
        replace(best, pace=max(1, round(best.pace * factor)), window=window)
        for factor in (0.95, 1.0, 1.05)
        for window in sorted(windows)
        if window < warps
    ]
    made.append(replace(best, lag=400))
    return tuple(p for p in _valid(made, facts) if p.name not in order)


def _valid(plans: Iterable[Plan], facts: Facts) -> tuple[Plan, ...]:
    return tuple(p for p in dict.fromkeys(plans) if not flaw(p, facts.world, facts.path))


def typical(times_us: Sequence[float]) -> float:
    """The mean of all replays but the slowest fiftieth (at least one, where there are two).

    A plan that is fast on most replays and collapses on one in twenty is not a fast plan, which a median does
    not see; one stalled replay in a hundred is the machine's, not the plan's.
    """
    ordered = sorted(times_us)
    keep = len(ordered) - max(1, len(ordered) // 50) or 1
    return sum(ordered[:keep]) / keep


def ranked(together_us: Mapping[str, Sequence[float]], apart_us: Mapping[str, Sequence[float]]) -> list[str]:
    """Plans, best first, by what they take when ranks arrive together plus what they take when ranks
    arrive apart, as between the matrix products of a decode step. Sends paced a little faster than the
    link carries both ways win the first and lose far more in the second."""
    return sorted(together_us, key=lambda name: (typical(together_us[name]) + typical(apart_us[name]), name))


def distinct(names: Sequence[str], count: int) -> list[Plan]:
    """The first `count` plans, best first, of different grids."""
    found: dict[tuple[str, int, int, int], Plan] = {}
    for name in names:
        plan = parse(name)
        found.setdefault((plan.protocol, plan.line, plan.blocks, plan.threads), plan)
    return list(found.values())[:count]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuned:
    """A table of tuned plans of one path, world and dtype: (bytes, plan's name), ascending."""

    path: Path
    world: int
    dtype: str
    plans: tuple[tuple[int, str], ...]

    def pick(self, nbytes: int) -> str | None:
        """The plan tuned for the smallest size that is not smaller, else the largest; None when empty."""
        for size, name in self.plans:
            if nbytes <= size:
                return name
        return self.plans[-1][1] if self.plans else None
