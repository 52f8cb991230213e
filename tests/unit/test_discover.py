"""Discovery from a file tree and from answers of NVML and CUDA that are not there."""

import json
import sys

import pytest

from arfloor.core.doctor import diagnose
from arfloor.core.engines import engine_table
from arfloor.core.findings import exit_status
from arfloor.runtime import child, sysfs
from arfloor.runtime.child import ChildError, run_module
from arfloor.runtime.discover import discover
from arfloor.runtime.gpu_facts import collect
from arfloor.runtime.probe_box import probe_box
from tests.unit.fake_box import H200, FakeCuda, FakeNvml, add_device, machine, pci_config


def look(root, nvml=None, cuda=None, env=None):
    answers = json.loads(json.dumps(collect(nvml or FakeNvml(), cuda or FakeCuda())))
    return discover(root, env or {}, lambda: answers)


def levels(box, code):
    return [f.level for f in diagnose(box) if f.code == code]


def test_two_h200s_with_nvlink_and_pcie(tmp_path):
    box = look(machine(tmp_path))
    assert [g.name for g in box.gpus] == ["NVIDIA H200"] * 2
    assert [g.bus_id for g in box.gpus] == list(H200)
    assert [g.numa for g in box.gpus] == [0, 1]
    assert box.gpus[0].multicast is True
    assert box.gpus[0].handle_types == ("posix_fd", "gpu_direct_rdma_vmm")
    assert {(p.nvlinks, p.relation, p.read, p.atomics) for p in box.pairs} == {(18, "SYS", "OK", "OK")}
    assert box.limits.driver == "580.159.04"
    assert box.limits.iommu == "passthrough"
    kinds = [p.kind for p in box.places]
    assert kinds.count("switch") == kinds.count("host_bridge") == kinds.count("socket") == 2
    link = box.place("GPU0").link
    assert (link.gen, link.gen_max, link.width) == (1, 5, 16)
    assert box.unknown == ()
    assert exit_status(diagnose(box)) == 0
    assert levels(box, "link_idle") == ["note", "note"]
    assert levels(box, "p2p_reported") == ["ok"]
    assert {u.outcome for u in engine_table(box)} == {"usable", "refused"}


def paths(**changes):
    base = {"status": "ok", "correct": True, "staged": False, "peer_gbps": 380.0, "host_gbps": 54.0}
    both = [{"a": H200[0], "b": H200[1], **base}, {"a": H200[1], "b": H200[0], **base}]
    both[0] |= changes
    return both


def test_a_probe_settles_what_was_open(tmp_path):
    links = [{"gpu": bus, "gen": 5, "width": 16} for bus in H200]
    box = probe_box(look(machine(tmp_path)), lambda buses: {"paths": paths(), "links": links, "why": ""})
    assert levels(box, "link_below_maximum") == ["ok", "ok"]
    assert levels(box, "p2p_checked") == ["ok", "ok"]
    assert exit_status(diagnose(box)) == 0


@pytest.mark.parametrize(
    ("changes", "code", "level"),
    [
        ({"correct": False, "detail": "7 of 9 words written were wrong"}, "p2p_wrong", "problem"),
        ({"staged": True}, "p2p_staged", "problem"),
        ({"status": "failed", "detail": "CUDA says x"}, "p2p_failed", "problem"),
        ({"status": "skipped", "detail": "the driver reports no peer access"}, "p2p_checked", "unknown"),
        ({"peer_gbps": 9.0}, "p2p_slower_than_host", "warning"),
    ],
)
def test_what_a_probe_can_find(tmp_path, changes, code, level):
    box = probe_box(look(machine(tmp_path)), lambda buses: {"paths": paths(**changes), "links": []})
    found = [f for f in diagnose(box) if f.code == code and f.level == level]
    assert [f.subject for f in found] == ["GPU0 > GPU1"]
    assert exit_status(diagnose(box)) == int(level == "problem")


def test_a_link_below_its_maximum_under_load(tmp_path):
    links = [{"gpu": H200[0], "gen": 3, "width": 16}, {"gpu": H200[1], "gen": 5, "width": 8}]
    box = probe_box(look(machine(tmp_path)), lambda buses: {"paths": [], "links": links})
    found = [f for f in diagnose(box) if f.code == "link_below_maximum"]
    assert [f.level for f in found] == ["problem", "problem"]
    assert "Gen3 x16 under load" in found[0].says


def test_a_probe_that_hangs_or_answers_nonsense_is_named(tmp_path):
    box = look(machine(tmp_path))

    def hangs(buses):
        raise ChildError("did not answer within 30 s and was killed")

    for ask in (hangs, lambda buses: {"paths": [{"a": 1}]}, lambda buses: {"paths": "x"}):
        probed = probe_box(box, ask)
        assert dict(probed.unknown)["transfers between GPUs"]
        assert probed.probes == ()


