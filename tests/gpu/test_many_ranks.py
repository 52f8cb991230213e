"""Three and four real ranks, one process and GPU each: sums, stalls, the wrap, a killed rank, tuning.

Expected to take (no GPU has run it) four minutes on four GPUs, two on three (three ranks only), of which a
fifth is starting processes: those of a number of ranks run all scenarios until one kills a rank.
"""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch")

from launching import PLANS

pytestmark = pytest.mark.processes

WORLDS = [pytest.param(n, marks=getattr(pytest.mark, f"gpu{n}")) for n in (3, 4)]

# shapes that begin to matter with a third rank
MORE = {
    "peer": (
        "line512t64-two-33x128",
        "line512t64-two-staged-33x128",
        "ll-two-32x256",
    ),
    "host": ("line128t64-two-12x256-ahead1",),
}
# one of each protocol and shape, so that every way of waiting meets ranks that stall at random
STALLED = {
    "peer": (
        "line128t64-one-64x256-ahead1",
        "line512t64-two-33x128-ahead1",
        "line128t64-two-staged-16x128",
        "ll-two-32x256",
        "flag-one-pull-16x512",
    ),
    "host": ("line128t64-one-64x256-ahead1", "line512t64-two-32x256-ahead1", "flag-two-32x256"),
}


def of_world(path: str, world: int) -> tuple[str, ...]:
    islands = ("line128t64-islands-35x128",) if world % 2 == 0 else ()
    return PLANS[path] + MORE[path] + islands


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("path", ["peer", "host"])
def test_every_protocol_and_dtype_is_exact_in_and_outside_a_graph(crews: Any, path: str, world: int) -> None:
    for answer in crews.ask(world, "exact", path, *of_world(path, world), timeout_s=120):
        assert answer["failures"] == []


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("path", ["peer", "host"])
def test_plans_and_dtypes_take_turns_in_one_graph_through_the_wrap(crews: Any, path: str, world: int) -> None:
    for answer in crews.ask(world, "mixed", path, *of_world(path, world), timeout_s=60):
        assert answer == {"wrong": 0, "errors": []}


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize(("path", "plan"), [(path, plan) for path in STALLED for plan in STALLED[path]])
def test_random_stalls_between_real_ranks(crews: Any, path: str, plan: str, world: int) -> None:
    for answer in crews.ask(world, "stress", path, plan, "2", "ARF_STALL", timeout_s=45):
        assert answer["operations"] > 0
        assert (answer["wrong_elements"], answer["error"]) == (0, None)


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("path", ["peer", "host"])
def test_the_backend_tunes_itself_and_is_right(crews: Any, path: str, world: int) -> None:
    answers = crews.ask(world, "backend", path, timeout_s=100)
    assert all([c[:4] for c in a["cases"]] == [c[:4] for c in answers[0]["cases"]] for a in answers)
    for _, _, plan, wrong, max_error, took_s in answers[0]["cases"]:
        assert plan
        assert wrong == 0
        assert max_error <= 1
        assert took_s < 30


# last: they end the processes
@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize(("path", "plan"), [("peer", "line128t64-one-32x256"), ("host", "flag-one-16x256")])
def test_a_killed_rank_ends_the_others_operation_within_five_seconds(
    crews: Any, path: str, plan: str, world: int
) -> None:
    answers = crews.ask(world, "dead", path, plan, timeout_s=30, lost=(1,))
    for rank in (r for r in range(world) if r != 1):
        assert answers[rank]["took_s"] < 5
        assert "rank 1 did not arrive" in answers[rank]["sentence"]
        assert answers[rank]["poisoned"]
