"""What must hold of the prediction of any described box, for any of its GPUs and any size."""

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from arfloor import topologies_io as io
from arfloor.core.predict import default_path, predict, timings

RIGS = [io.find(name).rig for name in io.names()]


@st.composite
def asked(draw):
    rig = draw(st.sampled_from(RIGS))
    ranks = draw(st.permutations(rig.gpus))[: draw(st.integers(2, len(rig.gpus)))]
    path = draw(st.sampled_from(("peer", "host"))) if rig.p2p else "host"
    return rig, tuple(ranks), path, draw(st.integers(1, 1 << 24))


@settings(max_examples=40, deadline=None)
@given(asked())
def test_bound_attainable_and_kernels_are_in_order(query):
    rig, ranks, path, nbytes = query
    got = predict(rig, ranks=ranks, path=path, nbytes=nbytes)
    floor = got.floor
    assert 0 < floor.bound.lo <= floor.bound.value <= floor.bound.hi
    assert floor.bound.value <= floor.attainable.lo * (1 + 1e-9)
    assert floor.attainable.lo <= floor.attainable.value <= floor.attainable.hi
    assert floor.attainable.value <= got.kernels.value or floor.algorithm == "ring"
    assert floor.origin == "predicted"


@settings(max_examples=20, deadline=None)
@given(asked())
def test_the_order_of_ranks_matters_to_rings_alone(query):
    rig, ranks, path, nbytes = query
    a, b = (timings(rig, r, path, nbytes) for r in (ranks, tuple(reversed(ranks))))
    for name in ("one-shot", "two-shot"):
        assert abs(a[name][1].us / b[name][1].us - 1) < 1e-6


@settings(max_examples=15, deadline=None)
@given(st.sampled_from(RIGS), st.floats(1.0, 4.0))
def test_a_box_of_faster_links_is_never_slower(rig, factor):
    quick = {
        name: replace(f, value=f.value * factor, lo=f.estimate.lo * factor, hi=f.estimate.hi * factor)
        if f.unit == "GB/s"
        else f
        for name, f in rig.figures.items()
    }
    path, ranks = default_path(rig), rig.gpus
    before, after = (timings(r, ranks, path, 1 << 20) for r in (rig, replace(rig, figures=quick)))
    for name, timed in after.items():
        assert timed[1].us <= before[name][1].us * (1 + 1e-9)
