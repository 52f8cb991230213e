"""How much do a matrix product and an all-reduce slow each other when they run at once?

    torchrun --standalone --nproc-per-node=2 microbench/contention.py
    NCCL_P2P_DISABLE=1 torchrun --standalone --nproc-per-node=2 microbench/contention.py --run RUN

Two-batch overlap hides the reduces of one half of a batch behind the products of the other half. They share
multiprocessors, memory and caches, so both run slower, and by how much depends on the blocks of the reduce.
Two chains run side by side in one CUDA graph behind a barrier over the ranks, each as long as it must be for
the other to lie within it; alone against beside, replay by replay. Products: `decode` (32 rows, bound by
reading the weights) and `prefill` (2048 rows, bound by arithmetic).

About 25 s on two GPUs, of which ten are starting; a row is printed, and kept, when it is measured.

What to look for: what overlap can hide is a reduce's time alone; what it costs is the product's slowdown
while reduces run. Few blocks slow a product less and take longer themselves. `--run` adds the result to a
run's primitives, where `arfloor whatif --apply overlap` finds its contention instead of assuming one.
Measured over NVLink on two H200s: products 1.03 to 1.09 (decode) and 1.1 to 1.2 (prefill), reduces 2.3 to 3.
Predicted over the host: products slowed less, 1.00 to 1.05 and 1.0 to 1.15, since a reduce there waits for
its link most of the time; reduces 1.4 to 1.8, as the 7 us or so that it waits for a place among the product's
blocks are the same, of an operation of 12 to 20 us alone.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from pathlib import Path

import torch
from gpu_ranks import GpuRank, command_line, join

from arfloor import rundir
from arfloor.backends.ours import Reducer
from arfloor.core.cases import Estimate, Primitive
from arfloor.core.plans import parse
from arfloor.core.statistics import median_estimate
from arfloor.runtime.barrier import DeviceBarrier
from arfloor.runtime.chains import Events, capture_stream, side_stream
from arfloor.runtime.timing_gpu import barrier_for

NBYTES, REPLAYS, LEAST_US = 1 << 18, 15, 600.0
BLOCKS = (8, 16, 33, 66, 131)
SHAPES = {"decode": (32, 4096, 14336), "prefill": (2048, 4096, 4096)}
Step = Callable[[], object]


class Beside:
    """A graph of two chains on two streams behind the barrier: `counts` calls of each of `steps`; 0: none."""

    def __init__(self, barrier: DeviceBarrier, steps: tuple[Step, Step], counts: tuple[int, int]) -> None:
        self._events = (Events(), Events())
        self._counts = counts
        streams = (capture_stream(), side_stream(0))
        self._graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        with torch.cuda.stream(streams[0]):
            self._graph.capture_begin(capture_error_mode="thread_local")
            barrier.enqueue(streams[0].cuda_stream)
            streams[1].wait_stream(streams[0])
            for stream, events, step, count in zip(streams, self._events, steps, counts, strict=True):
                with torch.cuda.stream(stream):
                    events.record(events.begin, stream.cuda_stream, captured=True)
                    for _ in range(count):
                        step()
                    events.record(events.end, stream.cuda_stream, captured=True)
            streams[0].wait_stream(streams[1])
            self._graph.capture_end()

    def each_us(self) -> tuple[float, float]:
        """One replay: the time of a call in each chain on this rank."""
        self._graph.replay()
        return tuple(  # type: ignore[return-value]
            e.elapsed_us() / max(1, n) for e, n in zip(self._events, self._counts, strict=True)
        )


def slowest(ranks: GpuRank, mine: list[float]) -> list[float]:
    return [max(row) for row in zip(*ranks.group.all_gather(mine), strict=True)]


def ratios(
    ranks: GpuRank, barrier: DeviceBarrier, steps: tuple[Step, Step], alone: tuple[float, float], which: int
) -> list[float]:
    """Time of chain `which` beside the other over its time alone, a value a replay: the slowest rank's."""
    inner = max(4, round(LEAST_US / alone[which]))
    outer = max(4, round(2.0 * inner * alone[which] / alone[1 - which]))  # outlasts it though slowed, too
    counts = (inner, outer) if which == 0 else (outer, inner)
    single = (inner, 0) if which == 0 else (0, inner)
    beside, by_itself = Beside(barrier, steps, counts), Beside(barrier, steps, single)
    pairs = []
    for replay in range(REPLAYS + 2):
        taken = beside.each_us()[which], by_itself.each_us()[which]
        if replay > 1:
            pairs.append(taken)
    barrier.check()
    together, apart = slowest(ranks, [p[0] for p in pairs]), slowest(ranks, [p[1] for p in pairs])
    return [a / b for a, b in zip(together, apart, strict=True)]


