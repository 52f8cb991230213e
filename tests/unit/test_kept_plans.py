"""What one launch tunes, the next launches of a run find; without a folder nothing is kept."""

from __future__ import annotations

from pathlib import Path

import pytest

from arfloor.backends import kept


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
    kept.note({"plan": "ll-one-4x256"})
    assert kept.read() == {}
    assert list(tmp_path.iterdir()) == []
    monkeypatch.setenv(kept.PLANS_DIR, str(tmp_path))
    (tmp_path / "plans.json").write_text('{"host/2')
    assert kept.read() == {}
    kept.add("peer/2/bfloat16/8192", "ll-one-4x256")
    assert kept.read() == {"peer/2/bfloat16/8192": "ll-one-4x256"}
