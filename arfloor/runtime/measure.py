"""One block: prepare all cases, verify each, time the correct ones in interleaved rounds."""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from arfloor.core import lossy
from arfloor.core.cases import BlockRecord, Case, Check, Ran, Result, Samples
from arfloor.core.plan import BlockPlan
from arfloor.core.statistics import latency
from arfloor.core.traffic import path_mark
from arfloor.runtime import stopping, traffic, verify
from arfloor.runtime.agree import Failure, together
from arfloor.runtime.progress import Progress
from arfloor.runtime.timing import StartLine, Timer, timer_class


@dataclass(kw_only=True)
class Bench:
    """What a worker measures with. `backends` maps names to instances, loaded by this process."""

    group: Any
    rank: int
    device: str
    work: Path
    start: StartLine
    progress: Progress
    backends: dict[str, Any]
    launch: int
    seed: int
    timed_s: float
    interval: float
    timeout_s: float
    # what probe workers saw running, by case id
    ran: dict[str, Ran] = field(default_factory=dict)


@dataclass(kw_only=True)
class Live:
    """A case on its way through a block."""

    case: Case
    op: Any = None
    timer: Timer | None = None
    check: Check | None = None
    failure: Failure | None = None
    status: str = "ok"
    readings: tuple[float, ...] = ()  # this rank's, of the last round
    rounds: list[tuple[float, ...]] = field(default_factory=list)  # this rank's samples
    chains: list[tuple[float, ...]] = field(default_factory=list)  # its readings, where not the samples
    slowest: list[tuple[float, ...]] = field(default_factory=list)  # max over ranks
    spent_s: float = 0.0
    replays: int = 1
    stop: str | None = None
    # what the link counters saw: a mark when it is not what the case claims, and a sentence
    traffic: tuple[str | None, str] = (None, "")

    def fail(self, failure: Failure, status: str = "failed") -> None:
        """Take the case out of the block."""
        self.failure, self.status = failure, status


def measure_block(bench: Bench, row: BlockPlan, schema: int) -> tuple[BlockRecord, list[Samples]]:
    """All results of one block in this launch, and this rank's samples."""
    lives = [Live(case=case) for case in row.cases]
    try:
        for step in (_prepare, _verify, _warm_up):
            for live in lives:
                if live.failure is None:
                    step(bench, row, live)
        bench.progress.line("timing", block=row.block.id)
        _rounds(bench, row, [live for live in lives if live.failure is None])
        for live in _to_count(bench, lives):
            _count_bytes(bench, row, live)
        return _record(bench, row, lives, schema)
    finally:
        for live in lives:
            _close(live)


def _step(bench: Bench, row: BlockPlan, live: Live, phase: str, action: Callable[[], Any]) -> Any:
    """One step of one case on all ranks; a failure takes the case out on all of them."""
    bench.progress.line(
        "case", case=live.case.id, block=row.block.id, phase=phase, deadline_s=bench.timeout_s
    )
    value, failure = together(bench.group, bench.progress, phase, action)
    if failure is not None:
        live.fail(failure)
        return None
    return value


def _prepare(bench: Bench, row: BlockPlan, live: Live) -> None:
    timer = timer_class(bench.device.partition(":")[0], live.case.mode)
    if timer is None:
        live.fail(Failure(reason="mode", detail=f"no timer for {live.case.mode} here"), "unsupported")
        return

    def act() -> None:
        backend = bench.backends[live.case.backend]
        live.op = backend.prepare(live.case, bench.group, timer.slots)

    _step(bench, row, live, "prepare", act)


def _verify(bench: Bench, row: BlockPlan, live: Live) -> None:
    def act() -> verify.RankCheck:
        return verify.check_rank(live.op, live.case, bench.rank, between=bench.group.barrier)

    mine = _step(bench, row, live, "verify", act)
    if mine is None:
        return
    gathered = bench.group.all_gather([mine.max_error, mine.wrong, list(mine.digests)])
    checks = [verify.RankCheck(max_error=e, wrong=w, digests=tuple(d)) for e, w, d in gathered]
    live.check = verify.merge(live.case, checks)
    bad = [f"rank {r}: {c.wrong} elements" for r, c in enumerate(checks) if c.wrong]
    if bad:
        live.fail(Failure(reason="wrong_result", detail="; ".join(bad)), "wrong")


def _warm_up(bench: Bench, row: BlockPlan, live: Live) -> None:
    """Warm up, then time a few replays that do not count, to learn how many fill a round."""
    timer = timer_class(bench.device.partition(":")[0], live.case.mode)

    def act() -> float:
        assert timer is not None  # `_prepare` failed the case otherwise
        live.timer = timer(live.op, live.case, bench)
        live.timer.warm_up()
        begin = time.perf_counter()
        live.timer.measure(timer.pilot)
        return (time.perf_counter() - begin) / timer.pilot

    mine = _step(bench, row, live, "warm-up", act)
    if mine is not None:
        assert live.timer is not None
        replay_s = max(bench.group.all_gather(mine))
        live.replays = stopping.replays_a_round(replay_s, bench.timed_s, rounds=live.timer.rounds)


