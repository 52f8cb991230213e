"""The what-if against figures that others published, and against its own promises."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from arfloor import library, models, rundir
from arfloor.core.cases import Estimate
from arfloor.core.decode import MissingInput, reduce_traffic_gbps
from arfloor.core.whatif.analysis import analyse
from arfloor.core.whatif.curves import compute_ratio, table_curve
from arfloor.core.whatif.decision import decide
from arfloor.core.whatif.dp_attention import DataParallelAttention
from arfloor.core.whatif.merge_moe import MergeMoe
from arfloor.core.whatif.overlap import TwoBatchOverlap
from arfloor.core.whatif.quantised import QuantisedWire
from arfloor.core.whatif.registry import parse, read_estimate
from arfloor.core.whatif.scenario import run_scenario
from arfloor.core.whatif.speculative import Speculative
from arfloor.core.whatif.step import IN_SITU, observe
from arfloor.core.whatif.switch import Switch
from arfloor.core.whatif.uncertainty import Draw, Input, propagate
from arfloor.report.whatif import inputs
from arfloor.report.whatif.latencies import from_run, from_topology

BOX = "rtx-pro-6000-x8-host-bridge"


@pytest.fixture(scope="module")
def latencies():
    return from_topology(BOX, 4)


def served(latencies, model, tok_s, **more):
    steps = inputs.tok_s_steps(inputs.per_concurrency(tok_s, "tok/s", "--tok-s"))
    return inputs.situation(models.load(model), 4, latencies, steps, **more)


def test_a_published_gain_lies_in_the_predicted_interval(latencies):
    """Qwen3.5-397B TP4 on four RTX PRO 6000, no speculative decoding, concurrency 1: NCCL 70.6 tok/s,
    PCIe one-shot 76.1 (local-inference-lab/rtx6kpro, optimization/pcie-oneshot-allreduce.md at e2c2b95).
    """
    situation = served(latencies, "Qwen3.5-397B", "1:70.6")
    scenario, used, _ = run_scenario(situation, 1, parse("switch:pcie_oneshot", situation))
    gain = scenario.gain.estimate
    assert gain.lo < 76.1 / 70.6 - 1 < gain.hi
    assert gain.hi < 2 * gain.lo
    assert scenario.stages[0].tok_s.estimate.lo < 76.1 < scenario.stages[0].tok_s.estimate.hi
    assert {i.origin for i in used.values()} <= {"measured", "published", "assumed"}
    assert [i.name for i in used.values() if i.origin == "assumed"] == [IN_SITU.name]


def test_a_switch_that_gains_nothing_would_not_pass_as_the_published_gain(latencies):
    """The check above can fail: with equal latencies, or with the gain of another size, it does."""
    situation = served(latencies, "Qwen3.5-397B", "1:70.6")
    for text in ("switch:nccl", "free"):
        gain = run_scenario(situation, 1, parse(text, situation))[0].gain.estimate
        assert not gain.lo < 76.1 / 70.6 - 1 < gain.hi


def test_the_reduces_of_a_published_trace_are_counted_right():
    """363 reduces of each size during graph capture, which runs the model three times."""
    assert 3 * models.load("Qwen3.5-397B").reduces == 363
    assert models.load("DeepSeek-V4-Flash").reduces == 87


def test_the_hiccup_at_64_kib_is_set_aside(latencies):
    nccl = latencies.named("nccl")
    assert [size for size, _ in nccl.set_aside] == [65536]
    assert nccl.latency(65536).estimate.value < 30
    assert nccl.latency(262144).estimate.value == 40.9


def test_link_traffic_of_the_reduces():
    """87 reduces of 512 KiB, 7.95 steps a second, 1.5 S a ring reduce: about half a GB/s."""
    shape = models.load("DeepSeek-V4-Flash")
    assert reduce_traffic_gbps(shape, 4, 64, 509 / 64) == pytest.approx(
        87 * 1.5 * 524288 * 7.953 / 1e9, rel=1e-3
    )


def test_a_printed_figure_is_known_to_half_its_last_digit():
    assert read_estimate("58.7", "tok/s", "x").lo == pytest.approx(58.65)
    assert read_estimate("509", "tok/s", "x").hi == pytest.approx(509.5)
    assert read_estimate("55..60", "tok/s", "x") == Estimate(value=57.5, lo=55, hi=60, n=0, unit="tok/s")
    with pytest.raises(MissingInput, match=r"LO\.\.HI"):
        read_estimate("many", "tok/s", "x")


def test_compute_between_known_tokens_stays_in_a_bracket_that_needs_no_model():
    known = [(1, 100.0), (16, 160.0), (64, 320.0)]
    assert compute_ratio(known, known, 64, 16, Draw()) == pytest.approx(0.5)
    ends = {}
    for end in ("lo", "hi"):
        name = "C(32 tokens a step)"
        ends[end] = compute_ratio(known, known, 64, 32, Draw(name, end)) * 320
    assert ends == {"lo": pytest.approx(160), "hi": pytest.approx(320)}
    assert 160 < compute_ratio(known, known, 64, 32, Draw()) * 320 < 320


def test_tok_s_that_contradict_each_other_are_refused(latencies):
    situation = served(latencies, "DeepSeek-V4-Flash", "16:100,64:1000")
    with pytest.raises(ValueError, match="contradict each other"):
        run_scenario(situation, 64, parse("overlap", situation))


def test_propagation_adds_independent_inputs_in_quadrature():
    def item(name, value, half):
        return Input(
            name=name,
            estimate=Estimate(value=value, lo=value - half, hi=value + half, n=0, unit="us"),
            origin="measured",
            source="test",
        )

    a, b = item("a", 10.0, 3.0), item("b", 5.0, 4.0)
    answers, used = propagate(lambda draw: {"sum": draw(a) + draw(b)}, units={"sum": "us"})
    assert (answers["sum"].estimate.lo, answers["sum"].estimate.hi) == (10.0, 20.0)
    assert [c.input.name for c in answers["sum"].budget] == ["b", "a"]
    assert set(used) == {"a", "b"}


def test_short_tables_join_their_points_in_log_log():
    points = [(s, Estimate(value=u, lo=u, hi=u, n=1, unit="us")) for s, u in ((1024, 10.0), (4096, 40.0))]
    curve = table_curve("x", points, origin="measured", source="test")
    assert curve.latency(2048).estimate.value == pytest.approx(20.0)
    with pytest.raises(MissingInput, match="8192 B"):
        curve.latency(8192)


def test_fusing_without_a_known_saving_names_what_is_missing(latencies):
    situation = replace(served(latencies, "DeepSeek-V4-Flash", "64:509"), launch=None)
    with pytest.raises(MissingInput, match="saved_us"):
        run_scenario(situation, 64, parse("fuse", situation))


def test_published_run_is_what_its_script_makes_of_the_data(tmp_path):
    import shutil
    import sys

    sys.path.insert(0, str(Path(__file__).parents[2] / "tools"))
    try:
        import published_run
    finally:
        sys.path.pop(0)
    box = library.folder(BOX)
    shutil.copy(box / "published.toml", tmp_path)
    made = published_run.write(tmp_path)
    for file in ("manifest.json", "results.jsonl", "primitives.jsonl"):
        assert (made / file).read_text() == (box / "run" / file).read_text()
    run = rundir.load(made)
    assert run.warnings == ()
    assert {r.origin for r in run.results} == {"published"}
    assert all(r.detail for r in run.results)


def test_waterfall_bars_meet_and_end_where_tok_s_says(latencies):
    from arfloor.report.whatif import plot
    from arfloor.report.whatif.question import answer

    situation = served(latencies, "DeepSeek-V4-Flash", "64:509")
    found = answer(situation, latencies, scenarios=["switch:pcie_oneshot,fuse,rest:1.5"])
    time_axes = plot.figure(found).axes[0]
    parts = len(found.analysis.partition.parts)
    today = sum(bar.get_width() for bar in time_axes.patches[:parts])
    at = today
    for bar in time_axes.patches[parts : parts + 3]:
        assert bar.get_x() == pytest.approx(at)
        at += bar.get_width()
    assert at == pytest.approx(64 / found.analysis.scenarios[0].stages[-1].tok_s.estimate.value * 1e3)


def at(value, unit="x"):
    return Estimate(value=value, lo=value, hi=value, n=0, unit=unit)


def gain_of(situation, sequences, intervention):
    return run_scenario(situation, sequences, [intervention])[0].gain.estimate.value


def number_in(text):
    import re

    return float(re.search(r"[\d.]+", text)[0])


def test_break_even_numbers_break_even(latencies):
    """What `loses when` prints is where the gain is zero, to the digits printed."""
    situation = served(latencies, "DeepSeek-V4-Flash", "16:279,64:509")
    step = observe(situation, 64, Draw())
    dp = DataParallelAttention(compute=at(1.0))
    limit = 1 + number_in(dp.loses_when(step)) / 100
    assert gain_of(situation, 64, replace(dp, compute=at(limit))) == pytest.approx(0, abs=1e-3)
    wire = QuantisedWire(format="fp8", overhead_us=at(0.0, "us"))
    limit = number_in(wire.loses_when(step))
    assert gain_of(situation, 64, replace(wire, overhead_us=at(limit, "us"))) == pytest.approx(0, abs=2e-4)
    spec = Speculative(verify=2, accept=at(1.5, "tokens"))
    limit = number_in(spec.loses_when(step))
    assert gain_of(situation, 64, replace(spec, accept=at(limit, "tokens"))) == pytest.approx(0, abs=5e-3)


def test_overlap_breaks_even_where_it_says(latencies):
    """With C(32) at the printed limit, two half batches take as long as the whole."""
    situation = served(latencies, "DeepSeek-V4-Flash", "32:400,64:509")
    overlap = TwoBatchOverlap(contention=at(1.0), assumed_contention=False)
    limit_us = number_in(overlap.loses_when(observe(situation, 64, Draw())).removeprefix("C(b/2) > ")) * 1e3
    reduces = observe(situation, 32, Draw()).reduce_us(Draw())
    half = limit_us + reduces
    steps = ((32, at(half, "us")), *(s for s in situation.steps if s[0] == 64))
    assert gain_of(replace(situation, steps=steps), 64, overlap) == pytest.approx(0, abs=5e-3)


def test_merging_removes_only_reduces_that_are_there(latencies):
    situation = served(latencies, "DeepSeek-V4-Flash", "64:509")
    assert gain_of(situation, 64, MergeMoe()) == 0
    apart = replace(situation, shape=replace(situation.shape, separate_shared_reduces=1))
    scenario, _, _ = run_scenario(apart, 64, [MergeMoe()])
    assert scenario.stages[0].reduces_per_token == 87
    assert scenario.gain.estimate.value > 0
    dense = replace(situation, shape=models.load("Llama-3.3-70B"), steps=((1, at(50_000.0, "us")),))
    with pytest.raises(MissingInput, match="no MoE layers"):
        run_scenario(dense, 1, [MergeMoe()])


def test_the_change_is_predicted_to_the_projects_own_standard(latencies):
    """|predicted - measured change| <= 15 % of it + 0.5 % of the step (docs/whatif.md)."""
    situation = served(latencies, "Qwen3.5-397B", "1:70.6")
    scenario, _, _ = run_scenario(situation, 1, parse("switch:pcie_oneshot", situation))
    step_us, measured = 1e6 / 70.6, 1e6 / 70.6 - 1e6 / 76.1
    predicted = scenario.stages[0].saved_us.estimate.value
    assert abs(predicted - measured) <= 0.15 * measured + 0.005 * step_us


def test_a_run_with_two_paths_asks_which(tmp_path):
    run = rundir.load(library.recorded_run(BOX))
    host = tuple(replace(r, case=replace(r.case, path="host")) for r in run.results)
    both = replace(run, results=run.results + host)
    with pytest.raises(MissingInput, match="--path"):
        from_run(both, 4)
    assert from_run(both, 4, "peer").default == "nccl"
    assert from_run(both, 4, "host").named("nccl").points == from_run(both, 4, "peer").named("nccl").points


def test_a_run_whose_results_ask_something_of_the_program_says_so():
    run = rundir.load(library.recorded_run(BOX))
    found = next(r for r in run.results if r.case.backend == "nccl" and r.case.world == 4)
    off = replace(found.case, variant="one-graph", settings=(("NCCL_GRAPH_MIXING_SUPPORT", "0"),))
    asking = replace(run, results=(*run.results, replace(found, case=off)))
    (more,) = set(from_run(asking, 4, found.case.path).caveats) - set(
        from_run(run, 4, found.case.path).caveats
    )
    assert more.startswith("NCCL_GRAPH_MIXING_SUPPORT=0 is for some programs: only where")


def test_a_box_that_was_only_described_gives_predictions():
    found = from_topology("l40s-x8-two-sockets", 4)
    assert found.origin == "predicted"
    situation = served(found, "Llama-3.3-70B", "16:250")
    scenario, _, _ = run_scenario(situation, 16, parse("switch:arfloor", situation))
    assert scenario.latencies == "predicted"
    assert decide(free_of(situation, 16), [scenario], 0.0).decision == "pursue"


def free_of(situation, sequences):
    return run_scenario(situation, sequences, parse("free", situation))[0]


def ours(latencies):
    """The published latencies as if they had been measured here."""
    curves = tuple(replace(c, origin="measured") for c in latencies.curves)
    launch = replace(latencies.launch, origin="assumed")
    return replace(latencies, curves=curves, origin="measured", launch=launch, attainable=curves[0])


def test_verdicts(latencies):
    low = served(ours(latencies), "Qwen3.5-397B", "1:70.6")
    switch = run_scenario(low, 1, parse("switch:pcie_oneshot", low))[0]
    floor = run_scenario(low, 1, [Switch(to=replace(low.alternatives[0], backend="attainable"))])[0]
    free = free_of(low, 1)
    assert decide(free, [switch, floor], 0.02).decision == "switch_now"
    wrote = decide(free, [floor], 0.02)
    assert wrote.decision == "pursue"
    assert wrote.sentence.endswith("nothing measured reaches it")
    assert decide(free, [switch], 0.5).decision == "accept_the_floor"
    assert decide(free, [switch, floor], 0.07).sentence.startswith(f"pursue, because: {switch.label} ")
    unsure = decide(free, [switch], 0.07)
    assert unsure.decision == "pursue"
    assert unsure.sentence.endswith("not sure to be the 7 % that is worth the work")
    slower_rest = run_scenario(low, 1, parse("rest:0.9", low))[0]
    none = decide(free, [slower_rest, switch], 0.095)
    assert none.decision == "none_is_worth_it"
    assert none.sentence.startswith(f"no change that was asked about gives 9.5 %, the most: {switch.label} ")
    assert "reduces that cost nothing would give +" in none.sentence


def test_what_others_published_is_measured_before_anybody_switches(latencies):
    low = served(latencies, "Qwen3.5-397B", "1:70.6")
    found = decide(free_of(low, 1), [run_scenario(low, 1, parse("switch:pcie_oneshot", low))[0]], 0.02)
    assert found.decision == "pursue"
    assert found.sentence.endswith("its latencies are others' (published), so measure them on your box first")


def starting_case(latencies, share=0.19):
    shares = ((64, at(share, "of the step")),) if share else ()
    return served(latencies, "DeepSeek-V4-Flash", "1:58.7,16:279,64:509", profiled=shares)


def verdict_of(situation, *chains, worth=0.02):
    return analyse(situation, 64, [parse(chain, situation) for chain in chains], worth).verdict


def test_what_nobody_can_explain_comes_before_changes_that_surely_give_less(latencies):
    """The starting case: 14 % of the step unexplained, a switch sure of 1 %, an overlap that likely loses."""
    found = verdict_of(starting_case(latencies), "overlap", "switch:pcie_oneshot,fuse")
    assert found.decision == "find_out_first"
    assert found.sentence.startswith("find out first what the unexplained 14.0 % [12.6, 15.2] of the step is")
    assert found.also[0].startswith("the surest of those changes: switch to pcie_oneshot +1.5 % [")
    assert found.also[1].startswith("likely a loss: two-batch overlap -15.5 % [")
    assert found.also[1].endswith("C(32 tokens a step) decides")
    assert not any("fuse" in line for line in found.also)  # it adds nothing that is shown
    explained = verdict_of(starting_case(latencies, 0.05), "overlap", "switch:pcie_oneshot,fuse", worth=0.015)
    assert explained.sentence.startswith("pursue, because: switch to pcie_oneshot +1.5 % [")


def test_a_bound_is_never_a_plan(latencies):
    for chains in ((), ("free",), ("rest:2",)):
        found = verdict_of(starting_case(latencies, None), *chains)
        assert found.decision == "no_plan"
        assert "which is a bound and no plan" in found.sentence
    both = verdict_of(starting_case(latencies, None), "rest:2", "switch:pcie_oneshot")
    assert "pcie_oneshot" in both.sentence


def test_only_what_may_be_worth_it_is_undecided(latencies):
    """Overlap without a share ends at +0.7 %; speculation may give much or cost something."""
    situation = starting_case(latencies, None)
    assert verdict_of(situation, "overlap").decision == "none_is_worth_it"
    found = verdict_of(situation, "overlap", "spec:verify=2:accept=1.6..1.9")
    assert found.decision == "undecided"
    assert found.decided_by == "C(128 tokens a step)"
    assert found.also == ()
    with_switch = verdict_of(situation, "spec:verify=2:accept=1.6..1.9", "switch:attainable")
    assert with_switch.decision == "pursue"
    assert with_switch.also[0].startswith("undecided: MTP")


def test_a_switch_is_named_in_full_or_by_how_only_it_begins(latencies):
    situation = served(latencies, "DeepSeek-V4-Flash", "64:509")
    named = replace(situation.alternatives[0], backend="kernel line64 [NCCL_P2P_DISABLE=1]")
    other = replace(named, backend="kernel flag")
    situation = replace(situation, alternatives=(named, other))
    assert situation.alternative("kernel line") is named
    assert parse("switch:kernel line64 [NCCL_P2P_DISABLE=1],fuse", situation)[0].to is named
    with pytest.raises(MissingInput, match="more than one"):
        situation.alternative("kernel")


def test_overlap_after_speculation_halves_the_tokens_that_are_then_in_the_step(latencies):
    """64 sequences of two tokens: half of them is 64 tokens, whose C is known, so no bracket is needed."""
    situation = served(latencies, "DeepSeek-V4-Flash", "32:400,64:509")
    chain = [
        Speculative(verify=2, accept=at(1.5, "tokens"), cost=at(1.5)),
        TwoBatchOverlap(contention=at(1.0)),
    ]
    draw = Draw()
    step = observe(situation, 64, draw)
    for intervention in chain:
        step = intervention.apply(step, draw)
    assert "C(32 tokens a step)" not in draw.inputs
    assert sum(g.nbytes for g in step.groups if g.label == "decode") == situation.shape.message_nbytes(64)


def test_fusing_saves_one_launch_a_layer_reduce_and_none_for_the_embedding(latencies):
    situation = served(latencies, "DeepSeek-V4-Flash", "64:509")
    scenario, _, _ = run_scenario(situation, 64, parse("fuse:saved_us=2", situation))
    assert scenario.stages[0].saved_us.estimate.value == pytest.approx(2 * 43 * 2)
    assert any("hyper-connections" in text for text in scenario.stages[0].assumptions)


def test_unexplained_time_shrinks_with_transport_only_as_far_as_it_is_transport(latencies):
    """At 64 with a profiled share: all of it waiting saves the difference of latencies, all of it transport
    saves that part of the profiled time."""
    share = ((64, at(0.19, "of the step")),)
    ratio = 51.0 / 71.7
    for part, saved in ((0.0, 87 * (71.7 - 51.0)), (1.0, 0.19 * 64 / 509 * 1e6 * (1 - ratio))):
        situation = served(latencies, "DeepSeek-V4-Flash", "64:509", profiled=share, transport_part=at(part))
        scenario, _, _ = run_scenario(situation, 64, parse("switch:pcie_oneshot", situation))
        assert scenario.stages[0].saved_us.estimate.value == pytest.approx(saved, rel=1e-6)


def test_overlap_runs_twice_the_reduces_of_half_the_size(latencies):
    situation = served(latencies, "DeepSeek-V4-Flash", "32:400,64:509")
    scenario, _, _ = run_scenario(situation, 64, [TwoBatchOverlap(contention=at(1.0))])
    whole = observe(situation, 64, Draw())
    half = observe(situation, 32, Draw())
    left = whole.time_us(Draw()) - scenario.stages[0].saved_us.estimate.value
    one = half.reduce_us(Draw()) / 87
    assert left == pytest.approx(2 * half.compute_us + one)
    assert scenario.stages[0].reduces_per_token == 2 * 87
    assert scenario.stages[0].nbytes_per_token == pytest.approx(87 * 8192)


def test_contention_comes_from_the_run_where_it_was_measured():
    from dataclasses import replace

    from arfloor.core.cases import Primitive
    from arfloor.report.whatif.latencies import contention_input

    def measured(blocks, lo, hi, **changes):
        return replace(
            Primitive(
                kind="contention",
                engine="sm",
                access="compute",
                src="decode",
                dst=f"{blocks} blocks",
                path="host",
                link="",
                nbytes=1 << 18,
                active="all",
                estimate=Estimate(value=(lo + hi) / 2, lo=lo, hi=hi, n=9, unit="x"),
            ),
            **changes,
        )

    rows = [
        measured(8, 1.0, 1.1),
        measured(66, 1.2, 1.4),
        measured(33, 1.1, 1.2),
        measured(33, 3.0, 4.0, src="prefill"),
        measured(33, 3.0, 4.0, path="peer"),
        measured(33, 3.0, 4.0, access="reduce"),
    ]
    found = contention_input(rows, "host")
    assert (found.estimate.lo, found.estimate.value, found.estimate.hi) == (1.0, 1.15, 1.4)
    assert contention_input(rows[3:4], "host") is None


def test_the_waterfall_names_what_can_be_seen_and_writes_beside_the_figures(latencies):
    """Launches of a step of 126 ms are a bar of no width; labels stand right of the axes, off every line."""
    from arfloor.core import units
    from arfloor.report.whatif import plot
    from arfloor.report.whatif.question import answer

    situation = starting_case(latencies)
    found = answer(situation, latencies, scenarios=["switch:pcie_oneshot,fuse", "overlap"])
    time_axes, speed_axes = plot.figure(found).axes
    named = [text.get_text() for text in time_axes.get_legend().get_texts()]
    assert "launch" not in named
    assert set(named) == {part.name for part in found.analysis.partition.parts} - {"launch"}
    labels = speed_axes.texts
    assert [label.get_text().split()[0] for label in labels] == ["509", "516", "517", "430", "628"]
    assert labels[0].get_text() == units.number(found.analysis.tok_s.estimate.value)
    assert all(label.xy[0] > 1 and label.xycoords[0] == "axes fraction" for label in labels)
