"""Ranks that poll over uplinks to the host: a reduce of our kernels event by event, polls in vain included.

The topology model counts bytes. It leaves out what several ranks behind one uplink do to each other: a
warp polls for a packet of every other rank before all have come, and each answer that it cannot use takes
the link from one that somebody needs; ranks that arrive late make the others ask more often; and sends that
all go first leave one direction idle. Here warps send and poll as `arfloor/kernels/shots.cuh` has them do:

    a write   waits for the way out, then for the bridge, and is in host memory a third of a flag's time later
    a read    waits for the bridge (its request does not wait for other warps' writes) and the way in; it sees
              what host memory holds a third of a flag's time after that, and is back after another third

so a flag on idle links takes what it was measured to take: a write, and a poll there and back.
"""

from __future__ import annotations

import heapq
import random
import statistics
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from arfloor.core.cases import record
from arfloor.core.plans import Plan, extent
from arfloor.core.shared_uplink import Uplink
from arfloor.core.topology import READ_REQUEST_SHARE

CYCLES_A_US = 1980.0  # of an H200's multiprocessors
SPREAD_US = 0.1  # starts of a kernel differ by up to this, or ranks would keep a rhythm that no GPU keeps
SKIPPED = 2  # operations until ranks have found their rhythm

Key = tuple[int, int, int, int]  # phase, writer, reader (-1: all), tile
Packet = tuple[int, ...]  # group, operation, and a key


@record
class KernelCosts:
    """us: from the end of one operation to the first send of the next; a send (load of the input, hash,
    store); the check of one packet of a poll. The last two by `microbench/grid_cost.py` over NVLink: one more
    tile a warp takes 1.37 us, of which a flag's way is 0.65, the rest a send and two checks."""

    start_us: float
    send_us: float = 0.3
    check_us: float = 0.2


@record
class Job:
    """One all-reduce of `groups` independent groups, each of `world` ranks spread evenly over the GPUs."""

    plan: Plan
    world: int
    nbytes: int
    gpus: int = 2
    groups: int = 1


@record
class Played:
    """Latency of one operation in a chain, in us, and the share of polls that came too early."""

    us: float
    in_vain: float


def script(plan: Plan, world: int, rank: int, tiles: int, first: int) -> tuple[tuple[bool, list[Key]], ...]:
    """What one warp does in an operation: (whether it waits, packets that it waits for or sends), in order.

    Raises ValueError for a shape that is not known here.
    """
    if plan.shot not in (1, 2):
        raise ValueError(f"{plan.name}: expected a one-shot or two-shot plan")
    steps: list[tuple[bool, list[Key]]] = []
    others = [o for o in range(world) if o != rank]
    sent = summed = done = first
    turn = 0
    while done < tiles:
        if sent < tiles:
            to = others if plan.shot == 2 else [-1]
            steps.append((False, [(0, rank, o, sent) for o in to]))
            sent += plan.warps
        if plan.shot == 2 and summed < tiles and (turn >= plan.lookahead or sent >= tiles):
            steps.append((True, [(0, o, rank, summed) for o in others]))
            steps.append((False, [(1, rank, -1, summed)]))
            summed += plan.warps
        ready = turn >= plan.shot * plan.lookahead or (sent if plan.shot == 1 else summed) >= tiles
        if ready:
            steps.append((True, [(plan.shot - 1, o, -1, done) for o in others]))
            done += plan.warps
        turn += 1
    return tuple(steps)


class _Warp:
    __slots__ = ("failed", "gpu", "group", "left", "rank", "script", "step", "waits_for")

    def __init__(self, group: int, rank: int, gpu: int, script: tuple[tuple[bool, list[Key]], ...]) -> None:
        self.group, self.rank, self.gpu, self.script = group, rank, gpu, script
        self.step, self.left, self.waits_for = 0, 0, 0
        self.failed: list[Packet] = []


Handler = Callable[[float, _Warp, Packet], None]


