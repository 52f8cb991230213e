"""NCCL's bad picks are named, its good ones are not."""

from __future__ import annotations

from arfloor.core.cases import Case, Estimate, Ran, Result
from arfloor.core.nccl_picks import bad_picks, sentence


def result(variant: str, us: float, nbytes: int = 262144, width: float = 0.2, **ran: object) -> Result:
    case = Case(
        backend="nccl",
        variant=variant,
        path="host",
        devices=("cuda:0", "cuda:1"),
        numel=nbytes // 2,
        dtype="bfloat16",
        mode="graph",
    )
    return Result(
        case=case,
        status="ok",
        latency=Estimate(value=us, lo=us - width, hi=us + width, n=9, unit="us"),
        ran=Ran(algorithm="RING", protocol="LL", channels=4, **ran) if ran else None,  # type: ignore[arg-type]
    )


def test_a_bad_pick_is_named_with_what_ran_and_what_nccl_expected() -> None:
    picks = bad_picks([result("default", 41.6, predicted_us=21.7), result("ring-ll-16ch", 30.4)])
    assert [p.best.case.variant for p in picks] == ["ring-ll-16ch"]
    text = sentence(picks) or ""
    for part in ("256 KiB", "RING/LL on 4 channels", "41.6 us", "21.7 us", "ring-ll-16ch", "1.37x"):
        assert part in text


def test_good_picks_noise_and_single_settings_are_not() -> None:
    assert bad_picks([result("default", 30.0), result("16ch", 29.0)]) == ()
    assert bad_picks([result("default", 30.0, width=9.0), result("16ch", 24.0, width=9.0)]) == ()
    assert bad_picks([result("default", 30.0)]) == ()
    assert bad_picks([result("16ch", 30.0)]) == ()
    assert bad_picks([result("default", 30.0, nbytes=1024), result("16ch", 3.0)]) == ()
    assert sentence([]) is None
