"""What must hold of max-min fair rates and completion times for any flows."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from arfloor.core.flows import Flow, complete, loads, max_min_rates

usages = st.dictionaries(
    st.sampled_from("abcde"), st.floats(min_value=0.01, max_value=10), min_size=1, max_size=4
)
flow_sets = st.lists(
    st.builds(lambda u, b: Flow(name="f", nbytes=b, usage=u), usages, st.floats(min_value=1, max_value=1e7)),
    min_size=1,
    max_size=8,
)


@settings(max_examples=80, deadline=None)
@given(flow_sets)
def test_rates_are_feasible_and_every_flow_is_held_by_a_full_resource(flows):
    rates, frozen_by = max_min_rates([f.usage for f in flows])
    load = {
        name: sum(r * f.usage.get(name, 0) for r, f in zip(rates, flows, strict=True)) for name in "abcde"
    }
    assert max(load.values()) <= 1 + 1e-9
    for f, rate, name in zip(flows, rates, frozen_by, strict=True):
        assert load[name] == pytest.approx(1)
        # max-min: nobody on the resource that holds a flow runs faster than it
        rivals = [r for r, g in zip(rates, flows, strict=True) if name in g.usage]
        assert rate == pytest.approx(max(rivals))
        assert f.usage[name] > 0


@settings(max_examples=60, deadline=None)
@given(flow_sets)
def test_completion_lies_between_the_busiest_resource_and_one_after_another(flows):
    done = complete(flows)
    assert done.makespan_us >= max(loads(flows).values()) * (1 - 1e-6)
    assert done.makespan_us <= sum(complete([f]).makespan_us for f in flows) * (1 + 1e-6)
    assert max(done.ends_us) == pytest.approx(done.makespan_us)


@settings(max_examples=60, deadline=None)
@given(flow_sets, st.floats(min_value=1, max_value=5))
def test_time_scales_with_bytes_and_with_capacity(flows, factor):
    more = complete([replace(f, nbytes=f.nbytes * factor) for f in flows]).makespan_us
    assert more == pytest.approx(complete(flows).makespan_us * factor, rel=1e-6)
    wider = [replace(f, usage={k: v / factor for k, v in f.usage.items()}) for f in flows]
    assert complete(wider).makespan_us == pytest.approx(complete(flows).makespan_us / factor, rel=1e-6)
