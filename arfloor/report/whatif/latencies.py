"""A(S), the latency of a reduce against its size: from a run, from a box's description, or from a table."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from arfloor import library
from arfloor.core.cases import Estimate, Origin, Primitive, Result, record
from arfloor.core.cases import Path as Way
from arfloor.core.decode import MissingInput
from arfloor.core.demands import demand_of
from arfloor.core.floor import Floor, floor
from arfloor.core.verdict import is_correct, is_default, short_label
from arfloor.core.whatif.curves import TableCurve, table_curve
from arfloor.core.whatif.step import ATTAINABLE
from arfloor.core.whatif.uncertainty import Input
from arfloor.report import phrases
from arfloor.report.whatif import table
from arfloor.rundir import Run, RunDirError, load

if TYPE_CHECKING:
    from arfloor.core.rig import Rig

PREDICTED = "arfloor"
"""Our kernels, the fastest of them, where they are predicted."""
OURS = ("peer", "host")
_MODES = ("graph", "eager", "isolated")
_DTYPES = ("bfloat16", "float16", "float32")
PREDICTED_SIZES = tuple(1024 << i for i in range(13))
"""1 KiB to 4 MiB: where a box's description is evaluated."""


def _no_bound(nbytes: int) -> Input | None:
    return None


@record
class Latencies:
    """A(S) of every implementation at one number of ranks, and the floor beneath them.

    `default` names the one a user gets untouched, where there is one, else `no_default` may say why.
    `bound` gives the bound at a size where the links are known. `caveats` are sentences from the source;
    `label` says where all this is from,
    `pcie` that no faster link joins the GPUs, `path` which path of a run they are of.
    """

    label: str
    origin: Origin
    curves: tuple[TableCurve, ...]
    default: str | None
    attainable: TableCurve | None = None
    launch: Input | None = None
    contention: Input | None = None
    bound: Callable[[int], Input | None] = _no_bound
    caveats: tuple[str, ...] = ()
    no_default: str = ""
    pcie: bool = False
    path: Way | None = None

    def named(self, name: str) -> TableCurve:
        """The curve of `name`. Raises MissingInput naming those there are."""
        for curve in self.curves:
            if curve.backend == name:
                return curve
        have = ", ".join(repr(c.backend) for c in self.curves)
        raise MissingInput(f"--using {name!r}: {self.label} has {have}; name one of them")

    def in_use(self, using: str | None) -> TableCurve:
        """The curve that the user named, else the default's. Raises MissingInput where there is neither."""
        name = self.default if using is None else using
        if name is None:
            have = ", ".join(c.backend for c in self.curves)
            why = f": {self.no_default}" if self.no_default else ""
            raise MissingInput(
                f"--using: {self.label} has no default{why}; say which of {have} the server uses"
            )
        return self.named(name)


def from_run_directory(path: Path, tp: int, way: Way | None = None) -> Latencies:
    """Latencies of a run directory. Raises MissingInput when it cannot be read."""
    try:
        return from_run(load(path), tp, way)
    except RunDirError as error:
        raise MissingInput(str(error)) from error


def from_topology(name: str, tp: int, way: Way | None = None) -> Latencies:
    """Latencies of a box of the library: its recorded run, else what its description predicts.

    Raises InputError naming the boxes there are, MissingInput when it cannot answer at `tp` ranks."""
    box = library.box(name)
    if box.run is not None:
        found = from_run_directory(box.run, tp, way)
        return found if box.rig is None else _with_ours(found, box.rig, tp)
    assert box.rig is not None  # a box has at least one of them
    return from_rig(box.rig, tp, way)


def _with_ours(found: Latencies, rig: Rig, tp: int) -> Latencies:
    """With our kernels as the box's description predicts them, where its run has none of them."""
    if any(c.backend.partition(" ")[0] in OURS for c in found.curves):
        return found
    try:
        ours = from_rig(rig, tp, found.path).named(PREDICTED)
    except MissingInput:
        return found
    if found.origin == "published":
        ours = replace(
            ours, source=f"{ours.source}: the box as described, the others' figures are of another"
        )
    return replace(found, curves=(*found.curves, ours))


