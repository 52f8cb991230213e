"""Two real GPUs: skew, probes against a direct copy, counters, what ran, faults that cost one case.

About two minutes: one start for what is measured, one sweep with faults.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from launching import torchrun

from arfloor import rundir

ROOT = Path(__file__).resolve().parents[2]
pytestmark = [pytest.mark.gpu2, pytest.mark.filterwarnings("ignore::ResourceWarning")]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    done = torchrun(str(ROOT / "tests/gpu/ranks.py"), cwd=tmp_path_factory.mktemp("ranks"))
    made: dict[str, Any] = {}
    for line in done.stdout.splitlines():
        if line.startswith("FOUND "):
            made |= json.loads(line.removeprefix("FOUND "))
    assert made, done.stderr[-3000:]
    return made


@pytest.mark.parametrize("nbytes", ["8192", "262144"])
def test_launch_skew_does_not_move_a_graph_result(found: dict[str, Any], nbytes: str) -> None:
    medians = found["graph"][nbytes]
    assert abs(medians["skewed"] / medians["plain"] - 1) <= 0.02, medians


def test_without_the_device_barrier_the_skew_shows(found: dict[str, Any]) -> None:
    behind, free = found["isolated"], found["no barrier"]
    assert abs(behind["skewed"] - behind["plain"]) < 10, behind
    assert free["skewed"] - free["plain"] > 25, free


def rate(found: dict[str, Any], **wanted: Any) -> float:
    values = [
        p["value"] for p in found["primitives"] if p["value"] and all(p[k] == v for k, v in wanted.items())
    ]
    assert values, wanted
    return float(max(values))


@pytest.mark.parametrize("access", ["write", "read"])
def test_copy_engine_probes_agree_with_a_direct_copy(found: dict[str, Any], access: str) -> None:
    probed = rate(
        found,
        kind="stream",
        engine="ce",
        access=access,
        path="host",
        nbytes=4 << 20,
        active="one_way",
        src="cuda:0" if access == "write" else "host",
    )
    assert probed == pytest.approx(found["copies"][access], rel=0.03)


def test_relaxed_flags_are_no_slower_than_ordered_ones(found: dict[str, Any]) -> None:
    for path in {p["path"] for p in found["primitives"] if p["kind"] == "pingpong" and p["value"]}:
        one = {
            p["access"]: p["value"]
            for p in found["primitives"]
            if p["kind"] == "pingpong" and p["path"] == path
        }
        assert one["relaxed"] <= one["acquire_release"] * 1.02, one


def test_counters_see_what_a_ring_moves(found: dict[str, Any]) -> None:
    """2 (n-1)/n S of payload leave a rank: S for two ranks; LL would double it, headers add a little."""
    counted = {k: v for k, v in found["traffic"].items() if k.endswith("_tx") and v > (1 << 20)}
    if not counted:
        pytest.skip("NVML counts no link traffic on this machine")
    assert 0.9 * (4 << 20) <= max(counted.values()) <= 2.4 * (4 << 20), counted


RECIPE = """
name = "faults"
sizes = [8192, 65536, 262144]
paths = ["peer"]
launches = 1
budget_s = 3
timeout_s = 8
primitives = false
"""


@pytest.fixture(scope="module")
def faulty(tmp_path_factory: pytest.TempPathFactory) -> tuple[int, rundir.Run]:
    folder = tmp_path_factory.mktemp("faults")
    (folder / "faults.toml").write_text(RECIPE)
    backends = "nccl,tests.gpu.faulty_gpu:Illegal,tests.gpu.faulty_gpu:Endless"
    done = torchrun(
        *("-m", "arfloor.sweep", "faults.toml", "--backends", backends, "--out", "run"), cwd=folder
    )
    assert (folder / "run" / "manifest.json").is_file(), done.stderr[-3000:]
    return done.returncode, rundir.load(folder / "run")


def test_an_illegal_address_and_a_hang_cost_their_own_case_only(faulty: tuple[int, rundir.Run]) -> None:
    code, run = faulty
    by_case = {(r.case.backend, r.case.variant, r.case.nbytes): r for r in run.results}
    bad = {key for key, r in by_case.items() if r.status != "ok"}
    assert bad == {("illegal", "default", 65536), ("endless", "default", 65536)}
    illegal = by_case["illegal", "default", 65536]
    assert illegal.reason in ("illegal_address", "device_error"), illegal.detail
    assert by_case["endless", "default", 65536].reason == "worker_hung"
    assert len(run.manifest.failures) >= 2
    assert code == 0


def test_what_ran_is_known_for_every_nccl_result(faulty: tuple[int, rundir.Run]) -> None:
    _, run = faulty
    rows = [r for r in run.results if r.case.backend == "nccl" and r.status == "ok"]
    assert rows
    for r in rows:
        assert r.ran is not None
        assert r.ran.source == "log", r
        assert (r.ran.transport or "").startswith("P2P"), r
        if r.case.variant.startswith("ring-ll128"):
            assert (r.ran.algorithm, r.ran.protocol) == ("RING", "LL128")
