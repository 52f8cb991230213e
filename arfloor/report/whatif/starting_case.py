"""The case that this project began with, told from data: every number of docs/starting-case.md.

DeepSeek-V4-Flash on eight RTX PRO 6000, SGLang, TP4 on GPUs 0 to 3, no NVLink. What was observed is
in `OBSERVED`; latencies are the published ones of topologies/rtx-pro-6000-x8-host-bridge.
"""

from __future__ import annotations

from typing import Any

from arfloor import models
from arfloor.core import units
from arfloor.core.cases import Estimate, record
from arfloor.core.decode import reduce_traffic_gbps, step_estimate
from arfloor.core.whatif.partition import BOUND, REST, UNEXPLAINED, Partition, partition
from arfloor.core.whatif.registry import parse, read_estimate
from arfloor.core.whatif.scenario import Scenario, run_scenario
from arfloor.core.whatif.step import Situation
from arfloor.report.whatif import inputs
from arfloor.report.whatif.latencies import Latencies, from_topology

BOX = "rtx-pro-6000-x8-host-bridge"
ONE_SHOT = "switch:pcie_oneshot"
MTP = "spec:verify=2:accept=1.6..1.9"
CHANGES = (
    ("one-shot", ONE_SHOT),
    ("fuse add and RMSNorm", "fuse"),
    ("merge the MoE sum", "merge"),
    ("reach the attainable floor", "switch:attainable"),
    ("two-batch overlap", "overlap"),
    ("MTP, two tokens verified", MTP),
    ("one-shot, then MTP", f"{ONE_SHOT},{MTP}"),
    ("all reduces free", "free"),
)


@record
class Observed:
    """What was written down at the time."""

    tok_s: str = "1:58.7,16:279,64:509"
    with_mscclpp: tuple[tuple[int, float], ...] = ((1, 58.70), (16, 279.14), (64, 505.64))
    share: str = "0.19"
    earlier_share: str = "0.008"
    earlier_tok_s: tuple[float, float] = (29.7, 33.0)
    counter_gbps: float = 0.2
    message_nbytes: int = 262_144


OBSERVED = Observed()


def latencies() -> Latencies:
    """The published latencies of four of these GPUs."""
    return from_topology(BOX, 4)


def situation(observed: Observed = OBSERVED) -> Situation:
    """The served model with its published latencies; the share is known at concurrency 64 only."""
    steps = inputs.tok_s_steps(inputs.per_concurrency(observed.tok_s, "tok/s", "tok/s"))
    profiled = ((64, read_estimate(observed.share, "of the step", "share")),)
    return inputs.situation(models.load("DeepSeek-V4-Flash"), 4, latencies(), steps, profiled=profiled)


def facts(observed: Observed = OBSERVED) -> dict[str, Any]:
    """Everything the page states, formatted, by name."""
    s = situation(observed)
    partitions = {b: partition(s, b) for b in s.concurrencies}
    return {
        "reduces": s.shape.reduces,
        "per_concurrency": [_explained(s, p) for p in partitions.values()],
        "partition": [_part(p) for p in partitions[64].parts],
        "profiles": _profiles(s, observed),
        "counter": _counter(s, observed),
        "mscclpp": [_mscclpp(s, b, tok_s) for b, tok_s in observed.with_mscclpp],
        "changes": [_change(s, name, text) for name, text in CHANGES],
        "worth": {name: _gains(s, text) for name, text in CHANGES},
        "unexplained": _unexplained(partitions[64]),
        "mtp": [_mtp(s, b) for b in s.concurrencies],
        "crossing": _crossing(s),
        "published_gain": _published_gain(),
        "p2p_level": _p2p_level(),
        "speculative_series": _speculative_series(),
        "hiccup_gain": _hiccup_gain(),
        "after": _after(s),
    }


def _us(e: Estimate) -> str:
    return f"{units.number(e.value)} [{units.number(e.lo)}, {units.number(e.hi)}]"


