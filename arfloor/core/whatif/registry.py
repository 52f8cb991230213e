"""Interventions by the names users type: `switch:NAME,fuse,overlap,spec:verify=2:accept=1.7`."""

from __future__ import annotations

import re
from collections.abc import Callable

from arfloor.core.cases import Estimate
from arfloor.core.decode import MissingInput
from arfloor.core.whatif.dp_attention import GATHER_AND_SCATTER, DataParallelAttention
from arfloor.core.whatif.free import ReducesFree
from arfloor.core.whatif.fuse import Fuse
from arfloor.core.whatif.intervention import Intervention
from arfloor.core.whatif.merge_moe import MergeMoe
from arfloor.core.whatif.overlap import CONTENTION, TwoBatchOverlap
from arfloor.core.whatif.quantised import FORMATS, QuantisedWire
from arfloor.core.whatif.rest import RestFaster
from arfloor.core.whatif.speculative import DRAFT_COST, Speculative
from arfloor.core.whatif.step import Situation
from arfloor.core.whatif.switch import Switch

_NUMBER = r"\d+(?:\.\d*)?(?:[eE][-+]?\d+)?|\.\d+"
_RANGE = re.compile(rf"({_NUMBER})\.\.({_NUMBER})", re.ASCII)
_PLAIN = re.compile(rf"{_NUMBER}", re.ASCII)
_LEAST, _MOST = 1e-12, 1e15  # beyond, no time, rate or ratio of a server lies


def read_estimate(text: str, unit: str, what: str) -> Estimate:
    """`58.7` (known to half a unit of its last digit) or `55..60` (an interval around its middle).

    Raises MissingInput naming `what` when the text is neither.
    """
    if match := _RANGE.fullmatch(text):
        lo, hi = (_bounded(number, what) for number in match.groups())
        if lo <= hi:
            return Estimate(value=(lo + hi) / 2, lo=lo, hi=hi, n=0, unit=unit)
    if _PLAIN.fullmatch(text):
        value = _bounded(text, what)
        half = _last_digit(text) / 2
        return Estimate(value=value, lo=max(value - half, 0.0), hi=value + half, n=1, unit=unit)
    raise MissingInput(f"{what}: expected a number or LO..HI, found {text!r}")


def _bounded(text: str, what: str) -> float:
    value = float(text)
    if (value and not _LEAST <= value <= _MOST) or (not value and text.strip("0.")):
        raise MissingInput(
            f"{what}: expected 0, or a number from {_LEAST:g} to {_MOST:g}, found {text[:40]!r}"
        )
    return value


def exactly(text: str, unit: str, what: str) -> Estimate:
    """A number taken as it is, or LO..HI."""
    estimate = read_estimate(text, unit, what)
    if ".." in text:
        return estimate
    return Estimate(value=estimate.value, lo=estimate.value, hi=estimate.value, n=0, unit=unit)


def _last_digit(text: str) -> float:
    mantissa, _, exponent = text.lower().partition("e")
    decimals = len(mantissa.partition(".")[2])
    return float(10.0 ** (int(exponent or 0) - decimals))


def parse(text: str, situation: Situation) -> tuple[Intervention, ...]:
    """The interventions of one `--apply`, in order. Raises MissingInput on a name or option that is not
    known, saying which are."""
    items = [item.strip() for item in text.split(",") if item.strip()]
    if not items:
        raise MissingInput(f"--apply: expected one or more of {', '.join(sorted(_MAKERS))}, found nothing")
    kinds = [item.split(":")[0] for item in items]
    twice = next((kind for kind in kinds if kinds.count(kind) > 1), None)
    if twice is not None:
        raise MissingInput(
            f"--apply {text}: {twice} stands in it twice, and would be counted twice; leave one out"
        )
    return tuple(_one(item, situation) for item in items)


def _one(item: str, situation: Situation) -> Intervention:
    name, *rest = item.split(":", 1) if item.startswith("switch:") else item.split(":")
    if name not in _MAKERS:
        raise MissingInput(f"--apply {name}: expected one of {', '.join(sorted(_MAKERS))}")
    options: dict[str, str] = {}
    for part in rest:
        key, separator, value = ("", "", "") if name == "switch" else part.partition("=")
        key, value = (key, value) if separator else ("", part)
        if key in options:
            raise MissingInput(
                f"--apply {item}: expected {key or 'a value'} once, found it twice; leave one out"
            )
        options[key] = value
    made = _MAKERS[name](options, situation)
    if options:
        raise MissingInput(f"--apply {item}: {name} does not know {', '.join(map(repr, options))}")
    return made


