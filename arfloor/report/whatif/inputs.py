"""What the user gave, as a `Situation`: tok/s, shares and counters typed, latencies from a run or a table."""

from __future__ import annotations

import csv
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

from arfloor.core.cases import Case, Estimate, Origin, Primitive, Result, record
from arfloor.core.decode import MissingInput, ModelShape, step_estimate
from arfloor.core.floor import floor
from arfloor.core.verdict import is_correct, is_default
from arfloor.core.whatif.curves import TableCurve, table_curve
from arfloor.core.whatif.registry import read_estimate
from arfloor.core.whatif.step import IN_SITU, TRANSPORT_PART, Situation
from arfloor.core.whatif.uncertainty import Input
from arfloor.rundir import Run

_MODES = ("graph", "eager", "isolated")
_RATE = re.compile(r"^([\d.]+)\s*(kB|KB|MB|GB)/s$", re.IGNORECASE)
_SCALE = {"kb": 1e-6, "mb": 1e-3, "gb": 1.0}

Each = tuple[tuple[int, Estimate], ...]


@record
class Latencies:
    """A(S) of every implementation at one number of ranks, and the primitives beside them.

    `default` names the one a user gets untouched, where there is one. `caveats` are sentences from the
    source; `label` says where all this is from."""

    label: str
    origin: Origin
    curves: tuple[TableCurve, ...]
    default: str | None
    primitives: tuple[Primitive, ...] = ()
    case: Case | None = None
    caveats: tuple[str, ...] = ()

    def named(self, name: str) -> TableCurve:
        """The curve of `name`. Raises MissingInput naming those there are."""
        for curve in self.curves:
            if curve.backend == name:
                return curve
        have = ", ".join(repr(c.backend) for c in self.curves)
        raise MissingInput(f"--using {name!r}: {self.label} has {have}; name one of them")


def from_run(run: Run, tp: int, path: str | None = None) -> Latencies:
    """Latencies of a run at `tp` ranks: one path, the mode nearest to decode (graph before eager).

    Raises MissingInput when it has none, or several paths and none is chosen."""
    label = f"{run.manifest.run_id} ({run.manifest.origin})"
    usable = [r for r in run.results if is_correct(r) and r.case.op == "all_reduce" and r.case.world == tp]
    if not usable:
        worlds = sorted({r.case.world for r in run.results if is_correct(r)})
        raise MissingInput(
            f"A(S) at {tp} ranks: {label} has {', '.join(map(str, worlds)) or 'no correct results'}; "
            f"measure with --nproc-per-node={tp}, or give another --tp"
        )
    paths = sorted({r.case.path for r in usable})
    if path is None and len(paths) > 1:
        raise MissingInput(f"--path: {label} has {' and '.join(paths)}; choose the one that the server uses")
    if path is not None and path not in paths:
        raise MissingInput(f"--path {path}: {label} has {', '.join(paths)} at {tp} ranks")
    chosen = [r for r in usable if r.case.path == (path or paths[0])]
    mode = next(m for m in _MODES if any(r.case.mode == m for r in chosen))
    chosen = [r for r in chosen if r.case.mode == mode]
    default = next((r.case.label for r in chosen if is_default(r.case)), None)
    caveats = run.manifest.recipe.get("caveats", [])
    return Latencies(
        label=label,
        origin=run.manifest.origin,
        curves=_curves(chosen),
        default=default,
        primitives=run.primitives,
        case=chosen[0].case,
        caveats=tuple(str(c) for c in caveats) if isinstance(caveats, list) else (),
    )


def _curves(results: Sequence[Result]) -> tuple[TableCurve, ...]:
    by_label: dict[str, dict[int, Result]] = defaultdict(dict)
    for r in results:
        known = by_label[r.case.label].get(r.case.nbytes)
        if known is None or _us(r).value < _us(known).value:
            by_label[r.case.label][r.case.nbytes] = r
    curves = []
    for label, sizes in by_label.items():
        first = next(iter(sizes.values()))
        source = first.detail if first.origin == "published" else f"{first.case.mode}, {first.origin}"
        curves.append(
            table_curve(
                label, [(n, _us(r)) for n, r in sizes.items()], origin=first.origin, source=source or label
            )
        )
    return tuple(curves)


