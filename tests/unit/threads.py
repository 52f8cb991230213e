"""Ranks as threads of one process: a group, a sum and a link without any library."""

from __future__ import annotations

import json
import queue
import threading
from collections import defaultdict

import numpy as np

from arfloor.backends.base import Variant
from arfloor.core.cases import Ran

TIMEOUT_S = 20.0


class Shared:
    """What the threads of one test share."""

    def __init__(self, world):
        self.world = world
        self.barrier = threading.Barrier(world)
        self.slots = defaultdict(lambda: [None] * world)
        self.links = defaultdict(queue.Queue)


class ThreadGroup:
    """See `arfloor.backends.base.Group`."""

    def __init__(self, shared, rank):
        self.shared, self.rank, self.world = shared, rank, shared.world

    def barrier(self):
        self.shared.barrier.wait(TIMEOUT_S)

    def all_gather(self, value):
        row = self.shared.slots["gather"]
        row[self.rank] = json.dumps(value)
        self.barrier()
        found = [json.loads(text) for text in row]
        self.barrier()
        return found

    def broadcast(self, value):
        return self.all_gather(value if self.rank == 0 else None)[0]


def on_all_ranks(world, action):
    """[action(group) of each rank]; raises the first rank's exception."""
    shared = Shared(world)
    results, errors = [None] * world, [None] * world

    def run(rank):
        try:
            results[rank] = action(ThreadGroup(shared, rank))
        except BaseException as error:  # noqa: BLE001 - raised again by the caller's thread
            errors[rank] = error
            shared.barrier.abort()

    threads = [threading.Thread(target=run, args=(rank,), daemon=True) for rank in range(world)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(TIMEOUT_S)
    first = next((e for e in errors if e and not isinstance(e, threading.BrokenBarrierError)), None)
    if first or any(errors):
        raise first or next(e for e in errors if e)
    return results


def together(world, action):
    """[action(group) of each rank, or the exception that it raised]: for set-ups that fail on all ranks."""
    shared = Shared(world)
    answers = [None] * world

    def run(rank):
        try:
            answers[rank] = action(ThreadGroup(shared, rank))
        except Exception as error:  # noqa: BLE001 - handed to the test
            answers[rank] = error

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(world)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(TIMEOUT_S)
    return answers


class Summing:
    """An all-reduce over threads, which adds in rank order. `fault(op, slot)` is called after each run."""

    name = "summing"

    def __init__(self, group, fault=None, refuse=False):
        self._group, self._fault, self._refuse = group, fault, refuse

    def support(self, machine, case):
        raise NotImplementedError

    def variants(self, machine):
        return [Variant(name="default", path="cpu")]

    def prepare(self, case, group, slots):
        if self._refuse:
            raise RuntimeError("no")
        return SummingOp(case, self._group, slots, self._fault)


class SummingOp:
    """See `arfloor.backends.base.PreparedOp`; in place."""

    def __init__(self, case, group, slots, fault):
        self.slots, self.group, self.runs, self.closed = slots, group, 0, False
        self.values = [np.zeros(case.numel) for _ in range(slots)]
        self._fault = fault

    def write(self, slot, values):
        self.values[slot][:] = values

    def poison(self, slot):
        pass

    def run(self, slot):
        self.runs += 1
        if self._fault is not None:
            self._fault(self, slot)
        row = self.group.shared.slots["data"]
        row[self.group.rank] = self.values[slot].copy()
        self.group.barrier()
        total = np.sum(row, axis=0)
        self.group.barrier()
        self.values[slot][:] = total

    def read(self, slot):
        return self.values[slot]

    def ran(self):
        return Ran(link="threads")

    def close(self):
        self.closed = True


class QueueLink:
    """Messages between threads."""

    source, link = "threads", "queue"

    def __init__(self, group):
        self._group = group

    def buffer(self, nbytes):
        return bytes(nbytes)

    def send(self, buffer, peer):
        self._group.shared.links[self._group.rank, peer].put(buffer)

    def receive(self, buffer, peer):
        got = self._group.shared.links[peer, self._group.rank].get(timeout=TIMEOUT_S)
        assert len(got) == len(buffer)

    def exchange(self, pairs):
        for outgoing, _, peer in pairs:
            self.send(outgoing, peer)
        for _, incoming, peer in pairs:
            self.receive(incoming, peer)
