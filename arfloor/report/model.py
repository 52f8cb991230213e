"""What a report says, computed once from a run; the text, card, JSON, plots and HTML only render it.

report = build(rundir.load("runs/x"))
report.sections[0].rows[0].verdict.sentence
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from arfloor.core import units
from arfloor.core.cases import Manifest, Mode, Path, Primitive, Result, Verdict
from arfloor.core.floor import Floor
from arfloor.core.judgement import Judged, judge_all
from arfloor.core.libraries import Library, by_library, tied
from arfloor.core.pairing import paired_compare
from arfloor.core.reasons import explain
from arfloor.core.verdict import Compare, short_label
from arfloor.report import phrases
from arfloor.rundir import Run, blocks_done

HEADLINE_NBYTES = 262_144
"""The decode message of the opening question: batch 32 x hidden 4096 x 2 bytes."""

_OF_LINKS = ("pingpong", "stream")
_MANY_VARIANTS = 4
_MODES: tuple[Mode, ...] = ("graph", "eager", "isolated")


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One size of a section: its verdict, every result that stands behind it, and them by library.

    `tied`: the results that cannot be told from the best.
    """

    verdict: Verdict
    floor: Floor | None
    results: tuple[Result, ...]
    libraries: tuple[Library, ...] = ()
    tied: tuple[Result, ...] = ()

    @property
    def nbytes(self) -> int:
        return self.verdict.nbytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """Everything measured on one path by one set of devices in one mode and dtype, by rising size."""

    path: Path
    link: str
    world: int
    dtype: str
    mode: Mode
    devices: tuple[str, ...]
    groups: tuple[tuple[int, ...], ...]
    rows: tuple[Row, ...]

    @property
    def name(self) -> str:
        """Path with its link, as `host/pcie`; the path alone where the link is not known."""
        return f"{self.path}/{self.link}" if self.link else self.path

    @property
    def title(self) -> str:
        islands = f" in {len(self.groups)} groups at once" if len(self.groups) > 1 else ""
        return f"{self.name}, {self.world} ranks{islands}, {self.dtype}, {self.mode}"

    @property
    def checked(self) -> bool:
        """Whether any size's best was checked; what others published was not."""
        return any(row.verdict.best is not None and row.verdict.best.check for row in self.rows)

    def nearest(self, nbytes: int) -> Row:
        """The row whose size is nearest on a log scale, among rows with a measured best if there are any."""
        rows = [r for r in self.rows if r.verdict.best is not None] or list(self.rows)
        return min(rows, key=lambda r: (abs(_log_distance(r.nbytes, nbytes)), r.nbytes))


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """Cases of one implementation that ended alike: `sizes` lists the message sizes concerned."""

    label: str
    path: Path
    mode: Mode
    dtype: str
    status: str
    reason: str | None
    detail: str
    sizes: tuple[int, ...]

    @property
    def explanation(self) -> str:
        return explain(self.reason) or self.status


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """A run, judged. `sections` are ordered with the ones a decode user asks for first.

    `blocks`: how many were measured, and how many the run has (None where nobody noted it).
    """

    manifest: Manifest
    sections: tuple[Section, ...]
    failures: tuple[Failure, ...]
    primitives: tuple[Primitive, ...]
    warnings: tuple[str, ...]
    origin: str
    blocks: tuple[int, int | None] = (0, None)

    @property
    def partial(self) -> str:
        """See `phrases.partial`."""
        return phrases.partial(*self.blocks)

    @property
    def caveats(self) -> tuple[str, ...]:
        """See `phrases.caveats`."""
        return phrases.caveats(self.manifest)

    @property
    def box(self) -> str:
        return phrases.box(self.manifest.machine)

    @property
    def verdicts(self) -> tuple[Verdict, ...]:
        return tuple(row.verdict for section in self.sections for row in section.rows)

    @property
    def broken(self) -> tuple[Failure, ...]:
        """Failures that mean something went wrong, as opposed to what cannot run here."""
        return tuple(f for f in self.failures if f.status in ("wrong", "failed", "timeout"))

    @property
    def impossible(self) -> tuple[Failure, ...]:
        """What must not happen: a wrong result, or one faster than its bound."""
        return tuple(f for f in self.failures if f.status == "wrong" or f.reason == "below_bound")

    def headline(self) -> tuple[Section, ...]:
        """The sections to lead with: per path, the first by mode, dtype and number of ranks."""
        first: dict[str, Section] = {}
        for section in self.sections:
            if any(row.verdict.best for row in section.rows):
                first.setdefault(section.path, section)
        return tuple(first.values())


def build(run: Run, *, compare: Compare | None = None) -> Report:
    """Judge a run. `compare` replaces how default and best are compared (paired by their samples)."""
    chosen = compare or paired_compare(run.results, run.samples)
    judged = judge_all(run.results, run.primitives, compare=chosen)
    return Report(
        manifest=run.manifest,
        sections=_sections(judged, run.primitives, chosen),
        failures=_failures(r for j in judged for r in j.results),
        primitives=run.primitives,
        warnings=run.warnings,
        origin=run.manifest.origin,
        blocks=(len(blocks_done(run)), run.planned),
    )


