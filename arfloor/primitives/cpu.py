"""Link probes between CPU ranks: point-to-point messages of gloo or MPI, and the rate of additions.

    pingpong   4 B to and fro; half of it is one way. The low quantile: what the link does when nothing
               else disturbs it, since a floor must not contain the machine's noise.
    stream     bursts of messages of one size, one way (then an acknowledgement) or both ways at once,
               GB/s per direction
    reduce     `a += b` on float32, GB/s of b, on all ranks at once
    best       (`active`) the single best repetition of each of these, which only a bound may use

They run in the first launch of each launcher, with the library that launcher brings: `source` says
which, since a path's floor is the best library's. The best repetition is sought again beside every
block (`Again`): ranks that share cores with other work may be slow for seconds and quick thereafter.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Protocol

import numpy as np

from arfloor.core.cases import Estimate, Primitive
from arfloor.core.rates import BEST
from arfloor.core.statistics import median_estimate
from arfloor.runtime.group import MpiGroup

STREAM_SIZES = (1024, 8192, 65536, 262144, 1048576, 4194304)
REDUCE_SIZES = (4096, 65536, 1048576, 4194304)
LOW_QUANTILE = 0.1
PING_BYTES = 4
# messages in a burst: enough to hide one latency, no more than a socket buffers with ease
_BURST_BYTES, _BURST = 1 << 20, (4, 16)
# on a machine busy with other things every message may cost a time slice: a few repetitions must do
_REPEATS = (5, 200)
_CHUNK = 10
# all probing ends after this many budgets with what it has, and so does a probe after as many of its share
PATIENCE, PROBE_PATIENCE = 4.0, 4.0
# what `Again` repeats: sizes that a cache holds, where single repetitions are fastest
_AGAIN_SIZES = (65536, 262144)
_AGAIN_S = 0.02


class Link(Protocol):
    """Point-to-point messages of one library. `peers` and sizes are equal on both ends."""

    source: str
    link: str

    def buffer(self, nbytes: int) -> Any: ...
    def send(self, buffer: Any, peer: int) -> None: ...
    def receive(self, buffer: Any, peer: int) -> None: ...
    def exchange(self, pairs: Sequence[tuple[Any, Any, int]]) -> None:
        """Send and receive at once: (outgoing, incoming, peer) for each peer."""
        ...


class GlooLink:
    """torch.distributed's point-to-point over gloo."""

    source, link = "gloo", "tcp"

    def __init__(self, world: int) -> None:
        import torch.distributed as dist

        self._dist, self._group = dist, dist.new_group(list(range(world)), backend="gloo")

    def buffer(self, nbytes: int) -> Any:
        """A tensor of that many bytes."""
        import torch

        return torch.zeros(nbytes, dtype=torch.uint8)

    def send(self, buffer: Any, peer: int) -> None:
        """Blocking."""
        self._dist.send(buffer, peer, group=self._group)

    def receive(self, buffer: Any, peer: int) -> None:
        """Blocking."""
        self._dist.recv(buffer, peer, group=self._group)

    def exchange(self, pairs: Sequence[tuple[Any, Any, int]]) -> None:
        """All at once."""
        waits = [self._dist.irecv(incoming, peer, group=self._group) for _, incoming, peer in pairs]
        waits += [self._dist.isend(outgoing, peer, group=self._group) for outgoing, _, peer in pairs]
        for wait in waits:
            wait.wait()


