"""The supervisors' decisions, with a fake clock and a fake store in place of processes."""

from dataclasses import replace

import pytest

from arfloor.core.cases import Block, Case
from arfloor.core.plan import BlockPlan, LaunchPlan
from arfloor.runtime import supervisor as sup


def make_case(nbytes, backend="gloo", settings=(), variant="default"):
    return Case(
        backend=backend,
        variant=variant,
        settings=settings,
        path="cpu",
        devices=("cpu:0", "cpu:1"),
        numel=nbytes // 4,
        dtype="float32",
        mode="eager",
    )


def make_row(nbytes, cases):
    block = Block(
        id=f"b{nbytes}{cases[0].settings}",
        settings=cases[0].settings,
        path="cpu",
        devices=cases[0].devices,
        dtype="float32",
        numel=nbytes // 4,
        case_ids=tuple(c.id for c in cases),
    )
    return BlockPlan(block=block, cases=tuple(cases))


def make_launch(index=0, sizes=(1024, 2048, 4096), launch=0, settings=(), backends=("gloo", "other")):
    rows = tuple(make_row(n, [make_case(n, b, settings) for b in backends]) for n in sizes)
    return LaunchPlan(index=index, launch=launch, settings=settings, blocks=rows, timed_s=0.1)


class World:
    """Supervisors of all ranks with one clock, one store and no processes."""

    def __init__(self, launches, world=2):
        self.now = 0.0
        self.states = [sup.State(rank=r, world=world, launches=tuple(launches)) for r in range(world)]
        self.actions = [[] for _ in range(world)]
        self.store = {}
        for rank in range(world):
            self.feed(rank, sup.Begin(now=self.now))

    def key(self, rank):
        state = self.states[rank]
        return (state.current.index, state.attempt) if state.launches else None

    def feed(self, rank, event):
        key = self.key(rank)
        self.states[rank], actions = sup.step(self.states[rank], event)
        self.actions[rank] += actions
        for action in actions:
            if isinstance(action, sup.Publish):
                self.store[(*key, rank)] = action

    def line(self, rank, kind, **data):
        self.feed(rank, sup.Line(now=self.now, rank=rank, data={"kind": kind, **data}))

    def everywhere(self, kind, **data):
        for rank in range(len(self.states)):
            if self.states[rank].phase == "running" and rank in self.states[rank].watched:
                self.line(rank, kind, **data)

    def settle(self):
        """Let every rank hear what the others published, until nothing changes."""
        before = None
        while before != self.states:
            before = list(self.states)
            for rank in range(len(self.states)):
                key = self.key(rank)
                for other in range(len(self.states)):
                    published = self.store.get((*key, other)) if key else None
                    if other == rank or published is None or self.key(rank) != key:
                        continue
                    self.feed(rank, sup.Heard(now=self.now, outcome=published.outcome))
                    if published.ring and self.key(rank) == key:
                        self.feed(rank, sup.Bell(now=self.now))

    def tick(self, seconds):
        self.now += seconds
        for rank in range(len(self.states)):
            self.feed(rank, sup.Tick(now=self.now))

    def begin_case(self, case, phase="time", deadline_s=10.0):
        self.everywhere("case", case=case.id, block="b", phase=phase, deadline_s=deadline_s)

    def finish_launch(self):
        for row in self.states[0].current.blocks:
            self.everywhere("block", block=row.block.id, launch=0, summary=[])
        self.everywhere("exit")
        for rank, state in enumerate(self.states):
            if state.phase == "running":
                self.feed(rank, sup.Exited(now=self.now, code=0))
        self.settle()

    def last_start(self, rank=0):
        return [a for a in self.actions[rank] if isinstance(a, sup.Start)][-1]

    def agree(self):
        """All ranks must have come to the same conclusion."""
        assert len({(s.launches, s.attempt, s.phase == "finished", s.failures) for s in self.states}) == 1
        return self.states[0]

    def finished(self):
        return [a for a in self.actions[0] if isinstance(a, sup.Finish)]


def cases_left(launch):
    return [c for row in launch.blocks for c in row.cases]


def decided(launch):
    return {r.case: r for row in launch.blocks for r in row.decided}


def test_launches_follow_each_other_and_end():
    world = World([make_launch(0), make_launch(1, launch=1)])
    assert world.last_start().launch.index == 0
    world.finish_launch()
    assert world.last_start().launch.index == 1
    world.finish_launch()
    assert world.agree().phase == "finished"
    assert world.finished() == [sup.Finish(interrupted=False)]


def test_nothing_ends_before_every_rank_is_done():
    world = World([make_launch(0), make_launch(1)])
    world.line(0, "exit")
    world.feed(0, sup.Exited(now=1.0, code=0))
    world.settle()
    assert world.states[0].phase == "agreeing"
    assert world.states[1].phase == "running"