def _sections(
    judged: Sequence[Judged], primitives: Sequence[Primitive], compare: Compare
) -> tuple[Section, ...]:
    grouped: dict[tuple[object, ...], list[Row]] = defaultdict(list)
    for j in judged:
        v = j.verdict
        row = Row(
            verdict=v,
            floor=j.floor,
            results=j.results,
            libraries=by_library(j.results, compare),
            tied=tied(j.results, v.best, compare),
        )
        grouped[(v.path, v.world, v.dtype, v.mode, v.devices, v.groups)].append(row)
    sections = []
    for rows in grouped.values():
        v = rows[0].verdict
        sections.append(
            Section(
                path=v.path,
                link=link_of([r for row in rows for r in row.results], primitives, v.path),
                world=v.world,
                dtype=v.dtype,
                mode=v.mode,
                devices=v.devices,
                groups=v.groups,
                rows=tuple(sorted(rows, key=lambda r: r.nbytes)),
            )
        )
    return tuple(sorted(sections, key=_section_order))


def _section_order(s: Section) -> tuple[object, ...]:
    dtypes = ("float32", "bfloat16", "float16") if s.path == "cpu" else ("bfloat16", "float16", "float32")
    return (
        ("peer", "host", "cpu").index(s.path),
        _MODES.index(s.mode),
        dtypes.index(s.dtype),
        len(s.groups) > 1,
        -s.world,
        s.devices,
    )


def link_of(results: Iterable[Result], primitives: Iterable[Primitive], path: str) -> str:
    """The link under a path: as the probes name it, else as the implementations that ran report it."""
    # neither additions (their link is memory) nor what was found beside blocks: more blocks, more of it
    probed = [
        p.link
        for p in primitives
        if p.path == path and p.link and p.status == "ok" and p.kind in _OF_LINKS and p.active != "best"
    ]
    named = probed or [r.ran.link for r in results if r.ran and r.ran.link]
    return max(sorted(set(named)), key=named.count, default="")


def _failures(results: Iterable[Result]) -> tuple[Failure, ...]:
    grouped: dict[tuple[object, ...], list[Result]] = defaultdict(list)
    for r in results:
        if r.status != "ok":
            case = r.case
            key = (short_label(case), case.path, case.mode, case.dtype, r.status, r.reason)
            grouped[key].append(r)
    failures = [
        Failure(
            label=short_label(members[0].case),
            path=members[0].case.path,
            mode=members[0].case.mode,
            dtype=members[0].case.dtype,
            status=members[0].status,
            reason=members[0].reason,
            detail=next((r.detail for r in members if r.detail), ""),
            sizes=tuple(sorted({r.case.nbytes for r in members})),
        )
        for members in grouped.values()
    ]
    severity = ("wrong", "failed", "timeout", "skipped", "unsupported")
    ordered = sorted(_merged(failures), key=lambda f: (severity.index(f.status), f.path, f.label, f.mode))
    return tuple(ordered)


def _merged(failures: Sequence[Failure]) -> list[Failure]:
    """Many variants of one backend that cannot run for one reason, as one: `mscclpp (10 variants)`."""
    alike: dict[tuple[object, ...], list[Failure]] = defaultdict(list)
    for f in failures:
        backend = f.label.partition(" ")[0] if f.status == "unsupported" else f.label
        alike[(backend, f.path, f.mode, f.dtype, f.status, f.reason, f.detail, f.sizes)].append(f)
    found = []
    for key, members in alike.items():
        many = len(members) >= _MANY_VARIANTS
        found += [replace(members[0], label=f"{key[0]} ({len(members)} variants)")] if many else members
    return found


def size_span(sizes: Sequence[int]) -> str:
    """`1 KiB` or `1 KiB to 4 MiB (24 sizes)`."""
    if len(sizes) == 1:
        return units.size(sizes[0])
    return f"{units.size(min(sizes))} to {units.size(max(sizes))} ({len(sizes)} sizes)"


def status_spans(section: Section) -> list[tuple[str, list[int]]]:
    """Runs of neighbouring sizes with the same verdict: [(status, sizes), ...] by rising size."""
    spans: list[tuple[str, list[int]]] = []
    for row in section.rows:
        if spans and spans[-1][0] == row.verdict.status:
            spans[-1][1].append(row.nbytes)
        else:
            spans.append((row.verdict.status, [row.nbytes]))
    return spans


def attainable(row: Row, *, interval: bool = False) -> str:
    """The attainable in us, marked where the best result stands for it (`slow_probes` says why)."""
    found = row.verdict.attainable
    if found is None:
        return ""
    mark = "*" if row.floor is not None and row.floor.slow_probe else ""
    return f"{phrases.interval(found) if interval else units.number(found.value)}{mark}"


def slow_probes(rows: Sequence[Row]) -> str:
    """What the mark on an attainable means, with the probes that were slow; empty where none was."""
    beaten = [row for row in rows if row.floor is not None and row.floor.slow_probe]
    if not beaten:
        return ""
    whys = dict.fromkeys((row.floor.slow_probe or "").partition(": ")[2] for row in beaten if row.floor)
    sizes = size_span([row.nbytes for row in beaten])
    more = f" and {len(whys) - 1} more" if len(whys) > 1 else ""
    return f"* measured, faster than the links as probed would allow, at {sizes}: {next(iter(whys))}{more}"


def _log_distance(a: int, b: int) -> float:
    return max(a, b, 1) / max(min(a, b), 1)
