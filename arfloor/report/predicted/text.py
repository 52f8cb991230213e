"""A prediction for a terminal."""

from __future__ import annotations

from io import StringIO

from rich import box
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from arfloor.core import units
from arfloor.core.outlook import Outlook
from arfloor.report.predicted import phrases


def render(outlook: Outlook, *, width: int = 140, color: bool = False) -> str:
    """The whole prediction as text of at most `width` columns."""
    stream = StringIO()
    console = Console(file=stream, width=width, force_terminal=color, highlight=False, emoji=False)
    console.print(Text(f"arfloor: {outlook.title} ({outlook.rig})"))
    console.print(Text(phrases.basis(outlook), style="bold yellow"))
    console.print(Text(f"predicted: {phrases.title(outlook)}", style="bold"))
    console.print(_sizes(outlook))
    for line in outlook.sentences:
        console.print(Padding(Text(line), (0, 0, 0, 2)))
    at = units.size(outlook.headline.nbytes)
    if outlook.choices:
        console.print(_choices(outlook, at))
    if outlook.groups:
        console.print(_groups(outlook, at))
    for s in outlook.series:
        points = ", ".join(f"{units.size(n)} {units.number(us)}" for n, us in s.points)
        console.print(Padding(Text(f"published, {s.backend}, us: {points} ({s.source})"), (0, 0, 0, 2)))
    for note in outlook.notes:
        console.print(Padding(Text(f"note: {note}"), (0, 0, 0, 2)))
    return "\n".join(line.rstrip() for line in stream.getvalue().splitlines()) + "\n"


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title or None, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD)
    for name in columns:
        right = name.endswith("us") or name in ("size", "bound", "NCCL / attainable", "slowdown")
        table.add_column(name, justify="right" if right else "left", no_wrap=right)
    return table


def _sizes(outlook: Outlook) -> Table:
    nccl = any(p.nccl for p in outlook.rows)
    named = ("NCCL by its formula, us", "choice", "NCCL / attainable") if nccl else ()
    columns = ("size", "attainable, us", "by", "bound", "our kernels, us", *named)
    table = _table("", *columns)
    for p in outlook.rows:
        cells = [
            units.size(p.nbytes),
            phrases.spread(p.floor.attainable),
            p.floor.algorithm,
            units.number(p.floor.bound.value),
            phrases.spread(p.kernels),
        ]
        cells += [phrases.spread(p.nccl), p.nccl_choice, phrases.times_the_floor(p)] if nccl else []
        table.add_row(*cells)
    return table


def _choices(outlook: Outlook, at: str) -> Table:
    table = _table(f"which {outlook.world} GPUs, predicted at {at}", "GPUs", "attainable, us", "by")
    for c in outlook.choices:
        table.add_row(", ".join(c.gpus), phrases.spread(c.attainable), c.algorithm)
    return table


def _groups(outlook: Outlook, at: str) -> Table:
    columns = ("groups", "by", "alone, us", "together, us", "slowdown")
    table = _table(f"two groups reducing at once, predicted at {at}, without launch", *columns)
    for g in outlook.groups:
        table.add_row(
            phrases.groups(g.groups),
            g.algorithm,
            phrases.spread(g.alone),
            phrases.spread(g.together),
            f"{units.ratio(g.slowdown.value)} {units.ends(g.slowdown.lo, g.slowdown.hi)}",
        )
    return table