def measure(ranks: GpuRank, name: str, blocks: int) -> tuple[list[float], list[float], float, float]:
    """(product beside reduces / alone, reduce beside products / alone, us of each alone)."""
    barrier = barrier_for(ranks, ranks.path)
    m, k, n = SHAPES[name]
    x, w = (torch.randn(*shape, device="cuda").to(torch.bfloat16) for shape in ((m, k), (k, n)))
    y = torch.empty(m, n, dtype=torch.bfloat16, device="cuda")
    plan = replace(parse("line512t64-one-8x256-ahead1"), blocks=blocks)
    reducer = Reducer(
        plan=plan, path=ranks.path, dtype="bfloat16", group=ranks.group, device=ranks.rank, max_nbytes=NBYTES
    )
    data = torch.zeros(2, NBYTES // 2, dtype=torch.bfloat16, device="cuda")
    bound = reducer.bind(data[0].data_ptr(), data[1].data_ptr(), NBYTES)
    steps: tuple[Step, Step] = (
        lambda: torch.mm(x, w, out=y),
        lambda: bound.launch(torch.cuda.current_stream().cuda_stream),
    )
    for step in steps:
        step()
    torch.cuda.synchronize()
    ranks.group.barrier()
    found = []
    for which in (0, 1):
        chain = Beside(barrier, steps, (20, 0) if which == 0 else (0, 20))
        times = [chain.each_us()[which] for _ in range(5)]
        found.append(statistics.median(slowest(ranks, times[1:])))
    alone = (found[0], found[1])
    slowed, slowing = (ratios(ranks, barrier, steps, alone, which) for which in (0, 1))
    reducer.check()
    reducer.close()
    return slowed, slowing, *alone


def primitive(ranks: GpuRank, found: Estimate, access: str, name: str, blocks: int) -> Primitive:
    """A ratio as a run keeps it; see `arfloor.core.cases.Primitive`."""
    return Primitive(
        kind="contention",
        engine="sm",
        access=access,
        src=name,
        dst=f"{blocks} blocks",
        path=ranks.path,
        link="",
        nbytes=NBYTES,
        active="all",
        estimate=found,
        source="microbench/contention.py",
    )


def main() -> None:
    parser = command_line(__doc__, limit_s=40)
    parser.add_argument("--run", type=Path, help="a run directory whose primitives get the result")
    parser.add_argument("--blocks", default=",".join(map(str, BLOCKS)), help="of the reduce: %(default)s")
    parser.add_argument("--products", default=",".join(SHAPES), help="%(default)s")
    chosen = parser.parse_args()
    if not set(chosen.products.split(",")) <= set(SHAPES):
        parser.error(f"--products: expected some of {','.join(SHAPES)}, found {chosen.products!r}")
    if chosen.run and not (chosen.run / "manifest.json").is_file():
        parser.error(f"--run: expected a run directory, found no manifest.json in {chosen.run}")
    ranks = join(chosen.limit_s)
    ranks.say(f"{ranks.world} GPUs, path {ranks.path}, reduces of {NBYTES} bytes; slowdowns as ratios")
    ranks.say("product  blocks  product us  reduce us  product slowed  reduce slowed")
    for name, blocks in product(chosen.products.split(","), map(int, chosen.blocks.split(","))):
        if ranks.over(f"{name} with {blocks} blocks"):
            break
        slowed, slowing, a, b = measure(ranks, name, blocks)
        found = [median_estimate(values, unit="x") for values in (slowed, slowing)]
        shown = [f"{e.value:.2f} ({e.lo:.2f}..{e.hi:.2f})" for e in found]
        ranks.say(f"{name:<8} {blocks:>6}  {a:>10.1f}  {b:>9.1f}  {shown[0]:>14}  {shown[1]:>13}")
        if chosen.run and ranks.rank == 0:  # at once: what ends the script early must not cost this
            kept = zip(found, ("compute", "reduce"), strict=True)
            rundir.Writer(chosen.run).primitives([primitive(ranks, e, w, name, blocks) for e, w in kept])
    ranks.leave()


if __name__ == "__main__":
    main()
