"""One GPU a rank, behind one small face: what timers and probes want to know of the process they run in.

Every script ends, whatever its ranks wait for: after `--limit-s` seconds it begins no new row, and GRACE_S
later each rank's process ends itself, saying where it stood. What was printed until then stays.
"""

from __future__ import annotations

import argparse
import faulthandler
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Mapping
from types import TracebackType
from typing import NoReturn

import torch

from arfloor.backends.base import PreparedOp
from arfloor.backends.host import Host
from arfloor.backends.nccl import P2P_OFF, Nccl
from arfloor.backends.peer import Peer
from arfloor.core.cases import Case, Estimate, Mode, Path
from arfloor.core.slopes import chain_us, slopes_us
from arfloor.core.statistics import median_estimate
from arfloor.runtime import chains, timing_gpu, verify
from arfloor.runtime.barrier import DeviceBarrier
from arfloor.runtime.group import TorchGroup
from arfloor.runtime.ranks import NO_MULTICAST
from arfloor.runtime.worker import die_with_parent

TIMERS: dict[Mode, type[timing_gpu.Graph | timing_gpu.Isolated]] = {
    "graph": timing_gpu.Graph,
    "eager": timing_gpu.Eager,
    "isolated": timing_gpu.Isolated,
}
GRACE_S = 45.0
"""From a script's limit to the end of its processes: more than any one row takes."""


def command_line(doc: str | None, *, limit_s: float) -> argparse.ArgumentParser:
    """The command line of a script: `doc` is its help, `limit_s` how long it may go on beginning rows."""
    parser = argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument(
        "--limit-s",
        type=float,
        default=limit_s,
        help=f"seconds after which no new row is begun (%(default)g); {GRACE_S:g} later all ends",
    )
    return parser


def add_sizes(parser: argparse.ArgumentParser, sizes: list[int]) -> None:
    """`--sizes 8192,65536`: bytes of a rank's message, whole vectors of 16."""

    def bytes_list(text: str) -> list[int]:
        found = [int(word) for word in text.split(",")]
        if any(n <= 0 or n % 16 for n in found):
            raise argparse.ArgumentTypeError(f"expected multiples of 16 bytes as 8192,65536, found {text!r}")
        return found

    shown = ",".join(map(str, sizes))
    parser.add_argument(
        "--sizes", type=bytes_list, default=sizes, help=f"bytes of a message, default {shown}"
    )


class GpuRank:
    """This process's rank, its GPU, and the ranks it talks to (control traffic only).

    `limit_s`: see `over`.
    """

    def __init__(self, limit_s: float) -> None:
        self._begun, self._limit_s = time.monotonic(), limit_s
        self.rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        self.device = f"cuda:{self.rank}"
        torch.cuda.set_device(self.rank)
        self.group = TorchGroup(
            host=os.environ["MASTER_ADDR"],
            port=int(os.environ["MASTER_PORT"]),
            prefix="microbench",
            rank=self.rank,
            world=world,
            timeout_s=60,
        )
        self.world = world
        # NCCL reads it once a process, so a script measures the path it was started for
        self.path: Path = "host" if os.environ.get("NCCL_P2P_DISABLE") == "1" else "peer"

    def case(
        self, backend: str, variant: str, nbytes: int, mode: Mode = "graph", *, inplace: bool = True
    ) -> Case:
        """An all-reduce of `nbytes` of bfloat16 among all ranks, on the path that this process measures."""
        return Case(
            backend=backend,
            variant=variant,
            settings=P2P_OFF if self.path == "host" else (),
            path=self.path,
            devices=tuple(f"cuda:{r}" for r in range(self.world)),
            numel=nbytes // 2,
            dtype="bfloat16",
            mode=mode,
            inplace=inplace,
        )

    def nccl(self, variant: str, nbytes: int, mode: Mode = "graph", *, rounds: int = 6) -> Estimate:
        """Latency of one NCCL all-reduce of bfloat16 in us, the slowest rank deciding. Collective."""
        case = self.case("nccl", variant, nbytes, mode)
        return self._timed(Nccl().prepare(case, self.group, 4), case, rounds)

    def ours(self, variant: str, nbytes: int, mode: Mode = "graph", *, rounds: int = 6) -> Estimate:
        """The same for a variant of our own kernels, or a plan's name, verified first. Collective."""
        backend = Peer() if self.path == "peer" else Host()
        case = self.case(backend.name, variant, nbytes, mode, inplace=False)
        op = backend.prepare(case, self.group, 4)
        check = verify.check_rank(op, case, self.rank, between=self.group.barrier)
        if any(self.group.all_gather(check.wrong)):
            self.fail(f"{case.label}: wrong sum at {nbytes} B; a wrong reduce has no latency")
        return self._timed(op, case, rounds)

    def _timed(self, op: PreparedOp, case: Case, rounds: int) -> Estimate:
        timer = TIMERS[case.mode](op, case, self)
        timer.warm_up()
        found: list[float] = []
        for _ in range(rounds):
            samples = timer.samples(self.group.all_gather(list(timer.measure(10))))
            found += [max(at) for at in zip(*samples, strict=True)]
        timer.close()
        op.close()
        return median_estimate(found)

    def say(self, text: str) -> None:
        """Print on rank 0."""
        if self.rank == 0:
            print(text, flush=True)

    def over(self, what: str) -> bool:
        """Whether `limit_s` have passed on any rank; then `what`, which comes next, is said to be left out.

        Collective."""
        late = bool(max(self.group.all_gather(time.monotonic() - self._begun)) > self._limit_s)
        if late:
            self.say(f"{what} and on: left out, {self._limit_s:g} s are over")
        return late

    def fail(self, why: str) -> NoReturn:
        """End all ranks with exit code 1 and one line. Collective."""
        self.say(why)
        self.group.barrier()
        os._exit(1)

    def leave(self) -> NoReturn:
        """Meet once more, then end at once: libraries may take long to tidy up."""
        self.group.barrier()
        os._exit(0)


