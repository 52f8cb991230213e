"""Mistakes in what was typed: one line that names them, status 2, and never a number made of them."""

from __future__ import annotations

import pytest

from arfloor import models
from arfloor.cli import main
from arfloor.core.cases import Estimate
from arfloor.core.whatif.overlap import TwoBatchOverlap
from arfloor.core.whatif.step import observe
from arfloor.core.whatif.uncertainty import Draw, Input, propagate
from arfloor.report.whatif import inputs
from arfloor.report.whatif.latencies import from_topology

BOX = "rtx-pro-6000-x8-host-bridge"
ASKED = {"--model": "DeepSeek-V4-Flash", "--tp": "4", "--topology": BOX, "--tok-s": "1:58.7,64:509"}
SHARE = ("--share", "0.19@64")


def refused(capsys, *extra, **changed):
    asked = ASKED | {f"--{key.replace('_', '-')}": value for key, value in changed.items()}
    assert main(["whatif", *(word for pair in asked.items() for word in pair), *extra]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.count("\n") == 1
    return said.err


@pytest.mark.parametrize("value", ["1e999", "1e-999", "0e999", "1e300", "1e-300", "nan", "inf", "-5", ""])
def test_numbers_that_no_server_has(value, capsys):
    assert "--tok-s" in refused(capsys, tok_s=f"64:{value}")


@pytest.mark.parametrize("concurrency", ["0", "-1", "²", "٣", "1.5", "9" * 5000])
def test_concurrencies_that_are_none(concurrency, capsys):
    assert "expected CONCURRENCY:VALUE" in refused(capsys, tok_s=f"{concurrency}:5")
    assert "--share" in refused(capsys, "--share", f"0.1@{concurrency}")


def test_a_fraction_of_a_rank_is_not_rounded(capsys):
    assert "expected a whole number, found '4.4'" in refused(capsys, tp="4.4")
    assert "expected a whole number, found '63.6'" in refused(capsys, at="63.6")


@pytest.mark.parametrize("option", ["--share", "--waiting"])
def test_two_values_at_one_concurrency_contradict(option, capsys):
    error = refused(capsys, option, "0.19@64", option, "0.2@64")
    assert f"{option}: expected one value at concurrency 64, found 2" in error


def test_waiting_that_is_longer_than_the_profile(capsys):
    assert "contradicts the profiled share" in refused(capsys, *SHARE, "--waiting", "300@64")
    assert "no tok/s is given at concurrency 65" in refused(capsys, "--waiting", "5@65")


@pytest.mark.parametrize("rate", ["1.2.3MB/s", ".MB/s", "200Mb/s", "200 mb/s", "200MiB/s", "MB/s", "200"])
def test_counters_that_are_no_rate_in_bytes(rate, capsys):
    assert "--pcie-counter" in refused(capsys, "--pcie-counter", f"{rate}@64")


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--in-situ", "0"),
        ("--in-situ", "0..1"),
        ("--transport-part", "2"),
        ("--transport-part", "0.5..1.5"),
        ("--worth", "nan"),
        ("--worth", "-1"),
        ("--worth", "inf"),
        ("--worth", "1e308"),
        ("--using", ""),
    ],
)
def test_factors_out_of_their_range(option, value, capsys):
    assert option in refused(capsys, *SHARE, option, value)


@pytest.mark.parametrize(
    "change",
    [
        "overlap:contention=0",
        "overlap:contention=0.5",
        "spec:verify=²:accept=1",
        "spec:verify=2:verify=3:accept=1.7",
        "spec:verify=2:accept=1.5..2.5",
        "spec:verify=2:accept=0.5..1.5",
        "spec:verify=2:accept=1.7:cost=0",
        "dp_attention:compute=0",
        "quant:fp8:group=²:overhead_us=1",
        "rest:0",
        "rest:-1",
        "rest:1.5:2",
        "fuse:saved_us=1e9",
        "merge:saved_us=1e9",
    ],
)
def test_changes_that_cannot_be(change, capsys):
    error = refused(capsys, *SHARE, "--apply", change)
    assert change.split(":")[0] in error
    assert "::" not in error


@pytest.mark.parametrize("change", ["switch:pcie_oneshot", "quant:fp8:overhead_us=1", "fuse", "merge"])
def test_nothing_is_left_to_gain_where_no_reduce_is_left(change, capsys):
    words = [word for pair in ASKED.items() for word in pair]
    assert main(["whatif", *words, *SHARE, "--apply", f"free,{change}"]) == 0
    assert "no reduce is left" in capsys.readouterr().out or change in ("fuse", "merge")


def test_a_profile_below_the_standalone_latency_is_called_a_contradiction(capsys):
    words = [word for pair in ASKED.items() for word in pair]
    assert main(["whatif", *words, "--share", "0.008@64"]) == 0
    assert "one of the two is not about this server" in " ".join(capsys.readouterr().out.split())


def test_a_picture_goes_into_a_new_folder_and_a_bad_place_is_named(tmp_path, capsys):
    words = [word for pair in ASKED.items() for word in pair]
    picture = tmp_path / "new" / "w.svg"
    assert main(["whatif", *words, "--plot", str(picture)]) == 0
    assert picture.stat().st_size
    capsys.readouterr()
    assert main(["whatif", *words, "--plot", str(picture / "w.svg")]) == 2
    assert "cannot be written" in capsys.readouterr().err


def test_an_input_that_reaches_zero_keeps_the_interval_finite_and_positive():
    item = Input(
        name="launch",
        estimate=Estimate(value=1.0, lo=0.0, hi=3.0, n=1, unit="us"),
        origin="measured",
        source="",
    )
    answers, _ = propagate(lambda draw: {"us": draw(item)}, units={"us": "us"}, positive=("us",))
    estimate = answers["us"].estimate
    assert (estimate.lo, estimate.value, estimate.hi) == (0.0, 1.0, 3.0)


def test_the_larger_half_of_an_odd_batch_decides_an_overlap():
    """Three sequences make halves of two and one: two passes of C(2), known from the step at 2."""
    latencies = from_topology(BOX, 4)
    steps = inputs.tok_s_steps(inputs.per_concurrency("1:50,2:80,3:90", "tok/s", "--tok-s"))
    situation = inputs.situation(models.load("DeepSeek-V4-Flash"), 4, latencies, steps)
    draw = Draw()
    after = TwoBatchOverlap().apply(observe(situation, 3, draw), draw)
    assert after.compute_us == pytest.approx(2 * 1.05 * observe(situation, 2, draw).compute_us)
