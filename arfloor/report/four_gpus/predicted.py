"""What two H200s, measured, let expect of three and four: every number of docs/four-gpus.md.

    bound, attainable   `core.floor` on the pair's link probes, extended (`core.extended`)
    our kernels         `core.predict.kernels_by_shape` on the pair's description, extended
    NCCL                its own formula, times what it was off by on the pair at the same size and path
    decode step         the synthetic step's times at two ranks, its weights split over four

Times in us; gains are tok/s with our kernels over tok/s with NCCL, less one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from math import sqrt

from arfloor import library, rundir
from arfloor.core.cases import Estimate, Path, Primitive, Result
from arfloor.core.extended import extended, extended_probes
from arfloor.core.floor import Floor, floor
from arfloor.core.misses import Expected
from arfloor.core.nccl_model import nccl_pick, nccl_table
from arfloor.core.predict import kernels_by_shape
from arfloor.core.rig import Figure, NcclFacts, Rig
from arfloor.core.step_shape import Shape

WORLDS = (2, 3, 4)
PATHS: tuple[Path, ...] = ("peer", "host")
SIZES = (8192, 65536, 262144, 1048576)
BATCHES = (1, 8, 32, 64)
TP = 4
RECORDED: dict[Path, str] = {"peer": "h200-x2-nvlink", "host": "h200-x2-host-bridge"}
SHAPES: dict[Path, tuple[str, ...]] = {
    "peer": ("one-shot", "two-shot", "one-shot staged", "two-shot staged", "one-shot pull"),
    "host": ("one-shot", "two-shot"),
}

# NCCL's table of the pair as its log prints it (docs/measurements.md): GB/s of its graph, channels, hardware
NCCL_GRAPH: dict[Path, tuple[float, int, str]] = {"peer": (360.0, 24, "nvlink"), "host": (40.0, 4, "pci")}
# what its error may change by from two ranks to four: assumed
NCCL_ERROR = (0.8, 1.25)
# an untuned grid of a shape against the tuned one: 3.72 of 3.75 us over NVLink, 13.1 of 10.0 over the host
UNTUNED = (1.0, 1.35)

# us a step at two ranks, batch: (ours, no reduce, NCCL default); docs/measurements.md, "In a decode step"
STEPS: dict[Path, dict[int, tuple[float, float, float]]] = {
    "peer": {
        1: (2714.8, 2529.6, 3058.5),
        8: (2801.5, 2550.8, 3138.6),
        32: (2950.9, 2675.4, 3330.2),
        64: (2963.3, 2630.5, 3452.2),
    },
    "host": {
        1: (2802.2, 2533.8, 3286.2),
        8: (2939.9, 2558.1, 3601.4),
        32: (3486.4, 2684.0, 5039.4),
        64: (3903.5, 2646.6, 5874.0),
    },
}
CROSSING = tuple(round(4096 * 2 ** (k / 4)) for k in range(41))
"""Sizes looked at for a crossover: 4 KiB to 4 MiB, four an octave."""
MEMORY_GBPS = 4800.0
"""An H200's memory, by its data sheet."""
MEMORY_SHARE = 0.85
"""What weights are read at, of that: assumed."""


@cache
def _run(path: Path) -> rundir.Run:
    return rundir.load(library.recorded_run(RECORDED[path]))


def probes() -> tuple[Primitive, ...]:
    """The pair's link probes, of both paths."""
    return _run("peer").primitives


def box(gpus: int) -> Rig:
    """The pair's description extended to `gpus` H200s."""
    rig = library.box(RECORDED["peer"]).rig
    assert rig is not None  # it comes with arfloor
    title = f"{gpus}x NVIDIA H200, NVLink by a switch, host/pcie"
    made = extended(rig, gpus, name=f"h200-x{gpus}", title=title)
    gbps, channels, _ = NCCL_GRAPH["host"]
    return replace(
        made,
        figures={**made.figures, "nccl_bus": _bus(gbps), "nccl_error": _host_error(gpus)},
        nccl=NcclFacts(bus="nccl_bus", error="nccl_error", channels=channels),
    )


