"""What the user typed, and what was read, as a `Situation`."""

from __future__ import annotations

import re
from collections.abc import Sequence

from arfloor.core.cases import Estimate
from arfloor.core.decode import MissingInput, ModelShape, step_estimate
from arfloor.core.whatif.registry import exactly, read_estimate
from arfloor.core.whatif.step import IN_SITU, TRANSPORT_PART, Situation
from arfloor.core.whatif.uncertainty import Input
from arfloor.report.whatif.latencies import Latencies

# B alone is bytes: Mb is a million bits
_RATE = re.compile(r"(\S+?)\s*(kB|KB|MB|GB)/s")
_SCALE = {"kB": 1e-6, "KB": 1e-6, "MB": 1e-3, "GB": 1.0}
_WHOLE = re.compile(r"[0-9]{1,9}")

Each = tuple[tuple[int, Estimate], ...]


def per_concurrency(text: str, unit: str, what: str) -> Each:
    """`1:58.7,16:279` as (concurrency, estimate) pairs. Raises MissingInput naming `what`."""
    pairs = []
    for item in text.split(","):
        concurrency, separator, value = item.strip().partition(":")
        if not separator or not _WHOLE.fullmatch(concurrency) or int(concurrency) < 1:
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
    if not separator or not _WHOLE.fullmatch(concurrency) or int(concurrency) < 1:
        raise MissingInput(f"{what}: expected VALUE@CONCURRENCY, as 0.19@64, found {text!r}")
    return value.strip(), int(concurrency)


def shares(texts: Sequence[str]) -> Each:
    """`0.19@64` as (concurrency, share). Raises MissingInput unless it lies between 0 and 1."""
    found = []
    for text in texts:
        value, concurrency = at_concurrency(text, "--share")
        found.append((concurrency, share(value)))
    return _once(found, "--share")


def share(text: str) -> Estimate:
    """`0.19` of the step. Raises MissingInput unless it lies between 0 and 1."""
    found = read_estimate(text, "of the step", "--share")
    if not 0 < found.lo <= found.hi < 1:
        raise MissingInput(f"--share: expected a part of the step between 0 and 1, found {text!r}")
    return found


def waits(texts: Sequence[str]) -> Each:
    """`120@64` as (concurrency, waiting a reduce in us)."""
    found = []
    for text in texts:
        value, concurrency = at_concurrency(text, "--waiting")
        found.append((concurrency, read_estimate(value, "us", "--waiting")))
    return _once(found, "--waiting")


def _once(found: Sequence[tuple[int, Estimate]], what: str) -> Each:
    given = [concurrency for concurrency, _ in found]
    twice = next((c for c in given if given.count(c) > 1), None)
    if twice is not None:
        raise MissingInput(f"{what}: expected one value at concurrency {twice}, found {given.count(twice)}")
    return tuple(found)


def in_situ(text: str | None) -> Estimate | None:
    """`0.9..1.2` as a factor above 0."""
    factor = None if text is None else exactly(text, "x", "--in-situ")
    if factor is not None and factor.lo <= 0:
        raise MissingInput(f"--in-situ: expected a factor above 0, as 0.9..1.2, found {text!r}")
    return factor


def transport_part(text: str | None) -> Estimate | None:
    """`0..1` as a part."""
    part = None if text is None else exactly(text, "of it", "--transport-part")
    if part is not None and part.hi > 1:
        raise MissingInput(f"--transport-part: expected a part between 0 and 1, found {text!r}")
    return part


def counter(text: str) -> tuple[float, int]:
    """`200MB/s@64` as GB/s and concurrency."""
    value, concurrency = at_concurrency(text, "--pcie-counter")
    match = _RATE.fullmatch(value)
    if not match:
        raise MissingInput(
            f"--pcie-counter: expected a rate in kB/s, MB/s or GB/s as 200MB/s@64, found {text!r}"
        )
    return exactly(match[1], match[2], "--pcie-counter").value * _SCALE[match[2]], concurrency


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
    curve = latencies.in_use(using)
    for concurrency, _ in waiting:
        if concurrency not in dict(steps):
            raise MissingInput(
                f"--waiting: no tok/s is given at concurrency {concurrency}; add it to --tok-s"
            )
    sizes = [shape.message_nbytes(b) for b, _ in steps]
    return Situation(
        shape=shape,
        tp=tp,
        steps=steps,
        curve=curve,
        alternatives=tuple(c for c in latencies.curves if c.backend != curve.backend),
        attainable=latencies.attainable,
        shares=profiled,
        waiting=waiting,
        launch=latencies.launch,
        contention=latencies.contention,
        floors=tuple((n, f) for n in sizes if (f := latencies.bound(n)) is not None),
        in_situ=IN_SITU if in_situ is None else _given(IN_SITU, in_situ),
        transport_part=TRANSPORT_PART if transport_part is None else _given(TRANSPORT_PART, transport_part),
    )


def _given(item: Input, estimate: Estimate) -> Input:
    return Input(name=item.name, estimate=estimate, origin="measured", source="given")
