"""`arfloor whatif` as a user calls it: answers in text, JSON and pictures, and refusals in one line."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest

from arfloor.cli import main

BOX = "rtx-pro-6000-x8-host-bridge"
STARTING_CASE = [
    "whatif",
    *("--model", "DeepSeek-V4-Flash", "--tp", "4", "--topology", BOX),
    *("--tok-s", "1:58.7,16:279,64:509", "--share", "0.19@64"),
]


ERRORS = {
    "no model": (["whatif", "--tp", "4"], "--model"),
    "unknown model": (["whatif", "--model", "nope", "--tp", "4"], "DeepSeek-V3"),
    "no latencies": (["whatif", "--model", "GLM-5", "--tp", "4", "--tok-s", "1:50"], "--run"),
    "no tok/s": (["whatif", "--model", "GLM-5", "--tp", "4", "--topology", BOX], "--tok-s"),
    "no such box": (["whatif", "--model", "GLM-5", "--tp", "4", "--tok-s", "1:50", "--topology", "x"], BOX),
    "other ranks": ([*STARTING_CASE[:4], "8", *STARTING_CASE[5:]], "A(S) at 8 ranks"),
    "no acceptance": ([*STARTING_CASE, "--apply", "spec:verify=2"], "accept"),
    "no overhead": ([*STARTING_CASE, "--apply", "quant:fp8"], "overhead_us"),
    "no such backend": ([*STARTING_CASE, "--apply", "switch:nvls"], "pcie_oneshot"),
    "no such change": ([*STARTING_CASE, "--apply", "magic"], "overlap"),
    "counted twice": ([*STARTING_CASE, "--apply", "fuse,overlap,fuse"], "counted twice"),
    "odd option": ([*STARTING_CASE, "--apply", "fuse:much=1"], "much"),
    "no such concurrency": ([*STARTING_CASE, "--at", "32"], "tok/s at concurrency 32"),
    "size not measured": ([*STARTING_CASE[:7], "--tok-s", "512:3000"], "4194304 B"),
    "share of what": ([*STARTING_CASE, "--share", "1.9@64"], "between 0 and 1"),
    "impossible step": ([*STARTING_CASE[:7], "--tok-s", "1:2000"], "longer than the whole step"),
}


@pytest.mark.parametrize("kind", ERRORS)
def test_a_missing_input_is_an_error_that_names_it(kind, capsys):
    argv, named = ERRORS[kind]
    assert main(argv) == 2
    out = capsys.readouterr()
    assert out.out == ""
    assert named in out.err
    assert out.err.count("\n") == 1


def test_json_carries_every_interval_and_source(capsys):
    argv = [
        *STARTING_CASE,
        "--pcie-counter",
        "200MB/s@64",
        "--apply",
        "switch:pcie_oneshot,fuse",
        "--format",
        "json",
    ]
    assert main(argv) == 0
    document = json.loads(capsys.readouterr().out)
    parts = document["partition"]["parts"]
    assert sum(p["us"]["value"] for p in parts) == pytest.approx(document["partition"]["step_us"]["value"])
    assert document["counters"][0]["reduces_gbps"] == pytest.approx(0.544, rel=1e-2)
    assert [s["label"] for s in document["scenarios"][0]["stages"]] == [
        "switch to pcie_oneshot",
        "fuse add and RMSNorm",
    ]
    assert all(i["source"] for i in document["inputs"])
    assert math.isclose(document["free"]["stages"][0]["gain"]["value"], 1 / 0.81 - 1, rel_tol=1e-9)


def test_a_table_of_latencies_will_do(tmp_path, capsys):
    table = tmp_path / "latencies.csv"
    table.write_text("backend,nbytes,us\nnccl,1024,13\nnccl,1048576,90\nmine,1024,6\nmine,1048576,60\n")
    argv = ["whatif", "--model", "DeepSeek-V4-Flash", "--tp", "4", "--table", str(table), "--tok-s", "16:279"]
    assert main(argv) == 0
    assert "switch to mine" in capsys.readouterr().out
    table.write_text("backend,nbytes\nnccl,1024\n")
    assert main(argv) == 2
    assert "us is missing" in capsys.readouterr().err


@pytest.mark.parametrize("ending", [".png", ".svg"])
def test_the_waterfall_is_drawn(tmp_path, ending, capsys):
    picture = tmp_path / f"waterfall{ending}"
    argv = [
        *STARTING_CASE,
        "--apply",
        "switch:pcie_oneshot,fuse",
        "--apply",
        "overlap",
        "--plot",
        str(picture),
    ]
    assert main(argv) == 0
    capsys.readouterr()
    data = picture.read_bytes()
    assert data.startswith(b"\x89PNG" if ending == ".png" else b"<?xml")
    if ending == ".svg":
        for label in (b"today", b"switch to pcie_oneshot", b"two-batch overlap", b"unexplained"):
            assert label in data


def test_another_ending_is_refused(tmp_path, capsys):
    assert main([*STARTING_CASE, "--plot", str(tmp_path / "x.gif")]) == 2
    out = capsys.readouterr()
    assert out.out == ""
    assert ".svg" in out.err


def test_answering_in_text_loads_nothing_heavy():
    """The answer comes within two seconds on a laptop because pictures, frames and torch stay unloaded."""
    heavy = ("torch", "pandas", "matplotlib", "mpi4py", "IPython", "jinja2")
    code = (
        "import sys; from arfloor.cli import main; "
        f"status = main({STARTING_CASE!r}); "
        f"loaded = [m for m in {heavy!r} if m in sys.modules]; "
        "sys.exit(f'loaded {loaded}' if loaded else status)"
    )
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
