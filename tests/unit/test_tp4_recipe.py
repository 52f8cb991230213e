"""The recipe for two to four GPUs: what it plans at each world, with no GPU at hand."""

from __future__ import annotations

import pytest

from arfloor import recipes
from arfloor.backends import registry
from arfloor.core import plan as planning
from arfloor.core.cases import Machine
from arfloor.core.plan import RunPlan

FACTS = {"p2p": True, "nvlink": True, "peer_atomics": True, "nccl": True}


def planned(world: int) -> RunPlan:
    machine = Machine(
        world=world,
        device_kind="cuda",
        device_name="GPU",
        compute_capability=(9, 0),
        multiprocessors=132,
        versions={"mscclpp": "0.9.0"},
        facts=dict(FACTS),
    )
    recipe = recipes.make(recipes.load("tp4"))
    chosen = registry.choose(recipe.backends, "cuda")
    return planning.make_plan(
        recipe, machine, registry.offers(chosen, machine), registry.supports(chosen, machine)
    )


@pytest.mark.parametrize("world", [2, 3, 4])
def test_each_world_measures_what_is_predicted_within_its_time(world: int) -> None:
    plan = planned(world)
    timed = [launch for launch in plan.launches if not launch.probe]
    cases = {(c.backend, c.variant, c.path, c.nbytes) for p in timed for row in p.blocks for c in row.cases}
    for nbytes in (8192, 65536, 262144, 1048576):
        for path, ours in (("peer", "peer"), ("host", "host")):
            assert ("nccl", "default", path, nbytes) in cases
            assert (ours, "auto", path, nbytes) in cases
            assert (ours, "line512-two", path, nbytes) in cases
        for shape in ("line128", "pull"):
            assert ("peer", shape, "peer", nbytes) in cases
        for shape in ("line128-staged", "line512-two-staged"):
            assert (("peer", shape, "peer", nbytes) in cases) == (world > 2)
        for library, variant in (("mscclpp", "packet"), ("torch_symm", "two_shot")):
            # their kernels move 16 bytes at a time of every rank's part
            assert ((library, variant, "peer", nbytes) in cases) == (world != 3)
            assert (library, variant, "peer", 98304) in cases
    assert len(cases) <= 280
    assert plan.estimate_s < 120


def test_what_does_not_exist_for_two_ranks_says_so() -> None:
    decided = [r for launch in planned(2).launches for row in launch.blocks for r in row.decided]
    staged = [r for r in decided if r.case.variant.endswith("staged")]
    assert staged
    assert {r.reason for r in staged} == {"world_size"}
    assert "three ranks and more" in staged[0].detail
