"""Whatever was measured, a verdict's numbers agree with each other, and every rendering holds."""

import json
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from arfloor.core.cases import Case, Check, Estimate, Machine, Manifest, Result
from arfloor.core.judgement import judge_all
from arfloor.core.verdict import AT_FLOOR, BAND, is_correct
from arfloor.report import card, model, nccl_tests, rows, schemas, text
from arfloor.rundir import Run
from tests.synthetic import about, probe

VALIDATOR = Draft202012Validator(json.loads(schemas.schemas()["report.schema.json"]))
OFF = (("NCCL_P2P_DISABLE", "1"),)

times = st.floats(min_value=1e-3, max_value=1e7)
spreads = st.floats(min_value=0, max_value=0.9)
PROBES = (
    probe("pingpong", 1.3),
    probe("stream", 40.0),
    probe("pingpong", 0.9, path="peer", dst="cuda:1", link="nvlink"),
    probe("stream", 300.0, path="peer", dst="cuda:1", link="nvlink"),
)


@st.composite
def estimates(draw):
    value = draw(times)
    return Estimate(
        value=value, lo=value * (1 - draw(spreads)), hi=value * (1 + draw(spreads)), n=9, unit="us"
    )


@st.composite
def results(draw):
    path = draw(st.sampled_from(["peer", "host"]))
    case = Case(
        backend=draw(st.sampled_from(["nccl", "kernel"])),
        variant=draw(st.sampled_from(["default", "default", "ring-ll", "16ch"])),
        settings=OFF if path == "host" and draw(st.booleans()) else (),
        path=path,
        devices=("cuda:0", "cuda:1"),
        numel=draw(st.sampled_from([1, 512, 131072, 100_003])),
        dtype=draw(st.sampled_from(["bfloat16", "float32"])),
        mode=draw(st.sampled_from(["graph", "eager"])),
        inplace=draw(st.booleans()),
    )
    status = draw(st.sampled_from(["ok", "ok", "ok", "wrong", "failed", "timeout", "unsupported", "skipped"]))
    reason = {"ok": None, "wrong": "wrong_result"}.get(status, "worker_died")
    wrong = 3 if status == "wrong" else 0
    check = draw(st.sampled_from([None, Check(max_error=0.4, bound=1, wrong=wrong, bitwise_equal=True)]))
    latency = draw(estimates()) if status == "ok" else None
    return Result(case=case, status=status, reason=reason, latency=latency, check=check)


def run_of(found, primitives=PROBES):
    machine = Machine(world=2, device_kind="cuda", device_name="Example GPU")
    manifest = Manifest(
        schema=1,
        run_id="drawn",
        origin="measured",
        started="2026-01-01T00:00:00Z",
        recipe={},
        seed=0,
        launches=2,
        machine=machine,
        versions={},
        env={},
    )
    unique = tuple({r.case.id: r for r in found}.values())
    return Run(
        path=Path("drawn"), manifest=manifest, records=(), results=unique, samples=(), primitives=primitives
    )


several = st.lists(results(), min_size=1, max_size=12)


@settings(max_examples=60)
@given(several, st.booleans())
def test_the_numbers_of_every_verdict_agree(found, probed):
    unique = list({r.case.id: r for r in found}.values())
    judged = judge_all(unique, PROBES if probed else ())
    assert sum(len(j.results) for j in judged) == len(unique)
    for j in judged:
        v = j.verdict
        correct = [r for r in j.results if is_correct(r)]
        assert (v.best is None) == (not correct)
        assert v.sentence.startswith("At ")
        if v.best is not None:
            assert v.best.latency.value == min(r.latency.value for r in correct)
        if v.bound is not None and v.best is not None:
            assert v.bound.lo <= v.best.latency.value  # nothing below the bound is believed
            assert v.headroom_left.value >= 1  # what was measured is attainable
        _check_status(v)


def _check_status(v):
    now, left = v.headroom_now, v.headroom_left
    if now is not None:
        assert now.lo <= now.value <= now.hi
        assert now.value >= 1  # the best is no slower than the default
        assert abs(now.value * v.best.latency.value / v.default.latency.value - 1) < 1e-9
    if v.status == "switch":
        assert now.lo > 1 + BAND
        assert v.best is not v.default
    if v.status == "at_floor":
        assert left.value <= AT_FLOOR
    if v.status == "gap":
        assert left.value > AT_FLOOR
    if v.status in ("switch", "at_floor", "gap"):
        assert v.default is not None
        assert is_correct(v.default)
    if v.status == "no_data":
        usable = v.default is not None and is_correct(v.default)
        assert v.best is None or not usable or v.attainable is None


@settings(max_examples=25)
@given(several, st.booleans())
def test_every_rendering_holds(found, probed):
    report = model.build(run_of(found, PROBES if probed else ()))
    shown = json.loads(rows.render(report), parse_constant=lambda name: 1 / 0)  # NaN is no JSON
    VALIDATOR.validate(shown)
    assert len(shown) == len(report.verdicts)
    lines = card.render(report).splitlines()
    assert len(lines) <= card.MAX_LINES
    for out in (*lines, *text.render(report).splitlines(), nccl_tests.render(report)):
        assert "nan" not in out.lower().replace("nanosecond", "")
        assert "None" not in out


@given(st.floats(min_value=1e-6, max_value=1e9), st.floats(min_value=0, max_value=0.99))
def test_a_number_is_never_shown_narrower_than_it_is(value, spread):
    from arfloor.report.phrases import interval

    estimate = about(value, spread)
    shown = interval(estimate)
    if "±" in shown:
        middle, half = (float(part) for part in shown.split("±"))
        resolution = max(10 ** -len(shown.partition("±")[0].strip().partition(".")[2]), 0)
        assert middle - half <= estimate.lo + resolution
        assert middle + half >= estimate.hi - resolution
