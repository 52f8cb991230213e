"""One rank of test_allreduce_gpu.py, started by torchrun: every scenario in turn, a line of JSON each."""

from __future__ import annotations

import json
import os
import sys
import time
import zlib
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from arfloor.allreduce import AllReduce
from arfloor.core.plans import parse
from arfloor.runtime.verify_norm import expected, wrong
from arfloor.runtime.worker import die_with_parent

rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
STEPS, BATCH, HIDDEN, LAYERS, WORDS = 1000, 8, 512, 4, 1024
Reduce = Callable[[torch.Tensor], torch.Tensor]


@torch.library.custom_op("tests::nccl_all_reduce", mutates_args=())
def _nccl(tensor: torch.Tensor) -> torch.Tensor:
    made = tensor.clone()
    dist.all_reduce(made)
    return made


@_nccl.register_fake
def _(tensor: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(tensor)


def nccl(tensor: torch.Tensor) -> torch.Tensor:
    """As `AllReduce.traced` calls its operator, so that both are compiled alike."""
    return torch.ops.tests.nccl_all_reduce(tensor)


class Model:
    """A random tensor-parallel decoder of two-matrix layers; greedy: tokens in, tokens out."""

    def __init__(self) -> None:
        random = torch.Generator(device="cuda").manual_seed(5)

        def matrix(*shape: int) -> torch.Tensor:
            return torch.randn(shape, generator=random, device="cuda").to(torch.bfloat16) * shape[-1] ** -0.5

        width = 4 * HIDDEN // world
        mine = slice(rank * width, (rank + 1) * width)
        self.embedding = matrix(WORDS, HIDDEN) * HIDDEN**0.5
        self.layers = [
            (matrix(4 * HIDDEN, HIDDEN)[mine], matrix(HIDDEN, 4 * HIDDEN)[:, mine]) for _ in range(LAYERS)
        ]

    def step(self, tokens: torch.Tensor, position: torch.Tensor, reduce: Reduce) -> torch.Tensor:
        """The next tokens, shape (BATCH,). `position` enters so that sequences do not fall into cycles."""
        x = self.embedding[tokens] + self.embedding[(position * 7 + tokens) % WORDS]
        for up, down in self.layers:
            normed = torch.nn.functional.rms_norm(x, (HIDDEN,))
            x = x + reduce(torch.relu(normed @ up.t()) @ down.t())
        return (torch.nn.functional.rms_norm(x, (HIDDEN,)) @ self.embedding.t()).argmax(-1)


def generate(model: Model, reduce: Reduce, *, compiled: bool) -> list[list[int]]:
    """STEPS tokens a sequence by replaying one captured step."""
    step = torch.compile(model.step, fullgraph=True) if compiled else model.step
    tokens = torch.arange(BATCH, device="cuda")
    position = torch.zeros((), dtype=torch.int64, device="cuda")
    kept = torch.empty(STEPS, BATCH, dtype=torch.int64, device="cuda")
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(2):
            step(tokens, position, reduce)
    torch.cuda.synchronize()
    dist.barrier()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=side, capture_error_mode="thread_local"):
        tokens.copy_(step(tokens, position, reduce))
        kept.index_copy_(0, position.view(1), tokens.view(1, -1))
        position.add_(1)
    for _ in range(STEPS):
        graph.replay()
    torch.cuda.synchronize()
    return kept.tolist()


def same_tokens(compiled: bool) -> dict[str, Any]:
    reduce = AllReduce(max_nbytes=2 * BATCH * HIDDEN)
    model = Model()
    theirs = generate(model, nccl, compiled=compiled)
    ours = generate(model, reduce.traced, compiled=compiled)
    reduce.check()
    found = {
        "why_not": reduce.why_not,
        "plans": reduce.tables[torch.bfloat16].plans,
        "steps": len(ours),
        "different": sum(a != b for a, b in zip(ours, theirs, strict=True)),
        "distinct": len({tuple(row) for row in ours}),
    }
    reduce.close()
    return found