def _bus(gbps: float) -> Figure:
    return Figure(
        value=gbps, lo=gbps, hi=gbps, unit="GB/s", origin="measured", source="NCCL's log on two of these GPUs"
    )


def _host_error(gpus: int) -> Figure:
    """What NCCL's formula was off by over the host of the pair, at the sizes of the page."""
    errors = sorted(_us(_recorded("host", n)["nccl:default"]) / nccl_formula("host", 2, n)[0] for n in SIZES)
    change = NCCL_ERROR if gpus > 2 else (1.0, 1.0)
    return Figure(
        value=round(sum(errors) / len(errors), 3),
        lo=round(errors[0] * change[0], 3),
        hi=round(errors[-1] * change[1], 3),
        unit="ratio",
        origin="assumed" if gpus > 2 else "measured",
        source="as on two of these GPUs, 8 KiB to 1 MiB; with more, a quarter more or less: assumed",
    )


@cache
def floor_of(path: Path, world: int, nbytes: int) -> Floor:
    """Bound and attainable, from the extended probes."""
    found = floor(
        extended_probes(probes(), world),
        path=path,
        world=world,
        nbytes=nbytes,
        dtype="bfloat16",
        mode="graph",
    )
    assert found is not None  # the pair was probed on both paths
    return found


@cache
def kernels(path: Path, world: int, nbytes: int) -> dict[str, Estimate]:
    """Our kernels by shape, tuned. At two ranks staging changes nothing."""
    rig = box(world)
    return kernels_by_shape(rig, rig.gpus, path, nbytes)


def ours(path: Path, world: int, nbytes: int) -> Estimate:
    """The best of the shapes: the best value, and the ends of that shape."""
    shapes = kernels(path, world, nbytes)
    return min((shapes[s] for s in SHAPES[path] if s in shapes), key=lambda e: e.value)


def _recorded(path: Path, nbytes: int) -> dict[str, Result]:
    return {
        f"{r.case.backend}:{r.case.variant}": r
        for r in _run(path).results
        if r.case.path == path and r.case.nbytes == nbytes and r.case.mode == "graph" and r.latency
    }


def _us(result: Result) -> float:
    assert result.latency is not None
    return result.latency.value


def nccl_formula(path: Path, world: int, nbytes: int, crowd: float = 1.0) -> tuple[float, str]:
    """NCCL's own formula in us, its bytes `crowd` times as slow, and its choice."""
    gbps, channels, hardware = NCCL_GRAPH[path]
    table = nccl_table(
        world=world,
        hardware="nvlink" if hardware == "nvlink" else "pci",
        channels=channels,
        channel_gbps=gbps / channels,
        compute_capability=(9, 0),
    )
    algorithm, protocol, us = nccl_pick(table, nbytes)
    latency = table.cells["AllReduce", algorithm, protocol].latency_us
    return latency + (us - latency) * crowd, f"{algorithm}/{protocol}"


def nccl(path: Path, world: int, nbytes: int, crowd: float | None = None) -> Estimate:
    """NCCL's default: its formula for `world`, off by what it was off by at two ranks.

    `crowd`: how many times as slow bytes over the host are; None: once, at the slow end as in `crowds`.
    """
    found = _recorded(path, nbytes)["nccl:default"]
    error = _us(found) / nccl_formula(path, 2, nbytes)[0]
    if world == 2:
        assert found.latency is not None
        return found.latency
    near, far = (crowd, crowd) if crowd else crowds(path, world)
    near_us, far_us = (nccl_formula(path, world, nbytes, c)[0] * error for c in (near, far))
    return Estimate(value=near_us, lo=near_us * NCCL_ERROR[0], hi=far_us * NCCL_ERROR[1], n=0, unit="us")


def crowds(path: Path, world: int) -> tuple[float, float]:
    """How many times as slow as for two GPUs the host may be for each of `world`: fast and slow end."""
    return (1.0, world / 2) if path == "host" else (1.0, 1.0)


