"""Phrases that the text, the card and the page share: a case's name, its check, what to set."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import ceil

from arfloor.core import units
from arfloor.core.cases import Case, Check, Estimate, Machine, Manifest, Ran, Result, Verdict
from arfloor.core.demands import demand_of
from arfloor.core.fits import Fit
from arfloor.core.floor import Term
from arfloor.core.obtain import how_to_get as how_to_get_outside
from arfloor.core.verdict import (
    DEFAULT_BACKEND,
    chosen_settings,
    compare_unpaired,
    is_correct,
    is_noisy,
    ratio_span,
    short_label,
)

NOT_STATED = "not stated"
"""The device name of figures of others that do not say it (`ingest.imported`)."""


def latency(result: Result | None) -> str:
    """`41.6 ±0.4` in microseconds, or an empty string where nothing was measured."""
    if result is None or result.latency is None:
        return ""
    return interval(result.latency)


def interval(estimate: Estimate | None) -> str:
    """Value with the larger half of its 95 % interval, or with both ends where it is wide; `[unknown]`
    where they are so far apart that it says nothing.

    The half is rounded up, so that no interval looks narrower than it is.
    """
    if estimate is None:
        return ""
    if estimate.hi > 1.5 * estimate.value or estimate.lo < estimate.value / 1.5:
        return f"{units.number(estimate.value)} {units.ends(estimate.lo, estimate.hi)}"
    half = max(estimate.hi - estimate.value, estimate.value - estimate.lo)
    value = units.number(estimate.value)
    decimals = len(value.partition(".")[2])
    digits = 1 if half >= 9.95 else 2 if half >= 0.995 else 3 if half >= 0.0995 else 4
    shown = min(decimals + 1, digits - 1)
    upwards = ceil(round(half * 10**shown, 6)) / 10**shown
    return f"{value} ±{upwards:.{shown}f}"


def attained_by(verdict: Verdict) -> str:
    """The schedule that attainable follows; `measured` where the best result itself beat the probes."""
    if verdict.best is not None and verdict.attainable_algorithm == short_label(verdict.best.case):
        return "measured"
    return verdict.attainable_algorithm or ""


def now(verdict: Verdict) -> str:
    """default / best; with its interval where that is why the verdict is open, or where it is very wide."""
    found = verdict.headroom_now
    if found is None:
        return ""
    if is_noisy(verdict) or (verdict.status == "undecided" and verdict.reason != "interval_meets_floor"):
        lo, hi = verdict.decided_on or (found.lo, found.hi)
        return ratio_span(found if is_noisy(verdict) else replace(found, lo=lo, hi=hi))
    return units.ratio(found.value)


def left(verdict: Verdict) -> str:
    """best / attainable; with its interval where that is why the verdict is open."""
    found = verdict.headroom_left
    if found is None:
        return ""
    return ratio_span(found) if verdict.reason == "interval_meets_floor" else units.ratio(found.value)


def check(result: Result | None) -> str:
    """What the correctness check found: `exact`, or `err` and the worst error over the allowed one."""
    if result is None or result.check is None:
        return ""
    return check_phrase(result.check)


def check_phrase(found: Check) -> str:
    """`err 0.50, ranks equal`: the largest error as a share of its bound, and whether all ranks agree."""
    if found.wrong:
        return f"WRONG: {found.wrong} elements"
    error = "exact" if found.max_error == 0 else f"err {found.max_error:.2f}"
    return f"{error}, ranks {'equal' if found.bitwise_equal else 'differ'}"


def ran(found: Ran | None) -> str:
    """`RING/LL, 4 ch, SHM`: what really ran, as far as it is known."""
    if found is None:
        return ""
    kernel = "/".join(part for part in (found.algorithm, found.protocol) if part)
    channels = f"{found.channels} ch" if found.channels else ""
    return ", ".join(part for part in (kernel, channels, found.transport or "") if part)


def which(result: Result | None) -> str:
    """What the case is called, without the settings that its path needs anyway."""
    return "" if result is None else label(result.case)


def label(case: Case) -> str:
    """The case's short label, and that it is out of place where it is."""
    name = short_label(case)
    return name if case.inplace else f"{name}, out of place"


def to_set(verdict: Verdict) -> str:
    """What a user does to get the best case; empty where the default is the best."""
    best = verdict.best
    if best is None or verdict.default is None or best is verdict.default:
        return ""
    return marked_how(best.case)


def options(verdict: Verdict, results: Sequence[Result]) -> list[tuple[str, float]]:
    """Ways to beat the default and default / way: its own library's best setting, then the best of all.

    `results` are the verdict's, by rising latency. A way counts when the intervals say that it is faster.
    Where the best setting asks something of the program, the best that asks nothing is a way too.
    """
    default, best = verdict.default, verdict.best
    if default is None or best is None or default.latency is None:
        return []
    found = []
    mine = [r for r in results if is_correct(r) and r.case.backend == default.case.backend]
    free = next((r for r in mine if demand_of(r.case) is None), None)
    for own in {r.case.id: r for r in (free, *mine[:1]) if r is not None}.values():
        if own is not best and own is not default:
            comparison = compare_unpaired(default, own)
            if comparison.answer == "faster":
                found.append((marked_how(own.case), comparison.ratio.value))
    if best is not default and verdict.headroom_now is not None:
        found.append((marked_how(best.case), verdict.headroom_now.value))
    return found


