"""What does fusing the residual add and the RMSNorm into the all-reduce save?

    torchrun --standalone --nproc-per-node=2 microbench/fused.py
    NCCL_P2P_DISABLE=1 torchrun --standalone --nproc-per-node=2 microbench/fused.py

A decoder layer reduces rows of 4096, adds the residual, and norms the rows. Measured as one kernel, as our
reduce and one kernel more, as our reduce and torch's two, and with NCCL in place of our reduce; and both
reduces bare. The slope over chained operations in a CUDA graph, common to all ranks, all forms
interleaved. Every fused form is first compared with float64, and the ranks with each other.

"fused" lets rows lie across blocks and exchanges their sums through L2; "by row" gives a block whole rows and
exchanges them through shared memory.

What to look for: the epilogue costs about one such exchange, so "fused" less "reduce" is about a microsecond,
where a kernel of its own costs two or three: less for its work than for being a kernel. `--rows 1,32` and
`--plan NAME` choose sizes and the reduce's plan (default: tuned, about two seconds a size). A size takes
about six seconds on two GPUs in all, and starting ten; it is printed, and written to `--json`, when it is
measured. What two H200s gave stands in docs/measurements.md. A form that a plan does not have, or whose
result is wrong, is named and not timed.
"""

from __future__ import annotations

import json
import statistics
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from gpu_ranks import GpuRank, command_line, interleaved_us, join

from arfloor.backends import tune
from arfloor.backends.fused import AddRmsNorm, FusedReducer, RowReducer, Rows
from arfloor.backends.ours import Operation, OursError, Reducer
from arfloor.core import fused as epilogue
from arfloor.core.fused import by_row, by_row_flaw
from arfloor.core.plans import parse
from arfloor.core.statistics import median_estimate
from arfloor.core.tuning import family
from arfloor.runtime.timing_gpu import barrier_for
from arfloor.runtime.verify_norm import expected, wrong

HIDDEN, EPS, SLOTS, REPLAYS = 4096, 1e-6, 4, 41
Run = Callable[[int], None]


class Forms:
    """All forms of one size: buffers a slot, and what to call."""

    def __init__(self, ranks: GpuRank, rows: int, plan: str, nccl: Any) -> None:
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
        options: dict[str, Any] = {
            "plan": parse(plan),
            "path": ranks.path,
            "dtype": "bfloat16",
            "group": ranks.group,
            "device": ranks.rank,
            "max_nbytes": nbytes,
        }
        self._reducer = Reducer(**options)
        self._reduce = [
            self._reducer.bind(x.data_ptr(), y.data_ptr(), nbytes)
            for x, y in zip(self._x, self._y, strict=True)
        ]
        self.missing: dict[str, str] = {}
        self.fused = self._fused_forms(options, rows)
        bound = {
            name: [reducer.bind_rows(self._rows(i, self._x[i], rows)) for i in range(SLOTS)]
            for name, reducer in self.fused.items()
        }
        norm = AddRmsNorm("bfloat16", ranks.rank)
        self._norm = [norm.bind(self._rows(i, self._y[i], rows)) for i in range(SLOTS)]
        self._norm_zeros = [norm.bind(self._rows(i, self._zeros[i], rows)) for i in range(SLOTS)]
        self.forms: dict[str, Run] = {
            "reduce": lambda i: self._reduce[i].launch(self._stream()),
            **{name: self._launching(at) for name, at in bound.items()},
            "reduce, norm": self._reduce_then_norm,
            "reduce, torch": self._reduce_then_torch,
            "norm": lambda i: self._norm[i].launch(self._stream()),
            "NCCL": self._nccl_alone,
            "NCCL, norm": self._nccl_then_norm,
            "NCCL, torch": self._nccl_then_torch,
        }

    def _fused_forms(self, options: dict[str, Any], rows: int) -> dict[str, FusedReducer]:
        """The forms that the plan has; why it has not the others goes to `missing`. Alike on all ranks."""
        plan = options["plan"]
        multiprocessors = torch.cuda.get_device_properties(options["device"]).multi_processor_count
        whole = by_row(plan, 2 * HIDDEN, rows, multiprocessors)
        made: dict[str, FusedReducer] = {}
        for name, kind, its_plan, flaw in (
            ("fused", FusedReducer, plan, ""),
            ("by row", RowReducer, whole, by_row_flaw(whole, 2 * HIDDEN, rows)),
        ):
            try:
                if flaw:
                    raise OursError(flaw)
                made[name] = kind(**options | {"plan": its_plan})
            except OursError as error:
                self.missing[name] = str(error)
        return made

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

    def _launching(self, operations: list[Operation]) -> Run:
        return lambda i: operations[i].launch(self._stream())

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
        for reducer in (self._reducer, *self.fused.values()):
            reducer.close()


