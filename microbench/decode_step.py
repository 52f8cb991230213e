"""What is a faster all-reduce worth in a decode step?

    torchrun --standalone --nproc-per-node=2 microbench/decode_step.py
    NCCL_P2P_DISABLE=1 torchrun --standalone --nproc-per-node=2 microbench/decode_step.py --json FILE

A synthetic step (32 layers, hidden 4096, FFN 14336, bfloat16, two reduces a layer) in one CUDA graph,
with NCCL as it comes, NCCL's variants, our kernels tuned for the size, and no reduce at all. "ours, fused"
and "ours, by row" are one kernel for the reduce, the residual add and the norm after it, in the two forms of
docs/kernels.md; elsewhere the norm is a kernel of its own.

At two ranks the outputs of "ours" must equal NCCL's bit for bit; with more, NCCL adds in another order, and
only our ranks must agree with each other. Those of the fused forms must be alike on all ranks, too; they add
the squares of a row up in another order, so a norm may differ in its last place and the products after it
with it: how much is stated.

What to look for: a reduce costs the step more than a chain of reduces says, because its code and data are
no longer in the caches and the ranks do not arrive together. "no reduce" bounds what anyone can gain.

One batch with one variant takes about 25 s on two GPUs, of which ten are starting; a batch is printed, and
written to `--json`, when it is measured. What two H200s gave stands in docs/measurements.md.
"""

from __future__ import annotations

import json
import statistics
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from gpu_ranks import GpuRank, command_line, join

from arfloor.backends.fused import FusedReducer, RowReducer, Rows
from arfloor.backends.nccl import Nccl, NcclOp
from arfloor.backends.ours import SWEEP_SPIN_S, OursError, Reducer
from arfloor.backends.tune import choose
from arfloor.core.fused import by_row, by_row_flaw
from arfloor.core.plans import Plan
from arfloor.core.step_shape import Shape
from arfloor.runtime.barrier import DeviceBarrier
from arfloor.workload.decode_step import EPS, DecodeStep, Reduce, Tail, Weights


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """How a step's reduces are done: `reduce`, or `tail`, which does what follows too; neither: not at all.

    `reducer`: of ours, to be checked and closed.
    """

    reduce: Reduce | None = None
    tail: Tail | None = None
    reducer: Reducer | None = None


def nccl_ways(ranks: GpuRank, variants: list[str]) -> dict[str, Way]:
    """A reduce a variant of NCCL, each on the communicator that the backend makes for it."""
    ways = {}
    for variant in variants:
        op = Nccl().prepare(ranks.case("nccl", variant, 16), ranks.group, 1)
        assert isinstance(op, NcclOp)
        ways[f"nccl {variant}"] = Way(reduce=nccl_reduce(op.communicator))
    return ways


def nccl_reduce(communicator: Any) -> Reduce:
    def reduce(x: torch.Tensor) -> None:
        dist.all_reduce(x, group=communicator)

    return reduce


def our_ways(ranks: GpuRank, plan: Plan, batch: int, hidden: int) -> dict[str, Way]:
    """Our reduce, and its two fused forms where the plan has them."""
    nbytes = 2 * batch * hidden
    options: dict[str, Any] = {
        "path": ranks.path,
        "dtype": "bfloat16",
        "group": ranks.group,
        "device": ranks.rank,
        "max_nbytes": nbytes,
    }
    plain = Reducer(plan=plan, **options)
    found = {"ours": Way(reduce=reduce_of(plain, nbytes), reducer=plain)}
    ones = torch.ones(hidden, dtype=torch.bfloat16, device=ranks.device)
    multiprocessors = torch.cuda.get_device_properties(ranks.rank).multi_processor_count
    whole = by_row(plan, 2 * hidden, batch, multiprocessors)
    for name, kind, its_plan, flaw in (
        ("ours, fused", FusedReducer, plan, ""),
        ("ours, by row", RowReducer, whole, by_row_flaw(whole, 2 * hidden, batch)),
    ):
        try:  # alike on every rank
            if flaw:
                raise OursError(flaw)
            made = kind(plan=its_plan, **options)
        except OursError as error:
            ranks.say(f"  {name}: left out: {error}")
            continue
        found[name] = Way(tail=tail_of(made, ones), reducer=made)
    return found


def reduce_of(reducer: Reducer, nbytes: int) -> Reduce:
    def reduce(x: torch.Tensor) -> None:
        bound = reducer.bind(x.data_ptr(), x.data_ptr(), nbytes)
        bound.launch(torch.cuda.current_stream().cuda_stream)

    return reduce


def tail_of(reducer: FusedReducer, weight: torch.Tensor) -> Tail:
    def tail(partial: torch.Tensor, residual: torch.Tensor, normed: torch.Tensor) -> None:
        rows = Rows(
            source=partial.data_ptr(),
            residual=residual.data_ptr(),
            weight=weight.data_ptr(),
            out=normed.data_ptr(),
            rows=partial.shape[0],
            hidden=partial.shape[1],
            eps=EPS,
        )
        reducer.bind_rows(rows).launch(torch.cuda.current_stream().cuda_stream)

    return tail


def measure(ranks: GpuRank, steps: dict[str, DecodeStep], rounds: int) -> dict[str, list[float]]:
    """Per way and round, the slowest rank's us a step; ways take turns."""
    times: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(rounds):
        for name, step in steps.items():
            ranks.group.barrier()
            times[name].append(step.step_us(8))
    everyone = ranks.group.all_gather(times)
    return {name: [max(at) for at in zip(*(r[name] for r in everyone), strict=True)] for name in times}


