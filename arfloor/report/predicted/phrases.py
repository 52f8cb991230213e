"""What the text, the card and the page of a prediction share."""

from __future__ import annotations

from arfloor.core import units
from arfloor.core.cases import Estimate
from arfloor.core.outlook import Outlook
from arfloor.core.predict import Prediction

MARK = "PREDICTED, not measured"


def title(outlook: Outlook) -> str:
    """`4 of its 8 GPUs over peer: gpu0, gpu1, gpu2, gpu3`."""
    ranks = ", ".join(outlook.headline.ranks)
    return f"{outlook.world} ranks, {outlook.path} path, bfloat16, graph, on {ranks}"


def basis(outlook: Outlook) -> str:
    """What the figures rest on, in a sentence."""
    return f"{MARK}: computed from {outlook.source}."


def spread(e: Estimate | None) -> str:
    """`10.2 [9.32, 12.4]`, or an empty string."""
    return "" if e is None else f"{units.number(e.value)} {units.ends(e.lo, e.hi)}"


def times_the_floor(p: Prediction) -> str:
    """NCCL by its formula over attainable, both predicted."""
    return "" if p.nccl is None else units.ratio(p.nccl.value / p.floor.attainable.value)


def groups(names: tuple[tuple[str, ...], ...]) -> str:
    """`gpu0+gpu1 and gpu2+gpu3`."""
    return " and ".join("+".join(group) for group in names)
