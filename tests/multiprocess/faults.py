"""Third-party backends with one fault each, loaded by `--backends tests.multiprocess.faults:Name`."""

from __future__ import annotations

import os
import signal
import time

from arfloor.backends.base import Variant
from arfloor.backends.gloo import Gloo, GlooOp

# the size at which the fault shows; at others the backend is well
FAULTY_BYTES = 65536
FAULTY_RANK = 1


class Faulty(Gloo):
    """gloo under another name, with `fault` called before each operation of the faulty size and rank."""

    name = "faulty"

    def __init_subclass__(cls) -> None:
        cls.name = cls.__name__.lower()

    def variants(self, machine):
        return [Variant(name="default", path="cpu", modes=("eager",))]

    def prepare(self, case, group, slots):
        op = super().prepare(case, group, slots)
        if case.nbytes == FAULTY_BYTES and group.rank == FAULTY_RANK:
            self.spoil(op)
        return op

    def spoil(self, op: GlooOp) -> None:
        run, fault = op.run, self.fault
        count = iter(range(1_000_000))

        def faulty(slot):
            # past verification (8), warm-up (8) and pilot (4): while it is being timed
            if next(count) == 22:
                fault()
            run(slot)

        op.run = faulty

    def fault(self) -> None:
        raise NotImplementedError


class Killed(Faulty):
    """Its process is killed with -9 in the middle of a case."""

    def fault(self):
        os.kill(os.getpid(), signal.SIGKILL)


class Aborted(Faulty):
    """A library's thread says that the device is lost, and aborts the process."""

    def fault(self):
        os.write(2, b"terminate called: CUDA error: an illegal memory access was encountered\n")
        os.abort()


class Hangs(Faulty):
    """It never returns."""

    def fault(self):
        time.sleep(3600)


class Raises(Faulty):
    """It raises on one rank while the other waits in the operation."""

    def fault(self):
        raise ValueError("no such luck\nreally")


class Refuses(Faulty):
    """One rank's `prepare` raises."""

    def spoil(self, op):
        raise RuntimeError("cannot be set up here")


class Wrong(Faulty):
    """One rank gets one element wrong, and is very fast."""

    def spoil(self, op):
        run = op.run

        def wrong(slot):
            run(slot)
            op.inputs[slot][3] += 1  # in place: the output too

        op.run = wrong


class NoBackend:
    """Lacks all that a backend needs."""
