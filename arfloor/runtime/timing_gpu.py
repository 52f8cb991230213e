"""How an operation on GPUs is timed: on the device, behind a device barrier, per replay.

`graph`      the slope between two CUDA graphs of few and many chained operations, each
             [barrier over the ranks, event, K operations, event]. What is constant (launch of the
             graph, the events, leaving the barrier) cancels; what remains is the cost of one more
             operation in a captured decode step.
`eager`      the same slope with the operations launched one by one by the host.
`isolated`   one operation behind the barrier, less a control that holds the barrier and events only.

A sample is one value a replay and rank; the statistics take the maximum over ranks: a reduce is over when the
last rank has its result.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from arfloor.core.launches import trimmed
from arfloor.core.slopes import less_control_us, slopes_us
from arfloor.runtime import health
from arfloor.runtime.barrier import DeviceBarrier
from arfloor.runtime.chains import Chain, Op
from arfloor.runtime.slabs import SlabError

FEW, MANY = 8, 40

_BARRIERS: dict[tuple[str, str], DeviceBarrier] = {}


def barrier_for(bench: Any, path: str) -> DeviceBarrier:
    """The worker's device barrier for a path, made at first use. Collective.

    Flags lie in peer memory for `peer` cases, where GPUs address each other; else in host memory.
    """
    key = (path if path == "peer" else "host", bench.device)
    if key not in _BARRIERS:
        ordinal = int(bench.device.partition(":")[2])
        try:
            _BARRIERS[key] = DeviceBarrier(bench.group, key[0], device=ordinal)
        except SlabError:  # on every rank alike
            if key[0] == "host":
                raise
            _BARRIERS[key] = barrier_for(bench, "host")
    return _BARRIERS[key]


# seconds between two looks at the GPU's clocks
_LOOK_S = 0.25


class _Gpu:
    """What the three modes share; see `arfloor.runtime.timing.Timer`. `before` runs before every replay.

    With `anew`, each replay of the first chain is the second of a graph of its own: NCCL's captures fall on
    levels 1 us an operation apart, by the places that graphs get (docs/measurements.md), and a graph that is
    replayed once more falls on the same. So what one capture happens to get is sampled like any other noise,
    not taken for the case's own. The second chain, short or empty, carries little of it, and is built anew
    every round. `rebuild` turns both off, for comparisons on one captured graph.

    The first replay of a chain does not count: it uploads the graph, and the host has just done something
    else.
    """

    slots = 4
    rounds = 8
    pilot = 2
    anew = True

    def __init__(self, op: Op, case: Any, bench: Any) -> None:
        self._op = op
        self._barrier = barrier_for(bench, case.path)
        self._ordinal = int(bench.device.partition(":")[2])
        self._chains: list[Chain | None] = [None, None]
        self._readings: list[health.Reading] = []
        self._looked = 0.0
        self.rebuild = True
        self.before: Callable[[], None] | None = None

    @property
    def marks(self) -> tuple[str, ...]:
        """What disturbed the GPU while this case was timed, in words."""
        return health.marks_of(self._readings)

    def _first(self) -> Chain:
        raise NotImplementedError

    def _second(self) -> Chain:
        raise NotImplementedError

    def warm_up(self) -> float:
        """Run every slot once on all ranks in one order, so that libraries connect and allocate before
        the capture; capture; replay. Raises TimingError when a graph does not hold the operation.

        The time of a replay of the longer chain on this rank, in us."""
        import torch

        for slot in range(self._op.slots):
            self._op.run(slot)
        torch.cuda.synchronize()
        estimate = self.measure(1)[0]
        self._readings, self._looked = [], 0.0
        return estimate

    def measure(self, replays: int) -> tuple[float, ...]:
        """This rank's readings in us: `replays` of the first chain, then as many of the second.

        Nothing is exchanged. Raises BarrierTimeout when a rank did not come."""
        each = 1 if self.anew and self.rebuild else replays
        first = [us for _ in range(replays // each) for us in self._in_a_row(0, self._first, each)]
        second = self._in_a_row(1, self._second, replays)
        self._barrier.check()
        self._look()
        return (*first, *second)

    def _in_a_row(self, which: int, make: Callable[[], Chain], replays: int) -> list[float]:
        """`replays` of a chain behind one that does not count; the chain is new, with `rebuild`."""
        chain = self._chains[which]
        if chain is None or self.rebuild:
            if chain is not None:
                chain.close()
            self._chains[which] = None  # a capture that raises leaves none
            chain = self._chains[which] = make()
        return [self._replay(chain) for _ in range(replays + 1)][1:]

    def samples(self, rows: Sequence[Sequence[float]]) -> tuple[tuple[float, ...], ...]:
        """See `arfloor.runtime.timing.Timer`."""
        half = len(rows[0]) // 2
        return self._reduce([row[:half] for row in rows], [row[half:] for row in rows])

    def _reduce(
        self, first: Sequence[Sequence[float]], second: Sequence[Sequence[float]]
    ) -> tuple[tuple[float, ...], ...]:
        raise NotImplementedError

    def _replay(self, chain: Chain) -> float:
        if self.before is not None:
            self.before()
        return chain.replay_us()

    @property
    def chained(self) -> int:
        """Operations in the longer chain."""
        return MANY

    def repeat(self, replays: int) -> None:
        """Run the longer chain `replays` times on every rank, untimed."""
        chain = self._chains[0]
        assert chain is not None, "warm_up comes first"
        for _ in range(replays):
            chain.replay_us()
        self._barrier.check()

    def _look(self) -> None:
        now = time.monotonic()
        if now - self._looked > _LOOK_S:
            self._looked = now
            self._readings.append(health.read(self._ordinal))

    def close(self) -> None:
        """Drop graphs and events; the barrier stays for the next case."""
        for chain in self._chains:
            if chain is not None:
                chain.close()
        self._chains = [None, None]


class Graph(_Gpu):
    """Slope between CUDA graphs of FEW and MANY chained operations, on each rank."""

    rounds = 14

    def __init__(self, op: Op, case: Any, bench: Any) -> None:
        super().__init__(op, case, bench)
        # each round's median, a list a rank: one stalled replay moves none
        self._few_us: list[list[float]] = [[] for _ in range(bench.group.world)]

    def _first(self) -> Chain:
        return Chain(self._op, MANY, self._barrier, graph=True)

    def _second(self) -> Chain:
        return Chain(self._op, FEW, self._barrier, graph=True)

    def _reduce(
        self, first: Sequence[Sequence[float]], second: Sequence[Sequence[float]]
    ) -> tuple[tuple[float, ...], ...]:
        for seen, new in zip(self._few_us, second, strict=True):
            seen.append(statistics.median(new))
        # the short chains lie on levels too (of 8 operations of NCCL's 60 or 77 us), so a mean of theirs
        bases = (float(np.mean(trimmed(few))) for few in self._few_us)
        return tuple(slopes_us(many, [base], MANY, FEW) for many, base in zip(first, bases, strict=True))


class Eager(Graph):
    """The same slope, every operation launched by the host: what a program without graphs pays.

    The host decides, so a round's first replay, whose instructions and data other cases have driven out of
    the core's caches, does not count; few long rounds then show the host at its usual pace.
    """

    rounds = 5
    anew = False

    def _first(self) -> Chain:
        return Chain(self._op, MANY, self._barrier, graph=False)

    def _second(self) -> Chain:
        return Chain(self._op, FEW, self._barrier, graph=False)


class Isolated(_Gpu):
    """One operation behind the barrier, less a control of barrier and events; each rank for itself."""

    def __init__(self, op: Op, case: Any, bench: Any) -> None:
        super().__init__(op, case, bench)
        self._control_us: list[list[float]] = []  # a list a rank, of all rounds

    def _first(self) -> Chain:
        return Chain(self._op, 1, self._barrier, graph=True)

    def _second(self) -> Chain:
        return Chain(None, 0, self._barrier, graph=True)

    def _reduce(
        self, first: Sequence[Sequence[float]], second: Sequence[Sequence[float]]
    ) -> tuple[tuple[float, ...], ...]:
        self._control_us = self._control_us or [[] for _ in second]
        for seen, new in zip(self._control_us, second, strict=True):
            seen.extend(new)
        return tuple(map(less_control_us, first, self._control_us))
