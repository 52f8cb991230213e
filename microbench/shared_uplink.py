"""What do two ranks cost that share one uplink to the host, and is it known beforehand?

    torchrun --standalone --nproc-per-node=2 microbench/shared_uplink.py

Each process drives its own GPU and is two of the four ranks of an all-reduce through host memory. So two
ranks write and read over one PCIe link, as GPUs behind one switch do. What is predicted uses only

    the links, probed;
    the same kernels between two ranks, one a GPU: what the link carries both ways, and what a start costs;
    two such pairs side by side, that have nothing to do with each other: what a start costs where two
    kernels share a GPU.

From these `arfloor.core.polls` plays four ranks event by event; the predictions are printed. Only then are
the four ranks run: every result compared bit for bit before and after, latencies as slopes between CUDA
graphs of 8 and 40 reduces behind the device barrier.

What to look for: ratios within 15 %. In one-shot a rank reads three messages and writes one, so two ranks
read six times the message over one link, which is then busy one way; two-shot reads half as much. "wires" is
what the links alone need; the rest are starts, ways of flags, sends that leave one direction idle, and
polls in vain.

About 60 s on two GPUs, of which ten are starting; predictions are printed first, then each size when it is
measured. What two H200s gave stands in docs/measurements.md.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence

import torch
from gpu_ranks import GpuRank, command_line, join

from arfloor.backends.ours import Endpoint, Operation, OursError, kernel
from arfloor.core.patterns import Model
from arfloor.core.plans import Plan, ceil_div, extent, layout
from arfloor.core.polls import Job, KernelCosts, Played, calibrate, play, start_of
from arfloor.core.shared_uplink import Uplink, rig_of, timing, uplink_of
from arfloor.core.slopes import chain_us, slopes_us
from arfloor.primitives import gpu
from arfloor.runtime.barrier import DeviceBarrier
from arfloor.runtime.chains import Chain, side_stream
from arfloor.runtime.slabs import host_slab
from arfloor.runtime.timing_gpu import FEW, MANY, barrier_for

SIZES = tuple(64 << 10 << k for k in range(5))  # of four ranks
TWO_RANKS = (64 << 10, 256 << 10, 1 << 20)
PAIRS = (64 << 10, 128 << 10)  # small, where a start matters
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
    """`count` ranks of this process's GPU, each with a stream, counters and `SLOTS` payloads of its own.

    `side`: streams from this one on."""

    def __init__(self, ranks: GpuRank, plan: Plan, nbytes: int, count: int, side: int) -> None:
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
        self.streams = [side_stream(side + k) for k in range(count)]
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
        self, streams: Sequence[torch.cuda.Stream], launches: Sequence[Sequence[Operation]], count: int
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


def timed(
    ranks: GpuRank,
    barrier: DeviceBarrier,
    streams: Sequence[torch.cuda.Stream],
    launches: Sequence[Sequence[Operation]],
) -> float:
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


def reduce_us(ranks: GpuRank, barrier: DeviceBarrier, job: Job) -> float:
    """Latency in us of an all-reduce in every group of a job at once, verified before and after."""
    count = job.world // ranks.world
    made = [Ranks(ranks, job.plan, job.nbytes, count, count * k) for k in range(job.groups)]
    us = 0.0
    for attempt in range(2):
        ranks.group.barrier()
        try:
            wrong = sum(group.wrong() for group in made)
            problem = f"{wrong} wrong elements" if wrong else ""
        except OursError as error:
            problem = str(error)
        if problems := [p for p in ranks.group.all_gather(problem) if p]:
            ranks.fail(f"{job.plan.name}, {count} ranks a GPU, {job.nbytes} B: {'; '.join(problems)}")
        if attempt == 0:
            streams = [stream for group in made for stream in group.streams]
            operations = [bound for group in made for bound in group.operations]
            us = timed(ranks, barrier, streams, operations)
    for group in made:
        group.close()
    return us


def job_of(shape: str, world: int, nbytes: int, groups: int = 1) -> Job:
    return Job(plan=plan_for(shape, world, nbytes), world=world, nbytes=nbytes, groups=groups)


def measured(
    ranks: GpuRank, barrier: DeviceBarrier, jobs: Sequence[Job], what: str
) -> list[tuple[Job, float]]:
    """Time jobs and say what they took."""
    points = [(job, reduce_us(ranks, barrier, job)) for job in jobs]
    for shape, number in SHOTS.items():
        row = [f"{job.nbytes >> 10} KiB {us:.2f}" for job, us in points if job.plan.shot == number]
        ranks.say(f"{shape}, {what}, us: {'  '.join(row)}")
    return points


def predicted(ranks: GpuRank, jobs: Sequence[Job], uplink: Uplink, costs: KernelCosts) -> list[Played]:
    """Play the jobs, every process its share of them."""
    mine = []
    for k in range(ranks.rank, len(jobs), ranks.world):
        operations, seeds = (8, 4) if jobs[k].nbytes <= 256 << 10 else (5, 2)
        played = play(jobs[k], uplink, costs, operations=operations, seeds=seeds)
        mine.append([k, played.us, played.in_vain])
    everything = sorted(row for part in ranks.group.all_gather(mine) for row in part)
    return [Played(us=us, in_vain=in_vain) for _, us, in_vain in everything]


def main() -> None:
    chosen = command_line(__doc__, limit_s=150).parse_args()
    ranks = join(chosen.limit_s)
    if ranks.world != 2:
        ranks.fail(f"expected two processes, found {ranks.world}")
    barrier = barrier_for(ranks, "host")
    uplink = uplink_of(gpu.measure(ranks, budget_s=4.0, paths=("host",)))
    ranks.say(f"{uplink}")
    apart = measured(ranks, barrier, [job_of(s, 2, n) for s in SHOTS for n in TWO_RANKS], "two ranks")
    pairs = measured(ranks, barrier, [job_of(s, 2, n, 2) for s in SHOTS for n in PAIRS], "two pairs at once")
    uplink, alone = calibrate(uplink, apart)
    costs = max(alone, start_of(uplink, alone, pairs), key=lambda c: c.start_us)
    ranks.say(
        f"both ways {uplink.both_gbps:.1f} GB/s; from one operation to the next {alone.start_us:.2f} us, "
        f"where two kernels share a GPU {costs.start_us:.2f}"
    )
    jobs = [job_of(shape, 4, nbytes) for shape in SHOTS for nbytes in SIZES]
    model = Model(rig_of(uplink, gpus=2, ranks_a_gpu=2))
    expected = predicted(ranks, jobs, uplink, costs)
    names = [f"{shape:<9} {nbytes >> 10:>6} KiB" for shape in SHOTS for nbytes in SIZES]
    ranks.say("four ranks, two a GPU, predicted: us, polls in vain, wires alone")
    for name, job, played in zip(names, jobs, expected, strict=True):
        wires = timing(model, "one-shot" if job.plan.shot == 1 else "two-shot", job.nbytes).wire_us
        ranks.say(f"{name}  {played.us:>8.2f}  {played.in_vain:>4.0%}  {wires:>8.2f}")
    ranks.say("measured: us, measured / predicted")
    for name, job, played in zip(names, jobs, expected, strict=True):
        if ranks.over(name):
            break
        us = reduce_us(ranks, barrier, job)
        ranks.say(f"{name}  {us:>8.2f}  {us / played.us:>6.3f}")
    ranks.leave()


if __name__ == "__main__":
    main()
