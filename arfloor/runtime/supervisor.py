"""What a supervisor decides, as a pure function: `step(state, event) -> (state, actions)`.

Every rank runs one. It starts a worker for each launch, watches what the worker reports, and kills it
when it outruns a deadline. When a launch ends in any way, each rank publishes one `Outcome`; when a
rank has all of them it draws the same conclusion from the same data as every other rank:

    all done            the next launch
    a case to blame     a new attempt at what is left of the launch, without that case
    nobody to blame     once more; then the launch is given up and its cases carry the reason
    interrupted, lost   finish with what is there

A case that ended a worker is not tried again in later launches; a variant that did so at two sizes
is not tried at the others. Time reaches this module only inside events, so tests need no clock.
"""

from __future__ import annotations

from dataclasses import replace

from arfloor.core.cases import SCHEMA_VERSION, BlockRecord, Case, Result
from arfloor.core.plan import BlockPlan, LaunchPlan
from arfloor.runtime.events import (
    Action,
    Begin,
    Bell,
    Event,
    Exited,
    Finish,
    Heard,
    InFlight,
    Interrupt,
    Kill,
    Line,
    Note,
    Outcome,
    OutcomeKind,
    Publish,
    Start,
    State,
    Tick,
    Write,
)

__all__ = [
    "Action",
    "Begin",
    "Bell",
    "Event",
    "Exited",
    "Finish",
    "Heard",
    "InFlight",
    "Interrupt",
    "Kill",
    "Line",
    "Note",
    "Outcome",
    "OutcomeKind",
    "Publish",
    "Start",
    "State",
    "Tick",
    "Write",
    "step",
]

STARTUP_S = 120.0
# after one rank reported an error the others hear of it at the next exchange, if they get there
ERROR_GRACE_S = 5.0
# a rank that publishes nothing for so long after the others ended is lost
AGREE_S = 60.0
STRIKES = 2
SIGABRT = 6

Step = tuple[State, tuple[Action, ...]]


def step(state: State, event: Event) -> Step:
    """The next state and what to do now. Pure."""
    if state.phase == "finished":
        return state, ()
    match event:
        case Begin():
            return _next_launch(state, event.now)
        case Interrupt():
            return _interrupt(state, event.now)
        case Heard():
            return _hear(state, event)
        case Tick():
            return _tick(state, event.now)
    if state.phase != "running":
        return state, ()
    match event:
        case Line():
            return _line(state, event)
        case Exited():
            return _exited(state, event)
        case Bell():
            return _end(state, event.now, _outcome(state, "peer"), kill=True)
    return state, ()


def _next_launch(state: State, now: float) -> Step:
    """Start the first launch with anything to measure; write the blocks that need no worker."""
    actions: list[Action] = []
    launches = list(state.launches)
    while launches:
        launch = launches[0]
        idle = [row for row in launch.blocks if not row.cases]
        actions += [
            Write(record=_decided(row, launch)) for row in idle if state.rank == 0 and not launch.probe
        ]
        rows = tuple(row for row in launch.blocks if row.cases)
        if rows:
            launches[0] = replace(launch, blocks=rows)
            break
        launches.pop(0)
    state = replace(state, launches=tuple(launches), attempt=0, baseless=0)
    if not launches:
        return replace(state, phase="finished"), (*actions, Finish(interrupted=state.interrupted))
    begun, more = _begin(state, now)
    return begun, (*actions, *more)


def _begin(state: State, now: float) -> Step:
    state = replace(state, outcomes=(), done=(), agree_by=None)
    if not state.watched:
        return replace(state, phase="agreeing", in_flight=()), ()
    fresh = InFlight(phase="startup", deadline=now + STARTUP_S)
    state = replace(state, phase="running", in_flight=tuple((rank, fresh) for rank in state.watched))
    return state, (Start(launch=state.current, attempt=state.attempt),)


def _line(state: State, event: Line) -> Step:
    data, kind = event.data, event.data.get("kind")
    flight = dict(state.in_flight)
    mine = flight[event.rank]
    if kind == "phase":
        mine = InFlight(phase=data["name"], deadline=event.now + data["deadline_s"])
    elif kind == "case":
        mine = InFlight(phase=data["phase"], deadline=event.now + data["deadline_s"], case=data["case"])
    elif kind == "error":
        soon = min(mine.deadline, event.now + ERROR_GRACE_S)
        error = (data["reason"], data["message"])
        mine = replace(mine, deadline=soon, error=error, raised_at=event.now)
    elif kind == "exit":
        mine = replace(mine, ended=True, deadline=event.now + AGREE_S)
    elif kind == "block":
        mine = InFlight(phase="between blocks", deadline=event.now + AGREE_S)
        if event.rank == state.watched[0]:
            state = replace(state, done=(*state.done, data["block"]))
    flight[event.rank] = mine
    state = replace(state, in_flight=tuple(flight.items()))
    if kind in ("fatal", "broken"):
        outcome = _outcome(state, kind, culprit=event.rank, reason=data["reason"], detail=data["message"])
        return _end(state, event.now, outcome, kill=True)
    return state, ()