class MpiLink:
    """MPI's point-to-point."""

    source, link = "mpi", "shm"

    def __init__(self) -> None:
        from mpi4py import MPI

        self._mpi, self._comm = MPI, MPI.COMM_WORLD.Dup()

    def buffer(self, nbytes: int) -> Any:
        """Array and MPI type of that many bytes."""
        return [np.zeros(nbytes, dtype=np.uint8), nbytes, self._mpi.BYTE]

    def send(self, buffer: Any, peer: int) -> None:
        """Blocking."""
        self._comm.Send(buffer, peer)

    def receive(self, buffer: Any, peer: int) -> None:
        """Blocking."""
        self._comm.Recv(buffer, peer)

    def exchange(self, pairs: Sequence[tuple[Any, Any, int]]) -> None:
        """All at once."""
        waits = [self._comm.Irecv(incoming, peer) for _, incoming, peer in pairs]
        waits += [self._comm.Isend(outgoing, peer) for outgoing, _, peer in pairs]
        self._mpi.Request.Waitall(waits)


def link_of(group: Any) -> Link:
    """The point-to-point of the library that started this group's ranks."""
    return MpiLink() if isinstance(group, MpiGroup) else GlooLink(group.world)


def measure(bench: Any, *, budget_s: float) -> list[Primitive]:
    """All probes, on every rank alike; collective. `bench` is the worker's `Bench`.

    Pairs are rank 0 with each other rank. More than two ranks add a pattern in which every rank talks
    to every other at once.
    """
    group = bench.group
    link = link_of(group)
    pairs = [(0, peer) for peer in range(1, group.world)]
    patterns = 2 * len(pairs) + (1 if group.world > 2 else 0)
    share = budget_s / (len(pairs) + len(STREAM_SIZES) * patterns + len(REDUCE_SIZES))
    probe = Probe(bench=bench, link=link, share_s=share)
    todo: list[Callable[[], list[Primitive]]] = [partial(probe.pingpong, pair) for pair in pairs]
    # what a floor cannot do without comes first, the sizes from the outside in
    streams = [partial(probe.both_ways, pair, n) for n in _outside_in(STREAM_SIZES) for pair in pairs]
    additions = [partial(probe.additions, n) for n in _outside_in(REDUCE_SIZES)]
    todo += [*streams[: len(pairs)], *additions[:1], *streams[len(pairs) :], *additions[1:]]
    if group.world > 2:
        todo += [partial(probe.all_at_once, n) for n in _outside_in(STREAM_SIZES)]
    todo += [partial(probe.one_way, pair, n) for n in _outside_in(STREAM_SIZES) for pair in pairs]
    return _until(group, todo, PATIENCE * budget_s) + probe.best()


class Again:
    """The best repetition of each kind of probe, sought again whenever called; collective.

    A bound from probes of one moment is no bound for a block of another: two ranks exchanged 4 B in 14 us at
    best, as ranks that share a core do, and seconds later finished a whole all-reduce in 6.6. A repeat beside
    each block (about 0.1 s) sees the state that the block ran in.
    """

    def __init__(self, bench: Any) -> None:
        self._probe = Probe(bench=bench, link=link_of(bench.group), share_s=_AGAIN_S)
        self._world = bench.group.world
        self._told: tuple[Primitive, ...] = ()

    def __call__(self) -> list[Primitive]:
        """The kinds whose best so far was beaten; all of them at first."""
        self._probe.pingpong((0, 1))
        for nbytes in _AGAIN_SIZES:
            if self._world > 2:
                self._probe.all_at_once(nbytes)
            else:
                self._probe.both_ways((0, 1), nbytes)
        self._probe.additions(_AGAIN_SIZES[0])
        best = tuple(self._probe.best())
        better = [p for p in best if p not in self._told]
        self._told = best
        return better


def _until(group: Any, todo: Sequence[Callable[[], list[Primitive]]], limit_s: float) -> list[Primitive]:
    """Probe by probe until all are done or rank 0's clock says stop: a busy machine makes them very slow."""
    found: list[Primitive] = []
    begin = time.monotonic()
    for probe in todo:
        found += probe()
        if group.broadcast(time.monotonic() - begin > limit_s):
            break
    return found


def _outside_in(sizes: Sequence[int]) -> list[int]:
    """Largest, smallest, next largest...: whatever is left out then lies between two that are there."""
    left = sorted(sizes)
    return [left.pop(-1 if step % 2 == 0 else 0) for step in range(len(left))]


