"""Where the reduces' time goes: launch, bound, protocol above it, waiting, and what nobody can tell.

The parts add up to the profiled time exactly. A standalone A(S) is not the in-situ one, so what a
profile shows beyond it stays `unexplained` unless traces of all ranks identified waiting.
"""

from __future__ import annotations

from collections.abc import Mapping

from arfloor.core import units
from arfloor.core.cases import record
from arfloor.core.whatif.step import Situation, Step, observe
from arfloor.core.whatif.uncertainty import Answer, Draw, Input, propagate

LAUNCH = "launch"
BOUND = "bound (wire + one flag)"
PROTOCOL = "protocol above the bound"
TRANSPORT = "transport (standalone latency)"
WAITING = "waiting for other ranks"
UNEXPLAINED = "unexplained (waiting? other traffic?)"
REST = "the rest of the step"
# what is left over after the others can be negative, where a standalone latency exceeds the in-situ one
_POSITIVE = tuple(
    f"{kind} {name}" for kind in ("us", "share") for name in (LAUNCH, BOUND, TRANSPORT, WAITING, REST)
)


@record
class Part:
    """One part of a step: microseconds a step and share of it, and how it is known."""

    name: str
    us: Answer
    share: Answer
    known_from: str


@record
class Partition:
    """A step in parts that sum to it. `profiled` is false where no share was profiled, so that the
    reduces stand at their standalone latency."""

    sequences: int
    step_us: Answer
    parts: tuple[Part, ...]
    profiled: bool

    @property
    def reduce_parts(self) -> tuple[Part, ...]:
        """All parts but the rest of the step."""
        return tuple(p for p in self.parts if p.name != REST)


def partition(situation: Situation, sequences: int) -> Partition:
    """Partition of the step at one concurrency. Raises MissingInput as `observe` does."""
    answers, _ = propagate(
        lambda draw: _outputs(situation, sequences, draw), units=_Units(), positive=_POSITIVE
    )
    names = [name.removeprefix("us ") for name in answers if name.startswith("us ")]
    parts = tuple(
        Part(
            name=name,
            us=answers[f"us {name}"],
            share=answers[f"share {name}"],
            known_from=_known_from(situation, sequences, name),
        )
        for name in names
    )
    return Partition(
        sequences=sequences,
        step_us=answers["step"],
        parts=parts,
        profiled=situation.share_input(sequences) is not None,
    )


class _Units(dict[str, str]):
    def __missing__(self, key: str) -> str:
        return "of the step" if key.startswith("share ") else "us"


def _outputs(situation: Situation, sequences: int, draw: Draw) -> Mapping[str, float]:
    step = observe(situation, sequences, draw)
    total = step.time_us(draw)
    parts = dict(_reduce_parts(step, draw))
    parts[REST] = step.compute_us
    outputs = {"step": total}
    for name, us in parts.items():
        outputs[f"us {name}"] = us
        outputs[f"share {name}"] = us / total
    return outputs


def _reduce_parts(step: Step, draw: Draw) -> list[tuple[str, float]]:
    situation, group = step.situation, step.groups[0]
    transport = group.count * group.transport_us(situation, draw)
    launch, bound = situation.launch, floor_input(situation, group.nbytes)
    parts: list[tuple[str, float]] = []
    if launch is not None and bound is not None:
        launched, bounded = group.count * draw(launch), group.count * draw(bound)
        parts += [(LAUNCH, launched), (BOUND, bounded), (PROTOCOL, transport - launched - bounded)]
    else:
        parts.append((TRANSPORT, transport))
    if situation.waiting_input(step.sequences) is not None:
        parts.append((WAITING, group.count * group.waiting_us))
    if situation.share_input(step.sequences) is not None:
        parts.append((UNEXPLAINED, group.count * group.extra_us))
    return parts


def floor_input(situation: Situation, nbytes: int) -> Input | None:
    """The bound at this size, if it is known."""
    return dict(situation.floors).get(nbytes)


def _known_from(situation: Situation, sequences: int, name: str) -> str:
    nbytes = situation.shape.message_nbytes(sequences)
    launch, bound = situation.launch, floor_input(situation, nbytes)
    sources = {
        LAUNCH: f"{situation.shape.reduces} reduces x {launch.estimate.value:.3g} us ({launch.origin})"
        if launch
        else "",
        BOUND: f"{units.size(nbytes)}, {situation.tp} ranks, links as {bound.origin}" if bound else "",
        PROTOCOL: f"A(S) of {situation.curve.backend} ({situation.curve.latency(nbytes).origin})",
        TRANSPORT: f"A(S) of {situation.curve.backend} ({situation.curve.latency(nbytes).origin})",
        WAITING: "traces of all ranks",
        UNEXPLAINED: "one rank cannot tell, all ranks' traces can",
    }
    return sources.get(name, "the step less its reduces")