def nccl_best(path: Path, world: int, nbytes: int) -> Estimate:
    """NCCL's best setting: the default times what the best of its settings gained on the pair."""
    found = _recorded(path, nbytes)
    gain = min(_us(r) for n, r in found.items() if n.startswith("nccl:")) / _us(found["nccl:default"])
    e = nccl(path, world, nbytes)
    return Estimate(value=e.value * gain, lo=e.lo * gain, hi=e.hi, n=0, unit="us")


def crossover(path: Path, world: int) -> Estimate:
    """Bytes from which the best two-shot attains less than the best one-shot, from the extended probes."""
    return crossing(extended_probes(probes(), world), path, world)


def crossing(found: Sequence[Primitive], path: Path, world: int) -> Estimate:
    """The same from any probes; `CROSSING` ends where one shape is better throughout."""

    def both(nbytes: int) -> tuple[list[Estimate], list[Estimate]]:
        made = floor(found, path=path, world=world, nbytes=nbytes, dtype="bfloat16", mode="graph")
        if made is None:
            raise ValueError(f"crossing: expected probes of {path}, found none")
        one, two = ([e for name, e in made.considered if name.startswith(s)] for s in ("one", "two"))
        return one, two

    return _first(both)


def kernel_crossover(path: Path, world: int) -> Estimate:
    """Bytes from which our two-shot is expected to be faster than our one-shot, neither staged."""

    def both(nbytes: int) -> tuple[list[Estimate], list[Estimate]]:
        shapes = kernels(path, world, nbytes)
        return [shapes["one-shot"]], [shapes["two-shot"]]

    return _first(both)


def _first(both: Callable[[int], tuple[list[Estimate], list[Estimate]]]) -> Estimate:
    """The first of `CROSSING` at which the second's best is below the first's, at each end of both alike."""
    firsts: dict[str, float] = {}
    for nbytes in CROSSING:
        one, two = both(nbytes)
        for end in ("value", "lo", "hi"):
            if min(getattr(e, end) for e in two) < min(getattr(e, end) for e in one):
                firsts.setdefault(end, float(nbytes))
        if len(firsts) == 3:
            break
    firsts = dict.fromkeys(("value", "lo", "hi"), float(CROSSING[-1])) | firsts
    step = CROSSING[1] / CROSSING[0]  # it lies between a size looked at and the one before
    return Estimate(
        value=firsts["value"] / sqrt(step),
        lo=min(firsts.values()) / step,
        hi=max(firsts.values()),
        n=0,
        unit="B",
    )


def key(world: int, path: Path, nbytes: int, what: str) -> tuple[str, ...]:
    """By which a latency is found again."""
    return (str(world), path, str(nbytes), what)


def latencies(world: int, path: Path, nbytes: int) -> Iterator[Expected]:
    """All that is predicted of one world, path and size, in us."""
    found = floor_of(path, world, nbytes)
    rows: dict[str, Estimate] = {"bound": found.bound, "attainable": found.attainable}
    rows["ours, tuned"] = ours(path, world, nbytes)
    for shape in SHAPES[path]:
        if world > 2 or "staged" not in shape:
            e = kernels(path, world, nbytes)[shape]
            rows[f"ours, {shape}"] = Estimate(
                value=e.value, lo=e.lo * UNTUNED[0], hi=e.hi * UNTUNED[1], n=0, unit="us"
            )
    rows["NCCL default"] = nccl(path, world, nbytes)
    rows["NCCL best"] = nccl_best(path, world, nbytes)
    for what, estimate in rows.items():
        yield Expected(key=key(world, path, nbytes, what), label=what, estimate=estimate)