def _us(result: Result) -> Estimate:
    assert result.latency is not None  # `is_correct` saw to it
    return result.latency


def from_csv(path: Path) -> Latencies:
    """Latencies from a table with the columns backend, nbytes, us and, where known, lo and hi.

    The first backend in the table is taken as the one in use. Raises MissingInput naming a column or
    line that is not as expected."""
    try:
        with path.open(newline="", encoding="utf-8") as stream:
            rows = list(csv.DictReader(stream))
    except (OSError, UnicodeDecodeError) as error:
        raise MissingInput(f"--table {path}: expected a readable CSV file, found {error}") from error
    points: dict[str, dict[int, Estimate]] = {}
    for number, row in enumerate(rows, start=2):
        backend, nbytes, estimate = _csv_row(path, number, row)
        points.setdefault(backend, {})[nbytes] = estimate
    if not points:
        raise MissingInput(f"--table {path}: expected lines of backend,nbytes,us, found none")
    curves = tuple(
        table_curve(b, list(p.items()), origin="measured", source=path.name) for b, p in points.items()
    )
    return Latencies(label=path.name, origin="measured", curves=curves, default=curves[0].backend)


def _csv_row(path: Path, number: int, row: Mapping[str, str]) -> tuple[str, int, Estimate]:
    missing = [c for c in ("backend", "nbytes", "us") if not row.get(c)]
    if missing:
        raise MissingInput(
            f"--table {path} line {number}: {missing[0]} is missing; expected backend,nbytes,us"
        )
    try:
        nbytes, us = int(row["nbytes"]), float(row["us"])
        lo, hi = float(row.get("lo") or us), float(row.get("hi") or us)
    except ValueError as error:
        raise MissingInput(f"--table {path} line {number}: expected numbers, found {error}") from error
    if nbytes < 1 or not 0 < lo <= us <= hi:
        raise MissingInput(f"--table {path} line {number}: expected nbytes > 0 and 0 < lo <= us <= hi")
    return row["backend"], nbytes, Estimate(value=us, lo=lo, hi=hi, n=1, unit="us")


def per_concurrency(text: str, unit: str, what: str) -> Each:
    """`1:58.7,16:279` as (concurrency, estimate) pairs. Raises MissingInput naming `what`."""
    pairs = []
    for item in text.split(","):
        concurrency, separator, value = item.strip().partition(":")
        if not separator or not concurrency.isdigit() or int(concurrency) < 1:
            raise MissingInput(f"{what}: expected CONCURRENCY:VALUE, as 16:279, found {item!r}")
        estimate = read_estimate(value.strip(), unit, f"{what} at concurrency {concurrency}")
        if estimate.lo <= 0:
            raise MissingInput(f"{what} at concurrency {concurrency}: expected more than 0, found {value!r}")
        pairs.append((int(concurrency), estimate))
    if len({c for c, _ in pairs}) != len(pairs):
        raise MissingInput(f"{what}: expected each concurrency once, found {text!r}")
    return tuple(sorted(pairs, key=lambda p: p[0]))


def at_concurrency(text: str, what: str) -> tuple[str, int]:
    """`VALUE@CONCURRENCY` in two. Raises MissingInput naming `what`."""
    value, separator, concurrency = text.strip().partition("@")
    if not separator or not concurrency.isdigit() or int(concurrency) < 1:
        raise MissingInput(f"{what}: expected VALUE@CONCURRENCY, as 0.19@64, found {text!r}")
    return value.strip(), int(concurrency)


def shares(texts: Sequence[str]) -> Each:
    """`0.19@64` as (concurrency, share). Raises MissingInput unless it lies between 0 and 1."""
    found = []
    for text in texts:
        value, concurrency = at_concurrency(text, "--share")
        share = read_estimate(value, "of the step", "--share")
        if not 0 < share.lo <= share.hi < 1:
            raise MissingInput(f"--share: expected a part of the step between 0 and 1, found {value!r}")
        found.append((concurrency, share))
    return tuple(found)