def _rounds(bench: Bench, row: BlockPlan, lives: list[Live]) -> None:
    """Rounds of all cases in an order shuffled alike on all ranks, until each case has stopped.

    Rank 0 decides how many replays come next and which cases go on, and tells the others: ranks that
    adapted on their own would deadlock.
    """
    rng = np.random.default_rng([bench.seed, bench.launch, zlib.crc32(row.block.id.encode())])
    active = list(lives)
    while active:
        for index in rng.permutation(len(active)):
            _round(bench, row, active[index])
        _exchange(bench, active)
        active = [live for live in active if live.failure is None and live.stop is None]


def _round(bench: Bench, row: BlockPlan, live: Live) -> None:
    timer = live.timer
    assert timer is not None
    begin = time.perf_counter()
    values = _step(bench, row, live, "time", lambda: timer.measure(live.replays))
    live.spent_s += time.perf_counter() - begin
    if values is not None:
        live.readings = tuple(float(v) for v in values)


def _exchange(bench: Bench, active: list[Live]) -> None:
    going = [live for live in active if live.failure is None]
    gathered = bench.group.all_gather([live.readings for live in going])
    for index, live in enumerate(going):
        assert live.timer is not None
        samples = live.timer.samples([rank[index] for rank in gathered])
        live.rounds.append(samples[bench.rank])
        live.chains.append(() if live.readings == samples[bench.rank] else live.readings)
        live.slowest.append(tuple(np.max(samples, axis=0).tolist()))
    decisions = None
    if bench.rank == 0:
        decisions = [
            stopping.decide(
                live.slowest,
                spent_s=live.spent_s,
                budget_s=bench.timed_s,
                interval=bench.interval,
                rounds=live.timer.rounds if live.timer is not None else stopping.ROUNDS,
            )
            for live in going
        ]
    for live, (stop, replays) in zip(going, bench.group.broadcast(decisions), strict=True):
        live.stop, live.replays = stop, replays


def _to_count(bench: Bench, lives: list[Live]) -> list[Live]:
    """The cases whose bytes are counted; rank 0 chooses where there are too many."""
    timed = {
        live.case: float(np.median(np.concatenate(live.slowest)))
        for live in lives
        if live.failure is None and traffic.wanted(live.case, bench.launch) and not lossy.is_lossy(live.case)
    }
    ids = bench.group.broadcast([case.id for case in traffic.chosen(timed)]) if timed else []
    return [live for live in lives if live.case.id in ids]


def _count_bytes(bench: Bench, row: BlockPlan, live: Live) -> None:
    """Compare the links' counters with what the case should move. A check that fails marks nothing."""
    us = float(bench.group.broadcast(float(np.median(live.rounds[-1]))))
    bench.progress.line(
        "case", case=live.case.id, block=row.block.id, phase="traffic", deadline_s=bench.timeout_s
    )
    found, failure = together(
        bench.group, bench.progress, "traffic", lambda: traffic.count(bench, live.case, live.timer, us)
    )
    if found is not None and failure is None:
        rows = bench.group.all_gather(found)
        live.traffic = next((mark for mark, _ in rows if mark is not None), None), rows[0][1]


def _record(
    bench: Bench, row: BlockPlan, lives: list[Live], schema: int
) -> tuple[BlockRecord, list[Samples]]:
    samples = [
        Samples(
            case_id=live.case.id,
            launch=bench.launch,
            round=number,
            rank=bench.rank,
            us=us,
            chains_us=tuple(round(reading, 3) for reading in chains),  # ns: finer than events
        )
        for live in lives
        if live.failure is None
        for number, (us, chains) in enumerate(zip(live.rounds, live.chains, strict=True))
    ]
    results = [_result(bench, row, live) for live in lives]
    by_id = {r.case.id: r for r in (*results, *row.decided)}
    ordered = tuple(by_id[name] for name in row.block.case_ids)
    return BlockRecord(schema=schema, block=row.block, launch=bench.launch, results=ordered), samples


def _result(bench: Bench, row: BlockPlan, live: Live) -> Result:
    if live.failure is not None:
        return Result(
            case=live.case,
            status=live.status,  # type: ignore[arg-type]
            reason=live.failure.reason,
            detail=live.failure.detail,
            check=live.check,
            block_id=row.block.id,
        )
    slowest = [
        Samples(case_id=live.case.id, launch=bench.launch, round=number, rank=0, us=us)
        for number, us in enumerate(live.slowest)
    ]
    ran = bench.ran.get(live.case.id) or live.op.ran()
    seen = (live.traffic[0], path_mark(live.case.path, ran.transport))
    return Result(
        case=live.case,
        status="ok",
        latency=latency(slowest),
        check=live.check,
        ran=ran,
        detail=live.traffic[1],
        marks=(
            *(live.timer.marks if live.timer is not None else ()),
            *(m for m in (*seen, lossy.mark(live.case)) if m),
        ),
        stop=live.stop,
        block_id=row.block.id,
    )


def _close(live: Live) -> None:
    for held in (live.timer, live.op):
        if held is not None:
            try:
                held.close()
            except Exception as error:  # noqa: BLE001 - what was measured stands, whatever the clean-up says
                del error
