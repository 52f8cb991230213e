"""What an implementation of all-reduce must offer: a new backend is one file with one such class."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path as FilePath
from typing import Any, Protocol, runtime_checkable

import numpy as np

from arfloor.core.cases import Case, Machine, Path, Ran, Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class Support:
    """Whether a case can run; when not, a code of `arfloor.core.reasons` and a sentence."""

    ok: bool
    reason: str | None = None
    detail: str = ""


SUPPORTED = Support(ok=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """One setting of a backend. `default`: what a user gets without touching anything.

    `contender`: measured by the default recipe; others only by grid recipes. `settings` are
    process-wide choices (environment variables; `launcher` = `mpiexec` for MPI ranks). `inplace`: how
    the implementation is called by those who use it, which is how it is timed.
    """

    name: str
    path: Path
    settings: Settings = ()
    default: bool = False
    contender: bool = True
    modes: tuple[str, ...] = ("graph", "eager", "isolated")
    inplace: bool = True


class Group(Protocol):
    """The ranks of a worker, for control traffic; never used inside a timed region."""

    rank: int
    world: int

    def barrier(self) -> None: ...
    def all_gather(self, value: Any) -> list[Any]:
        """Every rank's JSON-able value, in rank order."""
        ...

    def broadcast(self, value: Any) -> Any:
        """Rank 0's JSON-able value on every rank."""
        ...


class PreparedOp(Protocol):
    """A case ready to run. It owns `slots` pairs of buffers, each with its own payload.

    `run(slot)` reduces that slot's input over the ranks into its output; on a GPU it only enqueues
    on torch's current stream (resolved at every call, so that it can be captured).
    """

    slots: int

    def write(self, slot: int, values: np.ndarray) -> None:
        """Set the slot's input, shape (numel,), float64, rounded to the case's dtype."""
        ...

    def poison(self, slot: int) -> None:
        """Fill the slot's output with NaN (a no-op when the op is in place)."""
        ...

    def run(self, slot: int) -> None: ...
    def read(self, slot: int) -> np.ndarray:
        """The slot's output, shape (numel,), float64, after waiting for the device."""
        ...

    def ran(self) -> Ran: ...
    def close(self) -> None: ...


@runtime_checkable
class Backend(Protocol):
    """An implementation. `support` and `variants` are pure functions of facts equal on all ranks."""

    name: str

    def support(self, machine: Machine, case: Case) -> Support: ...
    def variants(self, machine: Machine) -> Sequence[Variant]: ...
    def prepare(self, case: Case, group: Group, slots: int) -> PreparedOp:
        """Set a case up collectively: every rank raises or none does."""
        ...


@runtime_checkable
class Probing(Protocol):
    """A backend that can tell what really ran, from a log that its library writes.

    Both methods are called only in probe workers, which time nothing.
    """

    def probe_environment(self, log: FilePath) -> dict[str, str]:
        """Variables that make the library write its log to `log`; set before the library is used."""
        ...

    def probe(self, case: Case, group: Group) -> Ran | None:
        """Run the case once, collectively, and say what ran; None when the log does not."""
        ...