def test_acs_iommu_bar1_throttle_processes(tmp_path):
    root = machine(tmp_path, iommu="DMA-FQ")
    nvml = FakeNvml(bar1=256, reasons=0x40 | 1, processes=[1, 2])
    nvml.nvmlDeviceGetNvLinkState = lambda handle, link: 0
    box = look(root, nvml)
    assert levels(box, "iommu") == ["warning"]
    assert levels(box, "bar1") == ["problem", "problem"]
    assert levels(box, "throttled") == ["warning", "warning"]
    assert "hardware thermal slowdown" in next(f for f in diagnose(box) if f.code == "throttled").evidence
    assert levels(box, "other_processes") == ["warning", "warning"]


def test_acs_redirect_on_a_switch_between_two_gpus(tmp_path):
    for control, level in ((0x1C, "problem"), (0, "ok")):
        root = tmp_path / str(control)
        switch = "pci0000:16/0000:16:01.0/0000:17:00.0"
        add_device(root, "pci0000:16/0000:16:01.0")
        add_device(root, switch, config=pci_config(0))
        for number, bus in enumerate(H200):
            port = f"{switch}/0000:18:0{number}.0"
            add_device(root, port, config=pci_config(control))
            add_device(root, f"{port}/{bus}", gpu=True)
        box = look(root)
        assert {p.relation for p in box.pairs} == {"SYS"}  # NVML's word stands
        assert levels(box, "acs_redirect") == [level]


def test_acs_that_only_root_may_read_is_unknown(tmp_path):
    root = machine(tmp_path)
    for config in root.glob("sys/devices/**/config"):
        config.write_bytes(b"\0" * 64)
    assert "root" in dict(look(root).unknown)["ACS"]


@pytest.mark.parametrize("config", [b"", b"\0" * 256, b"\xff" * 4096, bytes(range(256)) * 16])
def test_any_configuration_space_is_read_without_error(tmp_path, config):
    (tmp_path / "config").write_bytes(config)
    assert sysfs.acs_redirect(tmp_path) in (None, True, False)


def test_environment_and_nccl_configuration_file(tmp_path):
    root = machine(tmp_path, env_conf="NCCL_ALGO=Ring\nNCCL_PROTO = LL\n# x\nnonsense\n")
    env = {"NCCL_PROTO": "Simple", "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True", "SECRET_TOKEN": "x"}
    box = look(root, env=env | {"NCCL_DEBUG_FILE": "/x", "NCCL_DEBUG": "WARN", "CUDA_LAUNCH_BLOCKING": "1"})
    found = {f.subject: f for f in diagnose(box) if f.code == "environment"}
    assert found["NCCL_ALGO"].evidence == "NCCL_ALGO=Ring"
    assert found["NCCL_PROTO"].evidence == "NCCL_PROTO=Simple"
    assert found["PYTORCH_CUDA_ALLOC_CONF"].level == "warning"
    assert found["CUDA_LAUNCH_BLOCKING"].level == "problem"
    assert set(found) == {"NCCL_ALGO", "NCCL_PROTO", "PYTORCH_CUDA_ALLOC_CONF", "CUDA_LAUNCH_BLOCKING"}


def test_numa_misplacement(tmp_path):
    box = look(machine(tmp_path, cpus="0-15"))
    assert [f.subject for f in diagnose(box) if f.code == "numa_misplaced"] == ["GPU1"]


def test_without_libraries_sysfs_lists_the_gpus_and_the_reasons_are_given(tmp_path):
    root = machine(tmp_path)
    box = discover(root, {}, lambda: collect(None, None))
    assert [g.bus_id for g in box.gpus] == list(H200)
    assert "nvidia-ml-py" in dict(box.unknown)["NVML"]
    assert {p.relation for p in box.pairs} == {"SYS"}
    assert {p.read for p in box.pairs} == {None}


def test_cuda_alone_answers_peer_access(tmp_path):
    answers = collect(FakeNvml(start=False), FakeCuda())
    box = discover(machine(tmp_path), {}, lambda: answers)
    assert {p.read for p in box.pairs} == {"OK"}
    assert "Driver Not Loaded" in dict(box.unknown)["NVML"]


def test_a_machine_without_gpu_or_sysfs(tmp_path):
    def dead():
        raise ChildError("gpu_facts did not answer within 20 s and was killed")

    box = discover(tmp_path, {}, dead)
    assert box.gpus == ()
    assert "killed" in dict(box.unknown)["gpus"]
    assert exit_status(diagnose(box)) == 0
    assert probe_box(box) is box


@pytest.mark.processes
def test_a_child_that_hangs_is_killed_and_one_that_fails_gives_its_last_line(tmp_path, monkeypatch):
    (tmp_path / "sleeper.py").write_text("import time\ntime.sleep(600)\n")
    (tmp_path / "failer.py").write_text("raise SystemExit('no such luck')\n")
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    with pytest.raises(ChildError, match=r"within 0.3 s and was killed"):
        run_module("sleeper", seconds=0.3)
    with pytest.raises(ChildError, match="no such luck"):
        run_module("failer", seconds=30)
    assert child.SAFE_ENVIRONMENT["NCCL_NVLS_ENABLE"] == "0"
