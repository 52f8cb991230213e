"""What people see while a run goes on: a bar on a terminal, plain lines elsewhere, on rank 0 only."""

from __future__ import annotations

import sys
import time
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from arfloor.core import units
from arfloor.core.pace import Pace
from arfloor.core.plan import RunPlan

# without a terminal: a line at most so often, so that a log stays readable
LINE_EVERY_S = 5.0


class Show:
    """Draws only when told to: no thread redraws while something is being timed."""

    def __init__(self, plan: RunPlan, *, quiet: bool = False) -> None:
        self._console = Console(stderr=True, quiet=quiet)
        self._blocks, self._done = plan.blocks, 0
        self._pace, self._last_line = Pace(plan, time.monotonic()), 0.0
        self._bar: Progress | None = None
        if self._console.is_terminal and not quiet:
            self._bar = Progress(
                BarColumn(),
                MofNCompleteColumn(),
                TextColumn("{task.description}"),
                console=self._console,
                auto_refresh=False,
            )
            self._task = self._bar.add_task("starting", total=plan.blocks)
            self._bar.start()
            self._bar.refresh()
        else:
            self.line(f"{plan.blocks} blocks, about {duration(plan.estimate_s)}")

    def launch(self, index: int) -> None:
        """The workers of a launch are being started."""
        self._pace.began(index, time.monotonic())

    def block(self, data: dict[str, Any]) -> None:
        """A block is written: advance, and say what its cases took."""
        self._done += 1
        self._pace.wrote(data["block"], data["launch"], time.monotonic())
        left = f"about {duration(self._pace.left_s())} left"
        text = f"{named(data['block'])}: {summary(data['summary'])}; {left}"
        if self._bar is not None:
            self._bar.update(self._task, advance=1, description=text)
            self._bar.refresh()
        elif self._done == self._blocks or time.monotonic() - self._last_line >= LINE_EVERY_S:
            self.line(f"[{self._done}/{self._blocks}] {text}")
            self._last_line = time.monotonic()

    def note(self, text: str) -> None:
        """Something went wrong, and the run goes on."""
        self.line(f"note: {text}")

    def line(self, text: str) -> None:
        """One line to stderr, above the bar where there is one."""
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)

    def close(self) -> None:
        """Give the terminal back."""
        if self._bar is not None:
            self._bar.stop()
        sys.stderr.flush()


def duration(seconds: float) -> str:
    """`45 s`, `2.5 min`: no finer than a guess is."""
    if seconds < 90:
        return f"{5 * round(seconds / 5)} s" if seconds >= 10 else f"{seconds:.0f} s"
    minutes = round(seconds / 30) / 2
    return f"{minutes:.1f} min" if minutes % 1 else f"{minutes:.0f} min"


def named(block_id: str) -> str:
    """`cpu 256 KiB float32` of a block's id."""
    path, nbytes, dtype = block_id.split(":")[:3]
    return f"{path} {units.size(int(nbytes))} {dtype}"


def summary(rows: list[list[Any]]) -> str:
    """Fastest first: `mpi 75.2 us, gloo 407 us`; a case without latency shows its reason."""
    timed = sorted((r for r in rows if r[2] is not None), key=lambda r: r[2])
    shown = [f"{label} {units.us(us)}" for label, _, us, _ in timed]
    shown += [
        f"{label} {(reason or status).replace('_', ' ')}" for label, status, us, reason in rows if us is None
    ]
    return ", ".join(shown[:4]) + (f" and {len(shown) - 4} more" if len(shown) > 4 else "")
