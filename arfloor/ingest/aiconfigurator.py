"""AIConfigurator's all-reduce tables (`custom_allreduce_perf.txt`, `nccl_perf.txt`) -> results.

CSV whose `message_size` is in elements and whose `latency` is in milliseconds
(github.com/ai-dynamo/aiconfigurator). Columns vary with version: dtype, GPUs, size and latency must be there.
"""

from __future__ import annotations

import csv
import io
import math

from arfloor.core.cases import Mode, Result
from arfloor.ingest.imported import DTYPES, Hints, Imported, backend_name, case, published
from arfloor.ingest.outside import IngestError, bounded, one_line

WHAT = "an AIConfigurator table"
MAX_WORLD = 1024
_DTYPE_COLUMNS = ("allreduce_dtype", "nccl_dtype", "dtype")


def looks_like(text: str) -> bool:
    """Whether a text is likely such a table."""
    head = text.lstrip("\ufeff")[:2000].partition("\n")[0]
    return "message_size" in head and "num_gpus" in head


def read(text: str, hints: Hints) -> Imported:
    """The all-reduces of the table. Raises IngestError when it is none, or holds none."""
    if text.startswith("version https://git-lfs"):
        raise IngestError(f"not {WHAT} but a Git LFS pointer to it: run `git lfs pull` where it comes from")
    rows = csv.reader(io.StringIO(bounded(text.lstrip("\ufeff"), WHAT).replace("\0", "")))
    try:
        header = [h.strip() for h in next(rows, [])]
        dtype = next((c for c in _DTYPE_COLUMNS if c in header), None)
        missing = [c for c in ("num_gpus", "message_size", "latency") if c not in header]
        if dtype is None or missing:
            wanted = ", ".join(missing or [_DTYPE_COLUMNS[0]])
            raise IngestError(
                f"not {WHAT}: expected a header with {wanted}, found {one_line(','.join(header))}"
            )
        found = Imported(tool="AIConfigurator")
        for number, row in enumerate(rows, start=2):
            if row and any(cell.strip() for cell in row):
                cells = dict(zip(header, (c.strip() for c in row), strict=False))
                _take(number, cells, dtype, hints, found)
    except csv.Error as error:
        raise IngestError(f"not {WHAT}: not valid CSV ({one_line(error)})") from error
    if not found.results:
        why = f" ({found.warned[0]})" if found.warned else ""
        raise IngestError(f"{WHAT} without a row of an all-reduce{why}")
    found.assume(f"path {hints.path}: the table does not say how bytes travel (--path)")
    return found


def _take(number: int, cells: dict[str, str], dtype_column: str, hints: Hints, found: Imported) -> None:
    op = cells.get("op_name", "all_reduce") or "all_reduce"
    if op not in ("all_reduce", "allreduce", "custom_allreduce"):
        found.warn(number, f"{one_line(op)} is not an all-reduce: left out")
        return
    dtype = DTYPES.get(cells.get(dtype_column, "").lower())
    world, numel = _whole(cells.get("num_gpus", "")), _whole(cells.get("message_size", ""))
    latency_ms = _positive(cells.get("latency", ""))
    if dtype is None or world is None or numel is None or latency_ms is None or not 2 <= world <= MAX_WORLD:
        found.warn(number, f"a row that says no all-reduce: {one_line(','.join(cells.values()))}")
        return
    source = cells.get("kernel_source") or cells.get("framework") or "unknown"
    nccl = dtype_column == "nccl_dtype" or backend_name(source) == "nccl"
    if cells.get("version") and cells.get("framework"):
        found.versions.setdefault(backend_name(cells["framework"]), one_line(cells["version"]))
    found.device_name = found.device_name or one_line(cells.get("device", ""))
    mode = _mode(source + " " + cells.get("backend", ""), nccl=nccl, found=found)
    found.results.append(
        Result(
            case=case("nccl" if nccl else backend_name(source), world, numel, dtype, mode, hints.path),
            status="ok",
            detail=f"AIConfigurator, {one_line(source)} {one_line(cells.get('version', ''))}".strip(),
            latency=published(latency_ms * 1000, "us"),
            origin="published",
        )
    )


def _mode(words: str, *, nccl: bool, found: Imported) -> Mode:
    if "graph" in words.lower():
        return "graph"
    if "eager" in words.lower():
        return "eager"
    mode: Mode = "eager" if nccl else "graph"
    found.assume(f"mode {mode} for {'NCCL' if nccl else 'custom kernels'}: the table does not say it")
    return mode


def _whole(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdecimal() and 0 < len(text) < 16 and int(text) > 0 else None


def _positive(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) and 0 < value < 1e6 else None