def barriers_apart(ranks: GpuRank, apart_us: Iterable[float]) -> dict[float, DeviceBarrier]:
    """Device barriers whose two meetings lie so far apart each. Collective."""
    return {us: DeviceBarrier(ranks.group, ranks.path, device=ranks.rank, settle_us=us) for us in apart_us}


def pause(us: float) -> None:
    """Keep this host busy."""
    end = time.perf_counter() + us * 1e-6
    while time.perf_counter() < end:
        pass


def payloads(
    ranks: GpuRank, slots: int, nbytes: int, *, high: int
) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Of each slot, this rank's integers from -`high` to `high` - 1 in bfloat16, and the sum over ranks.

    The sum is exact before it is rounded, whatever the order: every rank makes the integers of all."""
    mine, sums = [], []
    for slot in range(slots):
        random = torch.Generator(device="cuda").manual_seed(slot)
        terms = [
            torch.randint(-high, high, (nbytes // 2,), generator=random, device="cuda").bfloat16()
            for _ in range(ranks.world)
        ]
        mine.append(terms[ranks.rank])
        sums.append(torch.stack(terms).float().sum(0).bfloat16())
    return mine, sums


class _Op:
    """A function of the slot as the operation that a chain repeats."""

    def __init__(self, run: Callable[[int], None], slots: int) -> None:
        self.slots, self.run = slots, run


def interleaved_us(
    ranks: GpuRank, runs: Mapping[str, Callable[[int], None]], *, slots: int = 4, replays: int = 41
) -> dict[str, list[float]]:
    """Per run, the ranks' common slope of each replay, in us an operation; all take turns. Collective.

    A run enqueues one operation on torch's current stream, given the slot whose buffers to use.
    """
    barrier = timing_gpu.barrier_for(ranks, ranks.path)
    for run in runs.values():
        for slot in range(slots):
            run(slot)
    torch.cuda.synchronize()
    counts = (timing_gpu.MANY, timing_gpu.FEW)
    built = {
        name: [chains.Chain(_Op(run, slots), n, barrier, graph=True) for n in counts]
        for name, run in runs.items()
    }
    times: dict[str, tuple[list[float], list[float]]] = {name: ([], []) for name in runs}
    for replay in range(replays + 2):
        for name, pair in built.items():
            for chain, into in zip(pair, times[name], strict=True):
                us = chain.replay_us()
                if replay > 1:
                    into.append(us)
    barrier.check()
    everyone = ranks.group.all_gather(times)
    for pair in built.values():
        for chain in pair:
            chain.close()
    joint = {n: [chain_us([rank[n][i] for rank in everyone]) for i in (0, 1)] for n in runs}
    return {name: list(slopes_us(many, few, *counts)) for name, (many, few) in joint.items()}


def join(limit_s: float = 240.0) -> GpuRank:
    """This rank, whose process ends itself GRACE_S after `limit_s` at the latest.

    Raises SystemExit with what to type when no launcher or too few GPUs are there.
    """
    if "RANK" not in os.environ:
        raise SystemExit("start this with: torchrun --standalone --nproc-per-node=2 SCRIPT")
    if torch.cuda.device_count() < int(os.environ["WORLD_SIZE"]):
        raise SystemExit(f"needs a GPU a rank, found {torch.cuda.device_count()}")
    die_with_parent()
    os.environ.update(NO_MULTICAST)
    faulthandler.dump_traceback_later(limit_s + GRACE_S, exit=True)
    sys.excepthook = _end_at_once
    return GpuRank(limit_s)


def _end_at_once(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> NoReturn:
    """The launcher then ends the other ranks; a library that tidies up may wait for them for ever."""
    text = "".join(traceback.format_exception(kind, error, trace))
    # not sys.stderr: torch.distributed puts a buffer there while a hook runs, which is lost at the exit
    os.write(2, f"rank {os.environ.get('RANK')}:\n{text}".encode())
    os._exit(1)
