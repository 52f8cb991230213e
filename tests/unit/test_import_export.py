"""Other tools' measurements into run directories, and runs out in their shapes."""

import io
import json
import sys

import pytest

from arfloor.cli import main
from arfloor.ingest.imported import Hints
from arfloor.ingest.outside import IngestError
from arfloor.ingest.runs import read_run
from arfloor.rundir import load
from tests.synthetic import gpu_world, write_run

HEAD = """\
# nThread 1 nGpus 4 minBytes 1024 maxBytes 1048576 step: 2(factor) warmup iters: 5 iters: 20 graph: {graph}
#
# Using devices
{ranks}#
#                                                        out-of-place                    in-place
#     size      count      type   redop    root     time   algbw   busbw #wrong    time   algbw   busbw #wrong
#      (B) (elements)                               (us)  (GB/s)  (GB/s)           (us)  (GB/s)  (GB/s)
"""
RANKS = "".join(
    f"#  Rank  {i} Group  0 Pid   4242 on      box device  {i} [0000:0{i}:00] NVIDIA RTX PRO 6000\n"
    for i in range(4)
)
ROWS = """\
      1024        256     float     sum      -1    13.50    0.08    0.11      0   13.40    0.08    0.11    N/A
   1048576     524288  bfloat16     sum      -1    85.20   12.31   18.46      0   85.00   12.34   18.50      3
"""


def read(text, **hints):
    return read_run(text, Hints(**hints))


def table(ranks=RANKS, graph=0, rows=ROWS):
    return HEAD.format(ranks=ranks, graph=graph) + rows + "# Out of bounds values : 0 OK\n"


def told(found):
    return [
        (
            r.case.world,
            r.case.nbytes,
            r.case.dtype,
            r.case.mode,
            r.case.inplace,
            r.status,
            r.latency and r.latency.value,
        )
        for r in found.results
    ]


EXPECTED = [
    (4, 1024, "float32", "eager", False, "ok", 13.5),
    (4, 1024, "float32", "eager", True, "ok", 13.4),
    (4, 1048576, "bfloat16", "eager", False, "ok", 85.2),
    (4, 1048576, "bfloat16", "eager", True, "wrong", None),
]


def test_nccl_tests_table():
    found = read(table())
    assert told(found) == EXPECTED
    assert found.device_name == "NVIDIA RTX PRO 6000"
    assert found.warned == []
    assert found.results[0].origin == "published"
    assert found.results[0].latency.lo < 13.5 < found.results[0].latency.hi


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("mpirun's prefix", "".join(f"[1,0]<stdout>:{line}\n" for line in table().splitlines())),
        ("ranks not listed", table(ranks="")),
        ("no root column", table().replace("    root", "").replace("sum      -1", "sum")),
        ("windows", table().replace("\n", "\r\n")),
        ("noise between", table().replace("#\n", "#\nNCCL INFO something 12 34\n")),
    ],
)
def test_other_shapes_of_the_same_table(name, text):
    assert told(read(text)) == EXPECTED, name


def test_old_error_column_is_no_count_of_wrong_elements():
    text = table(rows="  1024  256  float  sum  -1  13.50  0.08  0.11  2e-07  13.40  0.08  0.11  1e-07\n")
    assert [r.status for r in read(text.replace("#wrong", "error")).results] == ["ok", "ok"]


def test_graph_mode_and_several_runs_in_one_log():
    found = read(table(graph=1) + table(graph=0))
    assert {r.case.mode for r in found.results} == {"graph", "eager"}
    assert len(found.results) == 8


def test_ranks_are_told_by_bandwidth_or_by_the_user():
    small = "  1024  256  float  sum  -1  13.50  0.08  0.11  0  13.40  0.08  0.11  0\n"
    with pytest.raises(IngestError, match="--world"):
        read(table(ranks="", rows=small))
    assert read(table(ranks="", rows=small), world=2).results[0].case.world == 2
    assert any("4 ranks" in a for a in read(table(ranks="")).assumed)


def test_what_is_no_all_reduce_of_one_machine_is_left_out():
    gather = "  1048576  262144  float  none  -1  85.20  12.31  9.23  0  85.00  12.34  9.25  0\n"
    scatter = gather.replace("none", "sum")
    for rows in (gather, scatter):
        with pytest.raises(IngestError):
            read(table(rows=rows))
    two_hosts = RANKS.replace("on      box device  3", "on    other device  3")
    with pytest.raises(IngestError, match="2 machines"):
        read(table(ranks=two_hosts))
    named = "# Collective test starting: all_gather_perf\n" + table()
    with pytest.raises(IngestError, match="all_gather_perf"):
        read(named)


