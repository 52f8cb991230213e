"""Reports of runs whose truth is known: what is said, what is left out, and what is never said."""

import json
from dataclasses import replace

import pytest

from arfloor import report as reporting
from arfloor import rundir
from arfloor.report import card, model, nccl_tests, rows, text
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


def test_failures_are_grouped_and_explained(gpu):
    by_label = {f.label: f for f in gpu.failures}
    assert by_label["nccl ring-ll128-16ch"].status == "wrong"
    assert by_label["nccl ring-ll128-16ch"].sizes == SOME
    assert by_label["flashinfer"] not in gpu.broken  # it cannot run here, which is no fault
    shown = text.render(gpu)
    assert "its result differs" in shown
    assert "NVLink" in shown


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
            *("headroom_left", "status", "reason"),
        }
        for name in ("default_us", "best_us", "attainable_us", "bound_us"):
            assert row[f"{name}_lo"] <= row[name] <= row[f"{name}_hi"]
        # the median of the rounds' ratios, not the ratio of the medians: near, not equal
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


def test_write_leaves_the_derived_files_and_returns_the_card(tmp_path):
    write_run(tmp_path, cpu_world(sizes=(1024,)))
    shown = reporting.write(tmp_path)
    assert (tmp_path / "report.md").read_text() == shown
    assert json.loads((tmp_path / "report.json").read_text())[0]["nbytes"] == 1024
