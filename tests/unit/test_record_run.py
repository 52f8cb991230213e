"""A path of a run, put into the library, reports what the whole run reports of that path."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from arfloor import rundir, topologies_io
from arfloor.report.model import build
from tests.synthetic import gpu_world, write_run


def tool() -> ModuleType:
    file = Path(__file__).resolve().parents[2] / "tools" / "record_run.py"
    spec = importlib.util.spec_from_file_location("record_run", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_one_path_keeps_its_latencies_and_describes_its_box(tmp_path: Path) -> None:
    write_run(tmp_path / "whole", gpu_world())
    whole = rundir.load(tmp_path / "whole")
    tool().record(whole, "host", tmp_path / "box")
    kept = rundir.load(tmp_path / "box" / "run")
    assert {r.case.path for r in kept.results} == {"host"}
    latencies = {r.case.id: r.latency for r in whole.results if r.case.path == "host"}
    assert {r.case.id: r.latency for r in kept.results} == latencies
    assert not kept.samples
    assert [s.path for s in build(kept).sections] == ["host"]
    rig = topologies_io.read(tmp_path / "box" / "topology.toml")
    assert rig.name == "box"
    assert "measured" in {f.origin for f in rig.figures.values()}
    tool().record(whole, "host", tmp_path / "box")  # again over itself
    with pytest.raises(ValueError, match="nothing was measured"):
        tool().record(kept, "peer", tmp_path / "other")
