"""What must hold of the floor for any probes."""

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from arfloor.core.cases import Estimate, Primitive
from arfloor.core.floor import floor

SIZES = (4096, 65536, 1 << 20)
positive = st.floats(min_value=0.05, max_value=500, allow_nan=False)


@st.composite
def estimates(draw, unit):
    value = draw(positive)
    spread = draw(st.floats(min_value=0, max_value=0.5))
    return Estimate(value=value, lo=value * (1 - spread), hi=value * (1 + spread), n=5, unit=unit)


@st.composite
def probe_sets(draw):
    path = draw(st.sampled_from(("peer", "host", "cpu")))
    engine = "cpu" if path == "cpu" else "sm"
    names = ("cpu:0", "cpu:1") if path == "cpu" else ("cuda:0", "cuda:1" if path == "peer" else "host")
    common = {"engine": engine, "src": names[0], "dst": names[1], "path": path, "link": "pcie"}
    probes = [
        Primitive(
            kind="pingpong",
            access="relaxed",
            nbytes=4,
            active="one_way",
            estimate=draw(estimates("us")),
            **common,
        )
    ]
    patterns = draw(st.sets(st.sampled_from(("one_way", "both_ways", "all")), min_size=1))
    for pattern in sorted(patterns):
        for access in ("write", "read"):
            for size in draw(st.sets(st.sampled_from(SIZES), min_size=1)):
                rate = draw(estimates("GB/s"))
                probes.append(
                    Primitive(
                        kind="stream", access=access, nbytes=size, active=pattern, estimate=rate, **common
                    )
                )
    if path == "cpu" and draw(st.booleans()):
        rate = draw(estimates("GB/s"))
        probes.append(
            Primitive(kind="reduce", access="read", nbytes=65536, active="one_way", estimate=rate, **common)
        )
    return tuple(probes)


def of(probes, world, nbytes):
    path = probes[0].path
    return floor(probes, path=path, world=world, nbytes=nbytes, dtype="float32", mode="eager")


worlds = st.integers(min_value=2, max_value=9)
sizes = st.integers(min_value=1, max_value=1 << 24)


@settings(max_examples=60, deadline=None)
@given(probe_sets(), worlds, sizes)
def test_bound_is_never_above_attainable(probes, world, nbytes):
    got = of(probes, world, nbytes)
    assert got.bound.lo <= got.bound.value <= got.bound.hi
    assert got.attainable.lo <= got.attainable.value <= got.attainable.hi
    assert got.bound.value <= got.attainable.lo * (1 + 1e-9)


@settings(max_examples=60, deadline=None)
@given(probe_sets(), worlds, sizes, st.integers(min_value=0, max_value=1 << 22))
def test_more_bytes_never_take_less_time(probes, world, nbytes, more):
    a, b = of(probes, world, nbytes), of(probes, world, nbytes + more)
    assert a.bound.value <= b.bound.value * (1 + 1e-9)
    assert a.attainable.value <= b.attainable.value * (1 + 1e-9)


@settings(max_examples=60, deadline=None)
@given(probe_sets(), worlds, sizes)
def test_more_ranks_never_take_less_time(probes, world, nbytes):
    """At one rate a port. The rate of a pair while all are active is a probe of one world, no port's rate."""
    probes = tuple(p for p in probes if p.path == "host" or p.active != "all")
    if not any(p.kind == "stream" for p in probes):
        return
    a, b = of(probes, world, nbytes), of(probes, world + 1, nbytes)
    assert a.bound.value <= b.bound.value * (1 + 1e-9)
    assert a.attainable.value <= b.attainable.value * (1 + 1e-9)


@settings(max_examples=60, deadline=None)
@given(probe_sets(), worlds, sizes, st.data())
def test_more_bandwidth_never_raises_the_floor(probes, world, nbytes, data):
    streams = [i for i, p in enumerate(probes) if p.kind == "stream"]
    chosen = data.draw(st.sampled_from(streams))
    factor = data.draw(st.floats(min_value=1, max_value=10))
    e = probes[chosen].estimate
    quicker = replace(e, value=e.value * factor, lo=e.lo * factor, hi=e.hi * factor)
    better = (*probes[:chosen], replace(probes[chosen], estimate=quicker), *probes[chosen + 1 :])
    a, b = of(probes, world, nbytes), of(better, world, nbytes)
    assert b.bound.value <= a.bound.value * (1 + 1e-9)
    assert b.attainable.value <= a.attainable.value * (1 + 1e-9)
