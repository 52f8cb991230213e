"""Choosing a plan by measuring: the candidates of `arfloor.core.tuning`, timed where they will run.

Collective: every rank times the same candidates in the same order behind the device barrier, all see all
times, and all choose by the same rule. What is chosen is verified before it is used.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from arfloor.backends.ours import OursError, Reducer
from arfloor.core.cases import ITEMSIZE, Machine, Path
from arfloor.core.plans import Plan, parse
from arfloor.core.tuning import Facts, Tuned, candidates, refined, rule_of_thumb, shortlist
from arfloor.runtime.barrier import DeviceBarrier
from arfloor.runtime.slabs import Exchange
from arfloor.runtime.timing_gpu import Chain, slopes_us

FEW, MANY, SLOTS = 8, 40, 4
QUICK, LONG = 7, 25
KEEP = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The plan chosen for a message, and every plan's median and slower quartile, in us."""

    plan: Plan
    nbytes: int
    times_us: dict[str, tuple[float, float]]


def facts_of(path: Path, world: int, device: int, nvlink: bool = False) -> Facts:
    """Facts of the current box; equal on ranks with equal GPUs."""
    import torch

    count = torch.cuda.get_device_properties(device).multi_processor_count
    return Facts(path=path, world=world, multiprocessors=count, nvlink=nvlink)


def facts_of_machine(machine: Machine, path: Path) -> Facts:
    """The same from a run's machine."""
    return Facts(
        path=path,
        world=machine.world,
        multiprocessors=machine.multiprocessors or 132,
        nvlink=bool(machine.facts.get("nvlink", False)),
    )


class _Slots:
    """`SLOTS` reductions out of place, each with a payload of its own, and their right results."""

    slots = SLOTS

    def __init__(self, reducer: Reducer, group: Exchange, device: int, dtype: str, numel: int) -> None:
        import torch

        self._torch, self._device, self.reducer = torch, device, reducer
        kind = getattr(torch, dtype)
        self._keep: list[Any] = []
        self.outputs, self.expected, self._operations = [], [], []
        for slot in range(SLOTS):
            random = torch.Generator(device="cuda").manual_seed(1 + slot)
            high = 8 if dtype == "bfloat16" else 64  # so that sums of eight ranks are exact
            terms = [
                torch.randint(-high, high, (numel,), generator=random, device="cuda").to(kind)
                for _ in range(group.world)
            ]
            self._keep.append(terms[group.rank])
            self.expected.append(sum(term.float() for term in terms).to(kind))
            self.outputs.append(torch.empty(numel, dtype=kind, device="cuda"))
            self._operations.append(
                reducer.bind(
                    terms[group.rank].data_ptr(), self.outputs[slot].data_ptr(), numel * kind.itemsize
                )
            )

    def run(self, slot: int) -> None:
        self._operations[slot].launch(self._torch.cuda.current_stream().cuda_stream)

    def right(self) -> bool:
        """Run every slot into poisoned outputs and compare, exactly."""
        for output in self.outputs:
            output.fill_(float("nan"))
        for slot in range(SLOTS):
            self.run(slot)
        self._torch.cuda.synchronize()
        same = all(
            self._torch.equal(got, expected)
            for got, expected in zip(self.outputs, self.expected, strict=True)
        )
        return same and self.reducer.error() is None


