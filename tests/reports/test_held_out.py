"""Latencies of the recorded runs predicted where they were not fitted, both paths of the two-GPU box."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from arfloor import rundir
from arfloor.core.costs import finalists, held_out

ROOT = Path(__file__).resolve().parents[2]
TOPOLOGIES = ROOT / "topologies"


def test_the_tool_refuses_what_is_no_run_of_gpus_in_a_line(tmp_path):
    tool = [sys.executable, str(ROOT / "tools" / "held_out.py")]
    here = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([*tool, str(tmp_path)], capture_output=True, text=True, env=here, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("held_out: ")
    assert len(done.stderr.splitlines()) == 1


@pytest.fixture(scope="module", params=["h200-x2-nvlink", "h200-x2-host-bridge"])
def run(request):
    return rundir.load(TOPOLOGIES / request.param / "run")


def in_graphs(run, *backends):
    return [r for r in run.results if r.case.mode == "graph" and r.case.backend in backends]


@pytest.mark.parametrize("half", [0, 1])
def test_sizes_left_out_are_predicted_within_ten_per_cent(run, half):
    """All but one; what tuning timed is fitted too, of the fitted sizes alone."""
    timed = finalists(rundir.tunings(run.path), run.results)
    for backends in (("nccl",), ("peer", "host")):
        results = in_graphs(run, *backends)
        fitted = set(sorted({r.case.nbytes for r in results})[half::2])
        got = held_out(
            results, run.primitives, fitted=lambda r, fitted=fitted: r.case.nbytes in fitted, also=timed
        )
        assert not got.unpredicted
        assert len(got.errors) >= len(results) // 2 - 5
        assert got.within(0.1) >= len(got.errors) - 1


@pytest.mark.parametrize("half", [0, 1])
def test_finalists_of_sizes_left_out_are_predicted_too(run, half):
    """Five plans a size, or two: pace, window, tiles a warp and packets differ. Some were captured once."""
    timed, results = finalists(rundir.tunings(run.path), run.results), in_graphs(run, "peer", "host")
    fitted = set(sorted({r.case.nbytes for r in timed})[half::2])
    got = held_out(timed, run.primitives, fitted=lambda r: r.case.nbytes in fitted, also=results)
    assert all(":flag-" in i for i in got.unpredicted)  # too few of them to fit
    assert len(got.errors) >= 24
    assert got.within(0.1) >= 0.85 * len(got.errors)


@pytest.mark.parametrize("variant", ["default", "16ch"])
def test_grids_left_out_are_predicted_within_ten_per_cent(run, variant):
    """No latency of the variant is fitted: other channels, protocols that change elsewhere.

    All but one, and that within 11 %: 16 channels take longer than predicted at 4 MiB over the host (in four
    sweeps 11.3, 7.2, 10.4, 10.3 %) and at 1.5 MiB over NVLink, LL's last size (10.6, 5.7, 9.8, 10.2 %).
    """
    got = held_out(in_graphs(run, "nccl"), run.primitives, fitted=lambda r: r.case.variant != variant)
    assert len(got.errors) == got.within(0.11) == 25
    assert got.within(0.1) >= 24
