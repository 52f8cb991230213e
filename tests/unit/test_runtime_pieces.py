"""Small parts of the runtime: redaction, progress files, stopping, launchers' variables, errors."""

import itertools
import sys
from types import SimpleNamespace

import pytest

from arfloor import rundir
from arfloor.core.cases import Samples
from arfloor.core.recipe import BadInput
from arfloor.core.redact import redact_env, redact_text
from arfloor.runtime import agree, chains, machine, mpi_launch, ranks, stopping
from arfloor.runtime.machine import kernel_version
from arfloor.runtime.progress import Progress, Tail
from tests.unit.test_rundir import write_run


def test_only_what_bears_on_all_reduce_is_kept_of_the_environment():
    env = {
        "NCCL_P2P_DISABLE": "1",
        "OMP_NUM_THREADS": "1",
        "HOME": "/home/someone",
        "AWS_SECRET_ACCESS_KEY": "x",
        "NCCL_API_KEY": "abc",
        "VLLM_HOST": "node17.example 10.1.2.3",
    }
    kept = redact_env(env, names=["node17.example", "node17"])
    assert kept == {
        "NCCL_API_KEY": "<secret>",
        "NCCL_P2P_DISABLE": "1",
        "OMP_NUM_THREADS": "1",
        "VLLM_HOST": "<host> <address>",
    }


@pytest.mark.parametrize(
    "text",
    [
        "GPU-5a1b2c3d-1111-2222-3333-444455556666",
        "Serial Number: 1234567",
        "hf_abcdefghijklmnopqrstuvwxyz",
        "https://me:secret@host.example/x",
        "/home/someone/x",
        "192.168.3.4",
        "A" * 30 + "b1" * 8,
    ],
)
def test_secrets_serials_and_places_do_not_survive(text):
    shown = redact_text(f"before {text} after")
    assert shown.startswith("before ")
    assert shown.endswith(" after")
    assert "<" in shown
    for word in ("5a1b2c3d", "1234567", "abcdefgh", "me:secret", "someone", "192.168", "b1b1"):
        assert word not in shown


def test_plain_values_pass_unchanged():
    for text in ("LL,LL128,Simple", "0,1,2,3", "recursive_doubling", "PIX", "127.0.0.1", "^NVLS"):
        assert redact_text(text) == text


def test_a_tail_delivers_whole_lines_once(tmp_path):
    file = tmp_path / "p.jsonl"
    tail = Tail(file)
    assert list(tail.read()) == []
    progress = Progress(file)
    progress.line("case", case="a")
    with file.open("ab") as stream:
        stream.write(b'{"kind": "bl')
        stream.flush()
        assert [line["kind"] for line in tail.read()] == ["case"]
        stream.write(b'ock"}\n\xff{\n')
        stream.flush()
    progress.line("exit")
    assert [line["kind"] for line in tail.read()] == ["block", "exit"]
    assert list(tail.read()) == []


def test_a_steady_case_stops_at_its_interval_and_a_restless_one_at_its_budget():
    steady = [[10.0, 10.01, 9.99]] * 10
    assert stopping.decide(steady, spent_s=0.01, budget_s=9, interval=0.01)[0] == "interval"
    restless = [[10.0, 20.0, 30.0], [40.0, 10.0, 10.0]] * 4
    assert stopping.decide(restless, spent_s=1.0, budget_s=9, interval=0.01) == (None, 27)
    assert stopping.decide(restless, spent_s=9.1, budget_s=9, interval=0.01)[0] == "budget"


def test_a_case_gets_a_few_rounds_unless_they_would_cost_far_too_much():
    two = [[10.0, 11.0], [10.0, 12.0]]
    assert stopping.decide(two, spent_s=1.5, budget_s=1.0, interval=0.01)[0] is None
    assert stopping.decide(two, spent_s=2.5, budget_s=1.0, interval=0.01)[0] == "budget"


def test_replays_are_at_least_one_and_bounded():
    assert stopping.replays_a_round(100.0, 1.0) == 1
    assert stopping.replays_a_round(0.0, 1.0) == stopping.MOST_REPLAYS
    assert stopping.replays_a_round(0.01, 0.8) == 10


def test_torchrun_and_mpirun_name_rank_and_world():
    env = {
        "RANK": "1",
        "WORLD_SIZE": "2",
        "MASTER_ADDR": "h",
        "MASTER_PORT": "77",
        "TORCHELASTIC_USE_AGENT_STORE": "True",
    }
    where = ranks.place(env)
    assert (where.launcher, where.rank, where.world, where.port) == ("torchrun", 1, 2, 77)
    first = {**env, "RANK": "0"}
    assert not ranks.place(first).serves  # the agent serves
    assert ranks.place({k: v for k, v in first.items() if k != "TORCHELASTIC_USE_AGENT_STORE"}).serves
    ompi = {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "2", "PMIX_NAMESPACE": "job-7@1"}
    zero, one = ranks.place(ompi), ranks.place({**ompi, "OMPI_COMM_WORLD_RANK": "1"})
    assert zero.serves
    assert not one.serves
    assert zero.port == one.port != ranks.place({**ompi, "PMIX_NAMESPACE": "job-8@1"}).port
    assert ranks.place({"PMI_RANK": "1", "PMI_SIZE": "4"}).world == 4
    with pytest.raises(BadInput, match="torchrun"):
        ranks.place({})


