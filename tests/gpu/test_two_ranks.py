"""Two real ranks, one process and GPU each.

Expected to take (no GPU has run it since its tests share processes) a minute and a half where every
kernel must be compiled, a minute where none: twice ten seconds of starting, since the two processes run all
scenarios until one kills a rank, and stress of 2 or 3 s a plan.
"""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch")

from launching import PLANS

pytestmark = [pytest.mark.gpu2, pytest.mark.processes]


@pytest.mark.parametrize("path", ["peer", "host"])
def test_every_protocol_and_dtype_is_exact_in_and_outside_a_graph(crews: Any, path: str) -> None:
    for answer in crews.ask(2, "exact", path, *PLANS[path]):
        assert answer["failures"] == []


@pytest.mark.parametrize("path", ["peer", "host"])
def test_plans_and_dtypes_take_turns_in_one_graph_through_the_wrap(crews: Any, path: str) -> None:
    for answer in crews.ask(2, "mixed", path, *PLANS[path]):
        assert answer == {"wrong": 0, "errors": []}


@pytest.mark.parametrize("path", ["peer", "host"])
@pytest.mark.parametrize("plan", ["line128t64-one-64x256-ahead1", "ll-two-32x256", "flag-one-16x256"])
def test_random_stalls_between_real_ranks(crews: Any, path: str, plan: str) -> None:
    for answer in crews.ask(2, "stress", path, plan, "2", "ARF_STALL"):
        assert answer["operations"] > 0
        assert (answer["wrong_elements"], answer["error"]) == (0, None)


def test_tears_of_the_host_path_are_caught_by_the_hash_and_by_nothing_else(crews: Any) -> None:
    plan = "line128t64-one-64x512"
    seen = crews.ask(2, "stress", "host", plan, "3", "ARF_COUNT_TEARS")
    assert all(answer["wrong_elements"] == 0 for answer in seen)
    if not any(answer["torn_lines"] for answer in seen):
        pytest.skip("this box tore no line in 3 s")
    unsafe = crews.ask(2, "stress", "host", plan, "3", "ARF_UNSAFE_HASH")
    assert any(answer["wrong_elements"] > 0 for answer in unsafe)


@pytest.mark.parametrize("path", ["peer", "host"])
def test_the_backend_tunes_itself_and_is_right(crews: Any, path: str) -> None:
    answers = crews.ask(2, "backend", path)
    assert [case[:4] for case in answers[0]["cases"]] == [case[:4] for case in answers[1]["cases"]]
    for _, _, plan, wrong, max_error, took_s in answers[0]["cases"]:
        assert plan
        assert wrong == 0
        assert max_error <= 1
        assert took_s < 20


def test_one_ranks_mistake_is_everyones_error(crews: Any) -> None:
    for answer in crews.ask(2, "joint_errors", "host"):
        assert "rank 1: JitError" in answer["said"]


# last: they end the processes
@pytest.mark.parametrize(("path", "plan"), [("peer", "line128t64-one-32x256"), ("host", "flag-one-16x256")])
def test_a_killed_rank_ends_the_others_operation_within_five_seconds(
    crews: Any, path: str, plan: str
) -> None:
    answer, _ = crews.ask(2, "dead", path, plan, timeout_s=30, lost=(1,))
    assert answer["took_s"] < 5
    assert "rank 1 did not arrive" in answer["sentence"]
    assert answer["poisoned"]
