"""Two runs side by side, and default against candidate inside one."""

from types import SimpleNamespace

import numpy as np
import pytest

from arfloor.core.cases import Case, Estimate, Result, Samples
from arfloor.core.compare import compare, tally
from arfloor.core.pairing import paired_compare
from arfloor.core.reasons import REASONS


def case(backend="gloo", numel=256, settings=()):
    return Case(
        backend=backend,
        path="cpu",
        devices=("cpu:0", "cpu:1"),
        numel=numel,
        dtype="float32",
        mode="eager",
        settings=settings,
    )


def run(latencies, seed=0, launch=0.004, noise=0.01, shape=(2, 8, 10), block=lambda c: str(c.numel)):
    """A run of the given {case: true us}, with samples."""
    rng = np.random.default_rng(seed)
    results, samples = [], []
    for c, us in latencies.items():
        luck = rng.normal(size=(shape[0], 1, 1)) * launch
        values = us * np.exp(luck + rng.normal(size=shape) * noise)
        samples += [
            Samples(case_id=c.id, launch=i, round=j, rank=0, us=tuple(map(float, values[i, j])))
            for i in range(shape[0])
            for j in range(shape[1])
        ]
        centre = float(np.median(values))
        latency = Estimate(value=centre, lo=centre * 0.99, hi=centre * 1.01, n=values.size, unit="us")
        results.append(Result(case=c, status="ok", latency=latency, block_id=block(c)))
    return SimpleNamespace(results=tuple(results), samples=tuple(samples))


MANY = {case(numel=n): 10.0 + n / 100 for n in range(256, 5376, 256)}


def changed(factor, which):
    return {c: us * (factor if c in which else 1.0) for c, us in MANY.items()}


def test_a_planted_change_is_found_and_the_rest_is_not_called():
    which = set(list(MANY)[3:8])
    rows = compare(run(MANY, 1), run(changed(1.08, which), 2))
    assert len(rows) == len(MANY)
    assert {r.case for r in rows if r.answer == "slower"} == which
    assert not [r for r in rows if r.answer == "faster"]
    assert {r.caveat for r in rows} == {"unpaired"}
    for r in rows:
        assert r.reason in REASONS
        assert r.ratio.value == pytest.approx(1.08 if r.case in which else 1.0, abs=0.02)
        assert r.a.unit == r.b.unit == "us"


def test_the_second_run_is_what_the_answer_speaks_of():
    rows = compare(run(changed(1.08, MANY), 1), run(MANY, 2))
    assert tally(rows) == {"faster": len(MANY)}


def test_cases_of_one_run_only_and_failed_cases_are_named():
    first, second, failed = case(numel=1), case(numel=2), case(numel=3)
    a, b = run({first: 5, failed: 5}), run({second: 5, failed: 5})
    results = tuple(
        Result(case=r.case, status="wrong", reason="wrong_result") if r.case == failed else r
        for r in b.results
    )
    rows = compare(a, SimpleNamespace(results=results, samples=b.samples))
    reasons = {r.case.numel: r.reason for r in rows}
    assert reasons == {1: "only_in_a", 2: "only_in_b", 3: "not_ok"}
    assert all(r.ratio is None and r.answer == "undecided" for r in rows)
    assert {r.case.numel: (r.a is None, r.b is None) for r in rows}[3] == (False, True)
    assert tally(rows) == {"only_in_a": 1, "only_in_b": 1, "not_ok": 1}


def test_a_run_without_samples_is_compared_by_its_intervals():
    before, after = run(MANY, 1), run(changed(1.2, MANY), 2)
    bare = SimpleNamespace(results=before.results, samples=())
    assert {r.answer for r in compare(bare, after)} == {"slower"}


def test_a_latency_without_interval_decides_nothing():
    before = run({case(): 10.0})
    point = Estimate(value=10.0, lo=10.0, hi=10.0, n=1, unit="us")
    published = Result(case=case(), status="ok", latency=point, origin="published")
    (row,) = compare(SimpleNamespace(results=(published,), samples=()), before)
    assert (row.answer, row.reason, row.caveat) == ("undecided", "no_interval", None)


def test_rows_are_in_order_of_size():
    rows = compare(run(dict(reversed(list(MANY.items())))), run(MANY))
    assert [r.case.nbytes for r in rows] == sorted(r.case.nbytes for r in rows)


def test_cases_of_one_block_are_paired_by_round_and_others_by_launch():
    quick = {case("fast", c.numel): us * 0.9 for c, us in MANY.items()}
    other = {case("fast", c.numel, (("X", "1"),)): us * 0.9 for c, us in MANY.items()}
    made = run(MANY | quick | other)
    by_case = {r.case: r for r in made.results}
    judge = paired_compare(made.results, made.samples)
    default = next(iter(MANY))
    near = judge(by_case[default], by_case[case("fast", default.numel)])
    far = judge(by_case[default], by_case[case("fast", default.numel, (("X", "1"),))])
    assert (near.pairing, near.answer, far.pairing, far.answer) == ("round", "faster", "launch", "faster")
    assert near.ratio.value == pytest.approx(1 / 0.9, rel=0.01)
    assert near.ratio.lo < near.ratio.value < near.ratio.hi


def test_without_samples_the_intervals_are_compared():
    made = run({case(): 10.0, case("fast"): 5.0})
    judge = paired_compare(made.results, ())
    found = judge(*made.results)
    assert (found.pairing, found.answer) == ("unpaired", "faster")