def _percent(e: Estimate, digits: int = 1) -> str:
    if e.lo == e.hi:
        return units.percent(e.value, digits)
    return f"{units.percent(e.value, digits)} [{e.lo * 100:.{digits}f}, {e.hi * 100:.{digits}f}]"


def _explained(s: Situation, p: Partition) -> dict[str, str]:
    """What transport at published standalone latencies can explain of a step."""
    nbytes = s.shape.message_nbytes(p.sequences)
    standalone = s.curve.latency(nbytes).estimate
    bound = dict(s.floors)[nbytes].estimate
    step_us = p.step_us.estimate.value
    share = Estimate(
        value=s.shape.reduces * standalone.value / step_us,
        lo=s.shape.reduces * standalone.lo / step_us,
        hi=s.shape.reduces * standalone.hi / step_us,
        n=0,
        unit="of the step",
    )
    return {
        "concurrency": str(p.sequences),
        "tok_s": f"{p.sequences / step_us * 1e6:.4g}",
        "step_ms": units.number(step_us / 1e3),
        "message": units.size(nbytes),
        "nccl_us": units.number(standalone.value),
        "bound_us": units.number(bound.value),
        "share": _percent(share),
    }


def _part(part: Any) -> dict[str, str]:
    us, shape = part.us.estimate, part.share.estimate
    value, lo, hi = (units.ms(x) for x in (us.value, us.lo, us.hi))
    return {"name": part.name, "ms": f"{value} [{lo}, {hi}]", "share": units.percent(shape.value)}


def _each_us(share: Estimate, step_us: tuple[float, float], reduces: int) -> Estimate:
    """Time of a reduce from a share and a range of step lengths."""
    longest, shortest = max(step_us), min(step_us)
    return Estimate(
        value=share.value * longest / reduces,
        lo=share.lo * shortest / reduces,
        hi=share.hi * longest / reduces,
        n=0,
        unit="us",
    )


def _profiles(s: Situation, observed: Observed) -> dict[str, str]:
    earlier_steps = (64 / observed.earlier_tok_s[0] * 1e6, 64 / observed.earlier_tok_s[1] * 1e6)
    step = dict(s.steps)[64]
    reduces = s.shape.reduces
    earlier = _each_us(read_estimate(observed.earlier_share, "x", "share"), earlier_steps, reduces)
    later = _each_us(read_estimate(observed.share, "x", "share"), (step.value, step.value), reduces)
    standalone = s.curve.latency(s.shape.message_nbytes(64)).estimate.value
    half = s.curve.latency(observed.message_nbytes).estimate.value
    bound = dict(s.floors)[s.shape.message_nbytes(64)].estimate.value
    return {
        "earlier_us": _us(earlier),
        "later_us": _us(later),
        "earlier_step_ms": f"{earlier_steps[1] / 1e3:.0f} to {earlier_steps[0] / 1e3:.0f}",
        "later_step_ms": units.number(step.value / 1e3),
        "step_ratio": f"{earlier_steps[0] / step.value:.0f}",
        "reduce_ratio": f"{later.value / earlier.value:.1f}",
        "standalone_us": units.number(standalone),
        "half_us": units.number(half),
        "earlier_explained": units.percent(standalone / earlier.value, 0),
        "later_explained": units.percent(standalone / later.value, 0),
        "half_explained": units.percent(half / later.value, 0),
        "wires_explained": units.percent(bound / later.value, 0),
        "needed_factor": f"{later.value / standalone:.1f}",
    }


def _counter(s: Situation, observed: Observed) -> dict[str, str]:
    def mb(tok_s: float) -> float:
        return reduce_traffic_gbps(s.shape, s.tp, 64, tok_s / 64) * 1e3

    low, high = (mb(t) for t in observed.earlier_tok_s)
    now = mb(509)
    read = observed.counter_gbps * 1e3
    return {
        "read": f"{read:.0f}",
        "earlier": f"{low:.0f} to {high:.0f}",
        "earlier_ratio": f"{read / high:.1f} to {read / low:.1f}",
        "now": f"{now:.0f}",
        "now_of_link": f"{now / 64_000:.1%}".replace("%", " %"),
        "now_ratio": f"{read / now:.2f}",
    }


