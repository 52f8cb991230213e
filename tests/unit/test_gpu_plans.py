"""What the GPU side decides without a GPU: variants, probe patterns, slopes, health marks."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from arfloor import recipes
from arfloor.backends import nccl
from arfloor.backends.nccl import (
    CONTENDERS,
    ONE_GRAPH_VARIANTS,
    P2P_ANYWHERE,
    P2P_OFF,
    Nccl,
    environment,
    names,
    parse_variant,
)
from arfloor.core.cases import Case, Machine
from arfloor.core.plan import Offer, make_plan
from arfloor.core.slopes import less_control_us, slopes_us
from arfloor.primitives.gpu import SIZES, in_order_of_need
from arfloor.primitives.gpu_patterns import ends, patterns, rates_gbps
from arfloor.runtime import jit
from arfloor.runtime.health import LinkBytes, Reading, link_bytes, marks_of, moved, read
from arfloor.runtime.spares import MOST
from tests.unit.threads import on_all_ranks


def machine(**facts: bool) -> Machine:
    return Machine(world=2, device_kind="cuda", device_name="GPU", facts=dict(facts))


def case(**changes: object) -> Case:
    fields: dict[str, object] = {
        "backend": "nccl",
        "path": "peer",
        "devices": ("cuda:0", "cuda:1"),
        "numel": 1024,
        "dtype": "bfloat16",
        "mode": "graph",
    }
    return Case(**{**fields, **changes})  # type: ignore[arg-type]


def test_every_variant_name_means_what_it_says() -> None:
    assert parse_variant("default").environment == {}
    plan = parse_variant("ring-ll128-16ch")
    assert plan.environment == {"NCCL_ALGO": "Ring", "NCCL_PROTO": "LL128"}
    assert plan.advice == "NCCL_ALGO=Ring NCCL_PROTO=LL128 NCCL_MIN_NCHANNELS=16 NCCL_MAX_NCHANNELS=16"
    assert parse_variant("16ch").channels == 16
    assert len({parse_variant(n) for n in names()}) == len(names())
    assert set(names()) >= CONTENDERS


@pytest.mark.parametrize(
    "name",
    [
        "ll-ring",
        "ring-16ch-ll",
        "ring-ll-16ch-8ch",
        "fast",
        "xch",
        "",
        "default-one-graph",
        "-one-graph",
        "one-graph-16ch",
        "one-graph-one-graph",
    ],
)
def test_other_variant_names_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match="nccl variant"):
        parse_variant(name)


def test_variants_cover_both_paths_and_one_default_each() -> None:
    variants = Nccl().variants(machine(nvlink=True, p2p=True))
    mixed = [v for v in variants if "one-graph" not in v.name]
    assert {(v.path, v.settings) for v in mixed} == {("peer", ()), ("host", P2P_OFF)}
    assert [(v.path, v.settings) for v in variants if v.default] == [("peer", ()), ("host", P2P_OFF)]
    pcie = Nccl().variants(machine(nvlink=False, p2p=True))
    assert ("peer", P2P_ANYWHERE) in {(v.path, v.settings) for v in pcie}
    assert sum(v.default for v in pcie) == 2
    cpu = Machine(world=2, device_kind="cpu", device_name="CPU")
    assert list(Nccl().variants(cpu)) == []


def test_support_says_why_not() -> None:
    nccl = Nccl()
    assert nccl.support(machine(p2p=True), case()).ok
    assert nccl.support(machine(p2p=False), case()).reason == "needs_p2p"
    assert nccl.support(machine(p2p=False), case(path="host", settings=P2P_OFF)).ok
    cpu = Machine(world=2, device_kind="cpu", device_name="CPU")
    assert nccl.support(cpu, case()).reason == "needs_gpu"


def test_the_environment_holds_inside_and_is_restored_after_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCL_ALGO", "Tree")
    monkeypatch.delenv("NCCL_PROTO", raising=False)
    seen = []

    def fail() -> None:
        with environment({"NCCL_ALGO": "Ring", "NCCL_PROTO": "LL"}):
            seen.append((os.environ["NCCL_ALGO"], os.environ["NCCL_PROTO"]))
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert seen == [("Ring", "LL")]
    assert os.environ["NCCL_ALGO"] == "Tree"
    assert "NCCL_PROTO" not in os.environ


def test_gpu_modules_import_without_torch_or_cuda() -> None:
    code = (
        "import sys; sys.modules['torch'] = sys.modules['cuda'] = sys.modules['pynvml'] = None\n"
        "import arfloor.backends.nccl, arfloor.primitives.gpu, arfloor.runtime.timing_gpu\n"
        "import arfloor.runtime.health, arfloor.runtime.barrier"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("path", ["peer", "host"])
@pytest.mark.parametrize("world", [2, 3, 4])
def test_the_patterns_of_a_reduce_are_probed_before_single_streams(path: str, world: int) -> None:
    jobs = in_order_of_need(path, world)
    assert sorted(map(repr, jobs)) == sorted(
        repr((n, e, p)) for n in SIZES for e in ("sm", "ce") for p in patterns(path, world, e)
    )
    joint = [i for i, (_, _, p) in enumerate(jobs) if p.active != "one_way"]
    if world > 2:
        assert joint == list(range(len(joint)))
    assert jobs[0][0] == max(SIZES)


@given(st.integers(2, 16), st.sampled_from(["sm", "ce"]))
def test_patterns_name_their_traffic(world: int, engine: str) -> None:
    for pattern in patterns("host", world, engine):
        moves = {(s.rank, s.access) for s in pattern.streams}
        assert len(moves) == len(pattern.streams)
        sizes = {"one_way": 1, "all_one_way": world, "both_ways": 2, "all": 2 * world}
        assert len(pattern.streams) == sizes[pattern.active]
    for pattern in patterns("peer", world, engine):
        assert all(s.rank != s.other for s in pattern.streams)
        if pattern.active == "both_ways":  # one stream in and one out a rank
            assert sorted(s.rank for s in pattern.streams) == list(range(world))
            assert sorted(s.other for s in pattern.streams) == list(range(world))
        if pattern.active == "all":
            assert len(pattern.streams) == world * (world - 1)
    assert ("all" in {p.active for p in patterns("peer", world, engine)}) == (world > 2)


def test_a_load_moves_bytes_towards_its_gpu() -> None:
    by_access = {s.access: ends(s) for p in patterns("host", 2, "sm") for s in p.streams if s.rank == 0}
    assert by_access == {"write": ("cuda:0", "host"), "read": ("host", "cuda:0")}


def test_rates_leave_out_slopes_lost_in_noise() -> None:
    assert rates_gbps([10.0, -1.0, 0.0, float("nan")], 262144) == [pytest.approx(26.2144)]


@given(st.floats(1, 500), st.floats(0, 1000), st.lists(st.floats(-0.5, 0.5), min_size=3, max_size=9))
def test_a_slope_forgets_whatever_is_constant(each: float, constant: float, noise: list[float]) -> None:
    many = [constant + 40 * each + n for n in noise]
    few = [constant + 8 * each for _ in noise]
    got = slopes_us(many, few, 40, 8)
    assert all(abs(g - each - n / 32) < 1e-6 for g, n in zip(got, noise, strict=True))


def test_one_slow_replay_of_the_short_chain_moves_nothing() -> None:
    clean = slopes_us([400.0] * 5, [80.0] * 5, 40, 8)
    assert slopes_us([400.0] * 5, [80.0, 80.0, 800.0, 80.0, 80.0], 40, 8) == clean
    assert less_control_us([12.0, 14.0], [2.0, 2.0, 9.0]) == (10.0, 12.0)
    with pytest.raises(ValueError, match="none"):
        slopes_us([], [], 40, 8)
    with pytest.raises(ValueError, match="none"):
        less_control_us([1.0], [])


def test_marks() -> None:
    calm = Reading(sm_mhz=1980, pcie_width=16, pcie_width_max=16, pcie_generation=5)
    assert marks_of([calm, calm]) == ()
    assert marks_of([Reading(), Reading()]) == ()
    slow = Reading(sm_mhz=1200, throttles=("SwPowerCap",), pcie_width=8, pcie_width_max=16, pcie_generation=5)
    assert marks_of([calm, slow]) == (
        "throttled: power cap",
        "clocks moved: 1200 to 1980 MHz",
        "link changed while measuring",
        "link x8 of x16",
    )


def test_counters_become_bytes_an_operation() -> None:
    before, after = LinkBytes(pcie_tx=1000, nvlink_tx=None), LinkBytes(pcie_tx=27_000_000, nvlink_tx=5)
    assert moved(before, after, 100) == {"pcie_tx": pytest.approx(269_990)}
    with pytest.raises(ValueError, match="operation"):
        moved(before, after, 0)


def test_without_nvml_nothing_is_claimed() -> None:
    if read(0) != Reading():
        pytest.skip("this machine has NVML")
    assert link_bytes(0) == LinkBytes()


@pytest.mark.parametrize(
    ("file", "defines"),
    [
        ("barrier.cu", {}),
        ("peer_check.cu", {}),
        ("probes.cu", {"RELAXED": 1}),
        ("probes.cu", {"RELAXED": 0}),
    ],
)
def test_probe_kernels_compile_for_every_architecture(
    file: str, defines: dict[str, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("cuda.bindings")
    monkeypatch.setenv("ARFLOOR_CACHE_DIR", str(tmp_path))
    for arch in jit.ARCHS:
        cubin = jit.compile_cubin(jit.read_sources(file), arch=arch, defines=defines, name=file)
        assert cubin[:4] == b"\x7fELF"


def test_a_pcie_counter_that_wrapped_still_counts() -> None:
    before = LinkBytes(pcie_tx=2**32 - 1000, pcie_rx=0, nvlink_tx=5)
    after = LinkBytes(pcie_tx=3000, pcie_rx=8000, nvlink_tx=5)
    assert moved(before, after, 4) == {"pcie_tx": 1000.0, "pcie_rx": 2000.0, "nvlink_tx": 0.0}


def test_two_ranks_need_no_tree_on_every_number_of_channels() -> None:
    assert len(names(2)) == 31
    assert len(names(4)) == 49
    assert {"default", "tree-ll", "tree-ll128", "tree-simple", "ring-ll128-1ch", "32ch"} <= set(names(2))
    assert {v.name for v in Nccl().variants(machine(p2p=True))} == {*names(2), *ONE_GRAPH_VARIANTS}


def test_graph_mixing_off_is_a_setting_of_its_own_on_both_paths_in_graphs_only() -> None:
    found = [v for v in Nccl().variants(machine(nvlink=True, p2p=True)) if v.name in ONE_GRAPH_VARIANTS]
    off = ("NCCL_GRAPH_MIXING_SUPPORT", "0")
    assert {(v.path, v.settings) for v in found} == {("peer", (off,)), ("host", (off, *P2P_OFF))}
    assert len(found) == 2 * len(ONE_GRAPH_VARIANTS)
    assert all(v.modes == ("graph",) and not v.contender and not v.default for v in found)
    plan = parse_variant("16ch-one-graph")
    assert (plan.channels, plan.one_graph, plan.environment) == (16, True, {})
    assert plan.advice == "NCCL_MIN_NCHANNELS=16 NCCL_MAX_NCHANNELS=16"  # the rest are its settings
    assert parse_variant("one-graph") == replace(parse_variant("default"), one_graph=True)
    assert not parse_variant("16ch").one_graph


def test_one_graph_is_refused_where_its_setting_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the default would be timed under another name."""
    for value in ("1", None):
        if value is None:
            monkeypatch.delenv("NCCL_GRAPH_MIXING_SUPPORT", raising=False)
        else:
            monkeypatch.setenv("NCCL_GRAPH_MIXING_SUPPORT", value)
        with pytest.raises(nccl.NcclError, match="NCCL_GRAPH_MIXING_SUPPORT=0"):
            nccl._make(case(variant="one-graph"), Any)


