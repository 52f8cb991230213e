"""Reports of runs whose truth is known: what is said, what is left out, and what is never said."""

import json
from dataclasses import replace

import pytest

from arfloor import report as reporting
from arfloor import rundir
from arfloor.core.cases import Estimate
from arfloor.report import card, comparison, model, nccl_tests, phrases, rows, text
from tests.synthetic import Kind, cpu_world, gpu_world, write_run

SOME = (1024, 65536, 262144, 1048576)


@pytest.fixture(scope="module")
def gpu(tmp_path_factory):
    path = write_run(tmp_path_factory.mktemp("gpu"), gpu_world(sizes=SOME))
    return model.build(rundir.load(path))


@pytest.fixture(scope="module")
def cpu(tmp_path_factory):
    path = write_run(tmp_path_factory.mktemp("cpu"), cpu_world(sizes=SOME))
    return model.build(rundir.load(path))


def test_both_paths_are_judged_and_named_with_their_links(gpu):
    assert [s.name for s in gpu.sections] == ["peer/nvlink", "host/pcie"]
    assert {v.status for v in gpu.verdicts} == {"switch"}
    host = gpu.sections[1].nearest(262144).verdict
    # truth: 14.5 + 262144 / 9700 = 41.5 us against 3.7 + 262144 / 30800 = 12.2
    assert host.default.latency.value == pytest.approx(41.5, rel=0.02)
    assert host.best.latency.value == pytest.approx(12.2, rel=0.02)
    assert host.best.case.variant == "line64"
    assert host.headroom_now.lo < 41.5 / 12.2 < host.headroom_now.hi


def test_the_cpu_verdict_changes_with_size(cpu):
    assert cpu.sections[0].name.startswith("cpu/")
    by_size = {v.nbytes: v for v in cpu.verdicts}
    assert by_size[1024].status == "switch"
    assert by_size[1024].best.case.backend == "mpi"
    assert by_size[1048576].best.case.backend == "gloo"
    assert by_size[1048576].status == "gap"


def test_mpi_with_a_setting_is_used_with_it_and_a_setting_of_nccl_is_set(cpu, gpu):
    case = cpu.sections[0].rows[0].verdict.best.case
    tuned = replace(case, settings=(*case.settings, ("OMPI_MCA_coll_tuned_allreduce_algorithm", "ring")))
    said = phrases.how_to_get(tuned)
    assert said.startswith("MPI ranks (`mpiexec`, mpi4py) instead of gloo, with `OMPI_MCA_coll")
    assert "set `NCCL" in card.render(gpu)


def test_failures_are_grouped_and_explained(gpu):
    by_label = {f.label: f for f in gpu.failures}
    assert by_label["nccl ring-ll128-16ch"].status == "wrong"
    assert by_label["nccl ring-ll128-16ch"].sizes == SOME
    assert by_label["flashinfer"] not in gpu.broken  # it cannot run here, which is no fault
    shown = text.render(gpu)
    assert "its result differs" in shown
    assert "NVLink" in shown


@pytest.mark.parametrize("width", [80, 100, 120, 140, 200])
def test_no_figure_and_no_verdict_is_cut_off_in_a_narrow_terminal(gpu, width):
    """Undecided with wide intervals and a long name: the widest row there is."""

    def wide(result):
        e = result.latency
        long = replace(result, case=replace(result.case, variant="a-variant-with-a-very-long-name"))
        return replace(long, latency=replace(e, lo=e.value / 3.21, hi=e.value * 3.21)) if e else long

    rows = [replace(r, verdict=replace(r.verdict, status="undecided")) for r in gpu.sections[1].rows]
    rows = [
        replace(r, verdict=replace(r.verdict, best=wide(r.verdict.best), default=wide(r.verdict.default)))
        for r in rows
    ]
    report = replace(gpu, sections=(replace(gpu.sections[1], rows=tuple(rows)),))
    shown = text.render(report, width=width)
    table = shown.partition("host/pcie, 2 ranks")[2].partition("undecided 1 KiB to 1 MiB")[0]
    lines = [line for line in table.splitlines() if line.strip().endswith("undecided")]
    assert len(lines) == len(rows)
    for line, row in zip(lines, rows, strict=True):
        assert f"{row.verdict.best.latency.value:.3g}" in line
        assert "x" in line.split()[-2]  # what is left, beside the verdict
    assert "…" not in shown
    assert max(map(len, shown.splitlines())) <= width
    assert ("wider terminal" in table) == (width < 200)