def counter(text: str) -> tuple[float, int]:
    """`200MB/s@64` as GB/s and concurrency."""
    value, concurrency = at_concurrency(text, "--pcie-counter")
    match = _RATE.match(value)
    if not match:
        raise MissingInput(f"--pcie-counter: expected a rate as 200MB/s@64, found {text!r}")
    return float(match[1]) * _SCALE[match[2].lower()], concurrency


def tpot_steps(each: Each) -> Each:
    """Time per output token in ms as step lengths in us."""
    return tuple(
        (b, Estimate(value=e.value * 1e3, lo=e.lo * 1e3, hi=e.hi * 1e3, n=e.n, unit="us")) for b, e in each
    )


def tok_s_steps(each: Each) -> Each:
    """Tokens a second over all sequences as step lengths in us."""
    return tuple((b, step_estimate(b, e)) for b, e in each)


def situation(
    shape: ModelShape,
    tp: int,
    latencies: Latencies,
    steps: Each,
    *,
    using: str | None = None,
    profiled: Each = (),
    waiting: Each = (),
    in_situ: Estimate | None = None,
    transport_part: Estimate | None = None,
) -> Situation:
    """All inputs together. Raises MissingInput when nothing says which implementation is in use."""
    name = using or latencies.default
    if name is None:
        have = ", ".join(c.backend for c in latencies.curves)
        raise MissingInput(f"--using: {latencies.label} has no default; say which of {have} the server uses")
    curve = latencies.named(name)
    return Situation(
        shape=shape,
        tp=tp,
        steps=steps,
        curve=curve,
        alternatives=tuple(c for c in latencies.curves if c.backend != name),
        shares=profiled,
        waiting=waiting,
        launch=launch_input(latencies.primitives),
        floors=tuple((n, f) for n in _sizes(shape, steps) if (f := bound_input(latencies, n)) is not None),
        in_situ=IN_SITU if in_situ is None else _given(IN_SITU, in_situ),
        transport_part=TRANSPORT_PART if transport_part is None else _given(TRANSPORT_PART, transport_part),
    )


def _given(item: Input, estimate: Estimate) -> Input:
    return Input(name=item.name, estimate=estimate, origin="measured", source="given")


def _sizes(shape: ModelShape, steps: Each) -> list[int]:
    return [shape.message_nbytes(b) for b, _ in steps]


def launch_input(primitives: Sequence[Primitive]) -> Input | None:
    """An empty graph node's time, from the run's own probe."""
    probes = [(p, p.estimate) for p in primitives if p.kind == "launch" and p.status == "ok" and p.estimate]
    if not probes:
        return None
    probe, estimate = min(probes, key=lambda pair: pair[1].value)
    return Input(name="an empty graph node", estimate=estimate, origin=probe.origin, source=probe.source)


def bound_input(latencies: Latencies, nbytes: int) -> Input | None:
    """The bound at one size, or None where the links were not probed."""
    case = latencies.case
    if case is None or not latencies.primitives:
        return None
    found = floor(
        latencies.primitives,
        path=case.path,
        world=case.world,
        nbytes=nbytes,
        dtype=case.dtype,
        mode=case.mode,
        devices=case.devices,
    )
    if found is None:
        return None
    links = [p.origin for p in latencies.primitives if p.kind != "launch"]
    origin: Origin = "published" if "published" in links else found.origin
    rate = next((t.source for t in found.terms.bound if t.name == "wire"), "links")
    return Input(name=f"bound({nbytes} B)", estimate=found.bound, origin=origin, source=rate)


def recorded_runs() -> dict[str, Path]:
    """The runs recorded or published for boxes of the library, by the box's name; empty where the library
    is not installed."""
    roots = [Path(__file__).parents[2] / "topologies", Path(__file__).parents[3] / "topologies"]
    root = next((r for r in roots if r.is_dir()), None)
    return {} if root is None else {p.parent.name: p for p in sorted(root.glob("*/run"))}


def topology_run(name: str) -> Path:
    """The run recorded or published for a box of the library. Raises MissingInput naming those there are."""
    found = recorded_runs()
    if name not in found:
        raise MissingInput(
            f"--topology {name}: no run is recorded for it; {', '.join(found) or 'no box'} has one; "
            "or give --run or --table"
        )
    return found[name]