@pytest.mark.parametrize(("recipe", "most_s"), [("libraries", 150), ("nccl-grid", 300)])
def test_recipes_that_measure_one_graph_fit_into_their_time(recipe: str, most_s: float) -> None:
    wanted = recipes.make(recipes.load(recipe))
    box = machine(nvlink=True, p2p=True)
    offers = [
        Offer(
            backend="nccl",
            variant=v.name,
            path=v.path,
            settings=v.settings,
            default=v.default,
            contender=v.contender,
            modes=v.modes,
            probes=True,
        )
        for v in Nccl().variants(box)
    ]
    plan = make_plan(wanted, box, offers, lambda _: None)
    cases = {c.id: c for launch in plan.launches for row in launch.blocks for c in row.cases}
    single = [c for c in cases.values() if c.variant in ONE_GRAPH_VARIANTS]
    assert len(single) == 2 * len(ONE_GRAPH_VARIANTS) * len(wanted.sizes)
    assert {c.mode for c in single} == {"graph"}
    # processes of their own: a probe and the recipe's launches for each of four settings
    assert len(plan.launches) == 4 * (1 + wanted.launches) <= MOST
    assert plan.estimate_s < most_s


def test_a_communicator_refused_on_one_rank_is_refused_on_all_and_not_tried_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[int] = []

    def make(case: Case, group: Any) -> str:
        made.append(group.rank)
        if group.rank == 1:
            raise RuntimeError("no algorithm\navailable")
        return "communicator"

    def twice(group: Any) -> list[str]:
        said = []
        for nbytes in (1024, 8192):
            try:
                nccl._communicator(case(variant="tree-ll128", numel=nbytes // 2), group)
            except nccl.NcclError as error:
                said.append(str(error))
        return said

    # each thread is a rank's process: dictionaries of its own
    for name in ("_COMMUNICATORS", "_REFUSED"):
        monkeypatch.setattr(nccl, name, PerThread())
    monkeypatch.setattr(nccl, "_make", make)
    expected = "no communicator for tree-ll128: rank 1: RuntimeError: no algorithm available"
    assert on_all_ranks(2, twice) == [[expected] * 2] * 2
    assert sorted(made) == [0, 1]


class PerThread:
    """A dictionary a thread."""

    def __init__(self) -> None:
        self._local = threading.local()

    def _mine(self) -> dict[Any, Any]:
        return self._local.__dict__.setdefault("mine", {})

    def __contains__(self, key: Any) -> bool:
        return key in self._mine()

    def __getitem__(self, key: Any) -> Any:
        return self._mine()[key]

    def __setitem__(self, key: Any, value: Any) -> None:
        self._mine()[key] = value