def marked_how(case: Case) -> str:
    """How to get a case, and in brackets what that asks of the program."""
    demand = demand_of(case)
    return f"{how_to_get(case)} ({demand.short})" if demand else how_to_get(case)


def marks(result: Result) -> str:
    """What disturbed a result, and what its setting asks of the program."""
    demand = demand_of(result.case)
    return ", ".join((*result.marks, *([demand.short] if demand else [])))


def how_to_get(case: Case) -> str:
    """The environment to set, or the library to call, for one case."""
    env = " ".join(f"{k}={v}" for k, v in chosen_settings(case))
    if case.backend == DEFAULT_BACKEND[case.path]:
        env = " ".join(part for part in (env, _variant_environment(case)) if part)
        return f"`{env}`" if env else f"{case.backend} as it is"
    return f"{_backend(case)}, with `{env}`" if env else _backend(case)


def nccl_environment(variant: str) -> str | None:
    """What a user sets for a variant of NCCL; None for another program's name for a setting of it."""
    from arfloor.backends.nccl import parse_variant

    try:
        return parse_variant(variant).advice
    except ValueError:
        return None


def _variant_environment(case: Case) -> str:
    known = nccl_environment(case.variant)
    return case.variant if known is None else known


def _backend(case: Case) -> str:
    if case.backend == "mpi":
        return "MPI ranks (`mpiexec`, mpi4py) instead of gloo"
    if case.backend in ("peer", "host"):
        kernel = "" if case.variant == "auto" else f"its kernel `{case.variant}` on "
        return f"`arfloor.allreduce.AllReduce` ({kernel}path {case.backend})"
    if outside := how_to_get_outside(case.backend):
        return outside
    variant = "" if case.variant == "default" else f", variant `{case.variant}`"
    return f"backend `{case.backend}`{variant}"


def when(manifest: Manifest) -> str:
    """When a run was measured; of others' figures the day that they were published or written."""
    return manifest.started if manifest.origin == "measured" else manifest.started.partition("T")[0]


def occasion(manifest: Manifest) -> str:
    """`started 2026-01-01T00:00:00Z, 2 launches, measured`; of others' figures whose they are."""
    if manifest.origin == "measured":
        launches = f"{manifest.launches} launch{'' if manifest.launches == 1 else 'es'}"
        return f"started {manifest.started}, {launches}, measured"
    file, tool = manifest.recipe.get("imported"), manifest.recipe.get("tool")
    if file and tool:
        return f"figures of {tool}, imported from {file} of {when(manifest)}"
    return f"figures {manifest.origin}, {when(manifest)}"


def box(machine: Machine) -> str:
    """`4x NVIDIA L40S`, `2 CPU ranks (AMD EPYC)`; says where nobody stated what devices they are."""
    stated = machine.device_name not in ("", NOT_STATED)
    if machine.device_kind == "cuda":
        return (
            f"{machine.world}x {machine.device_name}"
            if stated
            else f"{machine.world} GPUs (which is not stated)"
        )
    return f"{machine.world} CPU ranks ({machine.device_name if stated else 'which CPU is not stated'})"


def caveats(manifest: Manifest) -> tuple[str, ...]:
    """What the source of published figures says of them, the weightiest first; none of our own runs."""
    said = manifest.recipe.get("caveats", ())
    return tuple(map(str, said)) if isinstance(said, list | tuple) else ()


def versions(manifest: Manifest) -> str:
    """`torch 2.13.0, nccl 2.28.9, driver 580`: whatever the manifest records, in its order."""
    return ", ".join(f"{name} {version}" for name, version in manifest.versions.items() if version)


def count_of(part: int, whole: int | None) -> str:
    """`37 of 100`; `37` where the whole is not known."""
    return str(part) if whole is None else f"{part} of {whole}"


def partial(measured: int, planned: int | None) -> str:
    """`partial: 37 of 100 blocks` of a run that was not measured to its end; else empty."""
    return f"partial: {measured} of {planned} blocks" if planned and measured < planned else ""


def fit_line(found: Fit) -> str:
    """`14.5 us + bytes / 9.70 GB/s to 512 KiB; then ...; sizes left out are predicted to 0.4 %`."""
    pieces = []
    for segment in found.segments:
        rate = f" + bytes / {units.number(segment.gbps)} GB/s" if segment.gbps else ""
        until = f" to {units.size(segment.end)}" if len(found.segments) > 1 else ""
        pieces.append(f"{units.us(segment.alpha.value)}{rate}{until}")
    text = "; then ".join(pieces)
    if found.loo_error is not None and found.loo_worst is not None:
        median, worst = units.percent(found.loo_error), units.percent(found.loo_worst)
        text += f"; a size left out is predicted to {median} (worst {worst})"
    for outlier in found.outliers:
        text += (
            f"; {units.us(outlier.us)} at {units.size(outlier.nbytes)} is an outlier "
            f"({units.us(outlier.expected_us)} expected)"
        )
    return text


def floor_parts(terms: Sequence[Term]) -> list[str]:
    """`7.08 wire: stream sm write cuda:0>host all`: parts in us, each with its probe."""
    return [f"{units.number(t.us.value)} {t.name}: {t.source}" for t in terms if t.us.value]
