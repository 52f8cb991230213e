"""tests/gpu/stress.py: what it says, and that a wrong element on any rank shows in its exit code."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

pytest.importorskip("torch")

RIGHT = {"lines": 10, "operations": 2, "wrong_elements": 0, "wrong_operations": 0, "error": None}


class Crew:
    """In place of two processes: answers what it was made for, rank by rank."""

    def __init__(self, answers: list[dict[str, Any]]) -> None:
        self.answers, self.asked, self.closed = answers, [], False  # type: ignore[var-annotated]

    def ask(self, *scenario: str, timeout_s: float) -> list[dict[str, Any]]:
        assert timeout_s > float(scenario[3])
        self.asked.append(scenario)
        return self.answers

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def stress(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "gpu"))
    sys.modules.pop("stress", None)
    return importlib.import_module("stress")


@pytest.mark.parametrize(
    ("other", "code"),
    [(RIGHT, 0), (RIGHT | {"wrong_elements": 1}, 1), (RIGHT | {"error": "block 3 gave up"}, 1)],
)
def test_an_error_on_any_rank_is_the_exit_code(
    stress: ModuleType, monkeypatch: pytest.MonkeyPatch, other: dict[str, Any], code: int
) -> None:
    crew = Crew([RIGHT, other])
    monkeypatch.setattr(stress, "Crew", lambda world: crew)
    assert stress.main(["3", "host:ll-one-8x128:ARF_STALL:ARF_COUNT_TEARS", "peer:flag-one-6x64"]) == code
    assert crew.asked == [
        ("stress", "host", "ll-one-8x128", "3.0", "ARF_STALL", "ARF_COUNT_TEARS"),
        ("stress", "peer", "flag-one-6x64", "3.0"),
    ]
    assert crew.closed


def test_a_lost_rank_is_said(
    stress: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    crew = Crew([])

    def lost(*scenario: str, timeout_s: float) -> None:
        raise stress.CrewLost("stress: rank 1 ended")

    monkeypatch.setattr(crew, "ask", lost)
    monkeypatch.setattr(stress, "Crew", lambda world: crew)
    assert stress.main(["3", "host:ll-one-8x128"]) == 1
    assert "rank 1 ended" in capsys.readouterr().err
    assert crew.closed


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["inf", "host:ll-one-8x128"], "expected a number of seconds above 0, found 'inf'"),
        (["nan", "host:ll-one-8x128"], "expected a number of seconds above 0, found 'nan'"),
        (["1", "host"], "plan"),
        (["1", "wire:ll-one-8x128"], "expected host:PLAN or peer:PLAN"),
        (["1", "host:line128t32-one-8x64"], "64-bit tags"),
    ],
)
def test_what_cannot_run_is_refused_before_ranks_are_started(
    stress: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    said: str,
) -> None:
    monkeypatch.setattr(stress, "Crew", lambda world: pytest.fail("ranks were started"))
    with pytest.raises(SystemExit) as ended:
        stress.main(arguments)
    assert ended.value.code == 2
    assert said in capsys.readouterr().err