def from_run(run: Run, tp: int, way: Way | None = None) -> Latencies:
    """Latencies of a run at `tp` ranks: one path, the mode and dtype nearest to decode (graph before
    eager, bfloat16 first), one group of ranks at a time.

    Raises MissingInput when it has none, or several paths and none is chosen."""
    label = f"{run.manifest.run_id} ({run.manifest.origin})"
    chosen = _choose(run.results, label, tp, way)
    first = chosen[0].case
    sizes = sorted({r.case.nbytes for r in chosen})

    def floor_at(nbytes: int) -> Floor | None:
        return floor(
            run.primitives,
            path=first.path,
            world=tp,
            nbytes=nbytes,
            dtype=first.dtype,
            mode=first.mode,
            devices=first.devices,
        )

    links: list[Origin] = [p.origin for p in run.primitives if p.kind != "launch"]
    origin: Origin = next((o for o in ("assumed", "predicted", "published") if o in links), "measured")
    asked = {d.sentence for r in chosen if (d := demand_of(r.case))}
    return Latencies(
        label=f"{run.manifest.run_id} over {first.path} ({run.manifest.origin})",
        origin=run.manifest.origin,
        curves=_curves(chosen),
        default=next((short_label(r.case) for r in chosen if is_default(r.case)), None),
        attainable=_attainable([(n, f) for n in sizes if (f := floor_at(n))], origin),
        launch=launch_input(run.primitives),
        contention=contention_input(run.primitives, first.path),
        bound=lambda nbytes: _bound_input(floor_at(nbytes), origin),
        caveats=(*phrases.caveats(run.manifest), *sorted(asked), *run.warnings),
        pcie={p.link for p in run.primitives if p.path == first.path and p.link} == {"pcie"},
        path=first.path,
    )


def _choose(results: Sequence[Result], label: str, tp: int, way: Way | None) -> list[Result]:
    correct = [r for r in results if is_correct(r) and r.case.op == "all_reduce"]
    usable = [r for r in correct if r.case.world == tp]
    if not usable:
        worlds = ", ".join(str(w) for w in sorted({r.case.world for r in correct}))
        raise MissingInput(
            f"A(S) at {tp} ranks: {label} has {worlds or 'no correct results'}; "
            f"measure with --nproc-per-node={tp}, or give another --tp"
        )
    paths = sorted({r.case.path for r in usable})
    if way is None and len(paths) > 1:
        raise MissingInput(f"--path: {label} has {' and '.join(paths)}; choose the one that the server uses")
    if way is not None and way not in paths:
        raise MissingInput(f"--path {way}: {label} has {', '.join(paths)} at {tp} ranks")
    on_path = [r for r in usable if r.case.path == (way or paths[0])]
    alone = [r for r in on_path if len(r.case.groups) <= 1] or on_path
    mode = next(m for m in _MODES if any(r.case.mode == m for r in alone))
    in_mode = [r for r in alone if r.case.mode == mode]
    dtype = next(d for d in _DTYPES if any(r.case.dtype == d for r in in_mode))
    return [r for r in in_mode if r.case.dtype == dtype]


def _curves(results: Sequence[Result]) -> tuple[TableCurve, ...]:
    by_label: dict[str, dict[int, Result]] = defaultdict(dict)
    for r in results:
        of = by_label[short_label(r.case)]
        known = of.get(r.case.nbytes)
        if known is None or _us(r).value < _us(known).value:
            of[r.case.nbytes] = r
    curves = []
    for label, sizes in by_label.items():
        first = next(iter(sizes.values()))
        source = first.detail if first.origin == "published" else f"{first.case.mode}, {first.origin}"
        points = [(n, _us(r)) for n, r in sizes.items()]
        curves.append(table_curve(label, points, origin=first.origin, source=source or label))
    return tuple(curves)


def _us(result: Result) -> Estimate:
    assert result.latency is not None  # `is_correct` saw to it
    return result.latency


def _attainable(floors: Sequence[tuple[int, Floor]], origin: Origin) -> TableCurve | None:
    if not floors:
        return None
    points = tuple((n, f.attainable) for n, f in floors)
    source = f"best known schedule ({floors[-1][1].algorithm} at the largest size) at the links' rates"
    return TableCurve(backend=ATTAINABLE, points=points, origin=origin, source=source)


