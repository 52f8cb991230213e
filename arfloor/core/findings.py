"""A finding: what would spoil a result, how that is known, and what to do."""

from __future__ import annotations

from typing import Literal

from arfloor.core.cases import record

Level = Literal["problem", "warning", "note", "ok", "unknown"]

LEVELS: tuple[Level, ...] = ("problem", "warning", "note", "unknown", "ok")


@record
class Finding:
    """One check's outcome.

    `problem` spoils a result (exit status 1); `warning` changes what is measured or costs speed; `note`
    is worth knowing; `unknown` could not be checked (evidence says why); `ok` was checked and is well.
    """

    code: str
    level: Level
    subject: str
    says: str
    evidence: str
    remedy: str = ""


def exit_status(findings: tuple[Finding, ...]) -> int:
    """1 when a problem was found, else 0."""
    return 1 if any(f.level == "problem" for f in findings) else 0
