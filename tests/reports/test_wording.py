"""How the commands speak: percentages, names without what a path needs anyway, and what is left out."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from arfloor import rundir
from arfloor.cli import main
from arfloor.core import units
from arfloor.core.cases import Estimate
from arfloor.core.compare import compare
from arfloor.report import card, comparison, html, model, phrases, text
from arfloor.runtime import show
from tests.synthetic import about, cpu_world, gpu_world, write_run

SIZES = (8192, 65536, 262144, 1048576)
WHATIF = ("whatif", "--model", "Llama-3.3-70B", "--tp", "2", "--tok-s", "1:40,32:800", "--apply", "overlap")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return write_run(tmp_path_factory.mktemp("run"), gpu_world(sizes=SIZES))


def said(capsys, *argv):
    assert main([str(word) for word in argv]) == 0
    return capsys.readouterr().out


def test_shares_and_gains_are_written_alike():
    assert units.percent(0.1899) == "19.0 %"
    assert units.percent(0.02, 0) == "2 %"
    change = Estimate(value=0.015, lo=-0.01, hi=0.058, n=0, unit="")
    assert units.gain(change) == "+1.5 % [-1.0, +5.8]"
    assert units.gain(replace(change, lo=0.015, hi=0.015)) == "+1.5 %"


def test_no_command_writes_a_percent_sign_to_a_digit(run, capsys):
    shown = [
        said(capsys, "report", run),
        said(capsys, "report", run, "--format", "md"),
        said(capsys, *WHATIF, "--run", run, "--path", "host"),
        said(capsys, "compare", run, run, "--all"),
    ]
    assert "%" in shown[0]
    assert all(not re.search(r"\d%", out) for out in shown)


def test_whatif_calls_cases_by_what_a_reader_of_the_path_needs_and_explains_its_words(run, capsys):
    shown = said(capsys, *WHATIF, "--run", run, "--path", "host", "--apply", "switch:host line64")
    assert "nccl of synthetic-gpu over host (measured)" in shown
    assert "NCCL_P2P_DISABLE" not in shown
    assert "switch to host line64" in shown
    assert "C(b): what a step of b tokens takes without its reduces" in " ".join(shown.split())
    assert "Llama-3.3-70B: reduces a step outside the layers: 1; " in shown
    assert "other_reduces" not in shown


def test_compare_says_what_its_table_leaves_out(tmp_path, run, capsys):
    other = write_run(tmp_path / "b", gpu_world(sizes=SIZES, seed=8))
    shown = said(capsys, "compare", run, other)
    left_out = re.search(
        r"Not shown: (\d+) cases; B / A of (\d+) of them is ([\d.]+) to ([\d.]+), half", shown
    )
    assert left_out
    loaded = rundir.load(run)
    table = shown.partition("B / A")[2].partition("B against A")[0]
    few = sum(line.rstrip().endswith("undecided") for line in table.splitlines())
    assert few == min(int(re.search(r"(\d+) undecided", shown)[1]), comparison.FEW) > 0  # nothing changed
    assert int(left_out[1]) == len(loaded.results) - few
    assert int(left_out[2]) == sum(r.latency is not None for r in loaded.results) - few
    assert 0.9 < float(left_out[3]) <= float(left_out[4]) < 1.1
    everything = said(capsys, "compare", run, other, "--all")
    assert "Not shown" not in everything
    assert "interval meets band" not in everything


def test_the_text_explains_its_columns_and_leaves_no_gaps(run):
    built = model.build(rundir.load(run))
    shown = text.render(built)
    assert "now = default / best; left = best / attainable" in " ".join(shown.split())
    assert "\n\n\n" not in shown
    without = text.render(model.build(replace(rundir.load(run), primitives=())))
    assert "left = best" not in without


def test_a_column_of_checks_needs_checks(tmp_path):
    run = rundir.load(write_run(tmp_path, gpu_world(sizes=SIZES)))
    unchecked = replace(run, results=tuple(replace(r, check=None) for r in run.results))
    for loaded, there in ((run, True), (unchecked, False)):
        built = model.build(loaded)
        shown = text.render(built)
        assert (" check " in shown, "check: err is" in shown) == (there, there)
        assert "need a wider terminal" not in shown
        by_size = html.render(built).partition("By size")[2].partition("</table>")[0]
        assert ("<th>check</th>" in by_size) == there
        assert len(re.findall("<th[ >]", by_size)) * len(SIZES) == by_size.count("<td")


def test_the_card_sets_the_gain_apart_from_what_gives_it(run):
    shown = card.render(model.build(rundir.load(run)))
    assert re.search(r"`arfloor.allreduce.AllReduce` \([^)]*\): [\d.]+x", shown)


def test_parts_that_claim_more_than_was_measured_are_named(tmp_path):
    world = cpu_world(sizes=(65536,))
    slow = tuple(
        replace(p, estimate=about(0.05, unit="GB/s")) for p in world.primitives if p.kind == "stream"
    )
    probes = (*slow, *(p for p in world.primitives if p.kind != "stream"))
    built = model.build(rundir.load(write_run(tmp_path, replace(world, primitives=probes))))
    for shown in (text.render(built), html.render(built)):
        assert re.search(r"the parts claim [\d.]+ us .* more than was measured", " ".join(shown.split()))
        assert not re.search(r"-\d+(\.\d+)? \[-", shown)


def test_a_card_without_a_floor_says_so_first(tmp_path):
    world = replace(cpu_world(sizes=(65536,)), primitives=())
    only = replace(world, kinds=world.kinds[:1])
    assert "**No floor is known.** At 64 KiB" in card.render(
        model.build(rundir.load(write_run(tmp_path, only)))
    )


def test_progress_names_blocks_and_latencies_as_reports_do():
    assert show.named("cpu:262144:float32:1a2b3c4d") == "cpu 256 KiB float32"
    rows = [
        ["gloo", "ok", 407.13, None],
        ["mpi", "ok", 75.21, None],
        ["side", "failed", None, "prepare_failed"],
    ]
    assert show.summary(rows) == "mpi 75.2 us, gloo 407 us, side prepare failed"


def test_a_prediction_is_titled_in_one_line(capsys):
    shown = said(capsys, "report", "--topology", "h200-x4", "--world", "4").splitlines()
    assert "predicted: 4 ranks, peer path, bfloat16, graph, on gpu0, gpu1, gpu2, gpu3" in shown


def beaten(tmp_path):
    """A run whose best was faster than its probes allow."""
    world = gpu_world(sizes=SIZES)
    kinds = tuple(replace(k, alpha_us=k.alpha_us / 4) if k.backend == "host" else k for k in world.kinds)
    return model.build(rundir.load(write_run(tmp_path, replace(world, kinds=kinds))))


def test_a_measured_latency_that_stands_for_the_attainable_is_marked_and_its_slow_probe_named(run, tmp_path):
    built = beaten(tmp_path)
    row = built.sections[1].nearest(8192)
    assert row.floor.slow_probe
    assert model.attainable(row).endswith("*")
    for shown in (text.render(built), text.render(built, width=100), card.render(built), html.render(built)):
        told = " ".join(shown.split())
        assert re.search(
            r"\* measured, faster than the links as probed would allow, at .*: slow probe: \w+", told
        )
        assert re.search(r"\d\\?\*[ <]", told)
    quiet = model.build(rundir.load(run))
    assert all("*" not in model.attainable(row) for s in quiet.sections for row in s.rows)
    assert "faster than the links as probed" not in text.render(quiet)


def test_an_open_ratio_is_shown_with_the_interval_that_leaves_it_open(run):
    built = model.build(rundir.load(run))
    row = built.sections[1].nearest(262144)
    v = row.verdict
    assert phrases.now(v) == units.ratio(v.headroom_now.value)
    unsure = replace(v, status="undecided", reason="interval_meets_band", decided_on=(0.8, 9.0))
    assert phrases.now(unsure).endswith("x [0.80, 9.00]")
    assert phrases.left(replace(v, reason="interval_meets_floor")).endswith("]")
    wide = replace(v, headroom_now=replace(v.headroom_now, lo=1.1, hi=9.0))
    assert phrases.now(wide).endswith("x [1.10, 9.00]")
    nothing = replace(unsure, decided_on=(0.001, 9000.0))
    section = replace(built.sections[1], rows=(replace(row, verdict=nothing),))
    shown = text.render(replace(built, sections=(section,)))
    assert "x [unknown]" in shown  # no style of the terminal's


def test_a_gain_on_a_busy_machine_is_no_advice_in_any_format(run):
    built = model.build(rundir.load(run))
    section = built.sections[1]
    rows = tuple(
        replace(r, verdict=replace(r.verdict, headroom_now=replace(r.verdict.headroom_now, lo=1.1, hi=9.0)))
        for r in section.rows
    )
    noisy = replace(built, sections=(replace(section, rows=rows),))
    pasted = card.render(noisy)
    assert "**The machine was busy: measure again.** host line64 beats the default, by" in pasted
    assert "Switch now" not in pasted
    assert "NCCL uses 4 channels" not in pasted
    for shown in (pasted, text.render(noisy), html.render(noisy)):
        assert "Measure again on a quieter machine" in " ".join(shown.split())


def test_compare_says_in_a_line_that_there_is_nothing_to_compare(tmp_path, run, capsys):
    cpu = write_run(tmp_path / "cpu", cpu_world(sizes=SIZES))
    alike = said(capsys, "compare", run, run).splitlines()
    assert alike[2:] == ["A and B are the same run: nothing to compare."]
    apart = said(capsys, "compare", run, cpu).splitlines()
    assert re.match(r"A: .* Example GPU, peer/nvlink, host/pcie$", apart[0])
    assert apart[1].endswith("cpu/shm")
    nothing = "A has peer bfloat16, 2 ranks; host bfloat16, 2 ranks; B has cpu float32, 2 ranks"
    assert apart[2:] == [f"Nothing in common: {nothing}. --all lists the cases."]
    assert "only in A" in said(capsys, "compare", run, cpu, "--all")
    loaded = rundir.load(run)
    ways = [
        replace(loaded, results=tuple(r for r in loaded.results if r.case.path == p))
        for p in ("peer", "host")
    ]
    assert "paths: peer/nvlink -> host/pcie" in comparison.differences(*ways)


def test_compare_tells_a_spread_between_repetitions_in_words(tmp_path, run):
    loaded = rundir.load(run)
    row = replace(compare(loaded, loaded)[0], reason="aa_spread", answer="undecided")
    shown = comparison.to_text(loaded, replace(loaded, samples=()), (row,), every=True)
    assert "one case repeated differs as much" in shown
    assert "aa spread" not in shown


def test_the_page_has_ratios_and_verdict_before_what_a_narrow_window_hides(run):
    page = html.render(model.build(rundir.load(run)))
    head = page.partition("By size</h3>")[2].partition("</thead>")[0]
    names = re.findall(r"<th[^>]*>([^<]*)</th>", head)
    assert names[:7] == ["size", "default, us", "best, us", "which", "now", "left", "verdict"]
    assert names[7:] == ["attainable, us", "by", "bound, us", "check"]


def test_a_box_given_for_a_run_says_how_to_give_it(capsys, tmp_path):
    (tmp_path / "box").mkdir()
    (tmp_path / "box" / "topology.toml").write_text("")
    assert main(["report", str(tmp_path / "box")]) == 2
    told = capsys.readouterr().err
    assert f"found a box; give --topology {tmp_path / 'box'}" in told
    assert "or the run" not in told


def test_each_part_of_a_floor_has_a_line_of_its_own(run):
    shown = text.render(model.build(rundir.load(run)))
    parts = shown.partition("attainable at 256 KiB, us:\n")[2].partition("bound at")[0]
    assert re.fullmatch(r"(    [\d.]+ (launch|latency|wire): .+\n)+  ", parts)