def _bound_input(found: Floor | None, origin: Origin) -> Input | None:
    if found is None:
        return None
    wire = next((t.source for t in found.terms.bound if t.name == "wire"), "links")
    return Input(name=f"bound({found.nbytes} B)", estimate=found.bound, origin=origin, source=wire)


def launch_input(primitives: Sequence[Primitive]) -> Input | None:
    """An empty graph node's time, from the run's own probe."""
    probes = [(p, p.estimate) for p in primitives if p.kind == "launch" and p.status == "ok" and p.estimate]
    if not probes:
        return None
    probe, estimate = min(probes, key=lambda pair: pair[1].value)
    return Input(name="an empty graph node", estimate=estimate, origin=probe.origin, source=probe.source)


def contention_input(primitives: Sequence[Primitive], path: str) -> Input | None:
    """A decode product's time beside reduces over its time alone, where the run measured it: the span over
    the grids that were measured, since the plan that would overlap may have any of them."""
    found = [
        p.estimate
        for p in primitives
        if (p.kind, p.access, p.src, p.path, p.status) == ("contention", "compute", "decode", path, "ok")
        and p.estimate is not None
    ]
    if not found:
        return None
    middle = sorted(e.value for e in found)[len(found) // 2]
    lo, hi = max(1.0, min(e.lo for e in found)), max(1.0, max(e.hi for e in found))
    estimate = Estimate(value=max(1.0, middle), lo=lo, hi=hi, n=len(found), unit="x")
    return Input(
        name="contention of compute with reduces",
        estimate=estimate,
        origin="measured",
        source=f"{len(found)} grids beside a decode product",
    )


def from_rig(rig: Rig, tp: int, way: Way | None = None) -> Latencies:
    """What a box's description predicts: NCCL by its own formula, our kernels, the floor.

    Raises MissingInput when the box has too few GPUs, no such path, or no figures for NCCL."""
    from arfloor.core.predict import FABRICS, launch_of, path_assumed, predict
    from arfloor.core.rig_words import assumed_rates

    try:
        found = [predict(rig, world=tp, path=way, nbytes=n) for n in PREDICTED_SIZES]
    except ValueError as error:
        raise MissingInput(f"--topology {rig.name}: {error}") from error
    nccl = [(p.nbytes, p.nccl) for p in found if p.nccl is not None]
    source = f"predicted from topologies/{rig.name}/topology.toml"
    curves = [
        TableCurve(
            backend=PREDICTED,
            points=tuple((p.nbytes, p.kernels) for p in found),
            origin="predicted",
            source=source,
        )
    ]
    if nccl:
        curves.insert(0, TableCurve(backend="nccl", points=tuple(nccl), origin="predicted", source=source))
    floors = {p.nbytes: p.floor for p in found}
    t0 = launch_of(rig, "graph")
    return Latencies(
        label=f"{rig.name} (predicted)",
        origin="predicted",
        curves=tuple(curves),
        default="nccl" if nccl else None,
        attainable=_attainable(list(floors.items()), "predicted"),
        launch=Input(name="an empty graph node", estimate=t0.us, origin="predicted", source=t0.source),
        bound=lambda nbytes: _bound_input(
            floors.get(nbytes) or predict(rig, world=tp, path=way, nbytes=nbytes).floor, "predicted"
        ),
        caveats=(
            "nothing was measured on this box: every latency is predicted from its description",
            *filter(None, (assumed_rates(rig), path_assumed(rig, way))),
        ),
        no_default="" if nccl else _no_nccl(rig),
        pcie=not any(link.kind in FABRICS for link in rig.links),
    )


def _no_nccl(rig: Rig) -> str:
    """Why a description predicts no NCCL, and how to say what it takes."""
    if rig.nccl is None:
        return "its topology.toml has no [nccl] (figures for bus and error), so NCCL is not predicted"
    return "NCCL over NVLink is not predicted from a description (give measured latencies: --run or --table)"


def from_csv(path: Path) -> Latencies:
    """Latencies from a table with the columns backend, nbytes, us and, where known, lo and hi.

    The first backend in the table is taken as the one in use. Raises MissingInput naming a column or
    line that is not as expected."""
    points = table.read(path)
    curves = tuple(
        table_curve(b, list(p.items()), origin="measured", source=path.name) for b, p in points.items()
    )
    return Latencies(label=path.name, origin="measured", curves=curves, default=curves[0].backend)
