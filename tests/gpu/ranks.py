"""What the tests measure on two real ranks: started by torchrun, prints JSON on rank 0 as it goes."""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "microbench"))
from gpu_ranks import GpuRank, join, pause

from arfloor.backends.nccl import Nccl
from arfloor.core.cases import Case
from arfloor.primitives.gpu import measure
from arfloor.runtime import health, timing_gpu
from arfloor.runtime.barrier import DeviceBarrier

SKEW_US = 50.0


def case(ranks: GpuRank, nbytes: int, mode: str) -> Case:
    return Case(
        backend="nccl",
        path="peer",
        devices=tuple(f"cuda:{r}" for r in range(ranks.world)),
        numel=nbytes // 2,
        dtype="bfloat16",
        mode=mode,  # type: ignore[arg-type]
    )


def late(ranks: GpuRank) -> Callable[[], None]:
    """Makes rank 1's host start each replay 50 us late."""
    return lambda: pause(SKEW_US) if ranks.rank == 1 else None


class NoBarrier:
    """The safeguard removed: ranks start when their hosts do. A node stands in the barrier's place."""

    def __init__(self, barrier: DeviceBarrier) -> None:
        self._barrier = barrier

    def enqueue(self, stream: int) -> None:
        self._barrier.enqueue_delay(stream, 0.0)

    def check(self) -> None: ...


def skewed(ranks: GpuRank, nbytes: int, mode: str, *, barrier: bool = True) -> dict[str, float]:
    """Medians in us with and without launch skew, rounds alternating on the same captured graphs."""
    op = Nccl().prepare(case(ranks, nbytes, mode), ranks.group, 4)
    timer: Any = {"graph": timing_gpu.Graph, "isolated": timing_gpu.Isolated}[mode](
        op, case(ranks, nbytes, mode), ranks
    )
    timer.warm_up()
    timer.rebuild = False
    if not barrier:
        timer.close()
        timer._barrier = NoBarrier(timer._barrier)
    taken: dict[bool, list[float]] = {True: [], False: []}
    for _ in range(16):
        for skew in (False, True):
            timer.before = late(ranks) if skew else None
            samples = timer.samples(ranks.group.all_gather(list(timer.measure(10))))
            taken[skew] += [max(at) for at in zip(*samples, strict=True)]
    timer.close()
    return {"plain": statistics.median(taken[False]), "skewed": statistics.median(taken[True])}


def copy_gbps(ranks: GpuRank, *, write: bool, nbytes: int = 4 << 20, copies: int = 200) -> float:
    """A direct copy test: torch copies between pinned host memory and this GPU, rank 0 alone."""
    rate = 0.0
    if ranks.rank == 0:
        host = torch.empty(nbytes, dtype=torch.uint8, pin_memory=True)
        device = torch.empty(nbytes, dtype=torch.uint8, device="cuda")
        src, dst = (device, host) if write else (host, device)
        rates = []
        for _ in range(9):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            for _ in range(copies):
                dst.copy_(src, non_blocking=True)
            end.record()
            end.synchronize()
            rates.append(copies * nbytes / begin.elapsed_time(end) / 1e6)
        rate = statistics.median(rates)
    return float(ranks.group.broadcast(rate))


def traffic(ranks: GpuRank, nbytes: int = 4 << 20, operations: int = 2000) -> dict[str, float]:
    """Bytes an all-reduce by link counter on rank 0; empty where NVML does not count."""
    op = Nccl().prepare(case(ranks, nbytes, "eager"), ranks.group, 4)
    op.run(0)
    torch.cuda.synchronize()
    ranks.group.barrier()
    before = health.link_bytes(ranks.rank)
    for i in range(operations):
        op.run(i % 4)
    torch.cuda.synchronize()
    time.sleep(0.2)  # counters are refreshed at intervals
    after = health.link_bytes(ranks.rank)
    op.close()
    return dict(ranks.group.broadcast(health.moved(before, after, operations)))


def main() -> None:
    ranks = join()

    def found(name: str, value: Any) -> None:
        ranks.say("FOUND " + json.dumps({name: value}))

    found("graph", {n: skewed(ranks, n, "graph") for n in (8192, 262144)})
    found("isolated", skewed(ranks, 8192, "isolated"))
    found("no barrier", skewed(ranks, 8192, "isolated", barrier=False))
    found("copies", {name: copy_gbps(ranks, write=name == "write") for name in ("write", "read")})
    found("traffic", traffic(ranks))
    keys = ("kind", "engine", "access", "src", "path", "nbytes", "active")
    found(
        "primitives",
        [
            {**{k: getattr(p, k) for k in keys}, "value": p.estimate.value if p.estimate else None}
            for p in measure(ranks, budget_s=20.0)
        ],
    )
    ranks.leave()


if __name__ == "__main__":
    main()