def step_without_reduces(batch: int) -> Estimate:
    """us of the synthetic step at four ranks without its reduces.

    Half of the weights of two ranks are left to read. Fast end: everything of the step halves; slow end: the
    weights were read at the memory's full rate, and only they halve.
    """
    found = sorted(STEPS[path][batch][1] for path in PATHS)
    value = sum(found) / len(found)
    saved = Shape().weight_nbytes(2) / 2 / (MEMORY_GBPS * 1e3)
    return Estimate(value=value - saved / MEMORY_SHARE, lo=found[0] / 2, hi=found[-1] - saved, n=0, unit="us")


def in_situ(path: Path, which: int) -> Estimate:
    """A reduce in the step over the same reduce alone, at two ranks: `which` 0 ours, 2 NCCL's default."""
    name = {0: f"{path}:auto", 2: "nccl:default"}[which]
    reduces = Shape().reduces
    factors = sorted(
        (steps[which] - steps[1]) / reduces / _us(_recorded(path, Shape().message_nbytes(batch))[name])
        for batch, steps in STEPS[path].items()
    )
    middle = factors[len(factors) // 2]
    return Estimate(value=middle, lo=factors[0], hi=factors[-1], n=len(factors), unit="ratio")


def gain(path: Path, batch: int) -> Estimate:
    """tok/s with our kernels over tok/s with NCCL's default at four ranks, less one.

    A crowded host slows both at once: the interval holds both ends of it. Other figures err independently.
    """
    ends = [_gain(path, batch, crowd) for crowd in crowds(path, TP)]
    return replace(ends[0], lo=min(e.lo for e in ends), hi=max(e.hi for e in ends))


def _gain(path: Path, batch: int, crowd: float) -> Estimate:
    nbytes, reduces = Shape().message_nbytes(batch), Shape().reduces
    rig = crowded(box(TP), crowd)
    shapes = kernels_by_shape(rig, rig.gpus, path, nbytes)
    mine = min((shapes[s] for s in SHAPES[path]), key=lambda e: e.value)
    parts = (
        step_without_reduces(batch),
        mine,
        in_situ(path, 0),
        nccl(path, TP, nbytes, crowd),
        in_situ(path, 2),
    )

    def at(c: float, a: float, own: float, b: float, other: float) -> float:
        return (c + reduces * b * other) / (c + reduces * a * own) - 1

    middle = [e.value for e in parts]
    value, down, up = at(*middle), 0.0, 0.0
    for i, e in enumerate(parts):
        moved = [at(*middle[:i], end, *middle[i + 1 :]) - value for end in (e.lo, e.hi)]
        down, up = down + min(0.0, *moved) ** 2, up + max(0.0, *moved) ** 2
    return Estimate(value=value, lo=value - sqrt(down), hi=value + sqrt(up), n=0, unit="of tok/s")


def crowded(rig: Rig, crowd: float) -> Rig:
    """A box whose GPUs keep, over the host, what each of two kept, divided by `crowd`."""
    two = box(2).figures["host_host"]
    share = replace(
        rig.figures["host_host"],
        **{end: getattr(two.estimate, end) / crowd for end in ("value", "lo", "hi")},
    )
    return replace(rig, figures={**rig.figures, "host_host": share})


def gains() -> Iterator[Expected]:
    """The decode step at four ranks, every batch and path."""
    for path in PATHS:
        for batch in BATCHES:
            yield Expected(
                key=("decode", path, str(batch)), label=f"batch {batch}", estimate=gain(path, batch)
            )


@cache
def predictions() -> tuple[Expected, ...]:
    """Everything that a run on four GPUs is held against."""
    every = [e for w in WORLDS for p in PATHS for n in SIZES for e in latencies(w, p, n)]
    return (*every, *crossovers(), *gains())


def crossovers() -> Iterator[Expected]:
    """From which size on two-shot is faster than one-shot, at three ranks and more: attainable, and ours."""
    for world in WORLDS[1:]:
        for path in PATHS:
            for what, find in (("attainable", crossover), ("ours", kernel_crossover)):
                yield Expected(
                    key=("crossover", str(world), path, what),
                    label=f"{world} ranks, {path}, {what}",
                    estimate=find(path, world),
                )
