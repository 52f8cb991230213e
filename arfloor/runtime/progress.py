"""How a worker tells its supervisor where it is: JSON lines appended to a file.

A file works alike for workers that torch or MPI started, outlives a killed worker, and costs no
synchronisation. Kinds of lines:

    phase       name, deadline_s            outside of any case: startup, primitives
    case        case, block, phase, deadline_s    a step of a case begins; the previous one is over
    timing      block                       a timed region opens: leave the machine alone
    error       message                     this rank's step raised; the others are about to be told
    fatal       reason, message             the device is unusable: this process is about to end
    broken      reason, message             an error outside any agreed step: this process is about to end
    primitives  count, failure              the link probes are written
    block       block, launch, summary      a block is written
    exit                                    everything is done
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def progress_file(root: str | os.PathLike[str], launch: int, attempt: int, rank: int) -> Path:
    """Where one rank's worker of one attempt reports."""
    return Path(root) / ".work" / f"launch-{launch}-{attempt}-rank-{rank}.jsonl"


class Progress:
    """The worker's end. Every line is one `write` call, so a kill tears at most the last one."""

    def __init__(self, file: Path) -> None:
        file.parent.mkdir(parents=True, exist_ok=True)
        self._fd = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def line(self, kind: str, **fields: Any) -> None:
        """Report one thing; see the module's table."""
        os.write(self._fd, (json.dumps({"kind": kind, **fields}) + "\n").encode())


class Tail:
    """The supervisor's end: complete lines since the last call."""

    def __init__(self, file: Path) -> None:
        self._file, self._offset = file, 0

    def read(self) -> Iterator[dict[str, Any]]:
        """New lines, oldest first; a line still being written is left for the next call."""
        try:
            with self._file.open("rb") as stream:
                stream.seek(self._offset)
                data = stream.read()
        except FileNotFoundError:
            return
        whole = data[: data.rfind(b"\n") + 1]
        self._offset += len(whole)
        for text in whole.splitlines():
            try:
                line = json.loads(text)
            except ValueError:
                continue  # torn by a kill and closed by the next write: it says nothing
            if isinstance(line, dict):
                yield line
