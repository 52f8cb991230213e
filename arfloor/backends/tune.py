"""Choosing a plan by measuring: the candidates of `arfloor.core.tuning`, timed where they will run.

Collective: every rank times the same candidates in the same order behind the device barrier, all see all
times, and all choose by the same rule. What is chosen is verified before it is used.
"""

from __future__ import annotations

import contextlib
import itertools
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from arfloor.backends.ours import SWEEP_SPIN_S, OursError, Reducer, jointly
from arfloor.core.cases import ITEMSIZE, DType, Path, Tuning
from arfloor.core.plans import Plan, parse
from arfloor.core.slopes import chain_us, slopes_us
from arfloor.core.tuning import (
    Facts,
    Tuned,
    candidates,
    ranked,
    refined,
    repaced,
    rule_of_thumb,
    setups,
    typical,
)
from arfloor.runtime.barrier import DeviceBarrier
from arfloor.runtime.chains import Chain, current_stream
from arfloor.runtime.group import whole_of
from arfloor.runtime.slabs import Exchange

FEW, MANY, SLOTS = 8, 40, 4
LONG_NBYTES, SHORT = 1 << 20, (4, 16)
"""From this size on, operations of the few and the many: so long ones need no more for a slope."""
SETTLE_US = 50.0
"""Between the two meetings of ranks: a host launches a graph of ours in 8 us."""
QUICK, LONG = 6, 18
"""Replays a plan in the first rounds, and a capture of a finalist's in the last."""
CAPTURES: dict[Path, int] = {"host": 3, "peer": 1}
"""Captures of a finalist: over the host what one capture happens to get is not the plan's own."""
SETTLE_CAPTURES = 2
"""Captures of a set-up, likewise."""
KEEP, BRIEF_KEEP = 5, 2
APART_US = (0.0, 0.7, 1.4, 2.8)
"""How late a rank comes to an operation when arrivals apart are tried."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The plan chosen for a message, and every finalist's (median, typical) in us, ranks together."""

    plan: Plan
    nbytes: int
    times_us: dict[str, tuple[float, float]]

    def tuning(self, where: tuple[Path, int, DType], took_s: float) -> Tuning:
        """For the run's `tuning.jsonl`; `where`: path, world and dtype."""
        path, world, dtype = where
        return Tuning(
            path=path,
            world=world,
            dtype=dtype,
            nbytes=self.nbytes,
            plan=self.plan.name,
            took_s=round(took_s, 3),
            finalists_us={n: (round(a, 3), round(b, 3)) for n, (a, b) in self.times_us.items()},
        )


def facts_of(path: Path, world: int, device: int) -> Facts:
    """Facts of the current box; equal on ranks with equal GPUs."""
    import torch

    count = torch.cuda.get_device_properties(device).multi_processor_count
    return Facts(path=path, world=world, multiprocessors=count)


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
    group: Exchange,
    *,
    path: Path,
    device: int,
    dtype: str,
    nbytes: int,
    barrier: DeviceBarrier,
    known: Plan | None = None,
    brief: bool = False,
) -> Choice:
    """The fastest correct plan for messages of `nbytes`. Collective; 0.3 s, over the host up to 2.2.

    Where several groups of a worker reduce at the same time, all of them choose one plan together, by the
    slowest rank of all; groups that chose apart would try different plans, and hang.
    `known`: what won at another size, the same on all ranks: see `arfloor.core.tuning.candidates`.
    `brief`: a size near one that was searched in full: no plans between the candidates, two finalists, and
    one capture of each; about a third of the time.
    Raises OursError on every rank when no plan gives right results on all of them, or when one fails.
    """
    facts = facts_of(path, group.world, device)
    bench = _Bench(group, path, device, dtype, nbytes, barrier)
    try:
        together, apart = bench.both(_named(candidates(facts, nbytes, known)), QUICK)
        for closer in () if brief else (repaced, refined):
            more = bench.both(_named(closer(ranked(together, apart), facts)), QUICK)
            together, apart = together | more[0], apart | more[1]
        finalists = ranked(together, apart)[: BRIEF_KEEP if brief else KEEP]
        captures = 1 if brief else CAPTURES[path]
        together, apart = bench.captured(_named(map(parse, finalists)), LONG, captures)
        for name in ranked(together, apart):
            if bench.verified(name):
                table = {n: (statistics.median(t), typical(t)) for n, t in together.items()}
                return Choice(plan=parse(name), nbytes=nbytes, times_us=table)
    finally:
        bench.close()
    raise OursError(f"no plan reduced {nbytes} bytes of {dtype} over {path} correctly on all ranks")


