"""Groups of ranks that set up and reduce side by side: what fails in one is heard in all."""

from __future__ import annotations

import numpy as np
import pytest

from arfloor.backends import ours, own_backend
from arfloor.core.plan import Offer, make_plan
from arfloor.core.recipe import Recipe
from arfloor.runtime import slabs
from arfloor.runtime.agree import jointly, told
from arfloor.runtime.group import SubGroup
from arfloor.runtime.measure import measure_block
from tests.unit.test_measure import make_bench
from tests.unit.test_plan import machine
from tests.unit.threads import Summing, SummingOp, on_all_ranks, together

GROUPS = ((0, 1), (2, 3))


def mine(group):
    return SubGroup(group, GROUPS[group.rank // 2])


def fails_on(rank, group):
    if group.rank == rank:
        raise MemoryError("no room")


@pytest.mark.parametrize("rank", range(4))
def test_a_step_that_fails_in_one_group_is_told_to_all_and_all_stay_in_step(rank):
    def body(group):
        with pytest.raises(slabs.SlabError, match=f"^a step could not be set up: rank {rank}: MemoryError"):
            jointly(mine(group), "a step", lambda: fails_on(rank, group), slabs.SlabError)
        return group.all_gather(group.rank)

    assert on_all_ranks(4, body) == [[0, 1, 2, 3]] * 4


def test_values_are_those_of_the_group_and_ranks_those_of_the_worker():
    answers = on_all_ranks(4, lambda group: told(mine(group), None, group.rank * 10))
    assert answers == [([], [0, 10])] * 2 + [([], [20, 30])] * 2
    answers = on_all_ranks(4, lambda group: told(mine(group), "bad" if group.rank == 2 else None)[0])
    assert answers == [["rank 2: bad"]] * 4


def test_shared_memory_that_one_group_cannot_have_is_refused_to_both(monkeypatch, tmp_path):
    pytest.importorskip("cuda.bindings.runtime", reason="needs cuda-core: pip install 'arfloor[cuda]'")

    def refuse_one(name, size, node):
        if node == 3:
            raise OSError("no space")

    monkeypatch.setattr(slabs, "_SHM", tmp_path)
    monkeypatch.setattr(slabs, "_create_segment", refuse_one)
    monkeypatch.setattr(slabs, "_register", lambda name, size, release: 1)
    answers = together(4, lambda group: slabs.host_slab(mine(group), 64, numa=group.rank))
    assert [type(answer) for answer in answers] == [slabs.SlabError] * 4
    assert all("rank 3: OSError: no space" in str(answer) for answer in answers)


class PartOp(SummingOp):
    """Sums over the ranks of one's own group."""

    def run(self, slot):
        row = self.group.shared.slots["data"]
        row[self.group.rank] = self.values[slot].copy()
        self.group.barrier()
        total = np.sum([row[rank] for rank in mine(self.group).members], axis=0)
        self.group.barrier()
        self.values[slot][:] = total


class Ours(Summing):
    """Set up as our kernels are: step by step, each group by itself; its second step fails on one rank."""

    def __init__(self, group, failing):
        super().__init__(group)
        self._failing = failing

    def prepare(self, case, group, slots):
        part = own_backend.subgroup(group, case)
        ours.jointly(part, "buffers", lambda: None)
        ours.jointly(part, "a slab", lambda: fails_on(self._failing, group))
        for step in ("handles", "counters", "operations"):
            ours.jointly(part, step, lambda: None)
        return PartOp(case, self._group, slots, None)


@pytest.mark.parametrize("rank", [0, 3])
def test_a_set_up_that_fails_in_one_group_costs_the_case_and_nothing_else(tmp_path, rank):
    offers = [
        Offer(backend=name, variant="default", path="cpu", modes=("eager",)) for name in ("ours", "sum")
    ]
    recipe = Recipe(sizes=(1024, 2048), launches=1, modes=("eager",), groups=GROUPS)
    rows = make_plan(recipe, machine(world=4), offers, lambda case: None).launches[0].blocks

    def action(group):
        bench = make_bench(group, tmp_path, {"ours": Ours(group, rank), "sum": Ours(group, None)})
        return [measure_block(bench, row, schema=1)[0] for row in rows]

    for records in on_all_ranks(4, action):
        for record in records:
            refused, other = record.results
            assert (refused.status, refused.reason) == ("failed", "prepare_failed")
            assert f"a slab could not be set up: rank {rank}: MemoryError: no room" in refused.detail
            assert (other.status, other.reason) == ("ok", None)
