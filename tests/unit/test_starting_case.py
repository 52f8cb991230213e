"""The starting case's page says what the code computes, and the command on it prints the same."""

from __future__ import annotations

import json
import re
import shlex
import sys
from pathlib import Path

import pytest

from arfloor.cli import main
from arfloor.report.whatif.starting_case import facts

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "starting-case.md"


@pytest.fixture(scope="module")
def computed():
    return facts()


@pytest.fixture(scope="module")
def page():
    return PAGE.read_text(encoding="utf-8")


def test_the_page_is_what_the_code_computes(page, monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    import starting_case

    try:
        assert starting_case.render() == page, "run: python tools/starting_case.py"
    finally:
        sys.modules.pop("starting_case")


def test_the_command_on_the_page_prints_its_numbers(page, capsys):
    block = re.search(r"```\n(arfloor whatif.*?)```", page, re.DOTALL)
    argv = shlex.split(block[1].replace("\\\n", " "))[1:]
    assert main([*argv, "--format", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    printed = 0
    for scenario in document["scenarios"]:
        gain = scenario["stages"][0]["gain"]
        text = f"{gain['value'] * 100:+.1f} %"
        if gain["lo"] < gain["hi"]:
            text += f" [{gain['lo'] * 100:+.1f}, {gain['hi'] * 100:+.1f}]"
        assert text in page
        printed += 1
    assert printed == 4
    for part in document["partition"]["parts"]:
        assert f"| {part['name']} |" in page
        assert f"{part['share']['value'] * 100:.1f} %" in page


def test_the_numbers_follow_from_what_was_written_down(computed):
    """By hand: 64/509 s x 19 % / 87; 64/29.7 s x 0.8 % / 87; 87 x 1.5 x 512 KiB x 509/64 a second."""
    later = 64 / 509 * 0.19 / 87 * 1e6
    earlier = 64 / 29.7 * 0.008 / 87 * 1e6
    assert computed["profiles"]["later_us"].startswith(f"{later:.0f} [")
    assert computed["profiles"]["earlier_us"].startswith(f"{earlier:.0f} [")
    assert computed["counter"]["now"] == f"{87 * 1.5 * 524288 * 509 / 64 / 1e6:.0f}"
    standalone = 87 * 71.7 / (64 / 509 * 1e6) * 100
    assert computed["per_concurrency"][2]["share"].startswith(f"{standalone:.1f} %")
    unexplained = 19 - standalone
    assert computed["unexplained"]["share"].startswith(f"{unexplained:.1f} %")


def test_a_faster_kernel_would_have_been_seen(computed):
    """What was measured with MSCCL++ enabled lies outside what a faster kernel would have given."""
    assert [row["consistent"] for row in computed["mscclpp"]] == ["no", "no", "no"]


def test_the_page_names_the_cheap_step_before_the_dear_one_and_what_one_setting_gave(page):
    short = page.partition("## In short")[2].partition("##")[0]
    assert short.index("arfloor.sweep") < short.index("traces of")
    assert f"{(1381.1 / 1283.1 - 1) * 100:+.1f} %" in page  # NCCL_P2P_LEVEL=SYS at concurrency 64
    assert "--enable-pcie-oneshot-allreduce" in page