def _exited(state: State, event: Exited) -> Step:
    if event.code == 0 and all(f.ended for _, f in state.in_flight):
        return _end(state, event.now, _outcome(state, "done"))
    how = f"killed by signal {-event.code}" if event.code < 0 else f"exit code {event.code}"
    if event.lost is not None and event.code != 0:
        outcome = _outcome(state, "fatal", reason=event.lost, detail=f"worker {how}; its output says why")
        return _end(state, event.now, outcome, kill=True)
    outcome = _outcome(state, "died", reason="worker_died", detail=f"worker {how}")
    # whatever else the worker had started ends with it
    return _end(state, event.now, replace(outcome, aborted=event.code == -SIGABRT), kill=True)


def _tick(state: State, now: float) -> Step:
    if state.phase == "running":
        late = [rank for rank, flight in state.in_flight if now > flight.deadline]
        if late:
            # the rank that raised, where one did: the others only wait for it
            raised = [rank for rank, flight in state.in_flight if flight.error is not None]
            outcome = _outcome(state, "hung", culprit=(raised or late)[0], reason="worker_hung")
            return _end(state, now, outcome, kill=True)
    elif state.phase == "agreeing" and state.agree_by is not None and now > state.agree_by:
        heard = {o.rank for o in state.outcomes}
        for rank in state.participants:
            if rank not in heard:
                lost = Outcome(rank=rank, kind="lost", detail=f"rank {rank} no longer answers")
                state = replace(state, outcomes=(*state.outcomes, lost))
        return _conclude(state, now)
    return state, ()


def _outcome(
    state: State,
    kind: OutcomeKind,
    *,
    culprit: int | None = None,
    reason: str | None = None,
    detail: str = "",
) -> Outcome:
    flight = dict(state.in_flight)
    at = flight.get(state.rank if culprit is None else culprit)
    if at is None:
        return Outcome(rank=state.rank, kind=kind, reason=reason, detail=detail, done=state.done)
    return Outcome(
        rank=state.rank,
        kind=kind,
        case=at.case,
        phase=at.phase,
        reason=reason,
        detail=detail,
        done=state.done,
        error=at.error,
        raised_at=at.raised_at,
    )


def _end(state: State, now: float, outcome: Outcome, *, kill: bool = False) -> Step:
    ring = outcome.kind != "done"
    outcome = replace(outcome, at=now)
    state = replace(state, phase="agreeing", agree_by=now + AGREE_S)
    # the others hear of it before they feel it
    actions: tuple[Action, ...] = (Publish(outcome=outcome, ring=ring),)
    if kill:
        actions = (*actions, Kill())
    state, more = _hear(state, Heard(now=now, outcome=outcome))
    return state, (*actions, *more)


def _interrupt(state: State, now: float) -> Step:
    if state.interrupted:
        return state, ()
    state = replace(state, interrupted=True)
    outcome = Outcome(rank=state.rank, kind="interrupted", done=state.done)
    # no need to wait for anybody: whatever the others are doing, nothing more is measured
    return replace(state, phase="finished"), (
        Kill(),
        Publish(outcome=outcome, ring=True),
        Finish(interrupted=True),
    )


def _hear(state: State, event: Heard) -> Step:
    outcome = event.outcome
    if any(o.rank == outcome.rank for o in state.outcomes):
        return state, ()
    state = replace(state, outcomes=tuple(sorted((*state.outcomes, outcome), key=lambda o: o.rank)))
    if outcome.kind == "interrupted" and outcome.rank != state.rank:
        return _interrupt(state, event.now)
    if state.phase == "running":
        return state, ()
    if outcome.kind != "done" and state.agree_by is None:
        state = replace(state, agree_by=event.now + AGREE_S)
    if {o.rank for o in state.outcomes} >= set(state.participants):
        return _conclude(state, event.now)
    return state, ()


def _conclude(state: State, now: float) -> Step:
    """All outcomes are in: what every rank decides alike."""
    outcomes = [o for o in state.outcomes if o.rank in state.participants]
    if any(o.kind == "lost" for o in outcomes):
        text = "; ".join(o.detail for o in outcomes if o.kind == "lost")
        stopped = replace(state, phase="finished", interrupted=True, failures=(*state.failures, text))
        return stopped, (Note(text=text), Finish(interrupted=True))
    if all(o.kind == "done" for o in outcomes):
        return _next_launch(replace(state, launches=state.launches[1:]), now)
    if state.current.probe:  # costs the knowledge of what ran, no measurement: on to the next
        cause = _culprit(outcomes)
        text = f"probe of what runs: {cause.reason or cause.kind} (rank {cause.rank}: {cause.detail})"
        state = replace(state, launches=state.launches[1:], failures=(*state.failures, text))
        state, more = _next_launch(state, now)
        return state, (Note(text=text), *more)
    done = next(o.done for o in outcomes if o.rank == 0)  # rank 0's worker writes the records
    return _retry(_drop_done(state, done), now, _culprit(outcomes))