def settle(
    group: Exchange,
    *,
    plan: Plan,
    path: Path,
    device: int,
    dtype: str,
    nbytes: int,
    max_nbytes: int | None = None,
    spin_s: float = SWEEP_SPIN_S,
    keep: int = 1,
) -> list[Reducer]:
    """`plan` ready to use: where set-ups of it differ, the `keep` fastest of several; else one. Collective.

    Over the host one set-up of a plan takes up to a fifth longer than another, by where its slab lies, and
    keeps that while it lives (docs/kernels.md). Timed with messages of `nbytes`; made for up to `max_nbytes`
    (default: the same), and to wait for a peer for `spin_s`.
    Raises OursError or SlabError on every rank when one fails, or when none gives right results on all.
    """
    most, copies = max_nbytes or nbytes, setups(path, nbytes)
    if copies == 1:
        return [
            Reducer(
                plan=plan, path=path, dtype=dtype, group=group, device=device, max_nbytes=most, spin_s=spin_s
            )
        ]
    with (
        contextlib.closing(barrier_of(group, path, device)) as barrier,
        contextlib.closing(_Bench(group, path, device, dtype, nbytes, barrier, max_nbytes=most)) as bench,
    ):
        named = {f"{plan.name} #{i}": plan for i in range(copies)}
        order = ranked(*bench.captured(named, QUICK, SETTLE_CAPTURES))
        # all verified before any is taken, which `bench` would not close
        right = list(itertools.islice((name for name in order if bench.verified(name)), keep))
        found = [bench.taken(name) for name in right]
    for reducer in found:
        reducer.end.spin_s = spin_s  # for what is bound from now on
    if found:
        return found
    raise OursError(
        f"{plan.name} did not reduce {nbytes} bytes of {dtype} over {path} correctly on all ranks"
    )


def barrier_of(group: Exchange, path: Path, device: int) -> DeviceBarrier:
    """What plans are timed behind. Collective; raises SlabError on every rank when it fails on any."""
    return DeviceBarrier(group, path, device=device, settle_us=SETTLE_US)


def _named(plans: Iterable[Plan]) -> dict[str, Plan]:
    return {plan.name: plan for plan in plans}


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
    chosen: list[tuple[int, str]] = []
    known = None
    for nbytes in sorted(sizes):
        choice = choose(
            group, path=path, device=device, dtype=dtype, nbytes=nbytes, barrier=barrier, known=known
        )
        known = choice.plan if choice.plan.pace else known
        chosen.append((nbytes, choice.plan.name))
    return Tuned(path=path, world=group.world, dtype=dtype, plans=tuple(chosen))


class _Apart:
    """The same reductions, each entered late by a time that differs from rank to rank and slot to slot."""

    slots = SLOTS

    def __init__(self, slots: _Slots, barrier: DeviceBarrier, rank: int) -> None:
        self._slots, self._barrier, self._rank = slots, barrier, rank

    def run(self, slot: int) -> None:
        late = APART_US[(3 * slot + 2 * self._rank) % len(APART_US)]
        self._barrier.enqueue_delay(current_stream(), late)
        self._slots.run(slot)


