"""Recipes and plans: what is refused, and in what order the rest is measured."""

from dataclasses import asdict

import pytest

from arfloor import recipes
from arfloor.core import plan as planning
from arfloor.core.cases import Machine
from arfloor.core.plan import Offer
from arfloor.core.recipe import BadInput, Recipe, check, check_groups, parse_groups, parse_size

MPI = (("launcher", "mpiexec"),)
OFFERS = [
    Offer(backend="gloo", variant="default", path="cpu", default=True, modes=("eager",)),
    Offer(backend="mpi", variant="default", path="cpu", settings=MPI, modes=("eager",)),
    Offer(backend="mpi", variant="slow", path="cpu", settings=MPI, modes=("eager",), contender=False),
]


def machine(world=2, kind="cpu"):
    return Machine(world=world, device_kind=kind, device_name="test")


def make(recipe, offers=OFFERS, supports=lambda case: None, **facts):
    return planning.make_plan(recipe, machine(**facts), offers, supports)


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [
        (262144, 262144),
        ("256KiB", 262144),
        ("256k", 262144),
        ("1.5 MiB", 1572864),
        ("16", 16),
        ("1MB", 10**6),
    ],
)
def test_sizes_in_words(text, nbytes):
    assert parse_size(text) == nbytes


@pytest.mark.parametrize("text", ["", "0", -16, "12", "1.3KiB", "4GiB", "2GB", "many", True, "1e3", 1 << 31])
def test_sizes_that_no_backend_could_take(text):
    with pytest.raises(BadInput, match="sizes") as caught:
        parse_size(text)
    assert repr(text) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("values", "key", "allowed"),
    [
        ({"size": [1024]}, "size", "sizes"),
        ({"dtypes": ["float31"]}, "dtypes: 'float31'", "bfloat16"),
        ({"modes": ["fast"]}, "modes: 'fast'", "eager"),
        ({"paths": ["air"]}, "paths: 'air'", "peer"),
        ({"devices": "tpu"}, "devices: 'tpu'", "cuda"),
        ({"sizes": []}, "sizes", "at least one"),
        ({"launches": 0}, "launches: 0", "at least 1"),
        ({"launches": "two"}, "launches: 'two'", "integer"),
        ({"budget_s": -1.0}, "budget_s: -1.0", "at least"),
        ({"sizes": [1000.5]}, "sizes: 1000.5", "multiple of 16"),
    ],
)
def test_a_wrong_recipe_names_key_value_and_what_is_allowed(values, key, allowed):
    with pytest.raises(BadInput) as caught:
        recipes.make(values)
    assert key in str(caught.value)
    assert allowed in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_recipe_survives_its_manifest():
    recipe = recipes.make(recipes.load("decode"))
    assert recipes.make(asdict(recipe)) == recipe


def test_decode_has_log_spaced_sizes_with_the_one_everybody_quotes():
    recipe = recipes.make(recipes.load("decode"))
    assert len(recipe.sizes) >= 24
    assert (recipe.sizes[0], recipe.sizes[-1]) == (1024, 4 << 20)
    assert 262144 in recipe.sizes
    ratios = [b / a for a, b in zip(recipe.sizes, recipe.sizes[1:], strict=False)]
    assert max(ratios) <= 1.5
    assert min(ratios) > 1.3


def test_decode_on_two_cpu_ranks_is_planned_below_three_minutes():
    forced = [
        Offer(backend="mpi", variant=v, path="cpu", settings=(*MPI, ("A", v)), modes=("eager",)) for v in "xy"
    ]
    plan = make(recipes.make(recipes.load("decode")), [*OFFERS, *forced])
    assert plan.estimate_s < 170


def test_recipe_files(tmp_path):
    file = tmp_path / "mine.toml"
    file.write_text('sizes = ["4KiB"]\n')
    assert recipes.make(recipes.load(str(file))).sizes == (4096,)
    file.write_text("sizes = [")
    with pytest.raises(BadInput, match="not valid TOML"):
        recipes.load(str(file))
    with pytest.raises(BadInput, match="decode, libraries, nccl-grid, smoke"):
        recipes.load("no-such-recipe")


