"""Move data over the links of this box in a child process with a deadline, and say what it showed."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from pydantic import TypeAdapter, ValidationError

from arfloor.core.box import Box, LinkUnderLoad, PathProbe, Place
from arfloor.runtime.child import ChildError, run_module

PROBE_SECONDS = 30.0
MAX_GPUS = 8

_PROBES: TypeAdapter[tuple[PathProbe, ...]] = TypeAdapter(tuple[PathProbe, ...])
_LOADS: TypeAdapter[tuple[LinkUnderLoad, ...]] = TypeAdapter(tuple[LinkUnderLoad, ...])


def ask_child(bus_ids: list[str]) -> Mapping[str, Any]:
    """The child's answer for these GPUs. Raises ChildError when it dies or hangs."""
    answer = run_module("arfloor.runtime.gpu_probe", *bus_ids, seconds=PROBE_SECONDS)
    found: Mapping[str, Any] = json.loads(answer)
    return found


def probe_box(box: Box, ask: Callable[[list[str]], Mapping[str, Any]] = ask_child) -> Box:
    """The box with what moving data showed. Never raises: what failed is named in the box."""
    gpus = [g for g in box.gpus if g.bus_id]
    if not gpus:
        return box
    if any(g.mig for g in gpus):
        return replace(box, unknown=(*box.unknown, ("links under load", "MIG is on")))
    chosen = gpus[:MAX_GPUS]
    names = {g.bus_id: g.id for g in chosen if g.bus_id}
    try:
        answer = ask(list(names))
        probes = _PROBES.validate_json(json.dumps(answer.get("paths", [])))
        loads = _LOADS.validate_json(json.dumps(answer.get("links", [])))
    except (ChildError, ValueError, ValidationError) as error:
        why = " ".join(str(error).split())[:200]
        return replace(box, unknown=(*box.unknown, ("transfers between GPUs", why)))
    named = tuple(replace(p, a=names[p.a], b=names[p.b]) for p in probes if p.a in names and p.b in names)
    under_load = tuple(replace(u, gpu=names[u.gpu]) for u in loads if u.gpu in names)
    unknown = box.unknown
    if answer.get("why"):
        unknown = (*unknown, ("transfers between GPUs", str(answer["why"])[:200]))
    if len(gpus) > MAX_GPUS:
        unknown = (*unknown, ("transfers between GPUs", f"only the first {MAX_GPUS} GPUs were tried"))
    awake = {u.gpu: u for u in under_load}
    places = tuple(_awake(p, awake.get(p.id)) for p in box.places)
    return replace(box, places=places, probes=named, under_load=under_load, unknown=unknown)


def _awake(place: Place, seen: LinkUnderLoad | None) -> Place:
    """The place with its link as it was under load, which is what a transfer gets."""
    if seen is None or place.link is None or seen.gen is None:
        return place
    width = seen.width or place.link.width
    return replace(place, link=replace(place.link, gen=seen.gen, width=width))
