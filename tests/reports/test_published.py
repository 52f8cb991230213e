"""Figures that others published: what they themselves say of them stands beside the advice, everywhere."""

import json
import re
from html import unescape

import pytest

from arfloor import library, rundir
from arfloor.cli import main
from arfloor.core.obtain import OUTSIDE
from arfloor.report.model import build

BOX = "rtx-pro-6000-x8-host-bridge"
FLAG = "--enable-pcie-oneshot-allreduce"


def said(capsys, form):
    assert main(["report", "--topology", BOX, "--world", "4", "--format", form]) == 0
    return capsys.readouterr().out


@pytest.fixture(scope="module")
def caveats():
    found = build(rundir.load(library.recorded_run(BOX))).caveats
    assert "another box's figures" in found[0]
    assert "root ports" in found[0]  # what the box's own title says
    assert "15 times slower" in found[1]
    return found


@pytest.mark.parametrize("form", ["text", "md", "html"])
def test_the_caveats_follow_the_advice(form, caveats, capsys):
    shown = " ".join(re.sub(r"<[^>]+>", "", unescape(said(capsys, form))).split())
    advice = shown.index(FLAG)
    for caveat in caveats:
        assert advice < shown.index(caveat) < advice + 1500


def test_every_row_for_programs_has_them(caveats, capsys):
    rows = json.loads(said(capsys, "json"))
    assert {tuple(row["caveats"]) for row in rows} == {caveats}


def test_the_advice_says_what_to_install_and_who_says_so(capsys):
    shown = " ".join(said(capsys, "text").split())
    how = OUTSIDE["pcie_oneshot"]
    assert f"pcie_oneshot measured 1.43x faster than nccl: {how.how} ({how.source})." in shown
    assert "backend `pcie_oneshot`" not in shown


def test_our_own_runs_have_no_such_caveats(tmp_path, capsys):
    from tests.synthetic import gpu_world, write_run

    run = write_run(tmp_path / "r", gpu_world(sizes=(262144,)))
    assert main(["report", str(run), "--format", "json"]) == 0
    assert {row["caveats"] for row in json.loads(capsys.readouterr().out)} == {None}
    assert main(["report", str(run)]) == 0
    assert "but:" not in capsys.readouterr().out


def test_the_card_tells_nobody_to_switch_on_anothers_figures(capsys):
    shown = said(capsys, "md")
    assert "**Measure, then switch:** 1.43x" in shown
    assert "Switch now" not in shown