def test_groups_must_partition_the_ranks():
    recipe = Recipe(groups=parse_groups("0,1;2,3"))
    check_groups(recipe, 4)
    for bad, world in (("0,1", 4), ("0,1;1,2", 3), ("0,1;2", 3), ("0;1", 2)):
        with pytest.raises(BadInput, match="groups"):
            check_groups(Recipe(groups=parse_groups(bad)), world)
    with pytest.raises(BadInput, match="groups"):
        parse_groups("0-1")


def test_sizes_are_sorted_and_distinct():
    assert check(Recipe(sizes=(4096, 1024, 4096))).sizes == (1024, 4096)


def test_settings_are_launched_in_abba_order_and_sizes_there_and_back():
    plan = make(Recipe(sizes=(1024, 4096), launches=4))
    assert [(p.launch, p.settings) for p in plan.launches] == [
        (0, ()),
        (0, MPI),
        (1, MPI),
        (1, ()),
        (2, ()),
        (2, MPI),
        (3, MPI),
        (3, ()),
    ]
    assert [row.block.numel for row in plan.launches[0].blocks] == [256, 1024]
    assert [row.block.numel for row in plan.launches[2].blocks] == [1024, 256]
    assert [p.index for p in plan.launches] == list(range(8))


def test_links_are_probed_once_a_launcher_before_anything_else():
    plan = make(Recipe(launches=2))
    assert [p.primitives for p in plan.launches] == [True, True, False, False]
    assert not any(p.primitives for p in make(Recipe(primitives=False)).launches)


def test_the_budget_is_shared_evenly():
    plan = make(Recipe(sizes=(1024, 4096), launches=2, budget_s=8.0))
    assert {p.timed_s for p in plan.launches} == {1.0}


def test_only_a_grid_measures_what_is_no_contender():
    variants = {c.variant for p in make(Recipe(grid=True)).launches for r in p.blocks for c in r.cases}
    assert variants == {"default", "slow"}
    assert "slow" not in {c.variant for p in make(Recipe()).launches for r in p.blocks for c in r.cases}


def test_a_recipe_may_name_what_is_no_contender():
    named = make(Recipe(also=("mpi:slow", "nccl:32ch")))  # nccl has no part in this run
    shown = {c.variant for launch in named.launches for row in launch.blocks for c in row.cases}
    assert shown == {"default", "slow"}
    with pytest.raises(BadInput, match="also: 'mpi:slwo' is not offered; mpi offers default, slow"):
        make(Recipe(also=("mpi:slwo",)))


def test_what_cannot_run_is_decided_with_its_reason():
    def supports(case):
        return ("dtype", "no sum of it") if case.backend == "mpi" else None

    plan = make(Recipe(dtypes=("bfloat16",)), supports=supports)
    mpi = next(p for p in plan.launches if p.settings == MPI)
    assert all(not row.cases for row in mpi.blocks)
    results = [r for row in mpi.blocks for r in row.decided]
    assert {(r.status, r.reason) for r in results} == {("unsupported", "dtype")}
    assert {r.block_id for r in results} == {row.block.id for row in mpi.blocks}


def test_a_mode_that_a_backend_has_not_is_unsupported():
    plan = make(Recipe(modes=("graph",)))
    assert {r.reason for p in plan.launches for row in p.blocks for r in row.decided} == {"mode"}


def test_a_path_that_nobody_offers_is_refused():
    with pytest.raises(BadInput, match=r"paths: host .* offer cpu"):
        make(Recipe(paths=("host",)))


def test_resuming_leaves_exactly_what_is_missing():
    plan = make(Recipe(sizes=(1024, 4096), launches=2))
    every = {(row.block.id, p.launch) for p in plan.launches for row in p.blocks}
    done = frozenset(sorted(every)[:3])
    rest = planning.without_done(plan, done)
    assert {(row.block.id, p.launch) for p in rest.launches for row in p.blocks} == every - done
    assert planning.without_done(plan, frozenset(every)).launches == ()


def test_block_ids_tell_settings_sizes_and_groups_apart():
    ids = [row.block.id for p in make(Recipe(sizes=(1024, 4096), launches=1)).launches for row in p.blocks]
    grouped = make(Recipe(sizes=(1024, 4096), launches=1, groups=((0, 1),)))
    ids += [row.block.id for p in grouped.launches for row in p.blocks]
    assert len(set(ids)) == len(ids) == 8


def test_the_plan_reads_as_text():
    lines = planning.describe(make(Recipe(sizes=(4096,))))
    assert "launcher=mpiexec" in "\n".join(lines)
    assert "nothing was measured" in lines[-1]
