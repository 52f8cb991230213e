"""One line of a report: what the measured latencies are worth in tokens a second, if the user says for what.

Everything is `arfloor whatif`'s; nothing is guessed, so without a model, a TP size and tok/s there is no
line.
"""

from __future__ import annotations

import re
from pathlib import Path

from arfloor import models
from arfloor.core import units
from arfloor.core.cases import Path as Way
from arfloor.core.decode import MissingInput
from arfloor.report.whatif import inputs, latencies
from arfloor.report.whatif.question import Whatif, answer

_KEYS = ("model", "tp", "tok_s", "tpot", "share", "using")
_EXAMPLE = "model=Llama-3.3-70B,tp=2,tok_s=32:800"


def read(text: str) -> dict[str, str]:
    """`model=NAME,tp=2,tok_s=1:58.7,16:279` as a dictionary; a piece without `=` belongs to the one before.

    Raises MissingInput for an unknown or repeated key, or what is missing.
    """
    found: dict[str, str] = {}
    last = ""
    for piece in text.split(","):
        key, separator, value = piece.partition("=")
        key = key.strip().replace("-", "_")
        if not separator and last:
            found[last] += f",{piece.strip()}"
            continue
        if key not in _KEYS or key in found or not value.strip():
            raise MissingInput(
                f"--worth: expected each of {', '.join(_KEYS)} at most once, as {_EXAMPLE}, found {piece!r}"
            )
        found[key], last = value.strip(), key
    for key in ("model", "tp"):
        if key not in found:
            raise MissingInput(f"--worth: {key}: not given; expected something like {_EXAMPLE}")
    if ("tok_s" in found) == ("tpot" in found):
        raise MissingInput(f"--worth: expected one of tok_s and tpot, as in {_EXAMPLE}")
    return found


def line(text: str, *, run: Path | None = None, topology: str | None = None, way: Way | None = None) -> str:
    """The line for what the user typed after --worth, about a run directory or a box of the library.

    Raises MissingInput (one line) for what is missing or cannot be answered from what was measured.
    """
    given = read(text)
    tp = int(given["tp"]) if re.fullmatch(r"[0-9]{1,9}", given["tp"]) else 0
    if tp < 2:
        raise MissingInput(f"--worth: tp: expected the number of ranks, 2 or more, found {given['tp']!r}")
    found = (
        latencies.from_run_directory(run, tp, way)
        if run is not None
        else latencies.from_topology(topology or "", tp, way)
    )
    if "tok_s" in given:
        steps = inputs.tok_s_steps(inputs.per_concurrency(given["tok_s"], "tok/s", "--worth: tok_s"))
    else:
        steps = inputs.tpot_steps(inputs.per_concurrency(given["tpot"], "ms", "--worth: tpot"))
    situation = inputs.situation(
        models.load(given["model"]),
        tp,
        found,
        steps,
        using=given.get("using"),
        profiled=inputs.shares(given["share"].split(",")) if "share" in given else (),
    )
    try:
        return _line(answer(situation, found))
    except ValueError as error:
        raise MissingInput(f"--worth: {error}") from error


def _line(found: Whatif) -> str:
    a, s = found.analysis, found.situation
    share = sum(p.share.estimate.value for p in a.partition.reduce_parts)
    how = "profiled" if a.partition.profiled else "at standalone latency"
    said = "; ".join((a.verdict.sentence, *a.verdict.also))
    mark = " PREDICTED latencies:" if found.latencies.origin == "predicted" else ""
    now = f"{units.number(a.tok_s.estimate.value)} tok/s now"
    return (
        f"Worth ({s.shape.name}, TP{s.tp}, concurrency {a.sequences}, {now}; "
        f"reduces {units.percent(share, 0)} of the step, {how}):{mark} {said}."
    )
