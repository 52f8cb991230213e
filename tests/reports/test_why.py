"""Why a result misses its floor, in words: parts, levers, choices and crossovers of a known truth."""

import re
from dataclasses import replace

import pytest

from arfloor import rundir
from arfloor.core.cases import Estimate
from arfloor.core.crossing import measured_crossovers
from arfloor.core.fits import fit
from arfloor.report import card, html, model, text
from arfloor.report.series import knots_of, series
from arfloor.report.why import choices_line, crossing_lines, sum_of_parts, why
from tests.synthetic import Kind, cpu_world, gpu_world, write_run

SOME = (1024, 65536, 262144, 1048576)


def built(path, world):
    return model.build(rundir.load(write_run(path, world)))


@pytest.fixture(scope="module")
def gpu(tmp_path_factory):
    return built(tmp_path_factory.mktemp("gpu"), gpu_world(sizes=SOME))


@pytest.fixture(scope="module")
def host(gpu):
    return why(gpu.sections[1], gpu.primitives)


def test_the_parts_of_every_backend_add_up_and_are_shown(gpu, host):
    assert [a.result.case.backend for a in host.apart] == ["nccl", "host", "nccl"]
    for a in host.apart:
        total = sum(t.us.value for t in a.gap.terms)
        assert total == pytest.approx(a.result.latency.value)
    default = host.default
    shown = {t.name: t.us.value for t in default.gap.terms}
    # truth: RING/LL on 4 channels 41.5 us, on 16 28.6; 7.08 us on the wire, doubled by LL
    assert shown["channels"] == pytest.approx(41.5 - 28.6, rel=0.03)
    assert shown["protocol"] == shown["wire"] == pytest.approx(262144 / 37e3)
    line = sum_of_parts(default)
    assert "channels (4 instead of 16)" in line
    assert "protocol (LL)" in line
    assert line in card.render(gpu)
    numbers = [float(x) for x in re.findall(r"[=+] ([\d.]+) ", line)]
    assert sum(numbers) == pytest.approx(float(line.split(" us")[0]), abs=0.1)
    for out in (text.render(gpu), html.render(gpu)):
        assert default.us("unexplained") in out


def test_the_sentence_to_set_stands_in_text_card_and_page(gpu, host):
    assert host.lever.sentence.startswith("NCCL uses 4 channels here; 16 measured 1.4")
    assert "NCCL_MIN_NCHANNELS=16" in host.lever.sentence
    # the verdict's own ratio, of paired rounds: two figures for one thing would only confuse
    gain = host.row.verdict.headroom_now.value
    assert f"Beyond its settings, host line64 measured {gain:.2f}x faster" in host.lever.sentence
    assert host.lever.sentence in card.render(gpu)
    assert "arfloor.allreduce.AllReduce" in card.render(gpu)
    assert "NCCL uses 4 channels here" in text.render(gpu)
    assert "NCCL uses 4 channels here" in html.render(gpu)


def test_nccls_own_choice_is_set_against_its_best(gpu, host):
    line = choices_line(host.choices)
    assert "RING/LL 4ch at 1 KiB to 1 MiB" in line
    assert "surely faster: its RING/LL 16ch, 1.4" in line
    assert "at 256 KiB" in line
    alone = [
        replace(c, best=c.chosen, ratio=Estimate(value=1, lo=1, hi=1, n=1, unit="ratio"))
        for c in host.choices
    ]
    assert choices_line(alone).endswith("no other setting of its own is surely faster")
    assert line.split(";")[0] in " ".join(text.render(gpu, width=400).split())
    assert choices_line(()) == ""


def test_what_nccl_expects_of_its_choice_is_said_where_its_log_says_it(tmp_path):
    world = gpu_world(sizes=(262144,))
    kinds = tuple(
        replace(k, ran=replace(k.ran, predicted_us=21.7)) if k.variant == "default" and k.ran else k
        for k in world.kinds
    )
    found = built(tmp_path, replace(world, kinds=kinds))
    line = choices_line(why(found.sections[1], found.primitives).choices)
    assert re.search(r"where its choice takes 41\.\d us and it expects 21\.7 us", line)


def test_parts_that_claim_too_much_are_said_to(tmp_path):
    world = gpu_world(sizes=(262144,))
    kinds = tuple(
        replace(k, alpha_us=6.5, gbps=40.0) if k.variant == "default" and k.path == "host" else k
        for k in world.kinds
        if not k.variant.endswith("16ch")
    )
    found = built(tmp_path, replace(world, kinds=kinds))
    default = why(found.sections[1], found.primitives).default
    assert default.gap.unexplained.hi < 0
    assert "The default's" not in card.render(found).partition("**host/pcie")[2]
    assert default.us("unexplained") == "none"
    assert re.match(r"the parts claim [\d.]+ us \[[\d.]+, [\d.]+\] more than was measured", default.notes)
    # only where the whole interval says so
    unsure = replace(default.gap, unexplained=replace(default.gap.unexplained, hi=0.1))
    assert replace(default, gap=unsure).us("unexplained").startswith("-")
    assert "may be nothing" in replace(default, gap=unsure).notes


