"""The numbers of docs/four-gpus.md, formatted: predictions, and beside them what a run measured."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from arfloor.core import units
from arfloor.core.cases import Estimate
from arfloor.core.misses import Miss, misses
from arfloor.report.four_gpus import predicted

NOTHING = "–"


def facts(found: Mapping[tuple[str, ...], float]) -> dict[str, Any]:
    """Everything the page states, formatted, by name; `found`: what was measured, by prediction's key."""
    every = {m.expected.key: m for m in misses(predicted.predictions(), found)}
    return {
        "sizes": [units.size(n) for n in predicted.SIZES],
        "tables": [_table(every, w, p) for w in reversed(predicted.WORLDS) for p in predicted.PATHS],
        "crossovers": [_row(m, _bytes, _bytes_of) for k, m in every.items() if k[0] == "crossover"],
        "gains": [_gain_row(every, path) for path in predicted.PATHS],
        "batches": [str(b) for b in predicted.BATCHES],
        "in_situ": {p: [_plain(predicted.in_situ(p, which)) for which in (0, 2)] for p in predicted.PATHS},
        "steps": [_plain(predicted.step_without_reduces(b)) for b in predicted.BATCHES],
        "targets": _targets(),
        "missed": [line(m) for m in every.values() if m.to_explain],
        "compared": str(sum(m.measured is not None for m in every.values())),
        "count": str(len(every)),
    }


def line(miss: Miss) -> str:
    """`4 host 262144 attainable: predicted 15.4 [15.3, 27.5], measured 19.0: +23 %, inside its interval`."""
    e, share = miss.expected.estimate, miss.share or 0.0
    value = NOTHING if miss.measured is None else _number(miss.measured)
    within = "inside its interval" if miss.inside else "outside its interval"
    return (
        f"{' '.join(miss.expected.key)}: predicted {_plain(e)} {e.unit}, measured {value}: "
        f"{round(share * 100):+d} %, {within}"
    )


def _number(value: float) -> str:
    return units.number(value) if value >= 0 else f"-{units.number(-value)}"


def _plain(e: Estimate) -> str:
    value, lo, hi = (_number(x) for x in (e.value, e.lo, e.hi))
    return value if lo == hi else f"{value} [{lo}, {hi}]"


def _bytes(e: Estimate) -> str:
    value, lo, hi = (units.size(round(x)) for x in (e.value, e.lo, e.hi))
    return value if lo == hi else f"{value} [{lo}, {hi}]"


def _bytes_of(value: float) -> str:
    return units.size(round(value))


def _gain(e: Estimate) -> str:
    return f"{e.value * 100:+.0f} % [{e.lo * 100:+.0f}, {e.hi * 100:+.0f}]"


def _cell(miss: Miss, show: Any) -> str:
    """What was measured and its miss, marked where it is to be explained."""
    if miss.measured is None or miss.share is None:
        return NOTHING
    text = f"{show(miss.measured)} ({round(miss.share * 100):+d} %)"
    return f"**{text}**" if miss.to_explain else text


def _row(miss: Miss, predicted_as: Any, measured_as: Any) -> dict[str, str]:
    return {
        "label": miss.expected.label,
        "predicted": predicted_as(miss.expected.estimate),
        "measured": _cell(miss, measured_as),
    }


def _table(every: Mapping[tuple[str, ...], Miss], world: int, path: str) -> dict[str, Any]:
    """One world and path: a row a quantity, and for each size the prediction and what was measured."""
    rows: dict[str, list[str]] = {}
    for key, miss in every.items():
        if key[:2] == (str(world), path):
            cells = rows.setdefault(miss.expected.label, [])
            cells += [_plain(miss.expected.estimate), _cell(miss, _number)]
    return {"world": world, "path": path, "rows": [{"label": k, "cells": v} for k, v in rows.items()]}


def _gain_row(every: Mapping[tuple[str, ...], Miss], path: str) -> dict[str, Any]:
    found = [every["decode", path, str(b)] for b in predicted.BATCHES]
    cells = [c for m in found for c in (_gain(m.expected.estimate), _cell(m, lambda g: f"{g * 100:+.0f} %"))]
    return {"path": path, "cells": cells}


def _targets() -> dict[str, str]:
    """What is asked of our kernels over the host at four ranks and 256 KiB, by the predictions."""
    ours = predicted.ours("host", predicted.TP, 262_144).value
    floor = predicted.floor_of("host", predicted.TP, 262_144).attainable.value
    best = predicted.nccl_best("host", predicted.TP, 262_144).value
    return {"attainable": units.number(ours / floor), "nccl": units.number(ours / best)}