def test_a_worker_does_not_inherit_the_place_in_another_mpi_job(monkeypatch):
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "0")
    monkeypatch.setenv("PMIX_RANK", "0")
    monkeypatch.setenv("OMPI_MCA_btl", "self,sm")
    env = ranks.own_environment((("NCCL_P2P_DISABLE", "1"), ("launcher", "mpiexec")))
    assert not {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "launcher"} & set(env)
    assert env["OMPI_MCA_btl"] == "self,sm"
    assert env["NCCL_P2P_DISABLE"] == "1"
    assert env["NCCL_NVLS_ENABLE"] == "0"


def facts(**changes):
    fields = {
        "versions": {"torch": "2"},
        "host": "a",
        "gpus": 0,
        "free_memory": 1 << 34,
        "free_shm": 1 << 30,
    }
    return {**fields, **changes}


def test_ranks_must_agree_on_versions_and_host():
    machine.agreed([facts(), facts()])
    with pytest.raises(BadInput, match=r"rank 1 has torch 3, rank 0 has 2"):
        machine.agreed([facts(), facts(versions={"torch": "3"})])
    with pytest.raises(BadInput, match=r"rank 1 has mpi4py 4, rank 0 has none"):
        machine.agreed([facts(), facts(versions={"torch": "2", "mpi4py": "4"})])
    with pytest.raises(BadInput, match="another host"):
        machine.agreed([facts(), facts(host="b")])


def test_devices_asked_for_must_be_there():
    assert machine.device_kind("auto", 2, [facts(), facts()]) == "cpu"
    assert machine.device_kind("auto", 2, [facts(gpus=2), facts(gpus=2)]) == "cuda"
    assert machine.device_kind("cpu", 2, [facts(gpus=2)]) == "cpu"
    with pytest.raises(BadInput, match=r"'cuda' needs one GPU a rank, found 0 for 2 ranks"):
        machine.device_kind("cuda", 2, [facts(), facts()])


def test_memory_is_asked_for_before_anything_starts():
    machine.check_memory(4 << 20, 2, 4, 5, [facts()])
    with pytest.raises(BadInput, match="MiB are free"):
        machine.check_memory(1 << 30, 8, 4, 5, [facts()])
    with pytest.raises(BadInput, match="/dev/shm"):
        machine.check_memory(4096, 2, 4, 5, [facts(free_shm=1 << 20)])


def test_errors_are_told_apart():
    assert agree.poisoned(RuntimeError("CUDA error: an illegal memory access was encountered")) == (
        "illegal_address"
    )
    assert agree.poisoned(ValueError("no")) is None
    assert agree.classify(RuntimeError("CUDA out of memory"), "time") == "memory"
    assert agree.classify(ValueError("no"), "prepare") == "prepare_failed"
    assert agree.classify(ValueError("no"), "time") == "raised"
    assert agree.classify(ModuleNotFoundError("No module named 'x'"), "prepare") == "not_installed"
    assert agree.one_line(ValueError("a\n  b")) == "ValueError: a b"


def test_samples_of_a_killed_attempt_are_dropped(tmp_path):
    case = write_run(tmp_path)
    torn = Samples(case_id=case.id, launch=7, round=0, rank=1, us=(1.0,))
    rundir.Writer(tmp_path).samples(1, [torn])
    rundir.drop_incomplete(tmp_path, 1)
    text = (tmp_path / "samples-rank1.jsonl").read_text()
    assert '"launch":7' not in text
    assert text.count("\n") == 1
    rundir.drop_incomplete(tmp_path, 5)  # a rank that wrote nothing yet


def test_open_mpi_may_oversubscribe_only_where_ranks_outnumber_cores(monkeypatch):
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {0, 1})
    key = "PRTE_MCA_rmaps_default_mapping_policy"
    assert key not in mpi_launch.environment(2)
    assert mpi_launch.environment(3)[key] == ":oversubscribe"


@pytest.mark.parametrize(
    ("release", "version"),
    [("6.1.0-28-cloud-amd64", "6.1.0"), ("6.18.44-build-of-a-place", "6.18.44"), ("unnamed", "unknown")],
)
def test_a_kernels_version_does_not_name_the_place_it_was_built_for(release, version):
    assert kernel_version(release) == version


def test_side_streams_are_neither_the_captured_one_nor_each_other(monkeypatch):
    """Torch's pool hands the same few streams out in turn."""
    handed = itertools.cycle(SimpleNamespace(cuda_stream=handle) for handle in (1, 2, 3))
    monkeypatch.setitem(
        sys.modules, "torch", SimpleNamespace(cuda=SimpleNamespace(Stream=lambda: next(handed)))
    )
    for cached in (chains.capture_stream, chains.side_stream):
        cached.cache_clear()
    try:
        captured = chains.capture_stream().cuda_stream
        next(handed), next(handed)  # others took some meanwhile: the captured one is next
        found = [chains.side_stream(i).cuda_stream for i in (0, 1)]
        assert len({captured, *found}) == 3
        assert [chains.side_stream(i).cuda_stream for i in (0, 1)] == found
    finally:
        for cached in (chains.capture_stream, chains.side_stream):
            cached.cache_clear()