def test_without_probes_or_default_there_are_no_parts_and_the_report_holds(tmp_path):
    bare = built(tmp_path / "bare", replace(gpu_world(sizes=(1024, 262144)), primitives=()))
    found = why(bare.sections[1], bare.primitives)
    assert found.apart == ()
    assert found.lever.kind == "setting"
    assert "unexplained" not in card.render(bare)
    dead = Kind(backend="gloo", path="cpu", status="failed", reason="worker_died")
    none = built(tmp_path / "dead", replace(cpu_world(sizes=(1024,)), kinds=(dead,)))
    assert why(none.sections[0], none.primitives).default is None
    assert "Nothing was measured" in card.render(none)


def line_of(alpha, gbps, sizes, spread=0.02):
    def at(n):
        us = alpha + n / gbps / 1e3
        return Estimate(value=us, lo=us * (1 - spread), hi=us * (1 + spread), n=30, unit="us")

    return fit([(n, at(n)) for n in sizes])


SIZES = tuple(1 << k for k in range(10, 23))


def test_a_planted_crossover_is_found_inside_its_interval():
    # 5 + S/10 = 20 + S/40 (S in kB): S = 200 kB
    fits = {"one": line_of(5, 10, SIZES), "two": line_of(20, 40, SIZES), "never": line_of(90, 20, SIZES)}
    (found,) = measured_crossovers(fits)
    assert (found.first, found.second) == ("one", "two")
    assert found.nbytes.value == pytest.approx(200e3, rel=0.03)
    assert found.nbytes.lo < 200e3 < found.nbytes.hi
    (sentence,) = crossing_lines([found])
    assert sentence.startswith("From 19")
    assert sentence.endswith("on, two beats one.")


def test_curves_that_noise_does_not_tell_apart_do_not_cross():
    alike = {"one": line_of(10, 10, SIZES, 0.3), "two": line_of(10.5, 10.6, SIZES, 0.3)}
    assert measured_crossovers(alike) == ()
    assert measured_crossovers({"one": line_of(5, 10, SIZES)}) == ()
    apart = {"one": line_of(5, 10, SIZES[:4]), "two": line_of(20, 40, SIZES[6:])}
    assert measured_crossovers(apart) == ()


def test_the_measured_crossover_of_a_run_is_in_the_text(tmp_path):
    sizes = tuple(1 << k for k in range(10, 21))
    found = built(tmp_path, cpu_world(sizes=sizes, noise=0.02))
    (crossing,) = why(found.sections[0], found.primitives).crossovers
    # truth: 9 + S / 850 = 95 + S / 2400
    assert crossing.nbytes.lo < 86 / (1 / 850 - 1 / 2400) < crossing.nbytes.hi
    assert "on, gloo beats mpi." in text.render(found)


def test_intervals_that_say_nothing_are_unknown():
    from arfloor.core import units
    from arfloor.core.verdict import ratio_span
    from arfloor.report.phrases import interval

    wide = Estimate(value=2.0, lo=0.04, hi=7e7, n=2, unit="us")
    assert interval(wide) == "2.00 [unknown]"
    assert ratio_span(replace(wide, unit="ratio")) == "2.00x [unknown]"
    assert units.ends(1.0, 99.0) == "[1.00, 99.0]"
    assert units.ends(0.0, 99.0) == "[unknown]"


def test_a_card_omits_parts_of_an_algorithm_that_nobody_named(tmp_path):
    report = built(tmp_path, cpu_world())
    apart = why(report.sections[0], report.primitives).default
    assert apart is not None
    assert apart.gap.assumed
    assert "The default's" not in card.render(report)
    assert apart.us("wire") in text.render(report)


def test_choices_of_one_protocol_are_one_and_knots_come_from_the_log(host):
    some = [
        replace(host.choices[0], nbytes=n, chosen=chosen)
        for n, chosen in ((1024, "RING/LL 1ch"), (2048, "RING/LL 4ch"), (4096, "RING/SIMPLE 4ch"))
    ]
    assert "RING/LL 1 to 4ch at 1 KiB to 2 KiB, RING/SIMPLE 4ch at 4 KiB" in choices_line(some)
    ran = [(1 << k, ("RING", "LL" if k < 15 else "SIMPLE")) for k in range(10, 18)]
    assert knots_of(ran) == (1 << 15,)
    assert knots_of(ran[:-1]) == ()  # a segment of two sizes fits any line
    assert knots_of(ran[:5]) == knots_of(()) == ()


def test_a_protocol_that_changes_is_no_outlier(tmp_path):
    """LL to 64 KiB, then Simple at three sizes, which start higher: by its own, the last would look wild."""
    sizes = tuple(1 << k for k in range(10, 20))
    world = gpu_world(sizes=sizes, noise=0.005)
    chosen = next(
        k for k in world.kinds if k.backend == "nccl" and k.variant == "default" and k.path == "peer"
    )
    assert chosen.ran.source.startswith("log")
    found = built(tmp_path, world)
    (drawn,) = [s for s in series(found.sections[0]) if s.role == "default"]
    assert drawn.fit.knots_from == "chosen"  # one protocol: nothing is given
    points = [(n, replace(e, value=e.value * (1.5 if n > 1 << 16 else 1.0))) for n, e in drawn.points]
    points = [(n, replace(e, lo=0.99 * e.value, hi=1.01 * e.value)) for n, e in points]
    given = fit(points, knots=knots_of([(n, ("LL" if n <= 1 << 16 else "SIMPLE",)) for n, _ in points]))
    assert (given.knots, given.knots_from, given.outliers) == ((1 << 17,), "given", ())
