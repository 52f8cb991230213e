"""Speculative decoding: several tokens a sequence verified in one step, some of them kept."""

from __future__ import annotations

from dataclasses import replace

from arfloor.core.cases import Estimate, record
from arfloor.core.decode import MissingInput
from arfloor.core.whatif.intervention import given, given_or_assumed
from arfloor.core.whatif.step import Group, Step, scale_compute
from arfloor.core.whatif.uncertainty import Draw

DRAFT_COST = Estimate(value=1.0, lo=0.5, hi=2.0, n=0, unit="layers")


@record
class Speculative:
    """`verify` tokens a sequence are verified a step; `accept` come out on average, the bonus token
    included. The draft (one MTP layer a drafted token) computes and reduces too.

    `draft_layers` is the cost of drafting one token in decoder layers of the model; `cost` overrides
    C(b verify) / C(b), which otherwise comes from tok/s at other concurrencies.
    """

    verify: int
    accept: Estimate
    cost: Estimate | None = None
    draft_layers: Estimate = DRAFT_COST

    @property
    def label(self) -> str:
        return f"MTP, {self.verify} verified, {self.accept.value:g} emitted"

    def _grown(self, group: Group) -> Group:
        return replace(group, nbytes=group.nbytes * self.verify)

    def apply(self, step: Step, draw: Draw) -> Step:
        if not 1 <= self.accept.lo <= self.accept.hi <= self.verify:
            ends = dict.fromkeys(f"{end:g}" for end in (self.accept.lo, self.accept.hi))
            raise MissingInput(
                f"spec: accept is the mean number of tokens emitted a step, bonus included: expected 1 to "
                f"{self.verify} with verify={self.verify}, found {'..'.join(ends)}"
            )
        shape = step.situation.shape
        drafted = self.verify - 1
        if self.cost is not None:
            ratio = draw(given(f"C of {self.verify} tokens a sequence over C of one", self.cost))
        else:
            ratio = scale_compute(step, step.sequences * step.tokens * self.verify, draw)
        layer_us = step.compute_us / shape.layers
        drafting = given_or_assumed("cost of drafting a token", self.draft_layers, DRAFT_COST)
        draft_us = drafted * layer_us * draw(drafting)
        groups = [self._grown(g) for g in step.groups]
        if drafted and step.groups:
            first = step.groups[0]
            count = drafted * (shape.reduces_per_layer * max(shape.mtp_layers, 1) + shape.other_reduces)
            groups.append(replace(first, label="draft", count=count))
        return replace(
            step.with_groups(groups),
            compute_us=step.compute_us * ratio + draft_us,
            tokens=step.tokens * self.verify,
            emitted=step.emitted * draw(given("tokens emitted a step", self.accept)),
        )

    def assumptions(self, step: Step) -> tuple[str, ...]:
        cost = "given" if self.cost is not None else "from tok/s at other concurrencies, or its bracket"
        return (
            f"C of {self.verify} tokens a sequence: {cost} (more tokens touch more experts)",
            f"drafting a token costs {self.draft_layers.lo:g} to {self.draft_layers.hi:g} decoder layers"
            " and the reduces of one",
            "acceptance is the workload's: it is an input, not a prediction",
        )

    def loses_when(self, step: Step) -> str:
        draw = Draw()
        after = self.apply(step, draw)
        least = after.time_us(draw) / step.time_us(draw) * step.emitted
        text = f"fewer than {least:.3g} tokens come out a step"
        crossing = _crossing(step, after)
        return f"{text}{crossing}"


def _crossing(step: Step, after: Step) -> str:
    """Says so when the grown message passes a size at which another known curve becomes the faster."""
    if not step.groups:
        return ""
    before, now = step.groups[0], after.groups[0]
    for other in step.situation.alternatives:
        try:
            was = (
                before.curve.latency(before.nbytes).estimate.value
                <= other.latency(before.nbytes).estimate.value
            )
            still = now.curve.latency(now.nbytes).estimate.value <= other.latency(now.nbytes).estimate.value
        except MissingInput:
            continue
        if was and not still:
            return f"; at {now.nbytes // 1024} KiB {other.backend} is faster than {now.curve.backend}"
    return ""
