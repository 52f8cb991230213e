"""What `arfloor whatif` prints: its words are explained, its lines fit, and what matters most comes first."""

from __future__ import annotations

import re

import pytest

from arfloor.cli import main
from arfloor.core import units
from arfloor.core.obtain import OUTSIDE

BOX = "rtx-pro-6000-x8-host-bridge"
CASE = ("--model", "DeepSeek-V4-Flash", "--tp", "4", "--topology", BOX)
TOK_S = ("--tok-s", "1:58.7,16:279,64:509")
README = (*CASE, *TOK_S, "--share", "0.19@64", "--apply", "switch:pcie_oneshot,fuse", "--apply", "overlap")


@pytest.fixture
def said(capsys, monkeypatch):
    def run(*argv, columns=120):
        monkeypatch.setenv("COLUMNS", str(columns))
        assert main(["whatif", *argv]) == 0
        return capsys.readouterr().out

    return run


def joined(text):
    return " ".join(text.split())


@pytest.mark.parametrize("columns", [80, 100, 120])
def test_lines_fit_the_terminal_and_no_figure_is_lost(said, columns):
    counter = ("--pcie-counter", "200MB/s@64")
    shown = said(*README, *counter, columns=columns)
    assert max(map(len, shown.splitlines())) <= columns
    wide = said(*README, *counter, columns=300)
    numbers = [re.findall(r"\d[\d.]*", text) for text in (shown, wide)]
    assert sorted(numbers[0]) == sorted(numbers[1])


@pytest.mark.parametrize(
    "extra",
    [
        (),
        ("--apply", "quant:fp8:overhead_us=1..3", "--apply", "dp_attention:compute=1..1.2"),
        ("--share", "0.02@64", "--apply", "spec:verify=2:accept=1.6..1.9,overlap"),
        ("--share", "0.19@64", "--waiting", "100@64", "--at", "64"),
    ],
)
def test_narrow_terminals_have_room_for_every_kind_of_answer(said, extra):
    assert max(map(len, said(*CASE, *TOK_S, *extra, columns=80).splitlines())) <= 80


def test_traces_are_not_asked_for_twice(said):
    waited = joined(said(*CASE, *TOK_S, "--share", "0.19@64", "--waiting", "30@64"))
    assert "1. these latencies" in waited
    assert "traces of all ranks on aligned clocks tell" not in waited


def test_what_warns_of_the_latencies_stands_before_any_number_made_of_them(said):
    shown = joined(said(*README))
    assert shown.index("another box's figures") < shown.index("ms a step share")
    assert shown.index("15 times slower") < shown.index("ms a step share")
    assert shown.count("15 times slower") == 1


def test_the_cheapest_step_comes_first_and_only_where_the_latencies_are_not_ours(said, tmp_path):
    steps = joined(said(*README)).partition("How to find out, the cheapest first: ")[2]
    assert steps.startswith("1. these latencies are another box's (published): measure yours")
    assert "--nproc-per-node=4 -m arfloor.sweep`, then the same with NCCL_P2P_LEVEL=SYS" in steps
    assert "If nccl takes near 275 us at 512 KiB, transport explains it; if near 71.7," in steps
    assert "2. traces of all ranks" in steps
    table = tmp_path / "own.csv"
    table.write_text("backend,nbytes,us\nnccl,1024,13\nnccl,524288,71.7\n")
    own = ("--model", "DeepSeek-V4-Flash", "--tp", "4", "--table", str(table), "--tok-s", "64:509")
    steps = joined(said(*own, "--share", "0.19@64", "--apply", "fuse:saved_us=1"))
    assert "first: 1. traces of all ranks" in steps
    assert "another box's" not in steps
    explained = joined(said(*README[:-6], "--share", "0.05@64", "--apply", "switch:pcie_oneshot"))
    assert "How to find out" not in explained


def test_a_published_implementation_can_be_acted_on(said):
    shown = joined(said(*README))
    assert f"To get pcie_oneshot: {OUTSIDE['pcie_oneshot'].how} ({OUTSIDE['pcie_oneshot'].source})." in shown
    assert "To get" not in said(*CASE, *TOK_S, "--apply", "overlap")


def test_without_a_change_it_says_which_can_be_asked_about(said):
    shown = joined(said(*CASE, *TOK_S))
    asked = re.search(r"No change was given; --apply takes (.*?)\. ", shown)
    changes = asked[1].split(", ")
    assert {"switch:pcie_oneshot", "fuse", "merge", "overlap"} <= set(changes)
    for change in changes:  # as typed
        assert "No change was given" not in said(*CASE, *TOK_S, "--at", "16", "--apply", change)


def test_alone_and_in_the_server_are_not_one_column(said):
    rows = [line.split() for line in said(*README).splitlines() if re.match(r" +(1|16|64) ", line)]
    assert [row[4] for row in rows] == ["13.9", "24.7", "71.7"]
    assert [row[7:] for row in rows] == [[], [], ["275", "19.0", "%"]]


def test_assumptions_begin_with_what_moves_the_answer_most(said):
    told = said(*README).partition("the weightiest first:")[2]
    moved = [
        float(hi) - float(lo)
        for lo, hi in re.findall(r"alone moves .*? by ([-+.\d]+) to ([-+.\d]+) %", joined(told))
    ]
    assert len(moved) == 5
    assert moved == sorted(moved, reverse=True)


def test_words_are_explained(said):
    shown = joined(said(*README))
    for word in (
        "reduces: of a step",
        "KiB: messages of a step",
        "C(b): what a step",
        "alone: a reduce by itself",
    ):
        assert word in shown
    assert "points" not in shown
    assert "reduces/token" not in shown


def test_one_rule_rounds_tok_s_and_milliseconds(said):
    by_time = said(*CASE, "--tpot", "64:125.7", "--apply", "switch:pcie_oneshot")
    assert " 509 tok/s" in by_time
    assert units.ms(43.5) == units.ms(87 * 0.5) == "0.044"


def test_our_kernels_are_predicted_where_a_recorded_box_has_none_and_marked_so(said):
    shown = joined(said(*CASE, *TOK_S, "--apply", "switch:arfloor"))
    assert "switch to arfloor (predicted)" in shown
    assert "its latencies are predicted, so measure them on your box first" in shown
    assert "arfloor runs on this box and at these sizes: predicted from topologies/" in shown
    assert "the others' figures are of another" in shown
    assert "To get arfloor: `arfloor.allreduce.AllReduce`" in shown
    unasked = joined(said(*CASE, *TOK_S))
    assert "switch to arfloor" not in unasked
    assert "--apply takes switch:pcie_oneshot, switch:arfloor, " in unasked


def test_a_box_whose_run_has_our_kernels_keeps_them_alone():
    from arfloor.report.whatif.latencies import PREDICTED, from_topology

    for box, path in (("h200-x2-nvlink", "peer"), ("h200-x2-host-bridge", "host")):
        names = {c.backend for c in from_topology(box, 2, path).curves}
        assert PREDICTED not in names
        assert any(name.startswith(path) for name in names)


def test_settings_and_our_own_kernels_can_be_acted_on(said):
    shown = joined(said(*CASE[:2], "--tp", "2", "--topology", "h200-x2-host-bridge", "--tok-s", "16:800"))
    for name, how in re.findall(r"To get ([^:]+): (`[^`]+`)", shown):
        if name.startswith("nccl"):
            assert re.match(r"`NCCL_\w+=", how)
        else:
            assert how == "`arfloor.allreduce.AllReduce`"
    assert "To get host " in shown
