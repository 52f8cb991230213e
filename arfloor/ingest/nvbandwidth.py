"""Output of nvbandwidth, JSON (`-j`) or text -> link primitives.

A testcase's own description says which way bytes go (`A(row) -> B(column)` or `<-`), its name which
engine moves them and what else moves at the same time. Tests that no primitive stands for are named.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from arfloor.core.cases import Primitive
from arfloor.ingest.imported import Hints, Imported, published
from arfloor.ingest.outside import IngestError, bounded, one_line

WHAT = "nvbandwidth output"
DEFAULT_BYTES = 512 << 20  # nvbandwidth's buffer size where -b does not say otherwise; the output never says
MAX_GPUS = 64
MAX_GBPS = 100_000.0
# a Gen5 x16 link carries 63 GB/s each way: what is faster between GPUs is NVLink
_PCIE_MOST = 64.0

_DESCRIPTION = re.compile(
    r"(CPU|GPU|Device|Host)\s*\(row\)\s*(->|<-)\s*(CPU|GPU|Device|Host)\s*\(column\)", re.I
)


@dataclass(frozen=True, slots=True)
class _Test:
    """One testcase: name, description, cells (row, column, GB/s) and the line it stands at."""

    name: str
    description: str
    cells: tuple[tuple[int, int, float], ...]
    line: int


def looks_like(text: str) -> bool:
    """Whether a text is likely such output."""
    head = text[:200_000]
    return (
        '"nvbandwidth"' in head
        or re.search(r"nvbandwidth Version|^Running \w+_memcpy_\w+", head, re.M) is not None
    )


def read(text: str, hints: Hints) -> Imported:
    """The link rates of the output. Raises IngestError when it holds none."""
    bounded(text, WHAT)
    found = Imported(tool="nvbandwidth")
    tests = list(
        _from_json(text, found) if "{" in text[:2000] and '"nvbandwidth"' in text else _from_text(text, found)
    )
    for test in tests:
        _take(test, hints, found)
    if not found.primitives:
        names = ", ".join(one_line(t.name) for t in tests[:3]) or "no testcase"
        raise IngestError(
            f"not {WHAT}: expected host_to_device, device_to_host or device_to_device, found {names}"
        )
    found.assume(
        f"buffers of {DEFAULT_BYTES >> 20} MiB: nvbandwidth's default, which its output does not state"
    )
    return found


def _from_json(text: str, found: Imported) -> Iterator[_Test]:
    try:
        data = json.loads(text[text.index("{") : text.rindex("}") + 1])
    except (ValueError, RecursionError) as error:
        raise IngestError(f"not {WHAT}: not valid JSON ({one_line(error)})") from error
    body = data.get("nvbandwidth") if isinstance(data, dict) else None
    if not isinstance(body, dict):
        raise IngestError(f'not {WHAT}: expected an object "nvbandwidth", found none')
    for key in ("CUDA Driver Version", "CUDA Runtime Version", "Driver Version", "version", "git_version"):
        if isinstance(body.get(key), str | int):
            found.versions[f"nvbandwidth {key}".replace("nvbandwidth version", "nvbandwidth")] = one_line(
                body[key]
            )
    devices = body.get("GPU Device list")
    if isinstance(devices, list) and devices:
        found.device_name = one_line(re.sub(r"^\d+:\s*|\s*\([0-9a-fA-F:.]+\).*$", "", str(devices[0])))
    for case in body.get("testcases") if isinstance(body.get("testcases"), list) else []:
        if not isinstance(case, dict):
            continue
        name = str(case.get("name", ""))[:80]
        if case.get("status", "Passed") != "Passed":
            found.warn(0, f"{one_line(name)}: {one_line(case.get('status'))}, left out")
            continue
        matrix = case.get("bandwidth_matrix")
        cells = _matrix(matrix) if isinstance(matrix, list) else ()
        yield _Test(name, str(case.get("bandwidth_description", ""))[:200], cells, 0)


def _matrix(rows: list[Any]) -> tuple[tuple[int, int, float], ...]:
    cells = []
    for r, row in enumerate(rows[:MAX_GPUS]):
        for c, cell in enumerate(row[:MAX_GPUS] if isinstance(row, list) else []):
            rate = _rate(str(cell))
            if rate is not None:
                cells.append((r, c, rate))
    return tuple(cells)


def _rate(word: str) -> float | None:
    if not re.fullmatch(r"\d{1,6}(?:\.\d{1,9})?", word.strip()):
        return None
    rate = float(word)
    return rate if 0 < rate <= MAX_GBPS else None


def _from_text(text: str, found: Imported) -> Iterator[_Test]:
    name, description, start = "", "", 0
    cells: list[tuple[int, int, float]] = []
    columns: list[int] | None = None
    for number, raw in enumerate(text.splitlines(), start=1):
        line = raw[:4000].strip()
        running = re.match(r"Running (\w{1,80})\.?$", line)
        version = re.match(r"nvbandwidth Version:?\s*(\S{1,40})", line)
        device = re.match(r"Device \d+:\s*(.{1,80}?)\s*(?:\([0-9a-fA-F:.]+\))?$", line)
        if version:
            found.versions["nvbandwidth"] = one_line(version[1])
        if device and not found.device_name:
            found.device_name = one_line(device[1])
        if running:
            if name:
                yield _Test(name, description, tuple(cells), start)
            name, description, start, cells, columns = running[1], "", number, [], None
        elif name and _DESCRIPTION.search(line):
            description, columns = line, None
        elif name and description and re.fullmatch(r"\d{1,3}(?:\s+\d{1,3})*", line):
            columns = [int(w) for w in line.split()]
        elif columns is not None and re.match(r"\d{1,3}\s", line):
            words = line.split()
            for column, word in zip(columns, words[1:], strict=False):
                rate = _rate(word)
                if rate is not None and int(words[0]) < MAX_GPUS and column < MAX_GPUS:
                    cells.append((int(words[0]), column, rate))
        elif line.startswith(("SUM", "COEFFICIENT")):
            columns = None
    if name:
        yield _Test(name, description, tuple(cells), start)


def _pattern(name: str) -> str | None:
    """What else moves while a test measures; None when no primitive stands for it."""
    if re.fullmatch(r"(host_to_device|device_to_host)_memcpy_(ce|sm)", name):
        return "one_way"
    if re.fullmatch(r"(host_to_device|device_to_host)_bidirectional_memcpy_(ce|sm)", name):
        return "both_ways"
    if re.fullmatch(r"(host_to_all|all_to_host)_memcpy_(ce|sm)", name):
        return "all_one_way"
    if re.fullmatch(r"(host_to_all|all_to_host)_bidirectional_memcpy_(ce|sm)", name):
        return "all"
    if re.fullmatch(r"device_to_device_memcpy_(read|write)_(ce|sm)", name):
        return "one_way"
    if re.fullmatch(r"device_to_device_bidirectional_memcpy_(read|write)_(ce|sm)(_(read|write)[12])?", name):
        return "both_ways"
    return None


def _take(test: _Test, hints: Hints, found: Imported) -> None:
    active = _pattern(test.name)
    arrow = _DESCRIPTION.search(test.description)
    if active is None or arrow is None or "(ns)" in test.description:
        found.warn(test.line, f"{one_line(test.name)}: no primitive stands for it, left out")
        return
    if "device_to_device_bidirectional" in test.name and not re.search(r"_(read|write)[12]$", test.name):
        found.warn(test.line, f"{one_line(test.name)}: the sum of both directions, left out")
        return
    if not test.cells:
        found.warn(test.line, f"{one_line(test.name)}: no rate in its matrix")
    between_gpus = test.name.startswith("device_to_device")
    for row, column, rate in test.cells:
        here = "host" if arrow[1].lower() in ("cpu", "host") else f"cuda:{row}"
        there = "host" if arrow[3].lower() in ("cpu", "host") else f"cuda:{column}"
        src, dst = (here, there) if arrow[2] == "->" else (there, here)
        if src == dst:
            continue
        if between_gpus:
            access = "read" if "_read" in test.name else "write"
            link = hints.link or ("nvlink" if rate > _PCIE_MOST else "pcie")
            if hints.link is None:
                found.assume(
                    f"link by rate: above {_PCIE_MOST:.0f} GB/s NVLink, else PCIe (--link says otherwise)"
                )
        else:
            access, link = ("read" if src == "host" else "write"), "pcie"
        found.primitives.append(
            Primitive(
                kind="stream",
                engine="ce" if "_ce" in test.name else "sm",
                access=access,
                src=src,
                dst=dst,
                path="peer" if between_gpus else "host",
                link=link,
                nbytes=DEFAULT_BYTES,
                active=active,
                estimate=published(rate, "GB/s"),
                origin="published",
                source=f"nvbandwidth {test.name}",
            )
        )
