"""What a record must be besides well formed: records are read from files that others wrote, or that rotted.

A number that no machine can give is worse than none: it would be averaged, divided by, and believed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from arfloor.core.cases import (
    SCHEMA_VERSION,
    BlockRecord,
    Case,
    Estimate,
    Manifest,
    Primitive,
    Samples,
    Tuning,
)

LEAST, MOST = 1e-9, 1e12
"""Of the value of a latency in us (a femtosecond, eleven days) or of a rate in GB/s."""

MOST_RANKS = 65536
MOST_BYTES = 1 << 50

_NOTHING, _ALL = 1e-60, 1e60  # two launches that disagree give an honest interval of many orders

_UNITS = {"pingpong": "us", "launch": "us", "stream": "GB/s", "reduce": "GB/s"}


def fault(record: Any) -> str | None:
    """Why a record cannot be true, in a few words; None when nothing speaks against it."""
    if isinstance(record, BlockRecord):
        return _block(record)
    if isinstance(record, Samples):
        return _samples(record)
    if isinstance(record, Primitive):
        return _primitive(record)
    if isinstance(record, Manifest):
        return _manifest(record)
    if isinstance(record, Tuning):
        return _tuning(record)
    return None


def _tuning(record: Tuning) -> str | None:
    times = [us for pair in record.finalists_us.values() for us in pair]
    if all(LEAST <= us <= MOST for us in times) and 1 <= record.nbytes <= MOST_BYTES:
        return None
    return f"expected times from {LEAST:g} to {MOST:g} us of 1 to {MOST_BYTES} bytes"


def _block(record: BlockRecord) -> str | None:
    if record.schema > SCHEMA_VERSION:
        return f"schema {record.schema} is newer than this arfloor reads ({SCHEMA_VERSION}); upgrade arfloor"
    for result in record.results:
        found = _case(result.case)
        if found is None and result.latency is not None:
            found = _estimate(result.latency, "us")
        if found is not None:
            return f"{ascii(result.case.backend)[:40]}: {found}"
    return None


def _case(case: Case) -> str | None:
    names = (case.backend, case.variant, *(part for pair in case.settings for part in pair), *case.devices)
    if not all(name.isprintable() for name in names):
        return "control characters in a name"
    if not case.backend:
        return "expected the name of a backend, found none"
    if case.numel < 1 or case.nbytes > MOST_BYTES:
        return f"expected 1 element to {MOST_BYTES} bytes, found {'more' if case.numel > 0 else 'less'}"
    ranks = len(case.devices)
    if not 2 <= ranks <= MOST_RANKS:
        return f"expected the devices of 2 ranks or more, found {ranks}"
    if case.groups:
        members = [rank for group in case.groups for rank in group]
        apart = len(set(members)) == len(members) and all(0 <= rank < ranks for rank in members)
        if not apart or len({len(group) for group in case.groups}) != 1 or len(case.groups[0]) < 2:
            return f"expected groups of equal size, 2 or more, of ranks 0 to {ranks - 1}"
    return None


def _samples(samples: Samples) -> str | None:
    if samples.rank < 0:
        return f"expected a rank of 0 or more, found {samples.rank}"
    read = (*samples.us, *samples.chains_us)
    wild = next((us for us in read if not -MOST < us < MOST), None)  # noise may carry one below 0
    return None if wild is None else f"expected microseconds, found {wild:g}"


def _primitive(primitive: Primitive) -> str | None:
    if not 0 <= primitive.nbytes <= MOST_BYTES:
        return f"expected 0 to {MOST_BYTES} bytes, found {'more' if primitive.nbytes > 0 else 'less'}"
    if primitive.estimate is None or primitive.status != "ok":
        return None
    return _estimate(primitive.estimate, _UNITS.get(primitive.kind, primitive.estimate.unit))


def _manifest(manifest: Manifest) -> str | None:
    if manifest.schema < 1:
        return f"expected schema 1 to {SCHEMA_VERSION}, found {manifest.schema}"
    machine = manifest.machine
    shown = (manifest.run_id, manifest.started, machine.device_name, *manifest.versions.values())
    return None if all(text.isprintable() for text in shown) else "control characters in a name"


def _estimate(estimate: Estimate, unit: str) -> str | None:
    if estimate.unit != unit:
        return f"expected a value in {unit}, found {ascii(estimate.unit)[:40]}"
    if not (
        LEAST <= estimate.value <= MOST and _NOTHING < estimate.lo <= estimate.value <= estimate.hi < _ALL
    ):
        found = f"{estimate.lo:g}, {estimate.value:g}, {estimate.hi:g} {unit}"
        return f"expected 0 < lo <= value <= hi, found {found}"
    return None


def whole_rounds(
    samples: Iterable[Samples], ranks: Mapping[str, int]
) -> tuple[tuple[Samples, ...], tuple[str, ...]]:
    """The samples of rounds that all ranks of their case timed, and sentences about those left out.

    `ranks`: the number of ranks by case id; samples of other cases are left out. The slowest rank decides
    a latency, so a round that lacks a rank would look faster than it was.
    """
    rounds: dict[tuple[str, int, int], list[Samples]] = defaultdict(list)
    for s in samples:
        if s.case_id in ranks:
            rounds[s.case_id, s.launch, s.round].append(s)
    kept: list[Samples] = []
    lacking: dict[int, int] = defaultdict(int)
    for (case_id, _, _), members in rounds.items():
        missing = set(range(ranks[case_id])) - {s.rank for s in members}
        if not missing:
            kept += members
        for rank in missing:
            lacking[rank] += 1
    return tuple(kept), _told(lacking, len(rounds))


def _told(lacking: Mapping[int, int], rounds: int) -> tuple[str, ...]:
    ranks: Sequence[int] = sorted(lacking)
    if not ranks:
        return ()
    named = ", ".join(map(str, ranks[:8])) + (", ..." if len(ranks) > 8 else "")
    most = max(lacking.values())
    return (
        f"samples: rank {named} timed nothing in {most} of {rounds} rounds: these rounds are left out, "
        "and a case without any keeps the latency of its record",
    )
