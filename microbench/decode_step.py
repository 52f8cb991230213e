"""What is a faster all-reduce worth in a decode step?

    torchrun --standalone --nproc-per-node=2 microbench/decode_step.py
    NCCL_P2P_DISABLE=1 torchrun --standalone --nproc-per-node=2 microbench/decode_step.py --path host

A synthetic step (32 layers, hidden 4096, FFN 14336, bfloat16, two reduces a layer) in one CUDA graph,
with NCCL as it comes, NCCL's variants, our kernels tuned for the size, and no reduce at all. At two
ranks outputs must equal NCCL's bit for bit.
"""

import argparse
import os
import statistics

import torch
import torch.distributed as dist

from arfloor.backends.nccl import _options, environment, parse_variant
from arfloor.backends.ours import Reducer
from arfloor.backends.tune import choose
from arfloor.runtime.barrier import DeviceBarrier
from arfloor.runtime.group import TorchGroup
from arfloor.workload.decode_step import DecodeStep, Shape, Weights

parser = argparse.ArgumentParser()
parser.add_argument("--path", default="peer", choices=["peer", "host"])
parser.add_argument("--batches", default="1,8,32,64")
parser.add_argument("--variants", default="default,16ch,ring-ll-16ch,ring-simple-8ch")
parser.add_argument("--rounds", type=int, default=15)
args = parser.parse_args()

rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
torch.cuda.set_device(rank)
group = TorchGroup(
    host=os.environ["MASTER_ADDR"],
    port=int(os.environ["MASTER_PORT"]),
    prefix="decode_step",
    rank=rank,
    world=world,
    timeout_s=60,
)
communicators = {}
for name in args.variants.split(","):
    plan = parse_variant(name)
    with environment(plan.environment):
        made = dist.new_group(list(range(world)), backend="nccl", pg_options=_options(plan))
        dist.all_reduce(torch.zeros(4, device="cuda"), group=made)
    communicators[f"nccl {name}"] = made
torch.cuda.synchronize()
barrier = DeviceBarrier(group, args.path, device=rank)
shape = Shape()
weights = Weights(shape, rank, world, rank)

for batch in map(int, args.batches.split(",")):
    nbytes = shape.message_nbytes(batch)
    choice = choose(group, path=args.path, device=rank, dtype="bfloat16", nbytes=nbytes, barrier=barrier)
    reducer = Reducer(
        plan=choice.plan, path=args.path, dtype="bfloat16", group=group, device=rank, max_nbytes=nbytes
    )
    group.barrier()

    def ours(x, reducer=reducer, nbytes=nbytes):
        pointer = x.data_ptr()
        reducer.bind(pointer, pointer, nbytes).launch(torch.cuda.current_stream().cuda_stream)

    ways = {"ours": ours, "no reduce": None}
    for name, communicator in communicators.items():
        ways[name] = lambda x, communicator=communicator: dist.all_reduce(x, group=communicator)
    steps = {}
    for name, way in ways.items():
        steps[name] = DecodeStep(weights, batch)
        steps[name].capture(way)
        steps[name].replay()
        torch.cuda.synchronize()
    same = torch.equal(steps["ours"].output, steps["nccl default"].output)
    assert steps["ours"].output.isfinite().all()
    reducer.check()

    times = {name: [] for name in steps}
    for _ in range(args.rounds):
        for name, step in steps.items():
            group.barrier()
            times[name].append(step.step_us(8))
    reducer.check()
    slowest = {
        name: [max(at) for at in zip(*(r[name] for r in group.all_gather(times)), strict=True)]
        for name in times
    }
    all_same = all(group.all_gather(same))
    if rank == 0:
        median = {name: statistics.median(t) for name, t in slowest.items()}
        print(f"batch {batch}, {nbytes} bytes over {args.path}, plan {choice.plan.name}")
        print(f"  outputs equal to NCCL's bit for bit: {all_same}")
        for name in sorted(median, key=median.get):
            ratios = sorted(a / b for a, b in zip(slowest[name], slowest["ours"], strict=True))
            low, high = ratios[len(ratios) // 8], ratios[-1 - len(ratios) // 8]
            print(
                f"  {name:24} {median[name]:9.1f} us a step {batch / median[name] * 1e6:9.0f} tok/s"
                f"   ours is {statistics.median(ratios):.3f} [{low:.3f}, {high:.3f}] times as fast",
                flush=True,
            )
    for step in steps.values():
        step._graph = None
    reducer.close()
barrier.close()
group.close()
