"""Exact probes of two GPUs through host memory: boxes whose floors are known by hand."""

from __future__ import annotations

from arfloor.core.cases import Estimate, Primitive
from tests import synthetic


def estimate(value: float, spread: float = 0.0, unit: str = "us") -> Estimate:
    return synthetic.about(value, spread, unit)


def probe(kind: str, value: float, **changes) -> Primitive:
    return synthetic.probe(kind, value, spread=0.0, **changes)


HOST = (
    probe("launch", 1.3),
    probe("pingpong", 1.3),
    probe("pingpong", 2.1, access="acquire_release"),
    probe("stream", 55.0, engine="ce"),
    probe("stream", 54.0, access="read"),
    probe("stream", 37.0, active="all"),
    probe("stream", 37.0, access="read", active="all"),
)
