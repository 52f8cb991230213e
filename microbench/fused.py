"""What does fusing the residual add and the RMSNorm into the all-reduce save?

    torchrun --standalone --nproc-per-node=2 microbench/fused.py
    NCCL_P2P_DISABLE=1 torchrun --standalone --nproc-per-node=2 microbench/fused.py

A decoder layer reduces rows of 4096, adds the residual, and norms the rows. Measured as one kernel, as our
reduce and one kernel more, as our reduce and torch's two, and with NCCL in place of our reduce; and both
reduces bare. The slope over chained operations in a CUDA graph, the slowest rank of two or more, all forms
interleaved. Every fused form is first compared with float64, and the ranks with each other.

"fused" lets rows lie across blocks and exchanges their sums through L2; "by row" gives a block whole rows and
exchanges them through shared memory.

What to look for: the epilogue costs about one such exchange, so "fused" less "reduce" is about a microsecond,
where a kernel of its own costs two or three: less for its work than for being a kernel.
`--rows 1,32` and `--plan NAME` choose sizes and the reduce's plan (default: tuned, about two seconds a size).
"""

from __future__ import annotations

import argparse
import json
import statistics
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from gpu_ranks import join

from arfloor.backends import tune
from arfloor.backends.fused import AddRmsNorm, FusedReducer, RowReducer, Rows
from arfloor.backends.ours import Reducer
from arfloor.core.fused import by_row
from arfloor.core.plans import parse
from arfloor.core.statistics import median_estimate
from arfloor.runtime.timing_gpu import FEW, MANY, Chain, barrier_for, slopes_us
from arfloor.runtime.verify_norm import expected, wrong

HIDDEN, EPS, SLOTS, REPLAYS = 4096, 1e-6, 4, 41
FUSED = ("fused", "by row")
Run = Callable[[int], None]


class Forms:
    """All forms of one size: buffers a slot, and what to call."""

    def __init__(self, ranks: Any, rows: int, plan: str, nccl: Any) -> None:
        self.slots, self._ranks, self._nccl = SLOTS, ranks, nccl
        self._terms = [
            [self._random(rows, 10 * slot + r) for r in range(ranks.world)] for slot in range(SLOTS)
        ]
        self._x = [terms[ranks.rank] for terms in self._terms]
        self._before = [self._random(rows, 100 + slot) for slot in range(SLOTS)]
        self._residual = [t.clone() for t in self._before]
        self._weight = self._random(1, 200).view(-1)
        self._y, self._out = ([torch.zeros_like(t) for t in self._x] for _ in range(2))
        self._zeros = [torch.zeros_like(t) for t in self._x]  # in place: sums of anything else would grow
        nbytes = 2 * rows * HIDDEN
        options = {
            "plan": parse(plan),
            "path": ranks.path,
            "dtype": "bfloat16",
            "group": ranks.group,
            "device": ranks.rank,
            "max_nbytes": nbytes,
        }
        self._reducer, self.fused = Reducer(**options), FusedReducer(**options)
        multiprocessors = torch.cuda.get_device_properties(ranks.rank).multi_processor_count
        whole = by_row(parse(plan), 2 * HIDDEN, rows, multiprocessors)
        self._rows_plan = whole.name
        self.by_row = RowReducer(**options | {"plan": whole})
        self._reduce = [
            self._reducer.bind(x.data_ptr(), y.data_ptr(), nbytes)
            for x, y in zip(self._x, self._y, strict=True)
        ]
        self._in_one = [self.fused.bind_rows(self._rows(i, self._x[i], rows)) for i in range(SLOTS)]
        self._in_rows = [self.by_row.bind_rows(self._rows(i, self._x[i], rows)) for i in range(SLOTS)]
        norm = AddRmsNorm("bfloat16", ranks.rank)
        self._norm = [norm.bind(self._rows(i, self._y[i], rows)) for i in range(SLOTS)]
        self._norm_zeros = [norm.bind(self._rows(i, self._zeros[i], rows)) for i in range(SLOTS)]
        self.forms: dict[str, Run] = {
            "reduce": lambda i: self._reduce[i].launch(self._stream()),
            "fused": lambda i: self._in_one[i].launch(self._stream()),
            "by row": lambda i: self._in_rows[i].launch(self._stream()),
            "reduce, norm": self._reduce_then_norm,
            "reduce, torch": self._reduce_then_torch,
            "norm": lambda i: self._norm[i].launch(self._stream()),
            "NCCL": self._nccl_alone,
            "NCCL, norm": self._nccl_then_norm,
            "NCCL, torch": self._nccl_then_torch,
        }

    def _random(self, rows: int, seed: int) -> torch.Tensor:
        random = torch.Generator(device="cuda").manual_seed(seed)
        return torch.randn(rows, HIDDEN, generator=random, device="cuda").to(torch.bfloat16)

    def _rows(self, slot: int, source: torch.Tensor, rows: int) -> Rows:
        return Rows(
            source=source.data_ptr(),
            residual=self._residual[slot].data_ptr(),
            weight=self._weight.data_ptr(),
            out=self._out[slot].data_ptr(),
            rows=rows,
            hidden=HIDDEN,
            eps=EPS,
        )

    @staticmethod
    def _stream() -> int:
        return torch.cuda.current_stream().cuda_stream

    def _reduce_then_norm(self, i: int) -> None:
        self._reduce[i].launch(self._stream())
        self._norm[i].launch(self._stream())

    def _torch(self, i: int, reduced: torch.Tensor) -> None:
        self._residual[i].add_(reduced)
        torch.nn.functional.rms_norm(self._residual[i], (HIDDEN,), self._weight, EPS)

    def _reduce_then_torch(self, i: int) -> None:
        self._reduce[i].launch(self._stream())
        self._torch(i, self._y[i])

    def _nccl_alone(self, i: int) -> None:
        dist.all_reduce(self._zeros[i], group=self._nccl)

    def _nccl_then_norm(self, i: int) -> None:
        self._nccl_alone(i)
        self._norm_zeros[i].launch(self._stream())

    def _nccl_then_torch(self, i: int) -> None:
        self._nccl_alone(i)
        self._torch(i, self._zeros[i])

    def check(self, form: str) -> tuple[float, int, bool]:
        """(worst error over its bound, wrong elements, ranks equal) of a fused form, over all slots."""
        worst, bad, digests = 0.0, 0, []
        for slot in range(SLOTS):
            self._residual[slot].copy_(self._before[slot])
            self._out[slot].fill_(float("nan"))
            self.forms[form](slot)
        for slot in range(SLOTS):
            tensors = (*self._terms[slot], self._before[slot], self._weight)
            numbers = [t.double().cpu().numpy() for t in tensors]
            must = expected(numbers[:-2], numbers[-2], numbers[-1], EPS, "bfloat16")
            found = [t[slot].double().cpu().numpy() for t in (self._residual, self._out)]
            error, count = wrong(must, *found)
            worst, bad = max(worst, error), bad + count
            digests.append(zlib.crc32(found[1].tobytes()))
        everyone = self._ranks.group.all_gather([worst, bad, digests])
        equal = all(row[2] == digests for row in everyone)
        return max(row[0] for row in everyone), sum(row[1] for row in everyone), equal

    def close(self) -> None:
        self._reducer.close()
        self.fused.close()
        self.by_row.close()


