"""Bytes that a case should move, what counters make of it, and which cases are counted."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from arfloor.core.cases import Case
from arfloor.core.schedules import schedules
from arfloor.core.traffic import expected_nbytes, path_mark, traffic_mark
from arfloor.runtime import measure, traffic
from arfloor.runtime.agree import Failure

S = 262_144


@pytest.mark.parametrize(
    ("path", "nvlink", "observed", "says"),
    [
        ("peer", True, {"nvlink_tx": 1.001 * S, "pcie_tx": 600.0}, None),
        ("peer", True, {"nvlink_tx": 2.02 * S}, None),  # LL doubles the bytes
        ("peer", True, {}, None),
        ("peer", True, {"nvlink_tx": 900.0, "pcie_tx": 1.2 * S}, "over nvlink"),
        ("peer", False, {"pcie_tx": 1.2 * S, "nvlink_tx": 0.0}, None),
        ("host", True, {"pcie_tx": 2.2 * S, "nvlink_tx": 0.0}, None),
        ("host", True, {"pcie_tx": 1.1 * S, "nvlink_tx": 1.0 * S}, "where the path is host/pcie"),
        ("host", True, {"pcie_tx": 300.0}, "over pcie"),
    ],
)
def test_traffic_on_another_link_than_claimed_is_marked(
    path: Any, nvlink: bool, observed: dict[str, float], says: str | None
) -> None:
    mark = traffic_mark(observed, path=path, nvlink=nvlink, world=2, nbytes=S)
    assert (says in mark) if says and mark else mark is says


def case(backend: str, variant: str) -> Case:
    return Case(
        backend=backend,
        variant=variant,
        path="peer",
        devices=("cuda:0", "cuda:1"),
        numel=S // 2,
        dtype="bfloat16",
        mode="graph",
    )


def test_where_cases_are_many_the_fastest_of_each_library_stands_for_the_others() -> None:
    few = {case("nccl", f"ring-ll-{n}ch"): float(n) for n in range(1, traffic.MOST_CASES + 1)}
    assert traffic.chosen(few) == list(few)
    ours = {case("peer", v): us for v, us in (("rule", 4.0), ("auto", 3.0))}
    assert [c.label for c in traffic.chosen(few | ours)] == ["nccl ring-ll-1ch", "peer auto"]

    lives = [measure.Live(case=c, slowest=[(us, us)]) for c, us in (few | ours).items()]
    bench = SimpleNamespace(launch=0, group=SimpleNamespace(broadcast=lambda ids: ids))
    found = measure._to_count(cast(Any, bench), lives)
    assert [live.case.label for live in found] == ["nccl ring-ll-1ch", "peer auto"]
    lives[-1].fail(Failure(reason="raised", detail=""))
    found = measure._to_count(cast(Any, bench), lives)
    assert [live.case.label for live in found] == ["nccl ring-ll-1ch", "peer rule"]
    assert measure._to_count(cast(Any, SimpleNamespace(launch=1)), lives) == []


def test_a_library_that_went_another_way_than_the_path_is_marked() -> None:
    assert path_mark("peer", "P2P/CUMEM/read") is None
    assert path_mark("host", "SHM/direct/direct") is None
    assert path_mark("host", None) is None
    assert path_mark("cpu", "SHM") is None
    assert path_mark("peer", "symmetric") is None
    assert "NCCL_P2P_LEVEL" in (path_mark("peer", "SHM/direct/direct") or "")
    assert "ran over P2P" in (path_mark("host", "P2P/IPC") or "")


@given(st.integers(2, 16), st.sampled_from(["peer", "host"]), st.integers(1, 1 << 26))
def test_every_known_schedule_is_within_what_is_expected(world: int, path: Any, nbytes: int) -> None:
    least, most = expected_nbytes(path, world, nbytes)
    for schedule in schedules(path, world, nbytes):
        assert least <= schedule.out_bytes
        assert 2 * schedule.out_bytes <= most + 1
