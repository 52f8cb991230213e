"""What the `peer` and `host` backends share: variants, support, and how a variant becomes a plan.

`auto`   the fastest correct plan for the message, found by measuring when it is prepared
`rule`   the plan by rule of thumb, unmeasured: what a program gets that does not tune
families `line128`, `ll`, `flag`, ...: one shape each, with a grid by rule of thumb; `int8` and `fp8` send 8
         bits an element, which is another result (`arfloor.core.lossy`)
a plan   any name that `arfloor.core.plans.parse` reads, such as `line512t64-one-66x256-pace27`
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import Any

from arfloor.backends import kept
from arfloor.backends.base import SUPPORTED, Group, PreparedOp, Support, Variant
from arfloor.core import lossy
from arfloor.core.cases import Case, Machine, Settings
from arfloor.core.cases import Path as Way
from arfloor.core.plans import DTYPE_NUMBER, MAX_WORLD, Plan, parse
from arfloor.core.tuning import MANY_RANK_FAMILIES, Facts, families, family
from arfloor.runtime.group import SubGroup, whole_of

MAX_NBYTES = 256 << 20


class OwnBackend:
    """See `arfloor.backends.base.Backend`; a subclass has a `name` and a `path`."""

    name: str
    path: Way
    settings: Settings = ()

    def support(self, machine: Machine, case: Case) -> Support:
        """GPUs of compute capability 8.0 on, two to eight ranks, peer access for `peer`."""
        if machine.device_kind != "cuda":
            return Support(ok=False, reason="needs_gpu", detail="our kernels run on NVIDIA GPUs")
        if case.path != self.path:
            return Support(ok=False, reason="needs_p2p", detail=f"this backend is the {self.path} path")
        if not 2 <= case.world <= MAX_WORLD:
            return Support(ok=False, reason="world_size", detail=f"2 to {MAX_WORLD} ranks, not {case.world}")
        if case.dtype not in DTYPE_NUMBER:
            return Support(ok=False, reason="dtype", detail=f"{', '.join(DTYPE_NUMBER)}, not {case.dtype}")
        problem = shape_flaw(case.variant, case.world, self.path)
        if problem:
            return Support(ok=False, reason="world_size", detail=problem)
        if lossy.wire_of(case.variant) and case.dtype == "float32":
            detail = "8 bits an element on the wire are for 16-bit dtypes"
            return Support(ok=False, reason="dtype", detail=detail)
        if not 0 < case.nbytes <= MAX_NBYTES:
            return Support(ok=False, reason="size", detail=f"1 to {MAX_NBYTES} bytes, not {case.nbytes}")
        if machine.compute_capability is not None and machine.compute_capability < (8, 0):
            return Support(ok=False, reason="compute_capability", detail="compute capability 8.0 or newer")
        if self.path == "peer" and machine.facts.get("p2p") is False:
            return Support(ok=False, reason="needs_p2p", detail="the GPUs have no peer access to each other")
        return SUPPORTED

    def variants(self, machine: Machine) -> Sequence[Variant]:
        """`auto` for every run; the rest for grids and for recipes that name them."""
        if machine.device_kind != "cuda" or not 2 <= machine.world <= MAX_WORLD:
            return ()
        # the same for every world, so that one recipe does for all: `support` says which do not exist here
        names = ("auto", "rule", *families(shapes_of(4, self.path)), *lossy.FAMILIES)
        return [
            Variant(name=name, path=self.path, settings=self.settings, contender=name == "auto")
            for name in names
        ]

    def prepare(self, case: Case, group: Group, slots: int) -> PreparedOp:
        """Set a case up collectively. Raises OursError or SlabError on every rank when any rank fails."""
        import torch

        from arfloor.backends import tune
        from arfloor.backends.prepared_reduce import PreparedReduce

        device = torch.device(case.devices[group.rank])
        ordinal = torch.cuda.current_device() if device.index is None else device.index
        mine = subgroup(group, case)
        with torch.cuda.device(ordinal):
            plan = self._plan(case, mine, ordinal)
            reducers: list[Any] = []
            if case.variant == "auto":  # in every launch: what a set-up has of luck is not the plan's to keep
                reducers = tune.settle(
                    mine,
                    plan=plan,
                    path=self.path,
                    device=ordinal,
                    dtype=case.dtype,
                    nbytes=case.nbytes,
                    keep=slots,
                )
            return PreparedReduce(case, mine, slots, plan, ordinal, reducers)

    def _plan(self, case: Case, group: Any, device: int) -> Plan:
        """The plan of a case that `group` reduces; equal on all ranks of the worker."""
        from arfloor.backends import tune

        if case.variant == "auto":
            whole = whole_of(group)
            key = (self.path, group.world, case.dtype, case.nbytes)
            found = whole.broadcast(kept.read().get(_name(key)))
            if key not in _CHOSEN and found is not None:
                _CHOSEN[key] = parse(found)
            if key not in _CHOSEN:
                begun = time.monotonic()
                barrier = tune.barrier_of(group, self.path, device)
                try:
                    choice = tune.choose(
                        group,
                        path=self.path,
                        device=device,
                        dtype=case.dtype,
                        nbytes=case.nbytes,
                        barrier=barrier,
                        known=_nearest_paced(key),
                        brief=_between(key),
                    )
                finally:
                    barrier.close()
                if not _between(key):
                    _SEARCHED.add(key)
                _CHOSEN[key] = choice.plan
                if whole.rank == 0:
                    kept.add(_name(key), choice.plan.name)
                    kept.note(choice.tuning(key[:3], time.monotonic() - begun))
            return _CHOSEN[key]
        if case.variant == "rule":
            return tune.untuned(self.path, group.world, device, case.nbytes)
        facts = tune.facts_of(self.path, group.world, device)
        if case.variant in (*families(facts), *MANY_RANK_FAMILIES, *lossy.FAMILIES):
            return family(case.variant, facts, case.nbytes)
        return parse(case.variant)


def shapes_of(world: int, path: Way) -> Facts:
    """Facts to ask `families` which shapes a path has; the number of multiprocessors does not matter."""
    return Facts(path=path, world=world, multiprocessors=132)


def shape_flaw(variant: str, world: int, path: Way) -> str:
    """Why a shape does not exist for so many ranks; empty when it does, or when it is no shape's name."""
    if variant not in families(shapes_of(4, path)) or variant in families(shapes_of(world, path)):
        return ""
    if variant == "islands":
        return f"two islands need an even number of ranks, 4 at least, not {world}"
    return f"{variant} is for three ranks and more: between {world}, staging changes nothing"