class One:
    """One form as the operation that a chain repeats."""

    def __init__(self, run: Run) -> None:
        self.slots, self.run = SLOTS, run


def time_all(ranks: Any, forms: dict[str, Run]) -> dict[str, list[float]]:
    """Per form, the slowest rank's slope of each replay, in us; the forms interleaved."""
    barrier = barrier_for(ranks, ranks.path)
    for run in forms.values():
        for slot in range(SLOTS):
            run(slot)
    torch.cuda.synchronize()
    chains = {
        name: tuple(Chain(One(run), n, barrier, graph=True) for n in (MANY, FEW))
        for name, run in forms.items()
    }
    times: dict[str, tuple[list[float], list[float]]] = {name: ([], []) for name in forms}
    for replay in range(REPLAYS + 2):
        for name, pair in chains.items():
            for chain, into in zip(pair, times[name], strict=True):
                us = chain.replay_us()
                if replay > 1:
                    into.append(us)
    barrier.check()
    everyone = ranks.group.all_gather(times)
    slowest = {
        n: [[max(at) for at in zip(*(r[n][i] for r in everyone), strict=True)] for i in (0, 1)] for n in forms
    }
    for pair in chains.values():
        for chain in pair:
            chain.close()
    return {name: list(slopes_us(many, few, MANY, FEW)) for name, (many, few) in slowest.items()}


def tuned(ranks: Any, nbytes: int) -> str:
    choice = tune.choose(
        ranks.group,
        path=ranks.path,
        device=ranks.rank,
        dtype="bfloat16",
        nbytes=nbytes,
        barrier=barrier_for(ranks, ranks.path),
    )
    return choice.plan.name


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", default="1,8,32,128")
    parser.add_argument("--plan", default="")
    parser.add_argument("--json", type=Path)
    chosen = parser.parse_args()
    ranks = join()
    nccl = dist.new_group(backend="nccl", device_id=torch.device(ranks.device))
    rows_of = [int(n) for n in chosen.rows.split(",")]
    kept = []
    ranks.say(
        f"{ranks.world} GPUs, path {ranks.path}, bfloat16 rows of {HIDDEN}, us (half the 95 % interval)"
    )
    for rows in rows_of:
        plan = chosen.plan or tuned(ranks, 2 * rows * HIDDEN)
        forms = Forms(ranks, rows, plan, nccl)
        checks = [forms.check(form) for form in FUSED]
        worst, bad = max(c[0] for c in checks), sum(c[1] for c in checks)
        equal = all(c[2] for c in checks)
        times = time_all(ranks, forms.forms)
        forms.close()
        if bad or not equal:
            raise SystemExit(f"{rows} rows: {bad} wrong elements, ranks equal: {equal}; no time is reported")
        above = {
            form: statistics.median(a - b for a, b in zip(times[form], times["reduce"], strict=True))
            for form in FUSED
        }
        estimates = {name: median_estimate(us) for name, us in times.items()}
        shown = ", ".join(f"{form} {us:+.2f}" for form, us in above.items())
        cells = [f"{name} {e.value:.2f} ({(e.hi - e.lo) / 2:.2f})" for name, e in estimates.items()]
        ranks.say(f"{rows:>4} rows, {plan}, fused within {worst:.2f} of its bound, all ranks alike")
        ranks.say("     " + "; ".join(cells) + f"; above reduce {shown}")
        kept.append(
            {"rows": rows, "plan": plan, "above_us": above, "us": {n: e.value for n, e in estimates.items()}}
        )
    if chosen.json and ranks.rank == 0:
        chosen.json.write_text(json.dumps({"path": ranks.path, "hidden": HIDDEN, "rows": kept}, indent=1))
    ranks.leave()


if __name__ == "__main__":
    main()