def test_a_result_below_its_bound_is_believed_by_no_one(tmp_path):
    world = gpu_world(sizes=(262144,))
    impossible = Kind(backend="kernel", variant="impossible", path="host", alpha_us=0.5, gbps=1e6)
    world = replace(world, kinds=(*world.kinds, impossible))
    built = model.build(rundir.load(write_run(tmp_path, world)))
    failure = next(f for f in built.failures if f.label == "kernel impossible")
    assert failure.reason == "below_bound"
    assert all(v.best.case.variant != "impossible" for v in built.verdicts)


def test_the_card_leads_with_the_three_numbers_and_stays_short(gpu):
    lines = card.render(gpu).splitlines()
    assert len(lines) <= card.MAX_LINES
    head = next(line for line in lines if "host/pcie" in line)
    v = gpu.sections[1].nearest(262144).verdict
    for value in (v.default.latency, v.best.latency, v.attainable, v.bound):
        assert f"{value.value:.3g}" in head
    assert "torch 2.13.0" in lines[-1]


def test_a_run_without_primitives_shows_no_floor(tmp_path):
    world = replace(cpu_world(sizes=(1024, 4096)), primitives=())
    built = model.build(rundir.load(write_run(tmp_path, world)))
    shown = card.render(built)
    assert "attainable |" not in shown
    assert "wires need" not in shown
    row = json.loads(rows.render(built))[0]
    assert row["bound_us"] is None
    assert row["headroom_left"] is None


def test_json_rows_have_exactly_the_published_keys(gpu):
    for row in json.loads(rows.render(gpu)):
        assert {k for k in row if not k.endswith(("_lo", "_hi"))} == {
            *("world", "path", "nbytes", "dtype", "mode", "default_us", "default_case", "best_us"),
            *("best_case", "attainable_us", "attainable_algorithm", "bound_us", "headroom_now"),
            *("headroom_left", "status", "reason", "origin", "default_label", "best_label", "gpus"),
            *("best_ranks_equal", "tied_labels", "blocks_measured", "blocks_planned", "caveats"),
        }
        for name in ("default_us", "best_us", "attainable_us", "bound_us"):
            assert row[f"{name}_lo"] <= row[name] <= row[f"{name}_hi"]
        # the mean of the rounds' ratios, not the ratio of the medians: near, not equal
        assert row["headroom_now"] == pytest.approx(row["default_us"] / row["best_us"], rel=0.01)


def test_nccl_tests_table_has_bus_bandwidth_of_the_standard_formula(gpu):
    table = nccl_tests.render(gpu)
    block = table.split("# nccl [NCCL_P2P_DISABLE=1]:")[1]
    line = next(line for line in block.splitlines() if line.split()[:1] == ["262144"])
    fields = line.split()
    assert fields[1:4] == ["131072", "bfloat16", "sum"]
    assert fields[5:9] == ["N/A"] * 4  # nothing was measured out of place
    time, algbw, busbw, wrong = (float(f) for f in fields[9:])
    assert algbw == pytest.approx(262144 / time / 1e3, abs=0.01)
    assert busbw == pytest.approx(algbw, abs=0.01)  # 2 (n-1)/n = 1 for two ranks
    assert wrong == 0


@pytest.mark.parametrize(("planned", "partial"), [(None, ""), (4, ""), (5, "partial: 4 of 5 blocks")])
def test_a_run_that_was_not_measured_to_its_end_says_how_far_it_came_everywhere(tmp_path, planned, partial):
    write_run(tmp_path, cpu_world(sizes=(1024,)))  # gloo and MPI, two launches
    if planned is not None:
        rundir.Writer(tmp_path).event(event="start", blocks=3)  # resumed after that
        rundir.Writer(tmp_path).event(event="start", blocks=planned)
        rundir.Writer(tmp_path).event(event="end", failures=())
    head = reporting.write(tmp_path).splitlines()[0]
    assert head.endswith(f"({partial})" if partial else "(Example CPU)")
    page = (tmp_path / "report.html").read_text()
    built = model.build(rundir.load(tmp_path))
    assert (partial.capitalize() in page, partial in text.render(built)) == (True, True)
    compared = comparison.to_text(rundir.load(tmp_path), rundir.load(tmp_path), ())
    for shown in (page, text.render(built), compared):
        assert ("partial" in shown.lower()) == bool(partial)
    for row in json.loads((tmp_path / "report.json").read_text()):
        assert (row["blocks_measured"], row["blocks_planned"]) == (planned and 4, planned)


@pytest.mark.parametrize(
    "line", ['"start"', '{"event":"start"}', '{"event":"start","blocks":true}', "[" * 99_999]
)
def test_a_start_that_says_nothing_of_blocks_is_no_plan(tmp_path, line):
    write_run(tmp_path, cpu_world(sizes=(1024,)))
    (tmp_path / "events.jsonl").write_text(line + "\n")
    assert rundir.load(tmp_path).planned is None


