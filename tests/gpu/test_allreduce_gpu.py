"""AllReduce on two real ranks: the same tokens as NCCL, a late rank, refusals, the fused form.

About a minute: one start of two processes, the compiled step last (14 s).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from launching import torchrun

pytestmark = pytest.mark.gpu2

HERE = Path(__file__).parent
LIMIT_S = 240


@pytest.fixture(scope="module")
def found() -> dict[tuple[str, int], dict[str, Any]]:
    """All scenarios in one start of two processes: by name and rank, what they saw."""
    done = torchrun(str(HERE / "allreduce_ranks.py"), limit_s=LIMIT_S)
    rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert rows, done.stderr[-2000:]
    return {(row["scenario"], row["rank"]): row for row in rows}


def seen(found: Any, name: str, rank: int = 0) -> dict[str, Any]:
    assert (name, rank) in found, f"the scenario {name} did not finish"
    return found[name, rank]


@pytest.mark.parametrize("name", ["captured", "compiled"])
def test_the_same_tokens_as_nccl_over_a_thousand_steps(found: Any, name: str) -> None:
    row = seen(found, name)
    assert row["why_not"] == ""
    assert row["steps"] == 1000
    assert row["different"] == 0
    assert row["distinct"] > 100  # a model stuck at once would agree for want of anything to say


def test_a_rank_three_seconds_late_is_waited_for(found: Any) -> None:
    assert seen(found, "late", 0)["right"]
    assert seen(found, "late", 1)["right"]
    assert seen(found, "late", 0)["waited"] > 2.5


def test_what_it_refuses_and_what_it_leaves_to_nccl(found: Any) -> None:
    row = seen(found, "limits")
    assert "one object a stream" in row["stream"]
    assert "contiguous" in row["strided"]
    assert not row["takes_large"]
    assert row["large"]
    assert row["double"]
    assert row["small"]
    assert set(row["protocols"]) <= {"ll", "flag"}


@pytest.mark.parametrize("name", ["fused_peer", "fused_host"])
def test_fused_is_right_and_equal_on_both_ranks(found: Any, name: str) -> None:
    row = seen(found, name)
    assert row["why_not"] == ""
    assert row["fused_kernels"] > 0
    assert row["wrong"] == 0
    assert row["worst"] <= 1
    assert row["equal"]
