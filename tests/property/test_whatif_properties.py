"""What must hold of any what-if: identities, order, and intervals that never narrow."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from arfloor.core.cases import Estimate
from arfloor.core.decode import ModelShape
from arfloor.core.whatif.curves import TableCurve
from arfloor.core.whatif.free import ReducesFree
from arfloor.core.whatif.fuse import Fuse
from arfloor.core.whatif.merge_moe import MergeMoe
from arfloor.core.whatif.overlap import TwoBatchOverlap
from arfloor.core.whatif.partition import partition
from arfloor.core.whatif.quantised import QuantisedWire
from arfloor.core.whatif.rest import RestFaster
from arfloor.core.whatif.scenario import run_scenario
from arfloor.core.whatif.speculative import Speculative
from arfloor.core.whatif.step import Situation, observe
from arfloor.core.whatif.switch import Switch
from arfloor.core.whatif.uncertainty import Draw, Input

SIZES = (1024, 8192, 65536, 524288, 4194304)
FAST = settings(max_examples=25, deadline=None)


def about(value: float, spread: float, unit: str = "us") -> Estimate:
    return Estimate(value=value, lo=value / (1 + spread), hi=value * (1 + spread), n=1, unit=unit)


@st.composite
def curves(draw, name):
    alpha = draw(st.floats(2, 20))
    beta = draw(st.floats(1e-6, 2e-4))
    spread = draw(st.floats(0, 0.2))
    points = tuple((s, about(alpha + beta * s, spread)) for s in SIZES)
    return TableCurve(backend=name, points=points, origin="measured", source="test")


@st.composite
def situations(draw):
    shape = ModelShape(
        name="m",
        hidden=draw(st.sampled_from([2048, 4096])),
        layers=draw(st.integers(4, 60)),
        routed_experts=8,
        separate_shared_reduces=draw(st.sampled_from([0, 1])),
        mtp_layers=1,
    )
    now, other = draw(curves("now")), draw(curves("other"))
    spread = draw(st.floats(0, 0.05))
    steps, compute = [], 0.0
    for b in (2, 8, 16):  # the rest of the step grows with the tokens, but no faster than they do
        reduces = shape.reduces * now.latency(shape.message_nbytes(b)).estimate.value
        least = max(compute, 2 * reduces)
        compute = least * draw(st.floats(1.0, 1.8))
        steps.append((b, about(reduces + compute, spread)))
    share = draw(st.floats(0.05, 0.35)) if draw(st.booleans()) else None
    return Situation(
        shape=shape,
        tp=4,
        steps=tuple(steps),
        curve=now,
        alternatives=(other,),
        shares=() if share is None else ((8, about(share, 0.02, "of the step")),),
        launch=Input(name="launch", estimate=about(0.5, 0.5), origin="measured", source="test"),
    )


@FAST
@given(situations())
def test_free_reduces_give_amdahl(situation):
    step = observe(situation, 8, Draw())
    share = step.reduce_us(Draw()) / step.time_us(Draw())
    scenario, _, _ = run_scenario(situation, 8, [ReducesFree()])
    assert scenario.gain.estimate.value == pytest.approx(1 / (1 - share) - 1, rel=1e-9)


@FAST
@given(situations())
def test_nothing_changed_returns_the_input(situation):
    given_us = dict(situation.steps)[8].value
    scenario, _, today = run_scenario(
        situation, 8, [Switch(to=situation.curve), RestFaster(factor=about(1.0, 0.0, "x"))]
    )
    assert today["tok_s 0"].estimate.value == pytest.approx(8 / given_us * 1e6, rel=1e-9)
    assert scenario.gain.estimate.value == pytest.approx(0, abs=1e-9)
    assert scenario.gain.estimate.lo == pytest.approx(0, abs=1e-9)
    assert scenario.gain.estimate.hi == pytest.approx(0, abs=1e-9)


@FAST
@given(situations(), st.floats(0, 5))
def test_the_partition_sums_to_the_step_and_the_profile(situation, waited):
    # what is not contradicted by the profile, where there is one, or by the step
    within = dict(situation.shares)[8].value if situation.shares else 1.0
    least = within * dict(situation.steps)[8].value / situation.shape.reduces
    assume(waited < least / 4)
    situation = replace(situation, waiting=((8, about(waited, 0.1)),))
    parts = partition(situation, 8)
    total = parts.step_us.estimate.value
    assert sum(p.us.estimate.value for p in parts.parts) == pytest.approx(total, rel=1e-9)
    assert sum(p.share.estimate.value for p in parts.parts) == pytest.approx(1, rel=1e-9)
    if parts.profiled:
        share = dict(situation.shares)[8].value
        assert sum(p.share.estimate.value for p in parts.reduce_parts) == pytest.approx(share, rel=1e-9)


def interventions(situation):
    return {
        "switch": Switch(to=situation.alternatives[0]),
        "rest": RestFaster(factor=about(1.4, 0.05, "x")),
        "merge": MergeMoe(),
        "quant": QuantisedWire(format="int8", overhead_us=about(1.0, 0.3)),
    }


@FAST
@given(situations(), st.permutations(["switch", "rest", "merge", "quant"]))
def test_interventions_on_different_things_commute(situation, order):
    known = interventions(situation)
    one, _, _ = run_scenario(situation, 8, [known[n] for n in sorted(known)])
    two, _, _ = run_scenario(situation, 8, [known[n] for n in order])
    for field in ("value", "lo", "hi"):
        a, b = getattr(one.gain.estimate, field), getattr(two.gain.estimate, field)
        assert a == pytest.approx(b, rel=1e-9, abs=1e-9)


@FAST
@given(situations())
def test_waterfalls_add_in_time(situation):
    chain = [*interventions(situation).values(), Fuse(), TwoBatchOverlap()]
    scenario, _, today = run_scenario(situation, 8, chain)
    left = today["us 0"].estimate.value - sum(s.saved_us.estimate.value for s in scenario.stages)
    assert left == pytest.approx(8 / scenario.stages[-1].tok_s.estimate.value * 1e6, rel=1e-9)


def widened(estimate: Estimate, factor: float) -> Estimate:
    return replace(
        estimate,
        lo=estimate.value - (estimate.value - estimate.lo) * factor,
        hi=estimate.value + (estimate.hi - estimate.value) * factor,
    )


@FAST
@given(situations(), st.floats(1.0, 1.5), st.sampled_from(["steps", "shares", "launch", "curve", "other"]))
def test_a_wider_input_never_narrows_the_answer(situation, factor, which):
    wider = _widen(situation, factor, which)
    for make in (_everything, lambda s: [ReducesFree()], lambda s: [Speculative(verify=2, accept=TWO)]):
        try:
            narrow, _, _ = run_scenario(situation, 8, make(situation))
            wide, _, _ = run_scenario(wider, 8, make(wider))
        except ValueError:
            assume(False)
        for answer in ("gain", "tok_s"):
            a, b = getattr(narrow.stages[-1], answer).estimate, getattr(wide.stages[-1], answer).estimate
            assert b.value == pytest.approx(a.value, rel=1e-9)
            # an answer that bends near an end of an input may move in by a hair: see whatif.uncertainty
            slack = 1e-9 * max(1.0, abs(a.value)) + 1e-3 * (a.hi - a.lo)
            assert b.lo <= a.lo + slack
            assert b.hi >= a.hi - slack


TWO = Estimate(value=1.6, lo=1.5, hi=1.7, n=1, unit="tokens")


def _everything(situation):
    return [*interventions(situation).values(), Fuse(), TwoBatchOverlap()]


def _widen(situation, factor, which):
    def points(curve):
        return replace(curve, points=tuple((s, widened(e, factor)) for s, e in curve.points))

    if which == "steps":
        return replace(situation, steps=tuple((b, widened(e, factor)) for b, e in situation.steps))
    if which == "shares":
        return replace(situation, shares=tuple((b, widened(e, factor)) for b, e in situation.shares))
    if which == "launch":
        wide = replace(situation.launch, estimate=widened(situation.launch.estimate, factor))
        return replace(situation, launch=wide)
    if which == "curve":
        return replace(situation, curve=points(situation.curve))
    return replace(situation, alternatives=(points(situation.alternatives[0]),))


@FAST
@given(situations(), st.integers(2, 5), st.floats(1.0, 1.9))
def test_speculation_pays_exactly_when_more_tokens_come_out_than_its_step_grew(situation, verify, cost):
    """At its own break-even acceptance the gain is zero; with one token a step it never pays."""

    def spec(accept):
        return Speculative(verify=verify, accept=about(accept, 0.0, "tokens"), cost=about(cost, 0.0, "x"))

    step = observe(situation, 2, Draw())
    least = spec(1.0).apply(step, Draw()).time_us(Draw()) / step.time_us(Draw())
    assert least >= 1
    assume(least < verify)
    scenario, _, _ = run_scenario(situation, 2, [spec(least)])
    assert scenario.gain.estimate.value == pytest.approx(0, abs=1e-9)
