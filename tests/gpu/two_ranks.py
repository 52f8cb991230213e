"""One rank of a test on real GPUs: `two_ranks.py [SCENARIO [ARGUMENT...] [-- SCENARIO ...]]`, with RANK,
WORLD_SIZE and PORT set. For two to eight ranks, a GPU each. Without arguments it reads a scenario a line.

Prints a line of JSON a scenario. Run by test_two_ranks.py, test_many_ranks.py, or by hand for longer stress.
"""

from __future__ import annotations

import faulthandler
import functools
import itertools
import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Iterable
from typing import Any

import torch

from arfloor.backends.host import Host
from arfloor.backends.ours import OursError, PeerTimeout, Reducer, kernel
from arfloor.backends.peer import Peer
from arfloor.core.cases import Case
from arfloor.core.plans import parse
from arfloor.runtime import verify
from arfloor.runtime.group import TorchGroup
from arfloor.runtime.worker import die_with_parent

rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
MAX_NBYTES = 1 << 20


def stream() -> int:
    return torch.cuda.current_stream().cuda_stream


def reducer_for(plan: str, path: str, dtype: str = "bfloat16", **more: Any) -> Reducer:
    options = {"max_nbytes": MAX_NBYTES, "spin_s": 2.0} | more
    return Reducer(plan=parse(plan), path=path, dtype=dtype, group=group, device=rank, **options)


