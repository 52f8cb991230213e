"""What do two ranks cost that share one uplink to the host, and does the topology model know it beforehand?

    torchrun --standalone --nproc-per-node=2 microbench/shared_uplink.py

Each process drives its own GPU and is two of the four ranks of an all-reduce through host memory. So two
ranks write and read over one PCIe link, as GPUs behind one switch do. First the links are probed and the
same kernels timed between two ranks, one a GPU. From these alone `arfloor.core.shared_uplink` predicts four
ranks. Only then are the four ranks run: every result compared bit for bit before and after, latencies as
slopes between CUDA graphs of 8 and 40 reduces behind the device barrier.

What to look for: ratios within 15 %. In one-shot a rank reads three messages and writes one, so two ranks
read six times the message over one link, which is then busy one way; two-shot reads half as much.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence

import torch
from gpu_ranks import GpuRank, join

from arfloor.backends.ours import Endpoint, OursError, kernel
from arfloor.core.patterns import Model
from arfloor.core.plans import Plan, ceil_div, extent, layout
from arfloor.core.shared_uplink import calibrate, predict_us, rig_of, uplink_of
from arfloor.core.slopes import chain_us, slopes_us
from arfloor.primitives import gpu
from arfloor.runtime.barrier import DeviceBarrier, empty_kernel
from arfloor.runtime.chains import Chain, side_stream
from arfloor.runtime.slabs import host_slab
from arfloor.runtime.timing_gpu import FEW, MANY, barrier_for

SIZES = (64 << 10, 256 << 10, 1 << 20)  # of four ranks
TWO_RANKS = (*SIZES, 2 << 20, 4 << 20)  # what one link carries for four ranks of 1 MiB lies within
SHOTS = {"one-shot": 1, "two-shot": 2}
SLOTS, REPLAYS, SPIN_S = 4, 25, 1.0


def plan_for(shape: str, world: int, nbytes: int) -> Plan:
    """One tile a warp while 33 blocks of 8 warps suffice, else several with one sent ahead."""
    plan = Plan(protocol="line", line=512, shot=SHOTS[shape], blocks=33, threads=256)
    blocks = ceil_div(extent(plan, world, nbytes)[2], 8)
    alone = blocks <= 33
    lag = 150 if plan.shot == 1 else 0
    return Plan(
        protocol="line", line=512, shot=plan.shot, blocks=min(33, blocks), threads=256,
        lookahead=0 if alone else 1, lag=lag,
    )  # fmt: skip


class Ranks:
    """`count` ranks of this process's GPU, each with a stream, counters and `SLOTS` payloads of its own."""

    def __init__(self, ranks: GpuRank, plan: Plan, nbytes: int, count: int) -> None:
        world, numel = count * ranks.world, nbytes // 2
        self._function = kernel(plan, world, "bfloat16", "host", ranks.rank)
        room = torch.cuda.get_device_properties(ranks.rank).multi_processor_count
        if plan.blocks * count > room * self._function.blocks_per_multiprocessor(plan.threads):
            raise SystemExit(f"{plan.name}: {count} ranks do not fit on one GPU at once; use fewer blocks")
        region = layout(plan, world, "host", nbytes).nbytes
        self._slab = host_slab(ranks.group, region * count)
        pointers = tuple(base + region * k for base in self._slab.pointers for k in range(count))
        random = torch.Generator().manual_seed(nbytes)  # on the CPU: every process draws all ranks' inputs
        terms = torch.randn(SLOTS, world, numel, generator=random).bfloat16()
        total = terms[:, 0].float()
        for rank in range(1, world):
            total += terms[:, rank].float()
        self._right = total.bfloat16().cuda()
        self.streams = [side_stream(k) for k in range(count)]
        self._ends, self._kept, self.operations = [], [], []
        for rank in range(ranks.rank * count, (ranks.rank + 1) * count):
            end = Endpoint(
                plan=plan, path="host", dtype="bfloat16", rank=rank, pointers=pointers,
                max_nbytes=nbytes, spin_s=SPIN_S, function=self._function,
            )  # fmt: skip
            source, target = terms[:, rank].cuda(), torch.empty_like(self._right)
            places = zip(source, target, strict=True)
            self.operations.append([end.bind(s.data_ptr(), t.data_ptr(), nbytes) for s, t in places])
            self._ends.append(end)
            self._kept.append((source, target))

    def wrong(self) -> int:
        """Elements that are not right bit for bit after a run of every slot. OursError on a timeout."""
        for _, target in self._kept:
            target.fill_(float("nan"))
        torch.cuda.synchronize()
        for slot in range(SLOTS):
            for stream, bound in zip(self.streams, self.operations, strict=True):
                bound[slot].launch(stream.cuda_stream)
        torch.cuda.synchronize()
        for end in self._ends:
            end.check()
        return sum(int((target != self._right).sum()) for _, target in self._kept)

    def close(self) -> None:
        for end in self._ends:
            end.close()
        self._slab.close()


