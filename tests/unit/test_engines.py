"""Which engine's all-reduce runs where, and the gate that refuses it."""

from itertools import permutations
from pathlib import Path

from arfloor.core.box import Box, GpuFacts, Limits, Pair
from arfloor.core.engines import engine_table, gate_rows
from arfloor.core.env_effects import effects
from arfloor.report import box_text


def box(
    n, *, relation="PHB", nvlinks=0, p2p="OK", multicast=False, cc=(12, 0), handles=("posix_fd",), **more
):
    gpus = tuple(
        GpuFacts(id=f"GPU{i}", compute_capability=cc, multicast=multicast, handle_types=handles)
        for i in range(n)
    )
    pairs = tuple(
        Pair(a=a.id, b=b.id, relation=relation, nvlinks=nvlinks, read=p2p, write=p2p)
        for a, b in permutations(gpus, 2)
    )
    return Box(source="test", gpus=gpus, pairs=pairs, **more)


def row(table, engine, part, world):
    return next(u for u in table if u.engine == engine and part in u.implementation and u.world == world)


def test_four_pcie_gpus_the_starting_case():
    table = engine_table(box(8))
    assert (
        row(table, "vLLM", "custom", 4).gate == "needs NVLink between all GPUs when there are more than two"
    )
    assert row(table, "vLLM", "custom", 2).outcome == "usable"
    refused = row(table, "SGLang", "MSCCL++", 4)
    assert refused.outcome == "refused"
    assert refused.gate == "needs 8, 16 or 32 ranks"
    assert row(table, "SGLang", "MSCCL++", 8).outcome == "usable"
    assert row(table, "SGLang", "PCIe IPC", 4).outcome == "usable"
    assert row(table, "TensorRT-LLM", "one-shot", 2).outcome == "refused"
    assert row(table, "NCCL", "2.29", 4).outcome == "refused"
    assert row(table, "NCCL", "2.28", 4).outcome == "usable"
    assert row(table, "FlashInfer", "trtllm", 4).gate == "needs cuMemCreate memory capable of GPUDirect RDMA"
    assert "multicast" in row(table, "NCCL", "NVLS", 8).gate


def test_two_nvlinked_gpus_with_multicast():
    facts = {"nvlinks": 18, "relation": None, "multicast": True, "cc": (9, 0)}
    table = engine_table(box(2, handles=("posix_fd", "fabric", "gpu_direct_rdma_vmm"), **facts))
    refused = [(u.engine, u.implementation) for u in table if u.outcome != "usable"]
    assert refused == [("SGLang", "MSCCL++"), ("b12x", "PCIe all-reduce")]
    off = engine_table(box(2, env=(("NCCL_NVLS_ENABLE", "0"),), **facts))
    assert row(off, "NCCL", "NVLS", 2).gate == "needs NCCL_NVLS_ENABLE not set to 0"


def test_no_p2p_refuses_everything_that_needs_it():
    table = engine_table(box(4, p2p="CNS"))
    assert {u.outcome for u in table} == {"refused"}
    assert row(table, "NCCL", "P2P", 4).then == "NCCL through pinned host memory (SHM)"


def test_what_is_not_known_is_said_to_be_unknown():
    table = engine_table(box(4, p2p=None, multicast=None, cc=None, handles=None))
    assert row(table, "MSCCL++", "packet", 4).outcome == "unknown"
    assert row(table, "vLLM", "custom", 4).outcome == "refused"  # PCIe decides, whatever P2P is
    assert row(table, "vLLM", "custom", 2).outcome == "unknown"
    assert row(table, "NCCL", "NVLS", 2).outcome == "refused"  # multicast is NVLink's
    linked = engine_table(box(4, nvlinks=18, multicast=None))
    assert "not known" in row(linked, "NCCL", "NVLS", 2).gate


def test_nccl_level_follows_distance_vendor_and_environment():
    amd, intel = Limits(cpu_vendor="AuthenticAMD"), Limits(cpu_vendor="GenuineIntel")
    near = {"relation": "PIX"}

    def p2p(b, world=2):
        return row(engine_table(b), "NCCL", "P2P", world).outcome

    assert p2p(box(2, limits=amd)) == "usable"
    assert p2p(box(2, limits=intel)) == "refused"
    assert p2p(box(2)) == "unknown"
    assert p2p(box(2, limits=intel, **near)) == "usable"
    assert p2p(box(4, limits=amd)) == "usable"  # two ranks of four GPUs: the communicator's count
    assert p2p(box(4, limits=intel)) == "refused"
    assert p2p(box(4)) == "unknown"
    assert p2p(box(4), 4) == "refused"
    assert p2p(box(4, limits=amd), 4) == "refused"
    assert p2p(box(4, relation="NODE", env=(("NCCL_P2P_LEVEL", "PHB"),))) == "usable"  # NCCL knows no NODE
    assert p2p(box(4, env=(("NCCL_P2P_LEVEL", "3"),))) == "usable"
    assert p2p(box(4, limits=amd, env=(("NCCL_P2P_LEVEL", "SYS"),)), 4) == "usable"
    assert p2p(box(4, limits=amd, env=(("NCCL_P2P_DISABLE", "1"),), **near), 4) == "refused"


def test_a_refused_row_says_what_gets_past_the_gate_where_p2p_works():
    def enable(b, world=4):
        return row(engine_table(b), "NCCL", "P2P", world).enable

    assert enable(box(4)) == "NCCL_P2P_LEVEL=SYS (the driver reports P2P for every pair)"
    assert "not known here" in enable(box(4, p2p=None))
    assert enable(box(4, p2p="CNS")) == ""
    assert enable(box(2), 2).startswith("NCCL_P2P_LEVEL=SYS")  # unknown for want of the CPU's vendor
    assert enable(box(4, env=(("NCCL_P2P_DISABLE", "1"),))).startswith("unset NCCL_P2P_DISABLE")
    shown = box_text.render(box(4), (), engine_table(box(4)), width=600)
    assert "to use it: NCCL_P2P_LEVEL=SYS (the driver reports P2P for every pair)" in shown


def test_every_row_names_its_source_and_fewer_than_two_gpus_have_none():
    for use in engine_table(box(4)):
        assert use.source.count("/") >= 2
        assert "," in use.source
        assert (use.outcome == "refused") == bool(use.then)
    assert engine_table(box(1)) == ()
    assert engine_table(box(0)) == ()


def test_the_documented_gates_are_those_of_the_code():
    documented = (Path(__file__).parents[2] / "docs/doctor.md").read_text()
    for row_ in gate_rows():
        assert "| " + " | ".join(row_) + " |" in documented


def test_graph_mixing_off_is_noted_with_what_it_asks():
    ((effect, value),) = effects((("NCCL_GRAPH_MIXING_SUPPORT", "0"),))
    assert (effect.severity, value) == ("warning", "0")
    assert "no call outside a graph" in effect.effect
    assert effects((("NCCL_GRAPH_MIXING_SUPPORT", "1"),)) == ()
