"""A decode step as interventions see it: reduces with counts, bytes and curves, and everything else.

Times are computed from counts, bytes and curves at the very end (`time_us`), so interventions that
change different things give the same answer in either order, and none is counted twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

from arfloor.core import units
from arfloor.core.cases import Estimate, record
from arfloor.core.decode import MissingInput, ModelShape
from arfloor.core.whatif.curves import LatencyCurve, compute_ratio
from arfloor.core.whatif.uncertainty import Draw, Input

ATTAINABLE = "attainable"
"""The name of the best known schedule at the links' rates, as if it were an implementation."""

IN_SITU = Input(
    name="in-situ over standalone latency",
    estimate=Estimate(value=1.0, lo=1 / 1.28, hi=1.28, n=0, unit="x"),
    origin="assumed",
    source="one measured pair, taken in both directions: a reduce cost 13.3 us of step time where its "
    "kernel took 10.4 us (batch 1, two H200s, by hand); on eight V100s NCCL's factor was 3.4 (1Cat-vLLM)",
)
TRANSPORT_PART = Input(
    name="part of the unexplained that scales with transport",
    estimate=Estimate(value=0.0, lo=0.0, hi=1.0, n=0, unit="of it"),
    origin="assumed",
    source="one rank's profile cannot tell waiting from slow transport; waiting is the cautious reading",
)


@record
class Situation:
    """What is known of a served model on a box.

    `steps` and `shares` are per concurrency (sequences in flight): the length of a step in us, and
    the profiled share of it spent in reduces. `curve` is A(S) of the implementation in use,
    `alternatives` of those that could be, `attainable` of the best known schedule. `launch` is an
    empty graph node's time; `floors` maps message sizes to the bound in us. `waiting` is time a reduce
    waits for other ranks, us per concurrency, where traces of all ranks identified it. `contention` is a
    product's time beside reduces over its time alone, where a run measured it.
    """

    shape: ModelShape
    tp: int
    steps: tuple[tuple[int, Estimate], ...]
    curve: LatencyCurve
    alternatives: tuple[LatencyCurve, ...] = ()
    attainable: LatencyCurve | None = None
    shares: tuple[tuple[int, Estimate], ...] = ()
    waiting: tuple[tuple[int, Estimate], ...] = ()
    launch: Input | None = None
    contention: Input | None = None
    floors: tuple[tuple[int, Input], ...] = ()
    in_situ: Input = IN_SITU
    transport_part: Input = TRANSPORT_PART
    tok_s_source: str = "given"

    @property
    def concurrencies(self) -> tuple[int, ...]:
        """Concurrencies with a known step time, increasing."""
        return tuple(sorted(b for b, _ in self.steps))

    def alternative(self, backend: str) -> LatencyCurve:
        """The curve of `backend`, or the only one whose name begins so. Raises MissingInput naming the ones
        there are."""
        known = [self.curve, *self.alternatives]
        if self.attainable is not None:
            known.append(self.attainable)
        exact = [c for c in known if c.backend == backend]
        begins = exact or [c for c in known if c.backend.startswith(backend)]
        if len(begins) == 1:
            return begins[0]
        have = ", ".join(c.backend for c in begins or known)
        found = "more than one begins so" if begins else "no such"
        raise MissingInput(f"A(S) of {backend!r}: {found}; name one of: {have}")

    def step_input(self, sequences: int) -> Input:
        """The length of a step at this concurrency. Raises MissingInput when it was not given."""
        known = dict(self.steps)
        if sequences not in known:
            raise MissingInput(
                f"tok/s at concurrency {sequences}: given are {', '.join(map(str, self.concurrencies))}; "
                f"add {sequences}:TOKENS_PER_SECOND"
            )
        return Input(
            name=f"step at concurrency {sequences}",
            estimate=known[sequences],
            origin="measured",
            source=self.tok_s_source,
        )

    def share_input(self, sequences: int) -> Input | None:
        """The profiled share of reduces at this concurrency, if there is one."""
        share = dict(self.shares).get(sequences)
        if share is None:
            return None
        return Input(
            name=f"profiled share at concurrency {sequences}",
            estimate=share,
            origin="measured",
            source="profile",
        )

    def waiting_input(self, sequences: int) -> Input | None:
        """Identified waiting a reduce, if traces of all ranks were imported."""
        waited = dict(self.waiting).get(sequences)
        if waited is None:
            return None
        return Input(
            name=f"waiting a reduce at concurrency {sequences}",
            estimate=waited,
            origin="measured",
            source="traces of all ranks on aligned clocks",
        )


@record
class Group:
    """Identical reduces of a step. `waiting_us` is identified waiting for other ranks; `extra_us` is
    what each takes in the step beyond that and the standalone latency of `observed_curve` at
    `observed_nbytes` (waiting nobody identified, contention, or a latency that does not apply);
    `overhead_us` is added work beside each reduce.
    """

    label: str
    count: float
    nbytes: int
    curve: LatencyCurve
    observed_curve: LatencyCurve
    observed_nbytes: int

    waiting_us: float = 0.0
    extra_us: float = 0.0
    overhead_us: float = 0.0

    def transport_us(self, situation: Situation, draw: Draw) -> float:
        """Standalone latency carried into the step, us a reduce."""
        return draw(situation.in_situ) * draw(self.curve.latency(self.nbytes))

    def each_us(self, situation: Situation, draw: Draw) -> float:
        """Time of one reduce in the step, us."""
        transport = self.transport_us(situation, draw)
        extra = self.extra_us
        if extra:
            observed = draw(situation.in_situ) * draw(self.observed_curve.latency(self.observed_nbytes))
            part = draw(situation.transport_part) if extra > 0 else 1.0
            extra *= 1 - part + part * transport / observed
        return transport + self.waiting_us + extra + self.overhead_us