class _Chain:
    """A chain of operations. Events are (time, order, handler, warp, packet)."""

    def __init__(self, job: Job, uplink: Uplink, costs: KernelCosts, operations: int, seed: int) -> None:
        plan, self.costs, self.operations = job.plan, costs, operations
        tiles = extent(plan, job.world, job.nbytes)[2]
        tile = 32 // (plan.packet // 16) * plan.packet / 1e3  # bytes on the wire; GB/s are 1e3 B/us
        bridge = uplink.both_gbps * (2 + READ_REQUEST_SHARE)
        self.out_us, self.in_us = tile / uplink.write_gbps, tile / uplink.read_gbps
        self.bridge_us = {False: tile / bridge, True: tile * (1 + READ_REQUEST_SHARE) / bridge}
        self.hop_us, self.lag_us = uplink.flag_us / 3, plan.lag / CYCLES_A_US
        self.way_out, self.way_in, self.bridge = ([0.0] * job.gpus for _ in range(3))
        self.events: list[tuple[Any, ...]] = []
        self.order = self.polls = self.in_vain = 0
        self.random = random.Random(seed)
        self.there: set[Packet] = set()
        self.warps: dict[tuple[int, int], list[_Warp]] = {}
        self.at: dict[tuple[int, int], int] = {}
        self.working: dict[tuple[int, int], int] = {}
        self.ends = [0.0] * operations
        for group in range(job.groups):
            for rank in range(job.world):
                gpu = rank * job.gpus // job.world
                self.warps[group, rank] = [
                    _Warp(group, rank, gpu, script(plan, job.world, rank, tiles, first))
                    for first in range(min(plan.warps, tiles))
                ]
                self.at[group, rank] = -1
                self._next_operation(0.0, (group, rank))

    def run(self) -> None:
        while self.events:
            t, _, handler, warp, packet = heapq.heappop(self.events)
            handler(t, warp, packet)

    def _push(self, t: float, handler: Handler, warp: _Warp, packet: Packet) -> None:
        self.order += 1
        heapq.heappush(self.events, (t, self.order, handler, warp, packet))

    def _next_operation(self, t: float, who: tuple[int, int]) -> None:
        self.at[who] += 1
        if self.at[who] == self.operations:
            return
        start = t + self.costs.start_us + self.random.random() * SPREAD_US
        self.working[who] = len(self.warps[who])
        # multiprocessors get their turns at the link in no order of tiles
        for warp in self.random.sample(self.warps[who], len(self.warps[who])):
            warp.step = 0
            self._push(start, self._advance, warp, ())

    def _advance(self, t: float, warp: _Warp, _packet: Packet) -> None:
        who = warp.group, warp.rank
        while warp.step < len(warp.script):
            waits, keys = warp.script[warp.step]
            warp.step += 1
            packets = [(warp.group, self.at[who], *key) for key in keys]
            if waits:
                warp.waits_for = len(packets)
                self._poll(t + self.lag_us, warp, packets)
                return
            for packet in packets:
                t += self.costs.send_us
                self._push(t, self._write, warp, packet)
        self.working[who] -= 1
        if self.working[who] == 0:
            self.ends[self.at[who]] = max(self.ends[self.at[who]], t)
            self._next_operation(t, who)

    def _poll(self, t: float, warp: _Warp, packets: Sequence[Packet]) -> None:
        warp.left, warp.failed = len(packets), []
        for packet in packets:
            self._push(t, self._read, warp, packet)

    def _write(self, t: float, warp: _Warp, packet: Packet) -> None:
        self.way_out[warp.gpu] = max(self.way_out[warp.gpu], t) + self.out_us
        self._push(self.way_out[warp.gpu], self._write_at_bridge, warp, packet)

    def _write_at_bridge(self, t: float, warp: _Warp, packet: Packet) -> None:
        self.bridge[warp.gpu] = max(self.bridge[warp.gpu], t) + self.bridge_us[False]
        self._push(self.bridge[warp.gpu] + self.hop_us, self._written, warp, packet)

    def _written(self, _t: float, _warp: _Warp, packet: Packet) -> None:
        self.there.add(packet)

    def _read(self, t: float, warp: _Warp, packet: Packet) -> None:
        at = self.bridge[warp.gpu] = max(self.bridge[warp.gpu], t) + self.bridge_us[True]
        self.way_in[warp.gpu] = max(self.way_in[warp.gpu], at) + self.in_us
        self._push(self.way_in[warp.gpu] + self.hop_us, self._sampled, warp, packet)

    def _sampled(self, t: float, warp: _Warp, packet: Packet) -> None:
        self.polls += 1
        if packet not in self.there:
            self.in_vain += 1
            warp.failed.append(packet)
        self._push(t + self.hop_us, self._answered, warp, packet)

    def _answered(self, t: float, warp: _Warp, _packet: Packet) -> None:
        warp.left -= 1
        if warp.left:
            return
        t += warp.waits_for * self.costs.check_us  # one after the other, also those that were whole before
        if warp.failed:
            self._poll(t + (self.lag_us if warp.rank % 2 else 0.0), warp, warp.failed)
        else:
            self._advance(t, warp, ())


def play(job: Job, uplink: Uplink, costs: KernelCosts, *, operations: int = 8, seeds: int = 2) -> Played:
    """Simulate chains of so many operations and average them. Raises ValueError on other than lines, on paced
    plans and windows, and on too few operations."""
    plan = job.plan
    if plan.protocol != "line" or plan.pace or plan.window:
        raise ValueError(f"{plan.name}: expected lines without pace and window")
    if operations <= SKIPPED + 1:
        raise ValueError(f"play: expected more than {SKIPPED + 1} operations, found {operations}")
    us, in_vain = [], []
    for seed in range(seeds):
        chain = _Chain(job, uplink, costs, operations, seed)
        chain.run()
        us.append((chain.ends[-1] - chain.ends[SKIPPED]) / (operations - 1 - SKIPPED))
        in_vain.append(chain.in_vain / chain.polls)
    return Played(us=statistics.mean(us), in_vain=statistics.mean(in_vain))


def calibrate(uplink: Uplink, points: Sequence[tuple[Job, float]]) -> tuple[Uplink, KernelCosts]:
    """The uplink with what both directions carried in reduces of one rank a GPU, and what a start costs.

    `points`: (job, measured us). The fastest of the largest messages, against its simulation, tells the
    link's rate (one that collapsed on polls in vain tells nothing), the median of the others the start.
    Raises ValueError below two sizes.
    """
    largest = max(job.nbytes for job, _ in points)
    large = [p for p in points if p[0].nbytes == largest]
    small = [p for p in points if p[0].nbytes < largest]
    if not small:
        raise ValueError("calibrate: expected at least two sizes, found one")
    costs = KernelCosts(start_us=1.0)
    for _ in range(2):
        costs = start_of(uplink, costs, small)
        faster = max(play(job, uplink, costs, operations=5, seeds=1).us / us for job, us in large)
        most = min(uplink.write_gbps, uplink.read_gbps)
        uplink = replace(uplink, both_gbps=min(most, uplink.both_gbps * faster))
    return uplink, costs


def start_of(uplink: Uplink, costs: KernelCosts, points: Sequence[tuple[Job, float]]) -> KernelCosts:
    """The costs with the start that fits these (job, measured us) best: the median, which none decides."""
    for _ in range(2):
        late = statistics.median(us - play(job, uplink, costs).us for job, us in points)
        costs = replace(costs, start_us=max(0.0, costs.start_us + late))
    return costs
