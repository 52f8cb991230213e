"""Lines of at most so many columns: tables whose last column moves beneath where there is no room."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

NARROWEST = 80


def wrap(text: str, width: int, *, first: str = "", further: str | None = None) -> list[str]:
    """`text` in lines; names are never cut. `further` begins the lines after the first."""
    return textwrap.wrap(
        text,
        width,
        initial_indent=first,
        subsequent_indent=" " * len(first) if further is None else further,
        break_long_words=False,
        break_on_hyphens=False,
    )


def table(rows: Sequence[tuple[str, ...]], align: str, width: int) -> list[str]:
    """Rows as lines, the first of them the header. `align`: < or > a column. Where they are wider than
    `width`, columns stand closer, then the last one moves to lines of its own beneath each row."""
    for space in (3, 2):
        lines = _lines(rows, align, space)
        if max(map(len, lines)) <= width:
            return lines
    upper = _lines([row[:-1] for row in rows], align[:-1], 2)
    beneath = [wrap(row[-1], width, first="      ") if row[-1] else [] for row in rows]
    return [line for row, rest in zip(upper, beneath, strict=True) for line in (row, *rest)]


def _lines(rows: Sequence[tuple[str, ...]], align: str, space: int) -> list[str]:
    widths = [max(len(row[i]) for row in rows) for i in range(len(align))]
    lines = []
    for row in rows:
        cells = [
            cell.rjust(width) if side == ">" else cell.ljust(width)
            for cell, width, side in zip(row, widths, align, strict=True)
        ]
        lines.append((" " * space).join(cells).rstrip())
    return lines
