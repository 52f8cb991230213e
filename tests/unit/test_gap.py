"""Why a result misses the floor, by hand, and the sentence that says what to do about it."""

from dataclasses import replace

import pytest
from by_hand import HOST, estimate, probe

from arfloor.core.cases import Case, Ran, Result
from arfloor.core.gap import choice_cost, next_lever, schedule_of, why_gap
from arfloor.report.phrases import how_to_get


def result(us, ran=None, backend="nccl", variant="default", nbytes=262144, spread=0.01, **changes):
    case = Case(
        backend=backend,
        variant=variant,
        path="host",
        devices=("cuda:0", "cuda:1"),
        numel=nbytes // 2,
        dtype="bfloat16",
        mode="graph",
    )
    fields = {"case": case, "status": "ok", "latency": estimate(us, spread), "ran": ran}
    return Result(**(fields | changes))


RING_LL_4 = Ran(algorithm="RING", protocol="LL", channels=4, source="log")
RING_LL_16 = Ran(algorithm="RING", protocol="LL", channels=16, source="log")


def parts(gap):
    return {t.name: t.us.value for t in gap.terms}


def test_nccl_ring_ll_through_host_memory_by_hand():
    default, better = result(41.6, RING_LL_4), result(28.5, RING_LL_16, variant="16ch")
    gap = why_gap(default, HOST, siblings=(default, better))
    wire = 262144 / 37e3
    assert parts(gap) == pytest.approx(
        {
            "launch": 1.3,
            "hops": 2 * 1.3,
            "wire": wire,
            "protocol": wire,  # LL doubles the bytes
            "channels": 41.6 - 28.5,
            "unexplained": 41.6 - 1.3 - 2.6 - 2 * wire - 13.1,
        }
    )
    assert sum(parts(gap).values()) == pytest.approx(41.6)
    assert gap.assumed == ""


@pytest.mark.parametrize(
    ("algorithm", "protocol", "rounds", "extra"),
    [
        ("one-shot, push", "line128", 1, 128 / 120 - 1),
        ("two-shot, staged push", "line64", 2, 64 / 60 - 1),
        ("two-shot, pull", "ll", 2, 1.0),
    ],
)
def test_our_kernels_are_known_by_their_names(algorithm, protocol, rounds, extra):
    ran = Ran(algorithm=algorithm, protocol=protocol, channels=8)
    gap = why_gap(result(12.2, ran, backend="arfloor"), HOST)
    found = parts(gap)
    assert found["hops"] == pytest.approx(rounds * 1.3)
    assert found["protocol"] == pytest.approx(found["wire"] * extra)


def test_a_fence_costs_what_was_probed_for_it():
    gap = why_gap(result(15.5, Ran(algorithm="one-shot, push", protocol="flag"), backend="arfloor"), HOST)
    assert parts(gap)["protocol"] == pytest.approx(2.1 - 1.3)


def test_what_nothing_says_is_assumed_and_said_so():
    gap = why_gap(result(41.6), HOST)
    assert "taken for a ring" in gap.assumed
    assert "protocol" not in parts(gap)
    schedule, assumed = schedule_of(result(41.6, backend="nccl", variant="tree-ll"))
    assert (schedule.name, schedule.rounds, assumed) == ("tree", 2, "")
    for name, shape in (
        ("allpair_packet 64x128", "one-shot"),
        ("packet 32x512", "two-shot"),
        ("rsag", "two-shot"),
    ):
        ran = Ran(algorithm=name, protocol="packet")
        schedule, assumed = schedule_of(result(5.0, ran, backend="mscclpp", variant="packet"))
        assert (schedule.name, assumed) == (shape, "")
    schedule, assumed = schedule_of(result(28.7, backend="pcie_oneshot"))  # its name is all that is known
    assert (schedule.name, assumed) == ("one-shot", "")
    four = replace(result(1.0).case, devices=tuple(f"cuda:{i}" for i in range(4)))
    tree, _ = schedule_of(replace(result(1.0), case=four, ran=Ran(algorithm="TREE")))
    assert (tree.rounds, tree.out_bytes) == (6, 2 * 262144)


def test_no_gap_without_probes_or_latency():
    assert why_gap(result(41.6), ()) is None
    assert why_gap(result(41.6, status="failed", latency=None), HOST) is None


def test_a_faster_result_than_its_parts_leaves_a_negative_rest():
    gap = why_gap(result(5.0, RING_LL_4), HOST)
    assert gap.unexplained.value < 0
    assert gap.unexplained.lo <= gap.unexplained.value <= gap.unexplained.hi
    assert sum(parts(gap).values()) == pytest.approx(5.0)


