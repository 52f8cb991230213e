"""The whole answer to one `arfloor whatif`, computed once; text, JSON and pictures only render it."""

from __future__ import annotations

from collections.abc import Sequence

from arfloor.core.cases import record
from arfloor.core.decode import MissingInput, reduce_traffic_gbps
from arfloor.core.whatif.analysis import Analysis, analyse
from arfloor.core.whatif.curves import latency_us
from arfloor.core.whatif.decision import WORTH
from arfloor.core.whatif.intervention import Intervention
from arfloor.core.whatif.partition import Partition, partition
from arfloor.core.whatif.registry import parse, suggestions
from arfloor.core.whatif.step import Situation
from arfloor.core.whatif.switch import Switch
from arfloor.report.whatif.latencies import Latencies


@record
class Counter:
    """A PCIe counter's reading beside the traffic that the reduces cause at that concurrency, in GB/s
    per direction and GPU (ring, payload; a protocol with a flag a word doubles it)."""

    concurrency: int
    read_gbps: float
    reduces_gbps: float


@record
class Whatif:
    """One question answered at one concurrency, with the partition at all of them. `asked`: the changes;
    `given`: whether the user named them; `could_ask`: what `--apply` takes here."""

    situation: Situation
    latencies: Latencies
    analysis: Analysis
    everywhere: tuple[Partition, ...]
    counters: tuple[Counter, ...]
    skipped: tuple[str, ...]
    asked: tuple[tuple[Intervention, ...], ...] = ()
    given: bool = True
    could_ask: tuple[str, ...] = ()


def answer(
    situation: Situation,
    latencies: Latencies,
    *,
    at: int | None = None,
    scenarios: Sequence[str] = (),
    counters: Sequence[tuple[float, int]] = (),
    worth: float = WORTH,
) -> Whatif:
    """Answer at concurrency `at` (else the profiled one, else the largest). `scenarios` are as typed;
    without any, switching to each faster implementation (a predicted one only where all are) and
    reaching the floor are tried.

    Raises MissingInput naming what a scenario cannot do without."""
    sequences = _concurrency(situation, at)
    chains = [parse(text, situation) for text in scenarios] or _switches(situation, sequences)
    partitions, skipped = [], []
    for concurrency in situation.concurrencies:
        try:
            partitions.append(partition(situation, concurrency))
        except MissingInput as missing:
            if concurrency == sequences:
                raise
            skipped.append(f"concurrency {concurrency}: {missing}")
    return Whatif(
        situation=situation,
        latencies=latencies,
        analysis=analyse(situation, sequences, chains, worth),
        everywhere=tuple(partitions),
        counters=tuple(_counter(situation, rate, b) for rate, b in counters),
        skipped=tuple(skipped),
        asked=tuple(map(tuple, chains)),
        given=bool(scenarios),
        could_ask=suggestions(situation, sequences),
    )


def _concurrency(situation: Situation, at: int | None) -> int:
    if at is not None:
        situation.step_input(at)
        return at
    for concurrency, _ in situation.shares:
        situation.step_input(concurrency)
    profiled = [b for b, _ in situation.shares]
    return max(profiled) if profiled else max(situation.concurrencies)


def _switches(situation: Situation, sequences: int) -> list[tuple[Intervention, ...]]:
    nbytes = situation.shape.message_nbytes(sequences)
    now = situation.curve.latency(nbytes).estimate.value
    unsure = situation.curve.origin == "predicted"  # then no measured one is pushed aside by a predicted one
    tried = [c for c in situation.alternatives if unsure or c.origin != "predicted"]
    faster = [c for c in tried if (us := latency_us(c, nbytes)) is not None and us < now]
    faster.sort(key=lambda c: latency_us(c, nbytes) or now)
    chains: list[tuple[Intervention, ...]] = [(Switch(to=c),) for c in faster[:3]]
    if situation.attainable is not None:
        chains.append((Switch(to=situation.attainable),))
    return chains


def _counter(situation: Situation, read_gbps: float, concurrency: int) -> Counter:
    step_us = situation.step_input(concurrency).estimate.value
    traffic = reduce_traffic_gbps(situation.shape, situation.tp, concurrency, 1e6 / step_us)
    return Counter(concurrency=concurrency, read_gbps=read_gbps, reduces_gbps=traffic)
