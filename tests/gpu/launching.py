"""Starts two_ranks.py on real GPUs, a process a rank."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch

from arfloor.runtime.ranks import NO_MULTICAST

PROGRAM = Path(__file__).with_name("two_ranks.py")
ROOT = Path(__file__).parents[2]
# by path, what tests on real ranks reduce with: every protocol, one-shot and two-shot, push and pull
PLANS = {
    "peer": (
        "line16t32-one-22x256",
        "line64t32-one-16x256-ahead1",
        "line128t64-one-137x128",
        "line512t64-one-66x256",
        "line128t64-two-32x256-ahead1",
        "line128t64-one-staged-16x128",
        "ll-one-64x512",
        "flag-one-16x256",
        "flag-two-32x256",
        "flag-one-pull-16x512",
        "flag-two-pull-16x256",
    ),
    "host": (
        "line16t32-one-22x256",
        "line64t32-one-16x256-ahead1",
        "line128t64-one-64x256-lag200",
        "line512t64-one-66x256-pace27-lag150-window2",
        "line512t64-two-32x256-ahead1",
        "ll-one-64x512",
        "flag-one-16x256",
        "flag-two-32x256",
    ),
}


def real_ranks(
    world: int, *arguments: str, timeout_s: float = 90, ends: Sequence[int] | None = None
) -> list[Any]:
    """Run a scenario; the JSON of each rank that ended as it should (None when killed)."""
    every = scenarios(world, *arguments, timeout_s=timeout_s, ends=ends)
    return [answers[-1] if answers else None for answers in every]


def scenarios(
    world: int, *arguments: str, timeout_s: float = 90, ends: Sequence[int] | None = None
) -> list[list[Any]]:
    """Run scenarios, `--` between them, in one set of processes; of each rank the JSON of each scenario."""
    store = torch.distributed.TCPStore(
        "127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=60)
    )
    env = dict(os.environ, PORT=str(store.port), WORLD_SIZE=str(world), PYTHONPATH=str(ROOT), **NO_MULTICAST)
    ranks = [
        subprocess.Popen(
            [sys.executable, str(PROGRAM), *arguments],
            env=dict(env, RANK=str(rank)),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(world)
    ]
    try:
        outputs = [process.communicate(timeout=timeout_s) for process in ranks]
    finally:
        for process in ranks:
            process.kill()
    for process, (_, errors), wanted in zip(ranks, outputs, ends or [0] * world, strict=True):
        assert process.returncode == wanted, errors[-2000:]
    return [[json.loads(line) for line in out.splitlines() if line.startswith("{")] for out, _ in outputs]