def digest(x: torch.Tensor) -> int:
    return zlib.crc32(x.cpu().view(torch.int16).numpy().tobytes())


def outputs(ranks: GpuRank, steps: dict[str, DecodeStep]) -> dict[str, dict[str, Any]]:
    """Per way of ours: whether the output equals NCCL's bit for bit and is alike on all ranks, which share of
    its elements differs from NCCL's, and by how much of the largest element at most."""
    wanted, found = steps["nccl default"].output, {}
    for name in [n for n in steps if n.startswith("ours")]:
        mine = steps[name].output
        off = (mine.float() - wanted.float()).abs()
        found[name] = {
            "equal_to_nccl": all(ranks.group.all_gather(torch.equal(mine, wanted))),
            "alike": len(set(ranks.group.all_gather(digest(mine)))) == 1,
            "share_off": float((off > 0).float().mean()),
            "most_off": float(off.max() / wanted.float().abs().max()),
        }
    return found


def said(name: str, found: dict[str, Any]) -> str:
    """What `outputs` found of a way, in words."""
    alike = "alike on all ranks" if found["alike"] else "NOT ALIKE on all ranks"
    if found["equal_to_nccl"]:
        return f"{name}: equal to NCCL's bit for bit, {alike}"
    share, most = found["share_off"], found["most_off"]
    return f"{name}: {share:.2%} of elements differ from NCCL's, by up to {most:.2%} of the largest, {alike}"


def captured(ranks: GpuRank, weights: Weights, batch: int, ways: dict[str, Way]) -> dict[str, DecodeStep]:
    """A step a way, replayed once; a way whose kernel gave up is left out and said. Collective."""
    steps = {}
    for name, way in ways.items():
        step = DecodeStep(weights, batch)
        step.capture(way.reduce, way.tail)
        step.replay()
        torch.cuda.synchronize()
        error = None if way.reducer is None else way.reducer.error()
        errors = ranks.group.all_gather("" if error is None else error.sentence(ranks.rank, SWEEP_SPIN_S))
        if any(errors):  # the others can still be measured
            ranks.say(f"  {name}: left out: {next(e for e in errors if e)}")
        else:
            steps[name] = step
    return steps


def one_batch(
    ranks: GpuRank, weights: Weights, batch: int, others: dict[str, Way], rounds: int
) -> dict[str, Any]:
    """Time a batch every way and say so. Returns what `--json` keeps of it."""
    nbytes = weights.shape.message_nbytes(batch)
    barrier = DeviceBarrier(ranks.group, ranks.path, device=ranks.rank)
    plan = choose(
        ranks.group, nbytes=nbytes, barrier=barrier, path=ranks.path, dtype="bfloat16", device=ranks.rank
    ).plan
    ranks.say(f"batch {batch}, {nbytes} B over {ranks.path}, plan {plan.name}")
    ways = {**our_ways(ranks, plan, batch, weights.shape.hidden), "no reduce": Way(), **others}
    ranks.group.barrier()
    steps = captured(ranks, weights, batch, ways)
    found = outputs(ranks, steps)
    for name, what in found.items():
        ranks.say(f"  output of {said(name, what)}")
    slowest = measure(ranks, steps, rounds)
    for name, way in ways.items():
        if way.reducer is not None and name in steps:
            way.reducer.check()
    for name in sorted(slowest, key=lambda n: statistics.median(slowest[n])):
        us = statistics.median(slowest[name])
        ratios = sorted(a / b for a, b in zip(slowest["nccl default"], slowest[name], strict=True))
        low, high = ratios[len(ratios) // 8], ratios[-1 - len(ratios) // 8]
        ranks.say(
            f"  {name:24} {us:9.1f} us a step {batch / us * 1e6:9.0f} tok/s"
            f"   {statistics.median(ratios):.3f} [{low:.3f}, {high:.3f}] of nccl default's tok/s"
        )
    steps.clear()
    for way in ways.values():
        if way.reducer is not None:
            way.reducer.close()
    barrier.close()
    return {
        "batch": batch,
        "nbytes": nbytes,
        "plan": plan.name,
        **{key: found.get("ours", {}).get(key) for key in ("equal_to_nccl", "alike")},
        "outputs": found,
        "us": {name: statistics.median(us) for name, us in slowest.items()},
    }


def main() -> None:
    parser = command_line(__doc__, limit_s=180)
    parser.add_argument("--batches", default="1,8,32,64", help="%(default)s")
    parser.add_argument("--variants", default="default,16ch,ring-ll-16ch", help="of NCCL: %(default)s")
    parser.add_argument("--rounds", type=int, default=15, help="%(default)s")
    parser.add_argument("--json", type=Path, help="a file for the result")
    args = parser.parse_args()
    ranks = join(args.limit_s)
    others = nccl_ways(ranks, ["default", *(v for v in args.variants.split(",") if v not in ("default", ""))])
    weights = Weights(Shape(), ranks.rank, ranks.world, ranks.rank)
    batches = [int(b) for b in args.batches.split(",")]
    kept: list[dict[str, Any]] = []
    for batch in batches:
        if ranks.over(f"batch {batch}"):
            break
        kept.append(one_batch(ranks, weights, batch, others, args.rounds))
        if args.json and ranks.rank == 0:  # at once: what ends the script early must not cost this
            found = {"world": ranks.world, "path": ranks.path, "batches": kept}
            args.json.write_text(json.dumps(found, indent=1), encoding="utf-8")
    ranks.leave()


if __name__ == "__main__":
    main()