NVBANDWIDTH = """\
nvbandwidth Version: v0.8
Device 0: NVIDIA H200 (00000000:1b:00)
Device 1: NVIDIA H200 (00000000:43:00)

Running host_to_device_memcpy_ce.
memcpy CE CPU(row) -> GPU(column) bandwidth (GB/s)
           0         1
 0     55.63     55.64

SUM host_to_device_memcpy_ce 111.27

Running device_to_device_memcpy_read_sm.
memcpy SM GPU(row) <- GPU(column) bandwidth (GB/s)
           0         1
 0       N/A    371.07
 1    372.36       N/A

Running device_local_copy.
memcpy local GPU(column) bandwidth (GB/s)
           0         1
 0   1700.00   1701.00
"""


def test_nvbandwidth_text():
    found = read(NVBANDWIDTH)
    rates = {
        (p.engine, p.access, p.src, p.dst, p.path, p.link, p.active): p.estimate.value
        for p in found.primitives
    }
    assert rates == {
        ("ce", "read", "host", "cuda:0", "host", "pcie", "one_way"): 55.63,
        ("ce", "read", "host", "cuda:1", "host", "pcie", "one_way"): 55.64,
        ("sm", "read", "cuda:1", "cuda:0", "peer", "nvlink", "one_way"): 371.07,
        ("sm", "read", "cuda:0", "cuda:1", "peer", "nvlink", "one_way"): 372.36,
    }
    assert [str(w) for w in found.warned] == [
        "line 18: device_local_copy: no primitive stands for it, left out"
    ]
    assert (found.device_name, found.versions["nvbandwidth"]) == ("NVIDIA H200", "v0.8")


def nvbandwidth_json(**case):
    base = {
        "name": "device_to_device_memcpy_write_ce",
        "status": "Passed",
        "bandwidth_description": "memcpy CE GPU(row) -> GPU(column) bandwidth (GB/s)",
        "bandwidth_matrix": [["N/A", "25.5"], ["24.75", "N/A"]],
    }
    return json.dumps({"nvbandwidth": {"version": "v0.9", "testcases": [base | case]}})


def test_nvbandwidth_json_and_its_arrow():
    forward = read(nvbandwidth_json()).primitives
    assert [(p.src, p.dst, p.estimate.value, p.link) for p in forward] == [
        ("cuda:0", "cuda:1", 25.5, "pcie"),
        ("cuda:1", "cuda:0", 24.75, "pcie"),
    ]
    back = read(nvbandwidth_json(bandwidth_description="memcpy CE GPU(row) <- GPU(column) bandwidth (GB/s)"))
    assert [(p.src, p.dst) for p in back.primitives] == [("cuda:1", "cuda:0"), ("cuda:0", "cuda:1")]
    assert {p.link for p in read(nvbandwidth_json(), link="nvlink").primitives} == {"nvlink"}
    with pytest.raises(IngestError):
        read(nvbandwidth_json(status="Waived"))


AICONFIGURATOR = """\
framework,version,device,op_name,kernel_source,allreduce_dtype,num_gpus,message_size,latency,backend
vLLM,0.24.0,NVIDIA H100 80GB HBM3,all_reduce,vLLM_custom_graph,bfloat16,8,1048576,0.25,vllm_graph
vLLM,0.24.0,NVIDIA H100 80GB HBM3,all_reduce,vLLM_custom_graph,half,2,128,0.0038,vllm_graph
vLLM,0.24.0,NVIDIA H100 80GB HBM3,all_gather,NCCL,half,2,128,0.0038,nccl
vLLM,0.24.0,NVIDIA H100 80GB HBM3,all_reduce,x,int8,2,128,0.0038,x
"""


def test_aiconfigurator_sizes_are_elements_and_latencies_milliseconds():
    found = read(AICONFIGURATOR)
    assert [
        (r.case.backend, r.case.world, r.case.nbytes, r.latency.value, r.case.mode) for r in found.results
    ] == [
        ("vllm_custom_graph", 8, 2 << 20, pytest.approx(250), "graph"),
        ("vllm_custom_graph", 2, 256, pytest.approx(3.8), "graph"),
    ]
    assert [w.line for w in found.warned] == [4, 5]
    short = read("allreduce_dtype,num_gpus,message_size,latency,power\nhalf,8,524288,0.322721,0.0\n")
    assert short.results[0].latency.value == pytest.approx(322.721)
    nccl = read("op_name,nccl_dtype,num_gpus,message_size,latency\nall_reduce,half,2,3840,0.007\n")
    assert (nccl.results[0].case.backend, nccl.results[0].case.mode) == ("nccl", "eager")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "hello\n",
        "version https://git-lfs.github.com/spec/v1\noid sha256:c7\nsize 16411\n",
        "framework,num_gpus,message_size\n",
        "allreduce_dtype,num_gpus,message_size,latency\n",
        '{"nvbandwidth": 3}',
        '{"nvbandwidth": {"testcases": [[], 1, null]}}',
        '{"nvbandwidth": ' + "[" * 5000,
        table(rows=""),
        "nvbandwidth Version: v0.8\n",
    ],
)
def test_what_is_no_measurement_is_refused_in_one_line(text):
    with pytest.raises(IngestError) as caught:
        read(text)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize(
    ("text", "results", "primitives"), [(table(), 4, 0), (NVBANDWIDTH, 0, 4), (AICONFIGURATOR, 2, 0)]
)
def test_import_writes_a_run_directory_that_reports(text, results, primitives, tmp_path, capsys):
    file, out = tmp_path / "in.txt", tmp_path / "run"
    file.write_text(text)
    assert main(["import", str(file), "--out", str(out)]) == 0
    run = load(out)
    assert (len(run.results), len(run.primitives), run.warnings) == (results, primitives, ())
    assert run.manifest.origin == "published"
    assert run.manifest.recipe["assumed"]
    assert main(["report", str(out)]) == 0
    assert main(["import", str(file), "--out", str(out)]) == 2
    assert "already holds a run" in capsys.readouterr().err