def late() -> dict[str, Any]:
    reduce = AllReduce(max_nbytes=8192, strict=True)
    tensor = torch.full((4096,), float(rank + 1), dtype=torch.bfloat16, device="cuda")
    torch.cuda.synchronize()
    dist.barrier()
    if rank == 1:
        time.sleep(3)
    begun = time.monotonic()
    reduce(tensor)
    torch.cuda.synchronize()
    waited = time.monotonic() - begun
    reduce.check()
    found = {"right": bool((tensor == 3).all()), "waited": waited}
    reduce.close()
    return found


def refused(call: Callable[[], Any]) -> str:
    try:
        call()
    except (ValueError, RuntimeError) as error:
        return f"{type(error).__name__}: {error}"
    return ""


def limits() -> dict[str, Any]:
    reduce = AllReduce(max_nbytes=65536, strict=True)
    small = torch.ones(64, 64, dtype=torch.bfloat16, device="cuda")
    reduce(small)
    other = torch.cuda.Stream()
    with torch.cuda.stream(other):
        stream = refused(lambda: reduce(small))
    large = torch.full((65536,), float(rank + 1), dtype=torch.bfloat16, device="cuda")
    double = torch.full((8,), float(rank + 1), dtype=torch.float64, device="cuda")
    found = {
        "stream": stream,
        "strided": refused(lambda: reduce(small.t())),
        "takes_large": reduce.takes(large),
        "large": bool((reduce(large) == 3).all()),
        "double": bool((reduce(double) == 3).all()),
        "protocols": sorted({parse(name).protocol for _, name in reduce.tables[torch.bfloat16].plans}),
        "small": bool((small == 2).all()),
    }
    reduce.close()
    return found


def fused(path: str, strict: bool) -> dict[str, Any]:
    """`fused` against float64 over shapes, in one kernel and in two, eager and captured."""
    worst, bad, digests = 0.0, 0, []
    reduce = AllReduce(max_nbytes=1 << (18 if strict else 16), path=path, strict=strict, fused=True)
    for seed, (rows, hidden) in enumerate([(1, 4096), (8, 4096), (32, 4096), (5, 1032), (9, 7168), (3, 128)]):
        random = torch.Generator(device="cuda").manual_seed(seed)

        def made(*shape: int, random: torch.Generator = random) -> torch.Tensor:
            return torch.randn(shape, generator=random, device="cuda").to(torch.bfloat16)

        terms, residual, weight = [made(rows, hidden) for _ in range(world)], made(rows, hidden), made(hidden)
        numbers = [t.double().cpu().numpy() for t in (*terms, residual, weight)]
        must = expected(numbers[:world], numbers[-2], numbers[-1], 1e-6, "bfloat16")
        before = residual.clone()
        for _ in range(20):
            residual.copy_(before)
            out = torch.empty_like(residual)
            reduce.fused(terms[rank], residual, weight, 1e-6, out=out)
        error, count = wrong(must, residual.double().cpu().numpy(), out.double().cpu().numpy())
        worst, bad = max(worst, error), bad + count
        digests.append(zlib.crc32(out.cpu().view(torch.int16).numpy().tobytes()))
    kernels = len(reduce._fused)
    everyone = reduce._exchange.all_gather(digests)
    why_not = reduce.why_not
    reduce.check()
    reduce.close()
    return {
        "why_not": why_not,
        "worst": worst,
        "wrong": bad,
        "equal": all(d == everyone[0] for d in everyone),
        "fused_kernels": kernels,
    }


SCENARIOS: dict[str, Callable[[], dict[str, Any]]] = {
    "captured": lambda: same_tokens(compiled=False),
    "late": late,
    "limits": limits,
    "fused_peer": lambda: fused("peer", strict=True),
    "fused_host": lambda: fused("host", strict=False),
    "compiled": lambda: same_tokens(compiled=True),
}


def main() -> None:
    die_with_parent()
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", device_id=torch.device("cuda", rank))
    for name in sys.argv[1:] or SCENARIOS:
        begun = time.monotonic()
        found = SCENARIOS[name]() | {"scenario": name}
        dist.barrier()
        if rank == 0 or name == "late":
            seconds = round(time.monotonic() - begun, 1)
            print(json.dumps(found | {"rank": rank, "seconds": seconds}), flush=True)
    dist.barrier()
    os._exit(0)


if __name__ == "__main__":
    main()
