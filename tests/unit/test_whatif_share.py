"""A share alone: bounds by Amdahl's law, a box's latencies beside them, and what would sharpen them."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from arfloor.cli import main
from arfloor.core import units
from arfloor.core.cases import Estimate
from arfloor.core.whatif.share_only import FREE, gain_at_most

BOX = ("--tp", "4", "--topology", "rtx-pro-6000-x8-host-bridge")


def said(capsys, *argv):
    assert main(["whatif", *argv]) == 0
    return " ".join(capsys.readouterr().out.split())


def test_free_reduces_are_amdahl_and_all_that_a_share_says(capsys):
    shown = said(capsys, "--share", "0.19")
    assert f"free {(1 / 0.81 - 1) * 100:+.1f} %" in shown
    assert "Verdict: a share alone decides nothing here" in shown
    for option in ("--tok-s", "--model", "--share SHARE@CONCURRENCY", "--tp RANKS"):
        assert f"- {option}" in shown


def test_a_share_too_small_to_matter_decides(capsys):
    assert "Verdict: accept the floor, because even free" in said(capsys, "--share", "0.01@64")
    assert "accept the floor" not in said(capsys, "--share", "0.01@64", "--worth", "0.005")
    assert "all-reduce, 0.4 % of a profile" in said(capsys, "--share", "0.004")


def test_a_box_gives_bounds_by_size_and_a_model_fixes_the_size(capsys):
    shown = said(capsys, "--share", "0.19@64", *BOX)
    assert "another box's figures" in shown
    for size in ("1 KiB", "256 KiB", "1 MiB"):
        assert size in shown
    main(["whatif", "--share", "0.19@64", *BOX, "--model", "DeepSeek-V4-Flash", "--format", "json"])
    document = json.loads(capsys.readouterr().out)
    (row,) = document["sizes"]
    assert (row["nbytes"], row["now_us"], row["best_us"], row["best"]) == (524288, 71.7, 51.0, "pcie_oneshot")
    assert row["gain"]["value"] == pytest.approx(1 / (0.81 + 0.19 * 51.0 / 71.7) - 1)
    assert row["gain"]["value"] < row["floor_gain"]["value"] < document["free"]["value"]
    assert f"to {units.gain(Estimate(**row['floor_gain']))}, at the 18.4 us that" in document["verdict"]
    assert document["sharper"] == ["--tok-s 64:TOK_S", "--run RUN of a sweep on your own GPUs"]


@pytest.mark.parametrize(
    ("argv", "named"),
    [
        (("--share", "19"), "between 0 and 1"),
        (("--share", "0.19@x"), "--share"),
        (("--share", "0.19@64", *BOX[2:]), "--tp"),
        (("--share", "0.19@64", "--apply", "overlap"), "--model"),  # a change needs a step
        (("--share", "0.19@64", "--share", "0.1@16"), "--model"),
        (("--share", "0.19@64", *BOX, "--using", "nvls"), "nvls"),
    ],
)
def test_what_cannot_be_answered_is_refused_in_one_line(argv, named, capsys):
    assert main(["whatif", *argv]) == 2
    out = capsys.readouterr()
    assert out.out == ""
    assert named in out.err
    assert out.err.count("\n") == 1


@given(st.floats(0.01, 0.9), st.floats(1, 1e3))
def test_no_speed_reaches_the_bound_and_none_loses(share, faster):
    e = Estimate(value=share, lo=share, hi=share, n=1, unit="")
    assert 0 <= gain_at_most(e, faster).value < gain_at_most(e, FREE).value