class Probe:
    """The probes over one link; each takes about `share_s` seconds."""

    def __init__(self, *, bench: Any, link: Link, share_s: float) -> None:
        self._bench, self._link, self._share_s = bench, link, share_s
        self._group, self._rank = bench.group, bench.rank
        self._best: dict[str, Primitive] = {}

    def best(self) -> list[Primitive]:
        """Of each kind the best single repetition, for the bound alone.

        CPU ranks share their cores with whatever else runs: a typical probe may have met a busier
        moment than a later result, the best one hardly.
        """
        return list(self._best.values())

    def _keep_best(self, found: Primitive, value: float) -> None:
        """A rate where bigger is better, or a latency where smaller is."""
        held = self._best.get(found.kind)
        if held is not None and held.estimate is not None:
            best = min if found.kind == "pingpong" else max
            if best(held.estimate.value, value) == held.estimate.value:
                return
        unit = found.estimate.unit if found.estimate is not None else ""
        estimate = Estimate(value=value, lo=value, hi=value, n=1, unit=unit)
        self._best[found.kind] = replace(found, active=BEST, estimate=estimate)

    def pingpong(self, pair: tuple[int, int]) -> list[Primitive]:
        """One-way latency in us, low quantile."""
        buffer, link, (first, second) = self._link.buffer(PING_BYTES), self._link, pair

        def once() -> None:
            if self._rank == first:
                link.send(buffer, second)
                link.receive(buffer, second)
            elif self._rank == second:
                link.receive(buffer, first)
                link.send(buffer, first)

        taken = self._timed(once, most=2000)[first]
        estimate = low_quantile([t / 2 for t in taken], LOW_QUANTILE)
        found = self._primitive("pingpong", pair, PING_BYTES, "one_way", estimate)
        self._keep_best(found, min(taken) / 2)
        return [found]

    def one_way(self, pair: tuple[int, int], nbytes: int) -> list[Primitive]:
        """Bursts from the first to the second rank, acknowledged."""
        link, (first, second), burst = self._link, pair, _burst(nbytes)
        data, word = link.buffer(nbytes), link.buffer(PING_BYTES)

        def once() -> None:
            if self._rank == first:
                for _ in range(burst):
                    link.send(data, second)
                link.receive(word, second)
            elif self._rank == second:
                for _ in range(burst):
                    link.receive(data, first)
                link.send(word, first)

        taken = self._timed(once)[first]
        return [self._stream(pair, nbytes, "one_way", taken)]

    def both_ways(self, pair: tuple[int, int], nbytes: int) -> list[Primitive]:
        """Both ranks send and receive at once; the slower decides."""
        taken = self._exchanging(nbytes, dict([pair, pair[::-1]]))
        slower = np.max([taken[rank] for rank in pair], axis=0)
        return [self._stream(pair, nbytes, "both_ways", slower)]

    def all_at_once(self, nbytes: int) -> list[Primitive]:
        """Every rank sends to and receives from every other at once: the rate of one pair, for each."""
        world = self._group.world
        slowest = np.max(self._exchanging(nbytes, None), axis=0)
        return [
            self._stream((src, dst), nbytes, "all", slowest)
            for src in range(world)
            for dst in range(world)
            if src != dst
        ]

    def additions(self, nbytes: int) -> list[Primitive]:
        """`a += b`; every rank adds at the same time, since in an all-reduce they do."""
        a, b = np.zeros(nbytes // 4, np.float32), np.ones(nbytes // 4, np.float32)
        inner = max(1, (1 << 18) // nbytes)

        def once() -> None:
            for _ in range(inner):
                np.add(a, b, out=a)

        slowest = np.max(self._timed(once), axis=0)
        estimate = _gbps(inner * nbytes, slowest)
        device = f"cpu:{self._rank}"
        found = Primitive(
            kind="reduce",
            engine="cpu",
            access="add",
            src=device,
            dst=device,
            path="cpu",
            link="memory",
            nbytes=nbytes,
            active="all",
            estimate=estimate,
            source="numpy float32",
        )
        self._keep_best(found, inner * nbytes / float(np.min(slowest)) / 1e3)
        return [found]

    def _stream(
        self, pair: tuple[int, int], nbytes: int, active: str, taken_us: Sequence[float] | np.ndarray
    ) -> Primitive:
        moved = _burst(nbytes) * nbytes
        found = self._primitive("stream", pair, nbytes, active, _gbps(moved, taken_us))
        # what a bound asks is what one rank can send to all others together
        peers = self._group.world - 1 if active == "all" else 1
        self._keep_best(found, peers * moved / float(np.min(taken_us)) / 1e3)
        return found

    def _exchanging(self, nbytes: int, peers: dict[int, int] | None) -> list[list[float]]:
        others = [r for r in range(self._group.world) if r != self._rank]
        mine = others if peers is None else [peers[self._rank]] if self._rank in peers else []
        pairs = [(self._link.buffer(nbytes), self._link.buffer(nbytes), peer) for peer in mine]
        burst = _burst(nbytes)

        def once() -> None:
            for _ in range(burst):
                self._link.exchange(pairs)

        return self._timed(once)

    def _timed(self, once: Callable[[], None], *, most: int = _REPEATS[1]) -> list[list[float]]:
        """us of each repetition on each rank. Rank 0 sets the count from a first two, for all."""
        clock = time.perf_counter_ns
        self._group.barrier()
        once()
        begin = clock()
        once()
        each_s = (clock() - begin) / 1e9
        fitting = int(self._share_s / max(each_s, 1e-7))
        count = self._group.broadcast(min(most, max(_REPEATS[0], fitting)))
        taken: list[float] = []
        began = clock()
        while len(taken) < count:
            for _ in range(min(_CHUNK, count - len(taken))):
                self._bench.start.wait()
                begin = clock()
                once()
                taken.append((clock() - begin) / 1e3)
            # two repetitions cannot tell how slow the others will be on a machine that others use too
            if self._group.broadcast((clock() - began) / 1e9 > PROBE_PATIENCE * self._share_s):
                break
        gathered: list[list[float]] = self._group.all_gather(taken)
        return gathered

    def _primitive(
        self, kind: str, pair: tuple[int, int], nbytes: int, active: str, estimate: Estimate
    ) -> Primitive:
        return Primitive(
            kind=kind,
            engine="cpu",
            access="sendrecv",
            src=f"cpu:{pair[0]}",
            dst=f"cpu:{pair[1]}",
            path="cpu",
            link=self._link.link,
            nbytes=nbytes,
            active=active,
            estimate=estimate,
            source=self._link.source,
        )


def _burst(nbytes: int) -> int:
    low, high = _BURST
    return min(high, max(low, _BURST_BYTES // nbytes))


def _gbps(nbytes: int, taken_us: Sequence[float] | np.ndarray) -> Estimate:
    """1 B/us is 1e-3 GB/s."""
    return median_estimate(nbytes / np.asarray(taken_us) / 1e3, unit="GB/s")


def low_quantile(values: Sequence[float], share: float, *, resamples: int = 300, seed: int = 0) -> Estimate:
    """A low quantile in us with its 95 % percentile-bootstrap interval."""
    data = np.asarray(values, dtype=float)
    rng = np.random.default_rng(seed)
    drawn = np.quantile(data[rng.integers(0, data.size, (resamples, data.size))], share, axis=1)
    lo, hi = np.quantile(drawn, [0.025, 0.975])
    return Estimate(
        value=float(np.quantile(data, share)), lo=float(lo), hi=float(hi), n=int(data.size), unit="us"
    )