def in_order(terms: list[torch.Tensor], shot: int) -> torch.Tensor:
    """float32 sums in rank order, as every kernel takes them; islands are summed on their own first."""
    halves = [terms] if shot != 4 else [terms[: world // 2], terms[world // 2 :]]
    partial = [functools.reduce(torch.add, half) for half in halves]
    return functools.reduce(torch.add, partial)


class Reduction:
    """A reduction with a payload of its own and its right result, which needs no communication."""

    def __init__(self, reducer: Reducer, numel: int, seed: int, *, inplace: bool = False, offset: int = 0):
        dtype = getattr(torch, reducer.end.dtype)
        random = torch.Generator(device="cuda").manual_seed(seed)
        terms = [torch.randn(numel, generator=random, device="cuda").to(dtype) for _ in range(world)]
        self.expected = in_order([t.float() for t in terms], reducer.end.plan.shot).to(dtype)
        self.own = terms[rank]
        self.source = torch.zeros(numel + offset, dtype=dtype, device="cuda")[offset:]
        self.target = self.source if inplace else torch.empty_like(terms[rank])
        pointers = self.source.data_ptr(), self.target.data_ptr()
        self._bound = reducer.bind(*pointers, numel * dtype.itemsize)

    def run(self) -> None:
        """Everything on the current stream: fresh input, poisoned output, the reduction."""
        self.source.copy_(self.own)
        if self.target is not self.source:
            self.target.fill_(float("nan"))
        self._bound.launch(stream())

    def count_wrong(self, total: torch.Tensor) -> None:
        total += (self.target != self.expected).sum()


def compiled(path: str, plans: Iterable[str], dtypes: Iterable[str]) -> None:
    """Each rank compiles its share of the kernels, and all find them: compiling is what takes long."""
    for i, (plan, dtype) in enumerate(itertools.product(plans, dtypes)):
        if i % world == rank:
            kernel(parse(plan), world, dtype, path, rank)
    group.barrier()


DTYPES = ("bfloat16", "float16", "float32")
# elements, offset of the buffers
SIZES = ((1, 0), (5, 0), (61, 1), (4096, 0), (30001, 3), (131072, 0), (200000, 0), (500001, 1))

MIXED = (7, 40000, 200000, 1024)
STRESSED = (524288, 131072, 524288, 4096, 32768, 524288, 262144, 501)
TUNED = ((4096, "bfloat16"), (131072, "bfloat16"), (33333, "float32"))


def exact(path: str, *plans: str) -> dict[str, Any]:
    """Each plan and dtype: sizes, tails, misaligned buffers, in and out of place, then all in one graph."""
    failures = []
    compiled(path, plans, DTYPES)
    for plan in plans:
        for dtype in DTYPES:
            reducer = reducer_for(plan, path, dtype, max_nbytes=1 << 21)
            wrong = torch.zeros((), dtype=torch.int64, device="cuda")
            made = [
                Reduction(reducer, numel, 100 + i, inplace=inplace, offset=offset)
                for i, (numel, offset) in enumerate(SIZES)
                for inplace in (False, True)
            ]
            group.barrier()
            for reduction in made:
                reduction.run()
                reduction.count_wrong(wrong)
            graph = torch.cuda.CUDAGraph()
            torch.cuda.synchronize()
            with torch.cuda.graph(graph, capture_error_mode="thread_local"):
                for reduction in made:
                    reduction.run()
                    reduction.count_wrong(wrong)
            for _ in range(5):
                graph.replay()
            torch.cuda.synchronize()
            if int(wrong) or reducer.error():
                failures.append((plan, dtype, int(wrong), str(reducer.error())))
            del graph
            reducer.close()
    return {"failures": failures}


def mixed(path: str, *plans: str) -> dict[str, Any]:
    """Reducers of several plans, grids and dtypes take turns in one graph, through 2^32."""
    dtypes = ("bfloat16", "float32", "float16")
    reducers = [reducer_for(p, path, dtypes[i % 3]) for i, p in enumerate(plans)]
    for i, reducer in enumerate(reducers):
        reducer.end.set_sequence(0xFFFFFFFF - 20 - i)
    wrong = torch.zeros((), dtype=torch.int64, device="cuda")
    made = [
        Reduction(reducer, numel, 10 * i + j, inplace=(i + j) % 2 == 0)
        for j, numel in enumerate(MIXED)
        for i, reducer in enumerate(reducers)
    ]
    torch.cuda.synchronize()
    group.barrier()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        for reduction in made:
            reduction.run()
            reduction.count_wrong(wrong)
    for _ in range(20):
        graph.replay()
    torch.cuda.synchronize()
    errors = [str(r.error()) for r in reducers if r.error()]
    for reducer in reducers:
        reducer.close()
    return {"wrong": int(wrong), "errors": errors}


def stress(path: str, plan: str, seconds: str, *macros: str) -> dict[str, Any]:
    """Every operation checked, for a while; macros such as ARF_STALL, ARF_COUNT_TEARS, ARF_UNSAFE_HASH."""
    reducer = reducer_for(plan, path, extra=dict.fromkeys(macros, 1), max_nbytes=MAX_NBYTES)
    reducer.end.stall_ns = 20_000
    wrong = torch.zeros((), dtype=torch.int64, device="cuda")
    bad_operations = torch.zeros((), dtype=torch.int64, device="cuda")
    made = [Reduction(reducer, n, i, inplace=i % 3 == 0) for i, n in enumerate(STRESSED * 2)]
    lines = sum(-(-2 * n // parse(plan).payload) for n in STRESSED * 2) * (world - 1)
    torch.cuda.synchronize()
    group.barrier()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        for reduction in made:
            reduction.run()
            here = (reduction.target != reduction.expected).sum()
            wrong += here
            bad_operations += here > 0
    replays, until = 0, time.monotonic() + float(seconds)
    while all(group.all_gather(time.monotonic() < until)):
        for _ in range(50):
            graph.replay()
        torch.cuda.synchronize()
        replays += 50
        if any(group.all_gather(reducer.error() is not None)):
            break
    error, torn = reducer.error(), reducer.end.torn_lines()
    del graph
    reducer.close()
    return {
        "lines": lines * replays,
        "operations": len(made) * replays,
        "wrong_elements": int(wrong),
        "wrong_operations": int(bad_operations),
        "torn_lines": torn,
        "error": error.sentence(rank, 2.0) if error else None,
    }


def dead(path: str, plan: str) -> dict[str, Any]:
    """Rank 1 is killed between two operations."""
    reducer = reducer_for(plan, path, spin_s=1.0)
    made = [Reduction(reducer, 200000, i) for i in range(4)]
    group.barrier()
    for reduction in made[:3]:
        reduction.run()
    torch.cuda.synchronize()
    group.barrier()
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    begun = time.monotonic()
    made[3].run()  # every rank that is left waits for rank 1
    torch.cuda.synchronize()
    took = time.monotonic() - begun
    try:
        reducer.check()
        sentence = ""
    except PeerTimeout as error:
        sentence = str(error)
    reducer.close()
    return {"took_s": took, "sentence": sentence, "poisoned": bool(made[3].target.isnan().any())}


def backend(path: str) -> dict[str, Any]:
    """The backend as a sweep uses it: `auto`, verified on every slot."""
    made = Peer() if path == "peer" else Host()
    seen = []
    for numel, dtype in TUNED:
        begun = time.monotonic()
        case = Case(
            backend=path,
            variant="auto",
            path=path,
            devices=tuple(f"cuda:{r}" for r in range(world)),
            numel=numel,
            dtype=dtype,
            mode="graph",
            inplace=False,
        )
        op = made.prepare(case, group, 4)
        took = time.monotonic() - begun
        check = verify.check_rank(op, case, rank, between=group.barrier)
        seen.append([numel, dtype, op.ran().algorithm, check.wrong, check.max_error, round(took, 2)])
        op.close()
    return {"cases": seen}


def joint_errors(path: str) -> dict[str, Any]:
    """One rank's mistake is everyone's error, at once."""
    try:
        reducer_for("line128t64-one-8x128", path, extra={"ARF_WORLD": "nonsense"} if rank == 1 else {})
    except OursError as error:
        return {"said": str(error)}
    return {"said": ""}


if __name__ == "__main__":
    die_with_parent()
    faulthandler.register(signal.SIGTERM, chain=True)
    torch.cuda.set_device(rank)
    group = TorchGroup(
        host="127.0.0.1", port=int(os.environ["PORT"]), prefix="t", rank=rank, world=world, timeout_s=60
    )
    torch.zeros(1, device="cuda")
    try:
        for scenario in " ".join(sys.argv[1:]).split(" -- ") if sys.argv[1:] else sys.stdin:
            name, *arguments = scenario.split()
            print(json.dumps(globals()[name](*arguments)), flush=True)
            if name != "dead":
                group.barrier()
    except BaseException:  # noqa: BLE001 - said, and over: what tidies up may wait for the others
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)
    os._exit(0)