def choose(
    group: Exchange, *, path: Path, device: int, dtype: str, nbytes: int, barrier: DeviceBarrier
) -> Choice:
    """The fastest correct plan for messages of `nbytes`. Collective; about half a second.

    Raises OursError on every rank when no plan gives right results on all of them.
    """
    facts = facts_of(path, group.world, device)
    bench = _Bench(group, path, device, dtype, nbytes, barrier)
    try:
        times = bench.time(candidates(facts, nbytes), QUICK)
        best = shortlist(times, 1)
        if best:
            times |= bench.time(refined(parse(best[0]), facts, nbytes), QUICK)
        times = bench.time([parse(name) for name in shortlist(times, KEEP)], LONG)
        for name in shortlist(times, KEEP):
            if bench.verified(parse(name)):
                table = {n: (statistics.median(t), sorted(t)[3 * len(t) // 4]) for n, t in times.items()}
                return Choice(plan=parse(name), nbytes=nbytes, times_us=table)
    finally:
        bench.close()
    raise OursError(f"no plan reduced {nbytes} bytes of {dtype} over {path} correctly on all ranks")


def tune(
    group: Exchange,
    *,
    path: Path,
    device: int,
    dtype: str,
    sizes: Sequence[int],
    barrier: DeviceBarrier,
) -> Tuned:
    """A table of the best plans for `sizes`, in bytes, ascending. Collective."""
    chosen = []
    for nbytes in sorted(sizes):
        choice = choose(group, path=path, device=device, dtype=dtype, nbytes=nbytes, barrier=barrier)
        chosen.append((nbytes, choice.plan.name))
    return Tuned(path=path, world=group.world, dtype=dtype, plans=tuple(chosen))


class _Bench:
    """Times plans for one message; keeps what it set up until closed."""

    def __init__(
        self, group: Exchange, path: Path, device: int, dtype: str, nbytes: int, barrier: DeviceBarrier
    ) -> None:
        self._group, self._path, self._device, self._dtype = group, path, device, dtype
        self._nbytes, self._barrier = nbytes, barrier
        self._ready: dict[str, tuple[_Slots, Chain, Chain] | None] = {}

    def _prepare(self, plan: Plan) -> None:
        """Set a plan up unless it gives wrong results on any rank, which leaves it out on all."""
        reducer = Reducer(
            plan=plan,
            path=self._path,
            dtype=self._dtype,
            group=self._group,
            device=self._device,
            max_nbytes=self._nbytes,
            spin_s=1.0,
        )
        numel = self._nbytes // ITEMSIZE[self._dtype]
        slots = _Slots(reducer, self._group, self._device, self._dtype, numel)
        self._group.barrier()
        if not all(self._group.all_gather(slots.right())):
            reducer.close()
            self._ready[plan.name] = None
            return
        chains = (
            Chain(slots, MANY, self._barrier, graph=True),
            Chain(slots, FEW, self._barrier, graph=True),
        )
        self._ready[plan.name] = (slots, *chains)

    def time(self, plans: Sequence[Plan], replays: int) -> dict[str, list[float]]:
        """Per plan that is right, the maximum over ranks of each replay, in us an operation; interleaved."""
        for plan in plans:
            if plan.name not in self._ready:
                self._prepare(plan)
        ready = {plan.name: self._ready[plan.name] for plan in plans}
        mine: dict[str, tuple[list[float], list[float]]] = {n: ([], []) for n, r in ready.items() if r}
        self._group.barrier()
        for replay in range(replays + 1):
            for name, (many, few) in mine.items():
                made = ready[name]
                assert made is not None
                times = made[1].replay_us(), made[2].replay_us()
                if replay:  # the first warms up
                    many.append(times[0])
                    few.append(times[1])
        self._barrier.check()
        everyone = self._group.all_gather(mine)
        slowest = {
            name: [
                [max(at) for at in zip(*(rank[name][i] for rank in everyone), strict=True)] for i in (0, 1)
            ]
            for name in mine
        }
        return {name: list(slopes_us(many, few, MANY, FEW)) for name, (many, few) in slowest.items()}

    def verified(self, plan: Plan) -> bool:
        """Whether a plan, after all that timing, still gives right results on every rank."""
        made = self._ready[plan.name]
        return all(self._group.all_gather(made is not None and made[0].right()))

    def close(self) -> None:
        for made in self._ready.values():
            if made is not None:
                made[1].close()
                made[2].close()
                made[0].reducer.close()
        self._ready = {}


def untuned(path: Path, world: int, device: int, nbytes: int) -> Plan:
    """The plan by rule of thumb."""
    return rule_of_thumb(facts_of(path, world, device), nbytes)