@record
class Step:
    """One decode step. `compute_us` is everything but the reduces; `tokens` a sequence are verified,
    `emitted` a sequence come out; `overlapped` hides reduces behind the other half batch's compute."""

    situation: Situation
    sequences: int
    compute_us: float
    groups: tuple[Group, ...]
    tokens: int = 1
    emitted: float = 1.0
    overlapped: bool = False

    def reduce_us(self, draw: Draw) -> float:
        """Time of all reduces of the step, us, hidden or not."""
        return sum(g.count * g.each_us(self.situation, draw) for g in self.groups)

    def time_us(self, draw: Draw) -> float:
        """Length of the step, us."""
        reduces = self.reduce_us(draw)
        if not self.overlapped or not self.groups:
            return self.compute_us + reduces
        last = max(g.each_us(self.situation, draw) for g in self.groups)
        return max(self.compute_us, reduces) + min(last, reduces)

    def token_us(self, draw: Draw) -> float:
        """Time per token of one sequence, us: what waterfalls add up in."""
        return self.time_us(draw) / self.emitted

    def tok_s(self, draw: Draw) -> float:
        """Tokens a second over all sequences."""
        return self.sequences / self.token_us(draw) * 1e6

    @property
    def reduces(self) -> float:
        """Reduces a step."""
        return sum(g.count for g in self.groups)

    @property
    def reduces_per_token(self) -> float:
        """Reduces a step over the tokens that one sequence gets out of it."""
        return self.reduces / self.emitted

    @property
    def nbytes_per_token(self) -> float:
        """Message bytes reduced per emitted token (over all sequences)."""
        return sum(g.count * g.nbytes for g in self.groups) / (self.sequences * self.emitted)

    def with_groups(self, groups: Sequence[Group]) -> Step:
        """The same step with other reduces."""
        return replace(self, groups=tuple(groups))


def observe(situation: Situation, sequences: int, draw: Draw) -> Step:
    """The step as it is served today. Raises MissingInput for an absent figure, ValueError when the
    figures contradict each other (reduces longer than the step)."""
    step_us = draw(situation.step_input(sequences))
    nbytes = situation.shape.message_nbytes(sequences)
    count = situation.shape.reduces
    group = Group(
        label="decode",
        count=count,
        nbytes=nbytes,
        curve=situation.curve,
        observed_curve=situation.curve,
        observed_nbytes=nbytes,
    )
    transport = group.transport_us(situation, draw)
    share = situation.share_input(sequences)

    waited = situation.waiting_input(sequences)
    waiting = 0.0 if waited is None else draw(waited)
    reduces_us = draw(share) * step_us if share is not None else count * (transport + waiting)
    if share is not None and count * waiting >= reduces_us:
        if draw.nominal:
            raise ValueError(
                f"waiting of {waiting:.4g} us a reduce contradicts the profiled share: {count} reduces in "
                f"{reduces_us / 1e3:.4g} ms leave {reduces_us / count:.4g} us for each, waiting included; "
                f"check --share and --waiting at concurrency {sequences}"
            )
        waiting = 0.99 * reduces_us / count
    if reduces_us >= step_us:
        if draw.nominal:
            raise ValueError(
                f"{count} reduces of {nbytes} B at {reduces_us / count:.1f} us are longer than the whole "
                f"step ({step_us / 1e3:.2f} ms at concurrency {sequences}): expected a part of it; "
                "check tok/s, the model, and whether these latencies are of this box"
            )
        reduces_us = 0.99 * step_us  # only an end of an interval: keep the step possible

    extra = reduces_us / count - transport - waiting
    if share is None:
        extra = min(extra, 0.0)
    return Step(
        situation=situation,
        sequences=sequences,
        compute_us=step_us - reduces_us,
        groups=(replace(group, waiting_us=waiting, extra_us=extra),),
    )


def known_compute(situation: Situation, draw: Draw) -> list[tuple[int, float]]:
    """C(b) in us at every concurrency whose step and latency are known, in increasing tokens."""
    known = []
    for sequences in situation.concurrencies:
        try:
            known.append((sequences, observe(situation, sequences, draw).compute_us))
        except MissingInput:
            continue  # its message size was not measured: it cannot inform C
    return known


def scale_compute(step: Step, tokens: int, draw: Draw) -> float:
    """C(tokens) / C(now) of the model, from the tok/s known at other concurrencies. Raises ValueError when
    a larger batch has the shorter step."""
    _check_steps(step.situation)
    known, nominal = known_compute(step.situation, draw), known_compute(step.situation, Draw())
    now = compute_ratio(known, nominal, step.sequences, step.sequences * step.tokens, draw)
    return compute_ratio(known, nominal, step.sequences, tokens, draw) / now


def _check_steps(situation: Situation) -> None:
    for (b0, short), (b1, long) in pairwise(sorted(situation.steps, key=lambda s: s[0])):
        if long.hi < short.lo:
            raise ValueError(
                f"tok/s at concurrency {b0} and {b1} contradict each other: the step falls from "
                f"{units.number(short.value / 1e3)} to {units.number(long.value / 1e3)} ms; "
                "expected it to grow with the batch"
            )
