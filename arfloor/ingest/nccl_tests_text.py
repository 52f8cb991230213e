"""Text output of nccl-tests' (or rccl-tests') all_reduce_perf -> results.

Old and new versions differ in columns (`error` or `#wrong`, with or without `root`), mpirun may put a
prefix before each line, and a log may hold several runs. Only all-reduces of one machine are taken: busbw
must be algbw x 2(n-1)/n, which tells an all-reduce from other collectives and gives n where it is not said.
Tables that `arfloor export` wrote say whose figures they are (`core.exported`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace

from arfloor.core import units
from arfloor.core.cases import Case, DType, Mode, Ran, Result
from arfloor.core.exported import MARK, Exported
from arfloor.core.rig import SPREAD
from arfloor.ingest.imported import DTYPES, Hints, Imported, case, published
from arfloor.ingest.outside import IngestError, bounded, one_line
from arfloor.rundir import adapter

WHAT = "nccl-tests output"
MAX_WORLD = 1024

_PREFIX = re.compile(r"^\s*(?:\[\d+,\d+\]\s*<std(?:out|err)>:?|\[?[\w.-]{1,64}:\d+\]?:?|\d+:)\s?(?=[#\s\d])")
_ROW = re.compile(r"^\s*(\d{1,15})\s+(\d{1,15})\s+([a-z]\w{1,15})\s+(\w{2,10})\s+(.*)$")
_NUMBER = re.compile(r"\d{1,12}(?:\.\d{1,9})?(?:e[+-]?\d{1,3})?", re.IGNORECASE)
_RANK = re.compile(
    r"#\s+Rank\s+(\d{1,5})\s.*?\bon\s+(\S{1,255})\s+device\s+\d+\s*(?:\[[^\]]{0,40}\])?\s*(.*)$",
    re.IGNORECASE,
)


@dataclass(slots=True)
class _Run:
    """What the lines above a table say of it."""

    mode: Mode | None = None
    ranks: set[int] = field(default_factory=set)
    hosts: set[str] = field(default_factory=set)
    device: str = ""
    has_root: bool | None = None
    has_check: bool = True
    collective: str = ""
    told: Exported | None = None
    rows: list[tuple[int, _Row]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Row:
    nbytes: int
    numel: int
    dtype: str
    redop: str
    halves: tuple[tuple[float, float, float, int | None] | None, ...]  # time us, algbw, busbw, wrong


def looks_like(text: str) -> bool:
    """Whether a text is likely such output."""
    return re.search(r"busbw|\bnThread\b.*\bnGpus\b", text[:200_000]) is not None


def read(text: str, hints: Hints) -> Imported:
    """The all-reduces of the output. Raises IngestError when it holds no table of any."""
    found = Imported(tool="nccl-tests")
    runs: list[_Run] = [_Run()]
    for number, raw in enumerate(bounded(text, WHAT).splitlines(), start=1):
        line = _PREFIX.sub("", raw[:2000], count=1)
        if line.lstrip().startswith("#"):
            _read_comment(line.strip(), runs, found)
        else:
            row = _read_row(line, runs[-1])
            if row is not None:
                runs[-1].rows.append((number, row))
            elif re.match(r"\s*\d+\s+\d+\s+[a-z]", line):
                found.warn(number, f"a row that does not fit its columns: {one_line(line.strip())}")
    for run in runs:
        _take(run, hints, found)
    if not found.results:
        why = f": {found.warned[0]}" if found.warned else ""
        raise IngestError(
            f"not {WHAT} of all_reduce_perf: expected rows of size, count, type, found none{why}"
        )
    found.assume(
        f"intervals of +-{units.percent(SPREAD['published'], 0)}: nccl-tests prints one figure a case"
    )
    others = [run for run in runs if run.rows and run.told is None]
    if others:
        found.assume(f"path {hints.path}: nccl-tests does not say how bytes travel (--path)")
    if any(run.mode is None for run in others):
        found.assume("mode eager: no line says whether it ran in a graph (`graph: 1`)")
    return found


def _read_comment(line: str, runs: list[_Run], found: Imported) -> None:
    run = runs[-1]
    if line.startswith(MARK):
        if run.rows:
            run = _Run()
            runs.append(run)
        run.told = _told(line, found)
        return
    if re.search(r"\bnThread\b|Collective test starting", line):
        if run.rows:
            run = _Run()
            runs.append(run)
        graph = re.search(r"\bgraph:\s*(\d+)", line)
        if graph:
            run.mode = "graph" if int(graph[1]) > 0 else "eager"
        started = re.search(r"Collective test starting:\s*(\w{1,40})", line)
        run.collective = started[1] if started else run.collective
    rank = _RANK.match(line)
    if rank:
        if run.rows:
            run = _Run()
            runs.append(run)
        run.ranks.add(int(rank[1]))
        run.hosts.add(rank[2])
        run.device = run.device or one_line(re.sub(r"^0x\w+\s+|^\[.*?\]\s*", "", rank[3].strip()))
    if "redop" in line and "size" in line:
        run.has_root = "root" in line.split()
        run.has_check = any(w in line.split() for w in ("#wrong", "wrong", "error"))
    version = re.search(r"NCCL version (\d+\.\d+(?:\.\d+)?)|nccl-(?:headers|library)=(\d{4,6})", line)
    if version:
        found.versions.setdefault("nccl", version[1] or _from_code(int(version[2])))


def _told(line: str, found: Imported) -> Exported | None:
    """What the line of a table that arfloor wrote says of it; None, and named, where it is damaged."""
    try:
        told = adapter(Exported).validate_json(line.removeprefix(MARK))
    except ValueError:
        found.warn(0, "a line on whose figures follow is damaged: they are taken for NCCL's")
        return None
    return told


def _from_code(code: int) -> str:
    """2.28.9 from 22809, as NCCL_VERSION_CODE writes versions from 2.9 on."""
    return f"{code // 10000}.{code // 100 % 100}.{code % 100}"


def _read_row(line: str, run: _Run) -> _Row | None:
    match = _ROW.match(line)
    if match is None:
        return None
    rest = match[5].split()
    per_half = 4 if run.has_check else 3
    root = run.has_root if run.has_root is not None else len(rest) % per_half == 1
    if root:
        rest = rest[1:]
    halves = []
    for at in range(0, len(rest) - 2, per_half):
        halves.append(_read_half(rest[at : at + per_half]))
    if not halves or len(halves) > 2:
        return None
    return _Row(int(match[1]), int(match[2]), match[3], match[4], tuple(halves))


def _read_half(words: list[str]) -> tuple[float, float, float, int | None] | None:
    numbers = words[:3]
    if set(numbers) == {"N/A"} and words[3:] and words[3].isdecimal() and int(words[3]) > 0:
        return 0.0, 0.0, 0.0, int(words[3])  # wrong, so that nobody says how fast
    if not all(_NUMBER.fullmatch(w) for w in numbers):
        return None
    wrong = None
    if len(words) > 3:
        # old versions print the largest error here, new ones the number of wrong elements
        wrong = int(words[3]) if words[3].isdecimal() and len(words[3]) < 16 else None
    return float(words[0]), float(words[1]), float(words[2]), wrong


def _world(run: _Run, hints: Hints) -> int | None:
    """Ranks of a run: by its own lines, by the user's word, or by busbw / algbw of its largest sizes."""
    if run.told is not None:
        return run.told.case.world
    if run.ranks:
        return len(run.ranks)
    if hints.world is not None:
        return hints.world
    ratios = [h[2] / h[1] for _, row in run.rows for h in row.halves if h is not None and h[1] >= 5.0]
    if not ratios:
        return None
    ratio = sorted(ratios)[len(ratios) // 2]
    world = round(2 / (2 - ratio)) if ratio < 1.998 else 0
    return world if 2 <= world <= MAX_WORLD else None


def _take(run: _Run, hints: Hints, found: Imported) -> None:
    if not run.rows:
        return
    first = run.rows[0][0]
    if run.collective and "all_reduce" not in run.collective:
        found.warn(first, f"{one_line(run.collective)} is not an all-reduce: its table is left out")
        return
    if len(run.hosts) > 1:
        found.warn(first, f"ranks on {len(run.hosts)} machines: arfloor speaks of one, the table is left out")
        return
    world = _world(run, hints)
    if world is None or not 2 <= world <= MAX_WORLD:
        found.warn(first, "the number of ranks is not stated and not told by busbw: give --world")
        return
    if not run.ranks and hints.world is None and run.told is None:
        found.assume(f"{world} ranks: by busbw / algbw = 2(n-1)/n")
    found.device_name = found.device_name or (run.told.device[:200] if run.told else run.device)
    for number, row in run.rows:
        _take_row(number, row, run, world, hints, found)


def _take_row(number: int, row: _Row, run: _Run, world: int, hints: Hints, found: Imported) -> None:
    dtype = DTYPES.get(row.dtype)
    if dtype is None or row.redop != "sum":
        found.warn(number, f"{one_line(row.dtype)} {one_line(row.redop)}: only sums of float, half, bfloat16")
        return
    if row.numel < 1 or row.nbytes < 1:
        return
    expected = 2 * (world - 1) / world
    for inplace, half in zip((False, True), row.halves, strict=False):
        if half is None or (half[0] <= 0 and not half[3]):
            continue
        time_us, algbw, busbw, wrong = half
        if algbw >= 5.0 and abs(busbw / algbw - expected) > 0.02:
            found.warn(
                number, f"busbw / algbw is {busbw / algbw:.2f}, an all-reduce of {world} has {expected:.2f}"
            )
            continue
        found.results.append(
            Result(
                case=_case(run, world, row.numel, dtype, inplace, hints),
                status="wrong" if wrong else "ok",
                reason="wrong_result" if wrong else None,
                detail=f"{wrong} wrong elements by nccl-tests" if wrong else "mean of nccl-tests' iterations",
                latency=None if wrong else published(time_us, "us"),
                ran=Ran(link=run.told.link, source="arfloor export") if run.told and run.told.link else None,
                origin="published",
            )
        )


def _case(run: _Run, world: int, numel: int, dtype: DType, inplace: bool, hints: Hints) -> Case:
    if run.told is not None:
        return replace(run.told.case, numel=numel, dtype=dtype, inplace=inplace)
    return case("nccl", world, numel, dtype, run.mode or "eager", hints.path, inplace=inplace)