@pytest.mark.parametrize("culprit", [0, 1])
def test_a_killed_worker_costs_its_case_and_done_blocks_stay_done(culprit):
    launch = make_launch(0)
    world = World([launch, make_launch(1, launch=1)])
    first, second = launch.blocks[0], launch.blocks[1]
    world.everywhere("block", block=first.block.id, launch=0, summary=[])
    victim = second.cases[1]
    world.begin_case(victim)
    world.feed(culprit, sup.Exited(now=world.now, code=-9))
    world.settle()
    world.agree()
    again = world.last_start()
    assert (again.launch.index, again.attempt) == (0, 1)
    assert [row.block.id for row in again.launch.blocks] == [second.block.id, launch.blocks[2].block.id]
    assert victim not in cases_left(again.launch)
    assert len(cases_left(again.launch)) == 3
    assert decided(again.launch)[victim].reason == "worker_died"
    assert f"rank {culprit}" in decided(again.launch)[victim].detail
    for rank, actions in enumerate(world.actions):
        assert any(isinstance(a, sup.Kill) for a in actions), rank
    # nor is it tried in the next launch
    later = world.states[0].launches[1]
    assert decided(later)[victim].status == "failed"


def test_a_hung_case_is_killed_at_its_deadline_not_before():
    world = World([make_launch(0)])
    victim = world.states[0].current.blocks[0].cases[0]
    world.begin_case(victim, deadline_s=10.0)
    world.tick(9.0)
    assert world.states[0].phase == "running"
    world.tick(2.0)
    world.settle()
    result = decided(world.last_start().launch)[victim]
    assert (result.status, result.reason) == ("timeout", "worker_hung")


@pytest.mark.parametrize("deadline_s", [3.0, 60.0])
def test_the_rank_that_raised_is_blamed_for_the_hang_of_the_other(deadline_s):
    world = World([make_launch(0)])
    victim = world.states[0].current.blocks[0].cases[0]
    world.begin_case(victim, deadline_s=deadline_s)
    world.now += 1.0
    world.line(1, "error", reason="raised", message="ValueError: no")
    world.tick(sup.ERROR_GRACE_S + 0.1)
    world.settle()
    result = decided(world.last_start().launch)[victim]
    assert (result.status, result.reason) == ("failed", "raised")
    assert "rank 1" in result.detail
    assert "ValueError: no" in result.detail


def test_a_death_is_blamed_rather_than_the_error_it_gave_the_other_rank():
    world = World([make_launch(0)])
    victim = world.states[0].current.blocks[0].cases[0]
    world.begin_case(victim)
    world.line(0, "error", reason="raised", message="RuntimeError: connection closed by peer")
    world.line(0, "broken", reason="worker_died", message="RuntimeError: connection closed by peer")
    world.feed(1, sup.Exited(now=world.now, code=-9))
    world.settle()
    result = decided(world.last_start().launch)[victim]
    assert result.reason == "worker_died"
    assert "rank 1" in result.detail
    assert "signal 9" in result.detail


def test_a_hang_is_blamed_rather_than_what_its_end_did_to_the_others():
    world = World([make_launch(0)], world=3)
    victim = world.states[0].current.blocks[0].cases[0]
    world.begin_case(victim, deadline_s=5.0)
    world.now += 6
    world.feed(2, sup.Tick(now=world.now))
    world.now += 0.1
    world.line(0, "error", reason="raised", message="RuntimeError: connection closed by peer")
    world.line(0, "broken", reason="worker_died", message="RuntimeError: connection closed by peer")
    world.feed(1, sup.Exited(now=world.now, code=-sup.SIGABRT))
    world.settle()
    assert decided(world.last_start().launch)[victim].reason == "worker_hung"


def test_an_abort_is_the_echo_of_a_death():
    world = World([make_launch(0)])
    victim = world.states[0].current.blocks[0].cases[0]
    world.begin_case(victim)
    world.feed(0, sup.Exited(now=world.now, code=-sup.SIGABRT))
    world.feed(1, sup.Exited(now=world.now, code=-11))
    world.settle()
    assert "rank 1" in decided(world.last_start().launch)[victim].detail


def test_an_abort_whose_output_tells_of_a_lost_device_is_the_cause():
    world = World([make_launch(0)])
    victim = world.states[0].current.blocks[0].cases[0]
    world.begin_case(victim)
    world.feed(0, sup.Exited(now=world.now, code=-9))
    world.feed(1, sup.Exited(now=world.now, code=-sup.SIGABRT, lost="illegal_address"))
    world.settle()
    result = decided(world.last_start().launch)[victim]
    assert result.reason == "illegal_address"
    assert "rank 1" in result.detail


def test_a_poisoned_context_carries_its_own_reason():
    world = World([make_launch(0)])
    victim = world.states[0].current.blocks[0].cases[0]
    world.begin_case(victim)
    world.line(1, "fatal", reason="illegal_address", message="CUDA error: an illegal memory access")
    world.settle()
    assert decided(world.last_start().launch)[victim].reason == "illegal_address"


