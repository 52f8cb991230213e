"""A table of latencies: CSV with the columns backend, nbytes, us and, where known, lo and hi."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from arfloor.core.cases import Estimate
from arfloor.core.decode import MissingInput
from arfloor.core.sanity import LEAST, MOST, MOST_BYTES
from arfloor.core.whatif.step import ATTAINABLE

COLUMNS = ("backend", "nbytes", "us")
OPTIONAL = ("lo", "hi")
_MOST_BYTES_OF_A_FILE = 4 << 20
_NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d{1,3})?", re.ASCII)

Points = dict[str, dict[int, Estimate]]


def read(path: Path) -> Points:
    """Latencies by backend and size, in the table's order. Raises MissingInput naming what is not as
    expected, by column or line."""
    points: Points = {}
    for line, row in _rows(path, _text(path)):
        where = f"--table {path} line {line}"
        backend, nbytes, estimate = _row(where, row)
        sizes = points.setdefault(backend, {})
        if nbytes in sizes:
            raise MissingInput(f"{where}: expected each size once, found {backend} at {nbytes} B twice")
        sizes[nbytes] = estimate
    if not points:
        raise MissingInput(f"--table {path}: expected lines of {','.join(COLUMNS)}, found none")
    return points


def _text(path: Path) -> str:
    try:
        with path.open("rb") as stream:
            data = stream.read(_MOST_BYTES_OF_A_FILE + 1)
        if len(data) > _MOST_BYTES_OF_A_FILE:
            raise MissingInput(
                f"--table {path}: larger than {_MOST_BYTES_OF_A_FILE} bytes; give a shorter one"
            )
        return data.decode("utf-8-sig")  # spreadsheets write a byte order mark
    except (OSError, ValueError) as error:
        raise MissingInput(f"--table {path}: expected a readable CSV file in UTF-8, found {error}") from error


def _rows(path: Path, text: str) -> Iterator[tuple[int, Mapping[str, str]]]:
    reader = csv.reader(io.StringIO(text), strict=True)
    header: list[str] = []
    try:
        for cells in reader:
            found = [cell.strip() for cell in cells]
            if not any(found):
                continue
            if not header:
                header = _header(path, found)
                continue
            if len(found) > len(header):
                raise MissingInput(
                    f"--table {path} line {reader.line_num}: expected {len(header)} cells, found {len(found)}"
                )
            yield reader.line_num, dict(zip(header, found, strict=False))
    except csv.Error as error:
        raise MissingInput(f"--table {path} line {reader.line_num}: expected CSV, found {error}") from error


def _header(path: Path, found: list[str]) -> list[str]:
    missing = [c for c in COLUMNS if c not in found]
    twice = [c for c in (*COLUMNS, *OPTIONAL) if found.count(c) > 1]
    if missing or twice:
        what = f"{missing[0]} is missing" if missing else f"{twice[0]} stands in it twice"
        raise MissingInput(
            f"--table {path}: expected a header {','.join(COLUMNS)}[,{','.join(OPTIONAL)}] with commas; "
            f"{what}, found {ascii(','.join(found))[:80]}"
        )
    return found


def _row(where: str, row: Mapping[str, str]) -> tuple[str, int, Estimate]:
    missing = [c for c in COLUMNS if not row.get(c)]
    if missing:
        raise MissingInput(f"{where}: {missing[0]} is missing; expected {','.join(COLUMNS)}")
    backend = row["backend"]
    if not backend.isprintable() or backend == ATTAINABLE:
        raise MissingInput(f"{where}: expected the name of an implementation, found {ascii(backend)[:40]}")
    nbytes, us = _number(where, "nbytes", row["nbytes"]), _number(where, "us", row["us"])
    lo, hi = (_number(where, c, row[c]) if row.get(c) else us for c in OPTIONAL)
    if nbytes != int(nbytes) or not 1 <= nbytes <= MOST_BYTES:
        raise MissingInput(
            f"{where}: expected a whole number of bytes, 1 or more, found {row['nbytes'][:40]!r}"
        )
    if not LEAST <= lo <= us <= hi <= MOST:
        raise MissingInput(f"{where}: expected 0 < lo <= us <= hi, found {lo:g}, {us:g}, {hi:g}")
    return backend, int(nbytes), Estimate(value=us, lo=lo, hi=hi, n=1, unit="us")


def _number(where: str, column: str, text: str) -> float:
    value = float(text) if _NUMBER.fullmatch(text) else float("inf")
    if value in (float("inf"), float("-inf")):
        raise MissingInput(f"{where}: {column}: expected a plain number without unit, found {text[:40]!r}")
    return value
