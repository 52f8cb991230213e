"""What a supervisor knows, hears and does: the records of `arfloor.runtime.supervisor`."""

from __future__ import annotations

from typing import Any, Literal

from arfloor.core.cases import BlockRecord, Settings, record
from arfloor.core.plan import LaunchPlan

# fatal: the worker said that its device is unusable; broken: it gave up over an error outside any agreed step
OutcomeKind = Literal["done", "fatal", "died", "broken", "hung", "peer", "interrupted", "lost"]


@record
class Outcome:
    """How one rank's part of one attempt ended. `done` lists the blocks it saw completed.

    aborted: the process ended itself by SIGABRT, as libraries do when a peer vanishes. error: code and
    message of what the step in flight raised, raised_at when. Times are of the host's one monotonic
    clock, so those of different ranks compare.
    """

    rank: int
    kind: OutcomeKind
    case: str | None = None
    phase: str = ""
    reason: str | None = None
    detail: str = ""
    done: tuple[str, ...] = ()
    aborted: bool = False
    error: tuple[str, str] | None = None
    raised_at: float | None = None
    at: float = 0.0


@record
class InFlight:
    """What one watched rank is doing, and until when it may."""

    phase: str
    deadline: float
    case: str | None = None
    error: tuple[str, str] | None = None
    raised_at: float | None = None
    ended: bool = False


@record
class State:
    """All that a supervisor knows. `launches` holds what is left, the current launch first."""

    rank: int
    world: int
    launches: tuple[LaunchPlan, ...]
    phase: Literal["idle", "running", "agreeing", "finished"] = "idle"
    attempt: int = 0
    in_flight: tuple[tuple[int, InFlight], ...] = ()
    done: tuple[str, ...] = ()
    outcomes: tuple[Outcome, ...] = ()
    agree_by: float | None = None
    blames: tuple[tuple[str, str, Settings], ...] = ()
    baseless: int = 0
    failures: tuple[str, ...] = ()
    interrupted: bool = False

    @property
    def current(self) -> LaunchPlan:
        """The launch at hand."""
        return self.launches[0]

    @property
    def watched(self) -> tuple[int, ...]:
        """Ranks whose progress this supervisor follows: its own, or all where it started all."""
        if self.current.launcher == "mpiexec":
            return tuple(range(self.world)) if self.rank == 0 else ()
        return (self.rank,)

    @property
    def participants(self) -> tuple[int, ...]:
        """Ranks whose outcome decides."""
        return (0,) if self.current.launcher == "mpiexec" else tuple(range(self.world))


# --- events -------------------------------------------------------------------------------------


@record
class Begin:
    """The run starts."""

    now: float


@record
class Line:
    """A watched worker reported something (see `arfloor.runtime.progress`)."""

    now: float
    rank: int
    data: dict[str, Any]


@record
class Exited:
    """The process this supervisor started has ended; all its lines were delivered before.

    lost: a reason code where its output tells of an unusable device context. Libraries watch for errors in
    threads of their own and abort the process before it can say so itself.
    """

    now: float
    code: int
    lost: str | None = None


@record
class Bell:
    """Another rank's part of this attempt has failed."""

    now: float


@record
class Heard:
    """An outcome of this attempt that a rank published."""

    now: float
    outcome: Outcome


@record
class Interrupt:
    """The user or the system asks to stop, or the store is gone."""

    now: float


@record
class Tick:
    """Time passes."""

    now: float


Event = Begin | Line | Exited | Bell | Heard | Interrupt | Tick


# --- actions ------------------------------------------------------------------------------------


@record
class Start:
    """Start the worker (under mpiexec: all of them) of this attempt."""

    launch: LaunchPlan
    attempt: int


@record
class Kill:
    """End the worker and whatever it started."""


@record
class Publish:
    """Tell the other ranks; ring their bell unless all went well."""

    outcome: Outcome
    ring: bool


@record
class Write:
    """Rank 0: append a block's record that no worker will write."""

    record: BlockRecord


@record
class Note:
    """One line for events.jsonl and for people."""

    text: str


@record
class Finish:
    """Nothing is left to do."""

    interrupted: bool


Action = Start | Kill | Publish | Write | Note | Finish