class _Bench:
    """Times plans for one message; keeps what it set up until closed."""

    def __init__(
        self,
        group: Exchange,
        path: Path,
        device: int,
        dtype: str,
        nbytes: int,
        barrier: DeviceBarrier,
        *,
        max_nbytes: int | None = None,
    ) -> None:
        self._group, self._path, self._device, self._dtype = group, path, device, dtype
        self._nbytes, self._max_nbytes, self._barrier = nbytes, max_nbytes or nbytes, barrier
        self._few, self._many = (FEW, MANY) if nbytes < LONG_NBYTES else SHORT
        self._ready: dict[str, _Slots | None] = {}

    def _prepare(self, name: str, plan: Plan) -> None:
        """Set a plan up under a name unless it is wrong on any rank, which leaves it out on all."""
        reducer = Reducer(
            plan=plan,
            path=self._path,
            dtype=self._dtype,
            group=self._group,
            device=self._device,
            max_nbytes=self._max_nbytes,
            spin_s=1.0,
        )
        numel = self._nbytes // ITEMSIZE[self._dtype]
        try:  # together: a rank that raised alone would leave the others waiting
            slots: _Slots | None = jointly(
                self._group,
                f"buffers for {name}",
                lambda: _Slots(reducer, self._group, self._device, self._dtype, numel),
            )
            right = self._right(name, slots)
        except BaseException:
            reducer.close()
            raise
        if not right:
            reducer.close()
            slots = None
        self._ready[name] = slots

    def _chains(self, names: Iterable[str], apart: bool) -> dict[str, tuple[Chain, Chain]]:
        """Graphs of many and of few operations, of each plan that is right."""
        made = {}
        for name in names:
            slots = self._ready[name]
            if slots is not None:
                op = _Apart(slots, self._barrier, self._group.rank) if apart else slots
                made[name] = (
                    Chain(op, self._many, self._barrier, graph=True),
                    Chain(op, self._few, self._barrier, graph=True),
                )
        return made

    def _replayed(
        self, chains: dict[str, tuple[Chain, Chain]], replays: int
    ) -> dict[str, tuple[list[float], list[float]]]:
        """This rank's times of both chains, in us, all plans taking turns."""
        mine: dict[str, tuple[list[float], list[float]]] = {name: ([], []) for name in chains}
        for replay in range(replays + 1):
            for name, pair in chains.items():
                times = [chain.replay_us() for chain in pair]
                if replay:  # the first warms up
                    for found, us in zip(mine[name], times, strict=True):
                        found.append(us)
        self._barrier.check()
        return mine

    def captured(
        self, plans: Mapping[str, Plan], replays: int, captures: int
    ) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
        """`both`, over several captures of each plan."""
        together: dict[str, list[float]] = {}
        apart: dict[str, list[float]] = {}
        for _ in range(captures):
            for into, found in zip((together, apart), self.both(plans, replays), strict=True):
                for name, times in found.items():
                    into.setdefault(name, []).extend(times)
        return together, apart

    def both(
        self, plans: Mapping[str, Plan], replays: int
    ) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
        """`time` with ranks that arrive together, and apart."""
        return self.time(plans, replays, apart=False), self.time(plans, replays, apart=True)

    def time(self, plans: Mapping[str, Plan], replays: int, *, apart: bool) -> dict[str, list[float]]:
        """Per plan that is right, the maximum over ranks of each replay, in us an operation; interleaved.

        `apart`: ranks arrive apart, and the time includes what the operation waited for the last.
        """
        for name, plan in plans.items():
            if name not in self._ready:
                self._prepare(name, plan)
        chains = jointly(self._group, "graphs of plans", lambda: self._chains(plans, apart))
        mine = jointly(self._group, "times of plans", lambda: self._replayed(chains, replays))
        for pair in chains.values():
            for chain in pair:
                chain.close()
        everyone = whole_of(self._group).all_gather(mine)
        slowest = {name: [chain_us([rank[name][i] for rank in everyone]) for i in (0, 1)] for name in mine}
        return {
            name: list(slopes_us(many, few, self._many, self._few)) for name, (many, few) in slowest.items()
        }

    def verified(self, name: str) -> bool:
        """Whether a plan, after all that timing, still gives right results on every rank."""
        return self._right(name, self._ready[name])

    def _right(self, name: str, slots: _Slots | None) -> bool:
        mine = jointly(self._group, f"a sum by {name}", lambda: slots is not None and slots.right())
        return all(whole_of(self._group).all_gather(mine))

    def taken(self, name: str) -> Reducer:
        """What was set up under a name and verified; `close` then leaves it alone."""
        slots = self._ready.pop(name)
        assert slots is not None
        return slots.reducer

    def close(self) -> None:
        for slots in self._ready.values():
            if slots is not None:
                slots.reducer.close()
        self._ready = {}


def untuned(path: Path, world: int, device: int, nbytes: int) -> Plan:
    """The plan by rule of thumb."""
    return rule_of_thumb(facts_of(path, world, device), nbytes)