_Key = tuple[str, int, str, int]
_CHOSEN: dict[_Key, Plan] = {}
"""Plans that this process tuned; equal on all ranks, because all chose by the same times."""


_SEARCHED: set[_Key] = set()
"""Those of them that were searched in full."""
BETWEEN = 1.5
"""A size within this ratio of one that was searched in full is searched briefly: of the two sizes an octave
that a fit wants, every second one."""


def _between(key: _Key) -> bool:
    ratios = (max(size / key[3], key[3] / size) for (*same, size) in _SEARCHED if tuple(same) == key[:3])
    return min(ratios, default=math.inf) <= BETWEEN


def _nearest_paced(key: _Key) -> Plan | None:
    """Of the plans tuned so far for the same path, world and dtype, the paced one that is nearest in size."""
    found = [
        (abs(math.log(size / key[3])), size)
        for (*same, size), plan in _CHOSEN.items()
        if tuple(same) == key[:3] and plan.pace
    ]
    return _CHOSEN[(key[0], key[1], key[2], min(found)[1])] if found else None


def _name(key: _Key) -> str:
    return "/".join(map(str, key))


def subgroup(group: Group, case: Case) -> Any:
    """The group that reduces a case: the whole worker's, or this rank's part of it."""
    for members in case.groups:
        if group.rank in members and len(members) < group.world:
            return SubGroup(group, members)
    return group
