"""The processes that tests on real GPUs share, with a program that needs no GPU in place of theirs."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("torch")

from tests.gpu.launching import CrewLost, Crews, ended

PROGRAM = """
import faulthandler, json, os, signal, sys, time
rank = int(os.environ["RANK"])
faulthandler.register(signal.SIGTERM, chain=True)
print("a library says something", flush=True)
for line in sys.stdin:
    name, *arguments = line.split()
    if name == "dead" and rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    if name == "raises" and rank == 1:
        sys.exit("what went wrong")
    if name == "hangs" and rank == 0:
        time.sleep(60)
    print(json.dumps({"rank": rank, "said": arguments, "pid": os.getpid()}), flush=True)
"""


@pytest.fixture
def crews(tmp_path: Path) -> Iterator[Crews]:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    made = Crews(program)
    yield made
    made.close()


@pytest.mark.parametrize(("sleeps", "limit_s", "code"), [(0, 60.0, 0), (60, 1.5, -9)])
def test_what_was_printed_before_the_time_was_over_is_kept(sleeps: int, limit_s: float, code: int) -> None:
    text = f"import time; print('one', flush=True); time.sleep({sleeps})"
    done = ended([sys.executable, "-c", text], limit_s)
    assert (done.returncode, done.stdout) == (code, "one\n")
    assert ("time being over" in done.stderr) == bool(sleeps)


def test_scenarios_are_answered_by_the_same_processes(crews: Crews) -> None:
    first, again = crews.ask(2, "say", "a", "b"), crews.ask(2, "say", "c")
    assert [(a["rank"], a["said"]) for a in first] == [(0, ["a", "b"]), (1, ["a", "b"])]
    assert [a["said"] for a in again] == [["c"], ["c"]]
    assert [a["pid"] for a in first] == [a["pid"] for a in again]


def test_a_scenario_that_kills_a_rank_ends_the_others_which_start_anew(crews: Crews) -> None:
    before = crews.ask(3, "say")
    answers = crews.ask(3, "dead", lost=(1,))
    assert [a and a["rank"] for a in answers] == [0, None, 2]
    after = crews.ask(3, "say")
    assert not {a["pid"] for a in before} & {a["pid"] for a in after}
    with pytest.raises(CrewLost, match="rank 1 outlived being killed"):
        crews.ask(3, "say", lost=(1,))


def test_a_rank_that_raises_or_hangs_is_named_with_what_it_left(crews: Crews) -> None:
    with pytest.raises(CrewLost, match=r"(?s)raises: rank 1 ended.*rank 1, exit code 1: what went wrong"):
        crews.ask(2, "raises")
    assert crews.ask(2, "say", "on") is not None  # and others are started
    with pytest.raises(CrewLost, match=r"(?s)hangs: rank 0 did not answer within 0 s.*line 13"):
        crews.ask(2, "hangs", timeout_s=0.5)
    assert [a["said"] for a in crews.ask(2, "say", "on")] == [["on"], ["on"]]
