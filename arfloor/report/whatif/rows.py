"""The answer for programs: one JSON document, every number with its interval, origin and source."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from arfloor.core.cases import Estimate
from arfloor.core.whatif.partition import Partition
from arfloor.core.whatif.scenario import Scenario
from arfloor.core.whatif.uncertainty import Answer, Input
from arfloor.report.whatif.next_steps import find_out, to_get
from arfloor.report.whatif.question import Whatif

SCHEMA = 1


def document(answer: Whatif) -> dict[str, Any]:
    """The document as plain data."""
    a, s = answer.analysis, answer.situation
    return {
        "schema": SCHEMA,
        "kind": "whatif",
        "model": asdict(s.shape) | {"reduces": s.shape.reduces},
        "tp": s.tp,
        "concurrency": a.sequences,
        "latencies": {
            "label": answer.latencies.label,
            "origin": answer.latencies.origin,
            "in_use": s.curve.backend,
            "alternatives": [c.backend for c in s.alternatives],
            "caveats": list(answer.latencies.caveats),
        },
        "tok_s": _estimate(a.tok_s.estimate),
        "token_us": _estimate(a.token_us.estimate),
        "partition": _partition(a.partition),
        "everywhere": [_partition(p) for p in answer.everywhere],
        "counters": [asdict(c) for c in answer.counters],
        "scenarios": [_scenario(sc) for sc in a.scenarios],
        "free": _scenario(a.free),
        "verdict": asdict(a.verdict),
        "inputs": [_input(i) for i in a.inputs],
        "left_out": list(answer.skipped),
        "to_get": to_get(answer),
        "find_out": find_out(answer),
        "could_ask": list(answer.could_ask),
    }


def render(answer: Whatif) -> str:
    """The document as text."""
    return json.dumps(document(answer), indent=1, allow_nan=False) + "\n"


def _estimate(e: Estimate) -> dict[str, Any]:
    return {"value": e.value, "lo": e.lo, "hi": e.hi, "unit": e.unit}


def _answer(a: Answer) -> dict[str, Any]:
    budget = [{"input": c.input.name, "down": c.down, "up": c.up} for c in a.budget]
    return _estimate(a.estimate) | {"budget": budget}


def _input(i: Input) -> dict[str, Any]:
    return {"name": i.name, "origin": i.origin, "source": i.source} | _estimate(i.estimate)


def _partition(p: Partition) -> dict[str, Any]:
    return {
        "concurrency": p.sequences,
        "profiled": p.profiled,
        "step_us": _estimate(p.step_us.estimate),
        "parts": [
            {
                "name": part.name,
                "us": _answer(part.us),
                "share": _estimate(part.share.estimate),
                "known_from": part.known_from,
            }
            for part in p.parts
        ],
    }


def _scenario(s: Scenario) -> dict[str, Any]:
    return {
        "label": s.label,
        "stages": [
            {
                "label": stage.label,
                "tok_s": _estimate(stage.tok_s.estimate),
                "gain": _answer(stage.gain),
                "saved_us_a_token": _answer(stage.saved_us),
                "reduces_per_token": stage.reduces_per_token,
                "nbytes_per_token": stage.nbytes_per_token,
                "share_after": stage.share_after,
                "assumptions": list(stage.assumptions),
                "loses_when": stage.loses_when,
            }
            for stage in s.stages
        ],
    }
