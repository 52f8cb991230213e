"""What is a faster all-reduce worth in a decode step?

    torchrun --standalone --nproc-per-node=2 microbench/decode_step.py
    NCCL_P2P_DISABLE=1 torchrun --standalone --nproc-per-node=2 microbench/decode_step.py --json FILE

A synthetic step (32 layers, hidden 4096, FFN 14336, bfloat16, two reduces a layer) in one CUDA graph,
with NCCL as it comes, NCCL's variants, our kernels tuned for the size, and no reduce at all. At two
ranks outputs must equal NCCL's bit for bit; with more, NCCL adds in another order, and only our ranks must
agree with each other.

What to look for: a reduce costs the step more than a chain of reduces says, because its code and data are
no longer in the caches and the ranks do not arrive together. "no reduce" bounds what anyone can gain.
"""

from __future__ import annotations

import argparse
import json
import statistics
import zlib
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from gpu_ranks import GpuRank, join

from arfloor.backends.nccl import Nccl
from arfloor.backends.ours import Reducer
from arfloor.backends.tune import choose
from arfloor.core.cases import Case
from arfloor.runtime.barrier import DeviceBarrier
from arfloor.workload.decode_step import DecodeStep, Shape, Weights


def nccl_ways(ranks: GpuRank, variants: list[str]) -> dict[str, Any]:
    """A reduce a variant of NCCL, each on the communicator that the backend makes for it."""
    ways = {}
    for variant in variants:
        case = Case(
            backend="nccl",
            variant=variant,
            path=ranks.path,
            devices=tuple(f"cuda:{r}" for r in range(ranks.world)),
            numel=8,
            dtype="bfloat16",
            mode="graph",
        )
        communicator = Nccl().prepare(case, ranks.group, 1)._communicator
        ways[f"nccl {variant}"] = lambda x, group=communicator: dist.all_reduce(x, group=group)
    return ways


def measure(ranks: GpuRank, steps: dict[str, DecodeStep], rounds: int) -> dict[str, list[float]]:
    """Per way and round, the slowest rank's us a step; ways take turns."""
    times: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(rounds):
        for name, step in steps.items():
            ranks.group.barrier()
            times[name].append(step.step_us(8))
    everyone = ranks.group.all_gather(times)
    return {name: [max(at) for at in zip(*(r[name] for r in everyone), strict=True)] for name in times}


def one_batch(
    ranks: GpuRank, weights: Weights, batch: int, ways: dict[str, Any], rounds: int
) -> dict[str, Any]:
    """Time a batch every way and say so. Returns what `--json` keeps of it."""
    nbytes = weights.shape.message_nbytes(batch)
    barrier = DeviceBarrier(ranks.group, ranks.path, device=ranks.rank)
    options = {"path": ranks.path, "dtype": "bfloat16", "device": ranks.rank}
    plan = choose(ranks.group, nbytes=nbytes, barrier=barrier, **options).plan
    reducer = Reducer(plan=plan, group=ranks.group, max_nbytes=nbytes, **options)
    ranks.group.barrier()

    def ours(x: torch.Tensor) -> None:
        bound = reducer.bind(x.data_ptr(), x.data_ptr(), nbytes)
        bound.launch(torch.cuda.current_stream().cuda_stream)

    steps = {}
    for name, way in {"ours": ours, "no reduce": None, **ways}.items():
        steps[name] = DecodeStep(weights, batch)
        steps[name].capture(way)
        steps[name].replay()
        torch.cuda.synchronize()
    same = torch.equal(steps["ours"].output, steps["nccl default"].output)
    bits = zlib.crc32(steps["ours"].output.view(torch.uint8).cpu().numpy().tobytes())
    alike = len(set(ranks.group.all_gather(bits))) == 1
    slowest = measure(ranks, steps, rounds)
    reducer.check()
    all_same = all(ranks.group.all_gather(same))
    ranks.say(f"batch {batch}, {nbytes} B over {ranks.path}, plan {plan.name}")
    ranks.say(f"  outputs equal to NCCL's bit for bit: {all_same}; ours alike on all ranks: {alike}")
    for name in sorted(slowest, key=lambda n: statistics.median(slowest[n])):
        us = statistics.median(slowest[name])
        ratios = sorted(a / b for a, b in zip(slowest[name], slowest["ours"], strict=True))
        low, high = ratios[len(ratios) // 8], ratios[-1 - len(ratios) // 8]
        ranks.say(
            f"  {name:24} {us:9.1f} us a step {batch / us * 1e6:9.0f} tok/s"
            f"   ours is {statistics.median(ratios):.3f} [{low:.3f}, {high:.3f}] times as fast"
        )
    steps.clear()
    reducer.close()
    barrier.close()
    return {
        "batch": batch,
        "nbytes": nbytes,
        "plan": plan.name,
        "equal_to_nccl": all_same,
        "alike": alike,
        "us": {name: statistics.median(us) for name, us in slowest.items()},
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--batches", default="1,8,32,64")
    parser.add_argument("--variants", default="default,16ch,ring-ll-16ch")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    ranks = join()
    ways = nccl_ways(ranks, args.variants.split(","))
    weights = Weights(Shape(), ranks.rank, ranks.world, ranks.rank)
    batches = [int(b) for b in args.batches.split(",")]
    kept = [one_batch(ranks, weights, batch, ways, args.rounds) for batch in batches]
    if args.json and ranks.rank == 0:
        args.json.write_text(
            json.dumps({"world": ranks.world, "path": ranks.path, "batches": kept}, indent=1)
        )
    ranks.leave()


if __name__ == "__main__":
    main()
