"""A rank records its error, all exchange, all act alike."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from arfloor.runtime.group import SubGroup, whole_of
from arfloor.runtime.progress import Progress

T = TypeVar("T")
FATAL_EXIT = 17


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """Why a step failed on at least one rank: a code of `arfloor.core.reasons` and a sentence."""

    reason: str
    detail: str


# words of errors after which a CUDA context cannot be used any more
_POISONED = {
    "illegal memory access": "illegal_address",
    "illegal_address": "illegal_address",
    "illegaladdress": "illegal_address",
    "misalignedaddress": "illegal_address",
    "cudaerrorlaunchfailure": "device_error",
    "illegalinstruction": "device_error",
    "misaligned address": "illegal_address",
    "unspecified launch failure": "device_error",
    "device-side assert": "device_error",
    "uncorrectable ecc": "device_error",
    "an illegal instruction": "device_error",
}


def poisoned(error: BaseException) -> str | None:
    """The reason code when an error left the device context unusable, else None."""
    return poison_named(f"{type(error).__name__}: {error}")


def poison_named(text: str) -> str | None:
    """The reason code when a text, an error or what a process printed, tells of an unusable context."""
    text = text.lower()
    return next((reason for words, reason in _POISONED.items() if words in text), None)


def classify(error: BaseException, phase: str) -> str:
    """Reason code of an error that its process survives."""
    text = f"{type(error).__name__}: {error}".lower()
    if isinstance(error, MemoryError) or "out of memory" in text or "cannot allocate memory" in text:
        return "memory"
    if isinstance(error, ModuleNotFoundError):
        return "not_installed"
    if phase == "prepare":
        return "prepare_failed"
    return "device_error" if "cuda error" in text else "raised"


def one_line(error: BaseException) -> str:
    """An error in one line of at most 300 characters."""
    text = " ".join(str(error).split())
    name = type(error).__name__
    return (f"{name}: {text}" if text else name)[:300]


def together(
    group: Any, progress: Progress, phase: str, action: Callable[[], T]
) -> tuple[T | None, Failure | None]:
    """Run `action` on every rank; when it raises on any, every rank returns the same failure.

    A failure that poisons this process's device context is reported and ends the process at once:
    the supervisors end the others and go on with a new set.
    """
    value, error = None, None
    try:
        value = action()
    except Exception as raised:  # noqa: BLE001 - a backend may raise anything, and the others must hear of it
        code = poisoned(raised)
        if code is not None:
            progress.line("fatal", reason=code, message=one_line(raised))
            os._exit(FATAL_EXIT)  # a poisoned context may hang in any destructor
        error = [classify(raised, phase), one_line(raised)]
        progress.line("error", reason=error[0], message=error[1])
    errors = group.all_gather(error)
    for rank, found in enumerate(errors):
        if found is not None:
            return value, Failure(reason=found[0], detail=f"rank {rank}: {found[1]}")
    return value, None


def told(group: Any, error: str | None, value: Any = None) -> tuple[list[str], list[Any]]:
    """Exchange what went wrong and a value: `rank 3: ...` of each rank that failed, and the group's values.

    Where several groups set up side by side, a failure in any of them is told to the ranks of all: the group
    that gave up makes no further exchange, and the others would wait for it.
    """
    answers = whole_of(group).all_gather([error, value])
    failed = [f"rank {rank}: {said}" for rank, (said, _) in enumerate(answers) if said is not None]
    members = group.members if isinstance(group, SubGroup) else range(group.world)
    return failed, [answers[rank][1] for rank in members]


def jointly(group: Any, what: str, step: Callable[[], T], raised: type[Exception]) -> T:
    """Take a step on every rank; all ranks, those of other groups too, raise `raised` when any failed."""
    value, problem = None, None
    try:
        value = step()
    except Exception as error:  # noqa: BLE001 - every rank hears of it, then all raise
        problem = f"{type(error).__name__}: {error}"
    failed, _ = told(group, problem)
    if failed:
        raise raised(f"{what} could not be set up: {'; '.join(failed)}")
    return value  # type: ignore[return-value]