def suggestions(situation: Situation, sequences: int) -> tuple[str, ...]:
    """What can be asked of this situation, as typed; figures in it are examples."""
    floor = [] if situation.attainable is None else [situation.attainable]
    found = [f"switch:{c.backend}" for c in (*situation.alternatives, *floor)]
    found += ["fuse" if situation.launch is not None else "fuse:saved_us=1..2"]
    found += ["merge"] if situation.shape.moe_layers else []
    found += ["overlap"] if sequences > 1 else []
    return (
        *found,
        "spec:verify=2:accept=1.6..1.9",
        "quant:fp8:overhead_us=1..3",
        "dp_attention:compute=1..1.2",
    )


Options = dict[str, str]


def _take(options: Options, key: str, unit: str, item: str) -> Estimate | None:
    text = options.pop(key, None)
    return None if text is None else exactly(text, unit, f"{item}:{key}" if key else item)


def _switch(options: Options, situation: Situation) -> Intervention:
    name = options.pop("", "")
    others = [curve.backend for curve in situation.alternatives]
    if not name:
        raise MissingInput(
            f"switch: to what? give switch:NAME with NAME among {', '.join(others) or 'none measured'}"
        )
    return Switch(to=situation.alternative(name))


def _fuse(options: Options, situation: Situation) -> Intervention:
    return Fuse(saved_us=_take(options, "saved_us", "us", "fuse"))


def _merge(options: Options, situation: Situation) -> Intervention:
    return MergeMoe(saved_us=_take(options, "saved_us", "us", "merge"))


def _overlap(options: Options, situation: Situation) -> Intervention:
    contention = _take(options, "contention", "x", "overlap")
    if contention is not None and contention.lo < 1:
        raise MissingInput(
            "overlap:contention: by what factor reduces in the background slow computation: "
            f"expected 1 or more, found {contention.lo:g}"
        )
    if contention is None and situation.contention is not None:
        contention = situation.contention.estimate
    return TwoBatchOverlap(contention=contention or CONTENTION, assumed_contention=contention is None)


def _quant(options: Options, situation: Situation) -> Intervention:
    format = options.pop("", "")
    if format not in FORMATS:
        raise MissingInput(f"quant: expected quant:{' or quant:'.join(FORMATS)}, found {format!r}")
    group = options.pop("group", "128")
    if not re.fullmatch(r"[0-9]{1,9}", group) or not int(group):
        raise MissingInput(f"quant:group: expected a positive number of elements, found {group!r}")
    overhead = _take(options, "overhead_us", "us", f"quant:{format}")
    return QuantisedWire(format=format, overhead_us=overhead, group=int(group))


def _spec(options: Options, situation: Situation) -> Intervention:
    verify, accept = options.pop("verify", None), options.pop("accept", None)
    if verify is None or not re.fullmatch(r"[0-9]{1,6}", verify) or int(verify) < 1:
        found = "found none" if verify is None else f"found {verify!r}"
        raise MissingInput(
            f"spec: verify, the tokens a sequence verified in a step: expected 1 or more, {found}; "
            "give spec:verify=2:accept=1.7"
        )
    if accept is None:
        raise MissingInput(
            "spec: accept, the mean tokens emitted a step (bonus included): it is the workload's, "
            "measure it and give spec:verify=2:accept=1.7 or accept=1.6..1.8"
        )
    cost = _take(options, "cost", "x", "spec")
    if cost is not None and cost.lo < 1:
        raise MissingInput(
            "spec:cost: the rest of a step with all verified tokens over that with one a sequence: "
            f"expected 1 or more, found {cost.lo:g}"
        )
    return Speculative(
        verify=int(verify),
        accept=exactly(accept, "tokens", "spec:accept"),
        cost=cost,
        draft_layers=_take(options, "draft_layers", "layers", "spec") or DRAFT_COST,
    )


def _dp_attention(options: Options, situation: Situation) -> Intervention:
    compute = _take(options, "compute", "x", "dp_attention")
    if compute is not None and compute.lo <= 0:
        raise MissingInput("dp_attention:compute: expected a factor above 0, found 0")
    return DataParallelAttention(
        compute=compute,
        pair=_take(options, "pair", "reduces", "dp_attention") or GATHER_AND_SCATTER,
    )


def _rest(options: Options, situation: Situation) -> Intervention:
    factor = _take(options, "", "x", "rest")
    if factor is None or factor.lo <= 0:
        raise MissingInput(
            "rest: by what factor does the rest get faster? expected more than 0, as rest:1.5 or rest:1.2..2"
        )
    return RestFaster(factor=factor)


def _free(options: Options, situation: Situation) -> Intervention:
    return ReducesFree()


_MAKERS: dict[str, Callable[[Options, Situation], Intervention]] = {
    "switch": _switch,
    "fuse": _fuse,
    "merge": _merge,
    "overlap": _overlap,
    "quant": _quant,
    "spec": _spec,
    "dp_attention": _dp_attention,
    "rest": _rest,
    "free": _free,
}