class Branches:
    """`count` launches in a row on every stream, side by side: one operation to the timer."""

    slots = 1

    def __init__(
        self, streams: Sequence[torch.cuda.Stream], launches: Sequence[Sequence], count: int
    ) -> None:
        self._streams, self._launches, self._count = streams, launches, count

    def run(self, _slot: int) -> None:
        main = torch.cuda.current_stream()
        for stream, bound in zip(self._streams, self._launches, strict=True):
            stream.wait_stream(main)
            for i in range(self._count):
                bound[i % len(bound)].launch(stream.cuda_stream)
        for stream in self._streams:
            main.wait_stream(stream)


def timed(ranks: GpuRank, barrier: DeviceBarrier, streams: Sequence, launches: Sequence[Sequence]) -> float:
    """us of one more launch on every stream at once."""
    chains = [
        Chain(Branches(streams, launches, n), 1, barrier, graph=True, least_nodes=n * len(streams))
        for n in (MANY, FEW)
    ]
    ranks.group.barrier()
    mine = [[chain.replay_us() for chain in chains] for _ in range(REPLAYS + 1)][1:]
    barrier.check()
    for chain in chains:
        chain.close()
    rows = ranks.group.all_gather(mine)
    many, few = (chain_us([[replay[k] for replay in row] for row in rows]) for k in (0, 1))
    return statistics.median(slopes_us(many, few, MANY, FEW))


def reduce_us(ranks: GpuRank, barrier: DeviceBarrier, shape: str, nbytes: int, count: int) -> float:
    """Latency in us of an all-reduce of `count` ranks a GPU, verified before and after."""
    plan = plan_for(shape, count * ranks.world, nbytes)
    made = Ranks(ranks, plan, nbytes, count)
    us = 0.0
    for attempt in range(2):
        ranks.group.barrier()
        try:
            problem = f"{wrong} wrong elements" if (wrong := made.wrong()) else ""
        except OursError as error:
            problem = str(error)
        if problems := [p for p in ranks.group.all_gather(problem) if p]:
            raise SystemExit(f"{plan.name}, {count} ranks a GPU, {nbytes} B: {'; '.join(problems)}")
        if attempt == 0:
            us = timed(ranks, barrier, made.streams, made.operations)
    made.close()
    return us


def main() -> None:
    ranks = join()
    if ranks.world != 2:
        raise SystemExit(f"expected two processes, found {ranks.world}")
    barrier = barrier_for(ranks, "host")
    empty = [[empty_kernel(ranks.rank).bind(1, 32)] for _ in range(2)]
    streams = [side_stream(k) for k in range(2)]
    launch = [timed(ranks, barrier, streams[:n], empty[:n]) for n in (1, 2)]
    uplink = uplink_of(gpu.measure(ranks, budget_s=4.0, paths=("host",)))
    ranks.say(f"graph node {launch[0]:.2f} us, side by side {launch[1]:.2f}; {uplink}")
    one, two = (Model(rig_of(uplink, gpus=2, ranks_a_gpu=n)) for n in (1, 2))
    predicted = {}
    for shape in SHOTS:
        points = [(nbytes, reduce_us(ranks, barrier, shape, nbytes, 1)) for nbytes in TWO_RANKS]
        costs = calibrate(one, shape, launch[0], points)
        ranks.say(f"{shape}, two ranks, us: {'  '.join(f'{n >> 10} KiB {us:.2f}' for n, us in points)}")
        ranks.say(
            f"  a round costs {costs.round_us:.2f} us, the wire {costs.wire_factor:.3f} times the probes'"
        )
        for nbytes in SIZES:
            predicted[shape, nbytes] = predict_us(two, shape, nbytes, launch[1], costs)
    ranks.say("four ranks, two a GPU      predicted us  measured us  measured / predicted")
    for (shape, nbytes), us in predicted.items():
        measured = reduce_us(ranks, barrier, shape, nbytes, 2)
        ranks.say(f"{shape:<9} {nbytes >> 10:>6} KiB  {us:>20.2f}  {measured:>11.2f}  {measured / us:>20.3f}")
    ranks.leave()


if __name__ == "__main__":
    main()