def test_the_sentence_of_the_channels():
    default, better = result(41.6, RING_LL_4), result(30.8, RING_LL_16, variant="16ch")
    lever = next_lever(default, (default, better), advice=lambda case: "NCCL_MIN_NCHANNELS=16")
    expected = "NCCL uses 4 channels here; 16 measured 1.35x faster: set NCCL_MIN_NCHANNELS=16."
    assert lever.sentence == expected
    assert lever.ratio.lo > 1.02


def test_levers_in_order():
    default = result(41.6, RING_LL_4)
    ours = result(12.2, Ran(algorithm="one-shot, push", protocol="line128"), backend="arfloor")
    simple = result(35.0, Ran(algorithm="RING", protocol="SIMPLE", channels=4), variant="ring-simple")
    own = next_lever(default, (default, ours, simple))
    assert own.kind == "setting"
    assert "NCCL chose RING/LL here; RING/SIMPLE" in own.sentence
    other = next_lever(default, (default, ours))
    assert (other.kind, round(other.ratio.value, 1)) == ("backend", 3.4)
    noisy = result(41.0, RING_LL_16, variant="16ch", spread=0.05)
    rest = next_lever(default, (default, noisy), why_gap(default, HOST))
    assert rest.kind == "unexplained"
    assert rest.ratio is None
    assert next_lever(default, (default,)) is None
    assert next_lever(result(1.0, latency=None, status="failed"), ()) is None


def test_thousands_of_microseconds_are_said_without_an_exponent_and_no_part_exceeds_the_whole():
    slow = result(2694.0, RING_LL_4)
    said = next_lever(slow, (slow,), why_gap(slow, HOST)).sentence
    assert "(2694 us)" in said
    assert "e+" not in said
    quick = result(0.5, RING_LL_4)  # less than its wire alone: something else ran
    assert next_lever(quick, (quick,), why_gap(quick, HOST)) is None


def asking(us, ran=None, name="one-graph"):
    found = result(us, ran, variant=name)
    settings = (("NCCL_GRAPH_MIXING_SUPPORT", "0"), ("NCCL_P2P_DISABLE", "1"))
    return replace(found, case=replace(found.case, settings=settings))


def test_a_setting_that_asks_something_names_its_condition_and_what_asks_nothing():
    default, wider = result(40.0, RING_LL_4), result(30.0, RING_LL_16, variant="16ch")
    single = asking(20.0, RING_LL_4)
    sentence = next_lever(default, (default, wider, single), advice=how_to_get).sentence
    begin = "`NCCL_GRAPH_MIXING_SUPPORT=0` measured 2.00x faster in graphs; only where graphs that use a"
    assert sentence.startswith(begin)
    assert "Of what asks nothing of a program: NCCL uses 4 channels here; 16 measured 1.33x" in sentence
    # alone, and slower than what asks nothing
    assert "asks nothing" not in next_lever(default, (default, single)).sentence
    assert "only where" not in next_lever(default, (default, wider, asking(35.0, RING_LL_4))).sentence


def test_what_asks_something_is_no_choice_that_nccl_had_and_explains_no_channels():
    default, single = result(40.0, RING_LL_4), asking(20.0, RING_LL_16, name="16ch-one-graph")
    assert choice_cost(default, (default, single)).ratio.value == 1.0
    gap = why_gap(default, HOST, siblings=(default, single))
    assert "channels" not in parts(gap)
    assert "channels" in parts(why_gap(default, HOST, siblings=(default, replace(single, case=default.case))))


def test_launch_bound_cases_are_told_to_fuse():
    small = result(4.0, Ran(algorithm="one-shot", protocol="line64"), backend="arfloor", nbytes=1024)
    probes = (probe("launch", 2.5), *HOST[1:])
    assert "fuse" in next_lever(small, (small,), why_gap(small, probes)).sentence


def test_what_nccls_own_choice_costs():
    default, better = result(40.0, RING_LL_4), result(20.0, RING_LL_16, variant="16ch")
    cost = choice_cost(default, (default, better, result(1.0, backend="arfloor")))
    assert (cost.chosen, cost.best, cost.ratio.value) == ("RING/LL 4ch", "RING/LL 16ch", pytest.approx(2.0))
    assert choice_cost(default, (default,)).ratio.value == 1.0
    assert choice_cost(result(1.0, latency=None, status="failed"), (better,)) is None