def right(ranks: GpuRank, forms: Forms) -> list[str]:
    """The fused forms whose results are right on all ranks and alike; says what it found."""
    found = []
    for form in forms.fused:
        worst, bad, equal = forms.check(form)
        if bad or not equal:
            ranks.say(f"     {form}: {bad} wrong elements, ranks alike: {equal}; not timed")
        else:
            ranks.say(f"     {form}: within {worst:.2f} of its bound, all ranks alike")
            found.append(form)
    for form, why in forms.missing.items():
        ranks.say(f"     {form}: left out: {why}")
    return found


def tuned(ranks: GpuRank, nbytes: int) -> str:
    """The tuned plan; where that has no fused form (two-shot, of many ranks), a one-shot by rule."""
    choice = tune.choose(
        ranks.group,
        path=ranks.path,
        device=ranks.rank,
        dtype="bfloat16",
        nbytes=nbytes,
        barrier=barrier_for(ranks, ranks.path),
    )
    why = epilogue.flaw(choice.plan)
    if not why:
        return choice.plan.name
    facts = tune.facts_of(ranks.path, ranks.world, ranks.rank)
    ranks.say(f"     tuned to {choice.plan.name}, but {why}; a one-shot plan by rule is measured instead")
    return family("line128", facts, nbytes).name


def main() -> None:
    parser = command_line(__doc__, limit_s=120)
    parser.add_argument("--rows", default="1,8,32,128", help="%(default)s")
    parser.add_argument("--plan", default="", help="of the reduce, default: tuned")
    parser.add_argument("--json", type=Path, help="a file for the result")
    chosen = parser.parse_args()
    ranks = join(chosen.limit_s)
    nccl = dist.new_group(backend="nccl", device_id=torch.device(ranks.device))
    rows_of = [int(n) for n in chosen.rows.split(",")]
    kept = []
    ranks.say(
        f"{ranks.world} GPUs, path {ranks.path}, bfloat16 rows of {HIDDEN}, us (half the 95 % interval)"
    )
    for rows in rows_of:
        if ranks.over(f"{rows} rows"):
            break
        plan = chosen.plan or tuned(ranks, 2 * rows * HIDDEN)
        forms = Forms(ranks, rows, plan, nccl)
        ranks.say(f"{rows:>4} rows, {plan}")
        fused = right(ranks, forms)
        timed = {n: f for n, f in forms.forms.items() if n in fused or n not in forms.fused}
        times = interleaved_us(ranks, timed, slots=SLOTS, replays=REPLAYS)
        forms.close()
        above = {
            form: statistics.median(a - b for a, b in zip(times[form], times["reduce"], strict=True))
            for form in fused
        }
        estimates = {name: median_estimate(us) for name, us in times.items()}
        shown = ", ".join(f"{form} {us:+.2f}" for form, us in above.items())
        cells = [f"{name} {e.value:.2f} ({(e.hi - e.lo) / 2:.2f})" for name, e in estimates.items()]
        ranks.say("     " + "; ".join(cells))
        ranks.say(f"     above reduce: {shown or 'no fused form'}")
        kept.append(
            {"rows": rows, "plan": plan, "above_us": above, "us": {n: e.value for n, e in estimates.items()}}
        )
        if chosen.json and ranks.rank == 0:  # at once: what ends the script early must not cost this
            found = {"path": ranks.path, "hidden": HIDDEN, "rows": kept}
            chosen.json.write_text(json.dumps(found, indent=1), encoding="utf-8")
    ranks.leave()


if __name__ == "__main__":
    main()