def test_write_leaves_the_derived_files_and_returns_the_card(tmp_path):
    write_run(tmp_path, cpu_world(sizes=(1024,)))
    shown = reporting.write(tmp_path)
    assert (tmp_path / "report.md").read_text() == shown
    assert json.loads((tmp_path / "report.json").read_text())[0]["nbytes"] == 1024


def test_a_run_that_measured_nothing_says_so_everywhere(tmp_path):
    dead = Kind(backend="gloo", path="cpu", status="failed", reason="worker_died")
    for name, kinds in (("none", ()), ("dead", (dead,))):
        write_run(tmp_path / name, replace(cpu_world(sizes=(1024,)), kinds=kinds))
        shown = reporting.write(tmp_path / name)
        assert "Nothing was measured" in shown
        assert "Nothing was measured" in (tmp_path / name / "report.html").read_text()
    built = model.build(rundir.load(tmp_path / "dead"))
    assert "the process measuring it died" in text.render(built)
    assert built.verdicts[0].reason == "no_best"


def test_groups_of_ranks_are_sections_of_their_own(tmp_path):
    world = cpu_world(sizes=(1024, 4096))
    two = write_run(tmp_path / "two", world)
    run = rundir.load(two)
    islands = [
        replace(
            r, case=replace(r.case, groups=((0, 1), (2, 3)), devices=("cpu:0", "cpu:1", "cpu:2", "cpu:3"))
        )
        for r in run.results
    ]
    built = model.build(replace(run, results=(*run.results, *islands)))
    assert [len(s.groups) for s in built.sections] == [0, 2]
    assert "2 groups at once" in built.sections[1].title
    assert len(plots_names(built)) == 2


def plots_names(built):
    from arfloor.report.plots import drawable, file_name

    return {file_name(s) for s in drawable(built)}


def test_a_default_that_went_through_host_memory_is_named(tmp_path):
    world = gpu_world(sizes=(262144,))
    kinds = [replace(k, ran=replace(k.ran, transport="SHM")) if k.ran else k for k in world.kinds]
    built = model.build(rundir.load(write_run(tmp_path, replace(world, kinds=tuple(kinds)))))
    peer = built.sections[0]
    assert peer.path == "peer"
    assert "did not use peer access" in peer.rows[0].verdict.sentence
    assert "did not use peer access" in card.render(built)
    assert "did not use peer access" not in built.sections[1].rows[0].verdict.sentence


def test_options_name_what_the_environment_alone_gives_and_what_is_best(gpu):
    row = gpu.sections[1].nearest(262144)
    (environment, own), (library, best) = phrases.options(row.verdict, row.results)
    assert "NCCL_PROTO=LL" in environment
    assert "NCCL_MIN_NCHANNELS=16" in environment
    assert "line64" in library
    assert 1 < own < best


def test_shown_intervals():
    def shown(value, lo, hi):
        return phrases.interval(Estimate(value=value, lo=lo, hi=hi, n=9, unit="us"))

    assert shown(41.6, 41.2, 42.0) == "41.6 ±0.40"
    assert shown(12.21, 12.2, 12.3) == "12.2 ±0.09"
    assert shown(1284.0, 1270.0, 1297.0) == "1284 ±14"
    assert shown(100.0, 20.0, 130.0) == "100 [20.0, 130]"


def test_a_sweep_ends_by_what_its_report_says(tmp_path, capsys):
    sweep = pytest.importorskip("arfloor.sweep")
    world = gpu_world(sizes=(262144,))
    sound = replace(world, kinds=tuple(k for k in world.kinds if k.status == "ok"))
    impossible = Kind(backend="kernel", variant="impossible", path="host", alpha_us=0.5, gbps=1e6)
    worlds = {
        sweep.OK: sound,
        sweep.WRONG: replace(sound, kinds=(*sound.kinds, impossible)),
        sweep.NOTHING: replace(sound, kinds=tuple(k for k in world.kinds if k.status == "failed")),
    }
    for code, made in worlds.items():
        run = write_run(tmp_path / str(code), made)
        assert sweep._report(run, interrupted=False) == code
        told = capsys.readouterr()
        assert told.out.startswith((run / "report.md").read_text())
        assert ("kernel impossible, graph: it was faster than the bound" in told.err) == (code == sweep.WRONG)
    assert sweep._report(write_run(tmp_path / "wrong", world), interrupted=False) == sweep.WRONG


def test_an_attainable_that_was_measured_is_not_named_at_length(gpu):
    verdict = gpu.sections[1].nearest(262144).verdict
    assert phrases.attained_by(verdict) == verdict.attainable_algorithm != ""
    beaten = replace(verdict, attainable_algorithm="host line64")
    assert phrases.attained_by(beaten) == "measured"
    assert phrases.attained_by(replace(beaten, best=None)) == "host line64"