def _mscclpp(s: Situation, sequences: int, measured: float) -> dict[str, str]:
    """Tok/s with the flag on, beside what a kernel as fast as the one-shot one would have given."""
    scenario, _, today = run_scenario(s, sequences, parse(ONE_SHOT, s))
    predicted, before = scenario.stages[0].tok_s.estimate, today["tok_s 0"].estimate
    inside = predicted.lo <= measured <= predicted.hi
    digits = 2 if measured < 100 else 1
    return {
        "concurrency": str(sequences),
        "without": f"{before.value:.4g}",
        "with": f"{measured:.2f}",
        "difference": f"{(measured / before.value - 1) * 100:+.2f} %",
        "predicted": f"{predicted.value:.{digits}f} [{predicted.lo:.{digits}f}, {predicted.hi:.{digits}f}]",
        "consistent": "yes" if inside else "no",
    }


def _gains(s: Situation, text: str) -> dict[int, str]:
    """Gain of one change per concurrency."""
    return {b: _cell(s, b, text)["gain"] for b in s.concurrencies}


def _change(s: Situation, name: str, text: str) -> dict[str, Any]:
    cells = [_cell(s, b, text) for b in s.concurrencies]
    stage = next(c for c in reversed(cells) if c["stage"] is not None)["stage"]
    return {
        "name": name,
        "gains": [c["gain"] for c in cells],
        "reduces_per_token": f"{stage.reduces_per_token:.4g}",
        "kib_per_token": f"{stage.nbytes_per_token / 1024:.4g}",
        "loses_when": stage.loses_when,
    }


def _cell(s: Situation, sequences: int, text: str) -> dict[str, Any]:
    if text == "overlap" and sequences == 1:
        return {"gain": "cannot be split", "stage": None}
    scenario, _, _ = run_scenario(s, sequences, parse(text, s))
    return {"gain": units.gain(scenario.gain.estimate), "stage": scenario.stages[-1]}


def _unexplained(p: Partition) -> dict[str, str]:
    part = next(x for x in p.parts if x.name == UNEXPLAINED)
    share = part.share.estimate
    profiled = sum(x.share.estimate.value for x in p.reduce_parts)
    bound = next(x for x in p.parts if x.name == BOUND).share.estimate
    rest = next(x for x in p.parts if x.name == REST).share.estimate
    gain = Estimate(
        value=1 / (1 - share.value) - 1, lo=1 / (1 - share.lo) - 1, hi=1 / (1 - share.hi) - 1, n=0, unit="x"
    )
    return {
        "share": _percent(share),
        "profiled": units.percent(profiled, 0),
        "bound": units.percent(bound.value),
        "rest": units.percent(rest.value, 0),
        "gain": units.gain(gain),
    }


def _mtp(s: Situation, sequences: int) -> dict[str, str]:
    scenario, _, _ = run_scenario(s, sequences, parse(MTP, s))
    least = (
        scenario.stages[0]
        .loses_when.split(";")[0]
        .removeprefix("fewer than ")
        .removesuffix(" tokens come out a step")
    )
    blame = scenario.gain.budget[0].input.name
    return {
        "concurrency": str(sequences),
        "gain": units.gain(scenario.gain.estimate),
        "least": least,
        "decided_by": blame,
        "tok_s": _tok_s(scenario),
    }


def _tok_s(scenario: Scenario) -> str:
    e = scenario.stages[-1].tok_s.estimate
    return _us(e)


def _crossing(s: Situation) -> dict[str, str]:
    one_shot = s.alternative("pcie_oneshot")
    twice = s.shape.message_nbytes(128)
    return {
        "message": units.size(twice),
        "one_shot_us": units.number(one_shot.latency(twice).estimate.value),
        "nccl_us": units.number(s.curve.latency(twice).estimate.value),
    }


