"""Two real ranks, one process and GPU each."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch")

from launching import PLANS, real_ranks

pytestmark = [pytest.mark.gpu2, pytest.mark.processes]


def two_ranks(*arguments: str, ends: tuple[int, int] = (0, 0)) -> list[Any]:
    return real_ranks(2, *arguments, ends=ends)


@pytest.mark.parametrize("path", ["peer", "host"])
def test_every_protocol_and_dtype_is_exact_in_and_outside_a_graph(path: str) -> None:
    for answer in two_ranks("exact", path, *PLANS[path]):
        assert answer["failures"] == []


@pytest.mark.parametrize("path", ["peer", "host"])
def test_plans_and_dtypes_take_turns_in_one_graph_through_the_wrap(path: str) -> None:
    for answer in two_ranks("mixed", path, *PLANS[path]):
        assert answer == {"wrong": 0, "errors": []}


@pytest.mark.parametrize("path", ["peer", "host"])
@pytest.mark.parametrize("plan", ["line128t64-one-64x256-ahead1", "ll-two-32x256", "flag-one-16x256"])
def test_random_stalls_between_real_ranks(path: str, plan: str) -> None:
    for answer in two_ranks("stress", path, plan, "2", "ARF_STALL"):
        assert answer["operations"] > 0
        assert (answer["wrong_elements"], answer["error"]) == (0, None)


def test_tears_of_the_host_path_are_caught_by_the_hash_and_by_nothing_else() -> None:
    plan = "line128t64-one-64x512"
    seen = two_ranks("stress", "host", plan, "3", "ARF_COUNT_TEARS")
    assert all(answer["wrong_elements"] == 0 for answer in seen)
    if not any(answer["torn_lines"] for answer in seen):
        pytest.skip("this box tore no line in 3 s")
    unsafe = two_ranks("stress", "host", plan, "3", "ARF_UNSAFE_HASH")
    assert any(answer["wrong_elements"] > 0 for answer in unsafe)


@pytest.mark.parametrize(("path", "plan"), [("peer", "line128t64-one-32x256"), ("host", "flag-one-16x256")])
def test_a_killed_rank_ends_the_others_operation_within_five_seconds(path: str, plan: str) -> None:
    answer, _ = two_ranks("dead", path, plan, ends=(0, -9))
    assert answer["took_s"] < 5
    assert "rank 1 did not arrive" in answer["sentence"]
    assert answer["poisoned"]


@pytest.mark.parametrize("path", ["peer", "host"])
def test_the_backend_tunes_itself_and_is_right(path: str) -> None:
    answers = two_ranks("backend", path)
    assert [case[:4] for case in answers[0]["cases"]] == [case[:4] for case in answers[1]["cases"]]
    for _, _, plan, wrong, max_error, took_s in answers[0]["cases"]:
        assert plan
        assert wrong == 0
        assert max_error <= 1
        assert took_s < 20


def test_one_ranks_mistake_is_everyones_error() -> None:
    for answer in two_ranks("joint_errors", "host"):
        assert "rank 1: JitError" in answer["said"]