def test_export_round_trip(tmp_path, capsys):
    file, out = tmp_path / "in.csv", tmp_path / "run"
    file.write_text(AICONFIGURATOR)
    main(["import", str(file), "--out", str(out)])
    again = tmp_path / "out.csv"
    assert main(["export", str(out), "--format", "aiconfigurator", "--out", str(again)]) == 0
    exported = read(again.read_text())
    original = read(AICONFIGURATOR)
    assert sorted((r.case.world, r.case.numel, r.case.dtype) for r in exported.results) == sorted(
        (r.case.world, r.case.numel, r.case.dtype) for r in original.results
    )
    capsys.readouterr()
    assert main(["export", str(out)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3
    assert lines[0].startswith("case_id,backend,")


def test_export_in_nccl_tests_shape_reads_back(tmp_path, capsys):
    file, out = tmp_path / "in.txt", tmp_path / "run"
    file.write_text(table())
    main(["import", str(file), "--out", str(out)])
    capsys.readouterr()
    main(["export", str(out), "--format", "nccl-tests"])
    again = read(capsys.readouterr().out, world=4)
    assert sorted(t for t in told(again) if t[-1]) == sorted(t for t in EXPECTED if t[-1])


def test_a_run_that_was_exported_and_imported_has_its_cases_again(tmp_path, capsys):
    run = write_run(tmp_path / "run", gpu_world(sizes=(8192, 262144)))
    main(["export", str(run), "--format", "nccl-tests"])
    file, out = tmp_path / "out.txt", tmp_path / "again"
    text = capsys.readouterr().out
    file.write_text(text)
    assert "intervals, samples, link probes and what really ran are left out" in text.splitlines()[0]
    assert main(["import", str(file), "--out", str(out)]) == 0
    said = capsys.readouterr().out
    assert "assumed intervals of +-5 %" in said
    assert "assumed path" not in said
    assert "assumed mode" not in said
    before, after = load(run), load(out)
    timed = {r.case: r.status for r in before.results if r.status in ("ok", "wrong")}
    assert {r.case: r.status for r in after.results} == timed
    assert "wrong" in timed.values()
    assert after.manifest.machine.device_name == before.manifest.machine.device_name
    main(["report", str(out)])
    told = capsys.readouterr().out
    assert "host/pcie, 2 ranks, bfloat16, graph" in told
    assert f"run again, figures of nccl-tests, imported from out.txt of {after.manifest.started[:10]}" in told
    assert "launch" not in told.splitlines()[1]


def test_a_damaged_line_on_whose_figures_follow_is_named():
    found = read(table().replace("# Using devices", '# arfloor table: {"case": {"backend": 3'))
    assert told(found) == EXPECTED
    assert any("damaged" in str(w) for w in found.warned)


def test_what_plain_nccl_tests_do_not_say_is_assumed_aloud():
    silent = read(table().replace(" graph: 0", ""))
    assert any(a.startswith("mode eager") for a in silent.assumed)
    assert not any(a.startswith("mode") for a in read(table()).assumed)


def test_figures_of_devices_that_nobody_named_say_so(tmp_path, capsys):
    file, out = tmp_path / "in.txt", tmp_path / "run"
    file.write_text(table(ranks=""))
    main(["import", str(file), "--out", str(out)])
    capsys.readouterr()
    main(["report", str(out)])
    assert capsys.readouterr().out.startswith("arfloor: 4 GPUs (which is not stated)\n")


def test_standard_input_is_imported(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(table().encode())))
    assert main(["import", "-", "--out", str(tmp_path / "theirs")]) == 0
    assert len(load(tmp_path / "theirs").results) == len(EXPECTED)