def _culprit(outcomes: list[Outcome]) -> Outcome:
    """The outcome that names the cause: an error raised, then a device lost, a hang, a death.

    A rank that was killed for hanging takes others down with it: their libraries raise or abort when the
    connection breaks, perhaps before they hear of it. A rank that really died rings the bell long before
    anybody waiting for it counts as hung. So a hang goes before a death, a death before an abort, and an
    abort before a rank that gave up over an error.
    """
    hung = [o for o in outcomes if o.kind == "hung"]
    died = [o for o in outcomes if o.kind == "died"]
    ended = min((o.at for o in outcomes if o.kind in ("hung", "died", "fatal")), default=0.0)
    raised = [o for o in outcomes if o.raised_at is not None and o.raised_at < ended]
    if hung and raised:
        # it raised and the others wait for it; errors raised later are echoes of what was killed
        first = min(raised, key=lambda o: o.raised_at or 0.0)
        reason, detail = first.error or (first.reason, first.detail)
        return replace(first, reason=reason, detail=detail)
    return (
        *(o for o in outcomes if o.kind == "fatal"),
        *hung,
        *(o for o in died if not o.aborted),
        *died,
        *(o for o in outcomes if o.kind == "broken"),
        *(o for o in outcomes if o.kind != "done"),
    )[0]


def _drop_done(state: State, done: tuple[str, ...]) -> State:
    current = state.current
    rows = tuple(row for row in current.blocks if row.block.id not in done)
    return replace(state, launches=(replace(current, blocks=rows), *state.launches[1:]))


def _retry(state: State, now: float, cause: Outcome) -> Step:
    """A new attempt at the launch's remaining blocks, less what is to blame."""
    reason = cause.reason or "peer_failed"
    where = f"rank {cause.rank} {cause.phase}".strip()
    detail = f"{where}: {cause.detail}" if cause.detail else where
    case = _find(state, cause.case)
    if case is None:
        return _retry_baseless(state, now, reason, detail)
    text = f"{case.label} at {case.nbytes} B, {case.mode}: {reason} ({detail})"
    blame = (case.backend, case.variant, case.settings)
    state = replace(
        state,
        launches=_fail(state.launches, {case.id}, reason, detail),
        blames=(*state.blames, blame),
        failures=(*state.failures, text),
    )
    if state.blames.count(blame) >= STRIKES:
        ids = {
            c.id
            for launch in state.launches
            for row in launch.blocks
            for c in row.cases
            if (c.backend, c.variant, c.settings) == blame
        }
        again = f"not tried: {reason} at {STRIKES} other sizes or modes"
        state = replace(state, launches=_fail(state.launches, ids, reason, again))
    return _again(state, now, text)


def _retry_baseless(state: State, now: float, reason: str, detail: str) -> Step:
    """No case was in flight: start once more without link probes, then give the launch up."""
    text = f"launch {state.current.index}: {reason} ({detail})"
    current = replace(state.current, primitives=False)
    launches = (current, *state.launches[1:])
    state = replace(state, launches=launches, baseless=state.baseless + 1, failures=(*state.failures, text))
    if state.baseless >= 2:
        ids = {c.id for row in current.blocks for c in row.cases}
        # later launches of these settings would fail alike, and each costs a minute
        state = replace(state, launches=_fail(launches, ids, reason, detail))
    return _again(state, now, text)


def _again(state: State, now: float, text: str) -> Step:
    if not any(row.cases for row in state.current.blocks):
        state, more = _next_launch(state, now)
        return state, (Note(text=text), *more)
    # blocks that lost their last case are written by the worker along with the others
    state, more = _begin(replace(state, attempt=state.attempt + 1), now)
    return state, (Note(text=text), *more)


def _find(state: State, case_id: str | None) -> Case | None:
    rows = state.current.blocks
    return next((c for row in rows for c in row.cases if c.id == case_id), None)


def _fail(
    launches: tuple[LaunchPlan, ...], ids: set[str], reason: str, detail: str
) -> tuple[LaunchPlan, ...]:
    """The launches with these cases decided: failed for `reason`, here and later."""
    return tuple(
        replace(launch, blocks=tuple(_fail_row(row, ids, reason, detail) for row in launch.blocks))
        for launch in launches
    )


def _fail_row(row: BlockPlan, ids: set[str], reason: str, detail: str) -> BlockPlan:
    gone = [c for c in row.cases if c.id in ids]
    if not gone:
        return row
    results = tuple(
        Result(
            case=c,
            status="timeout" if reason == "worker_hung" else "failed",
            reason=reason,
            detail=detail,
            block_id=row.block.id,
        )
        for c in gone
    )
    kept = tuple(c for c in row.cases if c.id not in ids)
    return replace(row, cases=kept, decided=(*row.decided, *results))


def _decided(row: BlockPlan, launch: LaunchPlan) -> BlockRecord:
    by_id = {r.case.id: r for r in row.decided}
    ordered = tuple(by_id[name] for name in row.block.case_ids)
    return BlockRecord(schema=SCHEMA_VERSION, block=row.block, launch=launch.launch, results=ordered)
