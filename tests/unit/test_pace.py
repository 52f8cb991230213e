"""How much longer a run takes, on runs whose end is known."""

import itertools
import random
import re

import pytest

from arfloor.core.cases import Block, Case
from arfloor.core.pace import Pace
from arfloor.core.plan import BlockPlan, LaunchPlan, RunPlan, block_s, start_s
from arfloor.runtime.show import Show, duration

MPI = (("launcher", "mpiexec"),)


def launch(index, settings, *, probe=False, blocks=25):
    rows = []
    for n in range(blocks):
        case = Case(
            backend="mpi" if settings else "gloo",
            settings=settings,
            path="cpu",
            devices=("cpu:0", "cpu:1"),
            numel=256 << n % 12,
            dtype="float32",
            mode="eager",
        )
        block = Block(
            id=f"cpu:{case.nbytes}:float32:{index}-{n}",
            settings=settings,
            path="cpu",
            devices=case.devices,
            dtype="float32",
            numel=case.numel,
            case_ids=(case.id,),
        )
        rows.append(BlockPlan(block=block, cases=(case,)))
    return LaunchPlan(
        index=index, launch=index, settings=settings, blocks=tuple(rows), timed_s=0.3, probe=probe
    )


def plan(*launches):
    whole = sum(start_s(x) + sum(block_s(x, row) for row in x.blocks if not x.probe) for x in launches)
    return RunPlan(launches=launches, estimate_s=whole)


SWEEP = plan(*(launch(i, MPI if i % 4 else ()) for i in range(8)))


def told(run, starts_s, block_factor):
    """(time, said to be left) after each block, and when the run ended."""
    now, said = 0.0, []
    pace = Pace(run, now)
    for each, took in zip(run.launches, starts_s, strict=True):
        pace.began(each.index, now)
        now += took
        for row in () if each.probe else each.blocks:
            now += block_s(each, row) * block_factor
            pace.wrote(row.block.id, each.launch, now)
            said.append((now, pace.left_s()))
    return said, now


def test_a_run_that_goes_as_planned_is_told_to_the_second():
    said, end = told(SWEEP, [start_s(x) for x in SWEEP.launches], 1.0)
    assert end == pytest.approx(SWEEP.estimate_s)
    for now, left in said:
        assert left == pytest.approx(end - now, abs=0.3)


@pytest.mark.parametrize("seed", range(5))
def test_spread_starts_change_what_is_left_slowly(seed):
    rng = random.Random(seed)
    starts = [start_s(x) * rng.uniform(1.0, 8.0) for x in SWEEP.launches]
    said, end = told(SWEEP, starts, rng.uniform(0.7, 1.4))
    for (before, left), (now, then) in itertools.pairwise(said):
        if end - now < 10:
            break
        assert 0.4 < then / (end - now) < 2.0
        assert abs(then - (left - (now - before))) < 0.3 * end  # as much at a slow start alone
    assert said[-1][1] == 0


def test_a_start_is_not_taken_for_blocks_and_a_probe_launch_not_for_a_block():
    run = plan(launch(0, (), probe=True), launch(1, ()), launch(2, ()))
    pace = Pace(run, 0.0)
    pace.began(0, 0.0)
    pace.began(1, 60.0)
    first = run.launches[1]
    pace.wrote(first.blocks[0].block.id, 1, 120.0)
    blocks = sum(block_s(x, row) for x in run.launches[1:] for row in x.blocks)
    assert blocks - 1 < pace.left_s() < blocks + 60  # one more start, none of the blocks at 60 s each
    # a launch that is started again has its other blocks before it still
    pace.began(1, 130.0)
    assert pace.left_s() > blocks - 5


def test_progress_tells_what_is_left_in_a_guess_s_figures(capsys):
    assert [duration(s) for s in (3.4, 44, 88, 100, 171)] == ["3 s", "45 s", "90 s", "1.5 min", "3 min"]
    show = Show(SWEEP)
    show.launch(0)
    show.block({"block": SWEEP.launches[0].blocks[0].block.id, "launch": 0, "summary": []})
    show.close()
    shown = capsys.readouterr().err
    assert shown.startswith(f"200 blocks, about {duration(SWEEP.estimate_s)}\n")
    assert re.search(r"; about (80|85) s left\n", shown)
