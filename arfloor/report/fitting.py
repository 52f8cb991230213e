"""Tables that fit a terminal: rich would cut figures off instead."""

from __future__ import annotations

from collections.abc import Sequence

from rich.cells import cell_len
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table


def fitting(console: Console, tables: Sequence[Table]) -> Table:
    """The first of the tables that fits, given by how much they say; the last where none does."""
    unlimited = console.options.update_width(10_000)
    fits = (t for t in tables if Measurement.get(console, unlimited, t).minimum <= console.width)
    return next(fits, tables[-1])


def keep_whole(table: Table) -> None:
    """Columns that must not wrap are as wide as their widest cell."""
    for column in table.columns:
        if column.no_wrap:  # rich takes a cell's longest word for its least width
            column.min_width = max(cell_len(str(cell)) for cell in (column.header, *column.cells))