def _after(s: Situation) -> list[dict[str, str]]:
    """The share after the rest of the step has become faster."""
    rows = []
    for factor in (1, 1.5, 2, 4):
        scenario, _, _ = run_scenario(s, 64, parse(f"rest:{factor}", s))
        free, _, _ = run_scenario(s, 64, parse(f"rest:{factor},free", s))
        share = scenario.stages[0].share_after
        gain = free.stages[1].tok_s.estimate.value / free.stages[0].tok_s.estimate.value - 1
        rows.append(
            {"factor": f"{factor:g}", "share": f"{share * 100:.0f} %", "gain": f"{gain * 100:+.0f} %"}
        )
    return rows


SPECULATIVE_SERIES = (
    (1, 67.3, 74.9),
    (2, 110.8, 119.8),
    (4, 202.8, 217.5),
    (8, 356.1, 375.2),
    (16, 577.3, 608.1),
    (32, 940.2, 989.0),
    (64, 1283.1, 1376.9),
)
"""Concurrency, tok/s with NCCL and with the one-shot kernel: Qwen3.5-397B at TP4, `speculative decoding
(MTP)`, local-inference-lab/rtx6kpro, optimization/pcie-oneshot-allreduce.md at e2c2b95."""


P2P_LEVEL_SYS = ((1, 67.3, 69.7), (64, 1283.1, 1381.1))
"""Concurrency, tok/s with NCCL, and with NCCL under NCCL_P2P_LEVEL=SYS: same model, box and load, same page
at 18af540."""


def _p2p_level() -> dict[int, dict[str, str]]:
    return {
        b: {"before": f"{n}", "after": f"{s}", "gain": f"{(s / n - 1) * 100:+.1f} %"}
        for b, n, s in P2P_LEVEL_SYS
    }


def _speculative_series() -> list[dict[str, str]]:
    """The published gains with speculation, beside a prediction that knows nothing of it: how many tokens
    were verified and emitted is not published."""
    steps = tuple(
        (b, step_estimate(b, Estimate(value=n, lo=n, hi=n, n=1, unit="tok/s")))
        for b, n, _ in SPECULATIVE_SERIES
    )
    s = inputs.situation(models.load("Qwen3.5-397B"), 4, latencies(), steps)
    rows = []
    for b, nccl, one_shot in SPECULATIVE_SERIES:
        scenario, _, _ = run_scenario(s, b, parse(ONE_SHOT, s))
        saved = scenario.stages[0].saved_us.estimate.value
        measured = b / nccl * 1e6 - b / one_shot * 1e6
        rows.append(
            {
                "concurrency": str(b),
                "measured": f"{(one_shot / nccl - 1) * 100:+.1f} %",
                "predicted": units.gain(scenario.gain.estimate),
                "ratio": f"{measured / saved:.1f}",
                "measured_us": units.number(measured / s.shape.reduces),
                "standalone_us": units.number(saved / s.shape.reduces),
            }
        )
    return rows


def _hiccup_gain() -> str:
    """What a switch at concurrency 8 would give if NCCL took its published 71.2 us at 64 KiB there."""
    known = latencies()
    (size, wild), *_ = known.named("nccl").set_aside
    difference = wild.value - known.named("pcie_oneshot").latency(size).estimate.value
    step_us = 8 / {b: n for b, n, _ in SPECULATIVE_SERIES}[8] * 1e6
    saved = models.load("Qwen3.5-397B").reduces * difference
    return f"{saved / (step_us - saved) * 100:+.0f} %"


def _published_gain() -> dict[str, str]:
    """The published end-to-end gain on the box whose latencies are used here."""
    steps = inputs.tok_s_steps(inputs.per_concurrency("1:70.6", "tok/s", "tok/s"))
    s = inputs.situation(models.load("Qwen3.5-397B"), 4, latencies(), steps)
    scenario, _, _ = run_scenario(s, 1, parse(ONE_SHOT, s))
    return {"predicted": units.gain(scenario.gain.estimate), "measured": f"{(76.1 / 70.6 - 1) * 100:+.1f} %"}
