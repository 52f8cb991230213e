"""What one launch tunes, the next launches of a run find; without a folder nothing is kept."""

from __future__ import annotations

from pathlib import Path

import pytest

from arfloor.backends import own_backend as own
from arfloor.core.plans import parse


def test_plans_are_kept_for_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = ("host", 2, "bfloat16", 8192), ("peer", 2, "bfloat16", 8192)
    plan = parse("line128t64-one-9x64-lag300")
    monkeypatch.delenv(own.PLANS_DIR, raising=False)
    own._keep(first, plan)
    assert own._kept() == {}
    monkeypatch.setenv(own.PLANS_DIR, str(tmp_path))
    own._keep(first, plan)
    own._keep(second, parse("ll-one-4x256"))
    assert {name: parse(text).name for name, text in own._kept().items()} == {
        "host/2/bfloat16/8192": plan.name,
        "peer/2/bfloat16/8192": "ll-one-4x256",
    }