def test_a_variant_that_ends_two_workers_is_not_tried_at_the_other_sizes():
    world = World([make_launch(0)])
    for number in (0, 1):
        victim = world.states[0].current.blocks[number].cases[1]
        assert victim.backend == "other"
        world.begin_case(victim)
        world.feed(1, sup.Exited(now=world.now, code=-9))
        world.settle()
    left = world.last_start().launch
    assert {c.backend for c in cases_left(left)} == {"gloo"}
    assert len(cases_left(left)) == 3
    assert all(r.reason == "worker_died" for r in decided(left).values())


def test_a_start_that_fails_is_tried_once_more_without_probes_and_then_given_up():
    launch = replace(make_launch(0), primitives=True)
    world = World([launch, make_launch(1, launch=1, settings=(("NCCL_P2P_DISABLE", "1"),))])
    world.everywhere("phase", name="primitives", deadline_s=5.0)
    world.tick(6.0)
    world.settle()
    again = world.last_start()
    assert again.attempt == 1
    assert not again.launch.primitives
    assert cases_left(again.launch) == cases_left(launch)
    world.tick(sup.STARTUP_S + 1)
    world.settle()
    # all of its cases carry the reason, rank 0 alone wrote them, and the next launch goes on
    assert world.last_start().launch.index == 1
    written = [a.record for a in world.actions[0] if isinstance(a, sup.Write)]
    assert [r.block.id for r in written] == [row.block.id for row in launch.blocks]
    assert {x.reason for r in written for x in r.results} == {"worker_hung"}
    assert not any(isinstance(a, sup.Write) for a in world.actions[1])


def test_blocks_without_anything_to_measure_need_no_worker():
    launch = make_launch(0, sizes=(1024,))
    row = launch.blocks[0]
    failed = sup._fail((launch,), {c.id for c in row.cases}, "dtype", "no")[0]
    world = World([failed])
    assert world.agree().phase == "finished"
    assert not any(isinstance(a, sup.Start) for a in world.actions[0])
    record = next(a.record for a in world.actions[0] if isinstance(a, sup.Write))
    assert tuple(r.case.id for r in record.results) == row.block.case_ids


def test_mpiexec_is_started_and_watched_by_rank_0_alone():
    settings = (("launcher", "mpiexec"),)
    world = World([make_launch(0, settings=settings), make_launch(1, settings=settings, launch=1)])
    assert not any(isinstance(a, sup.Start) for a in world.actions[1])
    victim = world.states[0].current.blocks[0].cases[0]
    for rank in (0, 1):
        world.feed(
            0,
            sup.Line(
                now=0,
                rank=rank,
                data={"kind": "case", "case": victim.id, "block": "b", "phase": "time", "deadline_s": 5.0},
            ),
        )
    world.tick(6.0)
    world.settle()
    assert world.agree().attempt == 1
    assert decided(world.last_start().launch)[victim].reason == "worker_hung"
    launch = world.states[0].current
    for rank in (0, 1):
        for row in launch.blocks:
            data = {"kind": "block", "block": row.block.id, "launch": 0, "summary": []}
            world.feed(0, sup.Line(now=world.now, rank=rank, data=data))
        world.feed(0, sup.Line(now=world.now, rank=rank, data={"kind": "exit"}))
    world.feed(0, sup.Exited(now=world.now, code=0))
    world.settle()
    assert world.agree().current.index == 1


@pytest.mark.parametrize("first", [0, 1])
def test_an_interrupt_on_one_rank_ends_all_at_once(first):
    world = World([make_launch(0), make_launch(1)])
    world.begin_case(world.states[0].current.blocks[0].cases[0])
    world.feed(first, sup.Interrupt(now=1.0))
    world.settle()
    state = world.agree()
    assert state.phase == "finished"
    assert state.interrupted
    assert state.failures == ()  # being interrupted is nobody's fault
    assert world.finished() == [sup.Finish(interrupted=True)]


def test_an_interrupt_under_mpiexec_blames_no_case():
    world = World([make_launch(0, settings=(("launcher", "mpiexec"),))])
    world.feed(1, sup.Interrupt(now=1.0))
    world.settle()
    assert world.states[0].interrupted
    assert world.states[0].failures == ()


def test_a_supervisor_that_vanished_is_waited_for_only_so_long():
    world = World([make_launch(0)], world=3)
    for rank in (0, 1):
        world.line(rank, "exit")
        world.feed(rank, sup.Exited(now=world.now, code=0))
    world.settle()
    world.now += sup.AGREE_S + 1
    for rank in (0, 1):
        world.feed(rank, sup.Tick(now=world.now))
    assert [s.phase for s in world.states[:2]] == ["finished", "finished"]
    assert "rank 2 no longer answers" in world.states[0].failures[0]
