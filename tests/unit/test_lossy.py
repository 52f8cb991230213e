"""8 bits an element on the wire: the stated bound holds, and nobody calls such a result the best."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from arfloor.core import lossy
from arfloor.core.cases import Case, Check, Estimate, Result
from arfloor.core.plans import extent, parse
from arfloor.core.verdict import best_result
from arfloor.runtime import verify

CASE = Case(
    backend="host",
    variant="int8",
    path="host",
    devices=("cuda:0", "cuda:1"),
    numel=4096,
    dtype="bfloat16",
    mode="graph",
)


def e4m3() -> np.ndarray:
    """Every number of the format that is not negative, by its definition."""
    codes = np.arange(0x7F)
    exponent, mantissa = codes >> 3, codes & 7
    normal = 2.0 ** (exponent - 7) * (1 + mantissa / 8)
    return np.where(exponent == 0, mantissa * 2.0**-9, normal)


def sent(x: np.ndarray, wire: str) -> np.ndarray:
    """What arrives of one contribution: blocks of 14, scales rounded up to bfloat16."""
    blocks = np.pad(x, (0, -x.size % 14)).reshape(-1, 14)
    scale = np.abs(blocks).max(axis=1, keepdims=True) / (127 if wire == "int8" else 448)
    bits = np.maximum(scale, 1e-30).astype(np.float32).view(np.uint32)
    scale = ((bits + np.uint32(0xFFFF)) & np.uint32(0xFFFF0000)).view(np.float32).astype(float)
    y = blocks / scale
    if wire == "int8":
        q = np.rint(y)
    else:
        numbers = e4m3()
        q = np.sign(y) * numbers[np.abs(np.abs(y)[..., None] - numbers).argmin(-1)]
    return (q * scale).ravel()[: x.size]


@pytest.mark.parametrize("wire", lossy.FAMILIES)
@pytest.mark.parametrize("spread", [0.0, 3.0])
def test_the_bound_holds_and_is_not_idle(wire: str, spread: float) -> None:
    rng = np.random.default_rng(3)
    terms = [
        verify.round_to(rng.standard_normal(4000) * np.exp(spread * rng.standard_normal(4000)), "bfloat16")
        for _ in range(3)
    ]
    got = verify.round_to(np.sum([sent(t, wire) for t in terms], axis=0), "bfloat16")
    allowed = lossy.bound(terms, wire, verify.ROUNDOFF["bfloat16"])
    worst = float(np.max(np.abs(got - np.sum(terms, axis=0)) / allowed))
    assert worst <= 1
    if spread == 0:
        assert worst > 0.3
        missing = np.abs(got - terms[0] - terms[1]) / allowed  # a contribution left out is seen
        assert np.mean(missing > 1) > 0.5


def test_an_exact_result_of_the_sum_passes_and_a_wrong_one_does_not() -> None:
    for kind in verify.KINDS:
        total, allowed = verify._expected(kind, CASE, 0, 2, (0, 1))
        assert allowed is not None
        assert verify.compare(total, total, allowed) == (0.0, 0)
        assert verify.compare(total + 2 * allowed, total, allowed)[1] == CASE.numel
    exact = replace(CASE, variant="auto")
    assert verify._expected("integers", exact, 0, 2, (0, 1))[1] is None


def test_plans_and_variants_say_so() -> None:
    plan = parse("line512t64-one-33x128-pace27-fp8")
    assert (plan.wire, plan.payload) == ("fp8", 880)
    assert parse(plan.name) == plan
    assert extent(plan, 2, 262144)[0] == -(-262144 // 880)
    assert lossy.wire_of(plan.name) == "fp8"
    assert lossy.wire_of("auto") == lossy.wire_of("line512t64-one-33x128") == ""
    assert lossy.is_lossy(CASE)
    assert not lossy.is_lossy(replace(CASE, backend="nccl"))
    assert "another result" in lossy.mark(CASE)
    with pytest.raises(ValueError, match="one-shot lines"):
        parse("line512t64-two-33x128-int8")


def test_the_fastest_is_not_the_best_when_it_is_another_result() -> None:
    def result(variant: str, us: float) -> Result:
        return Result(
            case=replace(CASE, variant=variant),
            status="ok",
            latency=Estimate(value=us, lo=us, hi=us, n=9, unit="us"),
            check=Check(max_error=0.5, bound=0.01, wrong=0, bitwise_equal=True),
        )

    best = best_result([result("int8", 1.0), result("auto", 2.0)])
    assert best is not None
    assert best.case.variant == "auto"
    assert best_result([result("line64t64-one-8x64-fp8", 1.0)]) is None
