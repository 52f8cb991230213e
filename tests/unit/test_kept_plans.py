"""What one launch tunes, the next launches of a run find; without a folder nothing is kept."""

from __future__ import annotations

from pathlib import Path

import pytest

from arfloor import rundir
from arfloor.backends import kept
from arfloor.backends.tune import Choice
from arfloor.core.cases import Tuning
from arfloor.core.plans import parse

TUNING = Tuning(
    path="host",
    world=2,
    dtype="bfloat16",
    nbytes=8192,
    plan="ll-one-4x256",
    took_s=0.5,
    finalists_us={"ll-one-4x256": (3.5, 3.625)},
)


def test_plans_are_kept_for_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(kept.PLANS_DIR, raising=False)
    kept.add("host/2/bfloat16/8192", "line128t64-one-9x64-lag300")
    assert kept.read() == {}
    monkeypatch.setenv(kept.PLANS_DIR, str(tmp_path))
    kept.add("host/2/bfloat16/8192", "line128t64-one-9x64-lag300")
    kept.add("peer/2/bfloat16/8192", "ll-one-4x256")
    assert kept.read() == {
        "host/2/bfloat16/8192": "line128t64-one-9x64-lag300",
        "peer/2/bfloat16/8192": "ll-one-4x256",
    }


def test_a_table_that_cannot_be_read_or_written_costs_a_search_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(kept.PLANS_DIR, str(tmp_path / "gone" / ".work"))
    kept.add("host/2/bfloat16/8192", "ll-one-4x256")
    kept.note(TUNING)
    assert kept.read() == {}
    assert list(tmp_path.iterdir()) == []
    monkeypatch.setenv(kept.PLANS_DIR, str(tmp_path))
    (tmp_path / "plans.json").write_text('{"host/2')
    assert kept.read() == {}
    kept.add("peer/2/bfloat16/8192", "ll-one-4x256")
    assert kept.read() == {"peer/2/bfloat16/8192": "ll-one-4x256"}


def test_how_a_plan_was_chosen_is_read_back_from_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = tmp_path / ".work"
    work.mkdir()
    monkeypatch.setenv(kept.PLANS_DIR, str(work))
    times_us = {"ll-one-4x256": (3.50004, 3.62496)}
    choice = Choice(plan=parse("ll-one-4x256"), nbytes=8192, times_us=times_us)
    kept.note(choice.tuning(("host", 2, "bfloat16"), 0.5))
    kept.note(TUNING)
    assert rundir.tunings(tmp_path) == [TUNING, TUNING]
