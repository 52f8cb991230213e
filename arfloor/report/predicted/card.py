"""A prediction as a Markdown card of at most 30 lines."""

from __future__ import annotations

from arfloor import __version__
from arfloor.core import units
from arfloor.core.outlook import Outlook
from arfloor.report.predicted import phrases

MAX_LINES = 30
_SIZES = (8_192, 65_536, 262_144, 1_048_576)


def render(outlook: Outlook, worth: str = "") -> str:
    """The card. Every figure in it is predicted, which its first lines and its table say."""
    lines = [
        f"### arfloor: predicted all-reduce floor of {outlook.title}",
        "",
        f"**{outlook.sentences[0]}**",
        "",
        f"{phrases.title(outlook)}. {' '.join(outlook.sentences[1:])}",
        "",
        *_table(outlook),
        "",
    ]
    at = units.size(outlook.headline.nbytes)
    if outlook.choices:
        best = "; ".join(
            f"{', '.join(c.gpus)}: {phrases.spread(c.attainable)} us" for c in outlook.choices[:3]
        )
        lines += [f"Which {outlook.world} GPUs (predicted, attainable at {at}): {best}.", ""]
    lines += [f"Note: {note}" for note in outlook.notes[:2]]
    lines += [""] if outlook.notes else []
    lines += [worth, ""] if worth else []
    how = "Intervals: all its figures at their ends at once."
    lines.append(f"<sub>{phrases.basis(outlook)} {how} arfloor {__version__}</sub>")
    return "\n".join(lines) + "\n"


def _table(outlook: Outlook) -> list[str]:
    at = {p.nbytes: p for p in (*outlook.rows, outlook.headline)}
    header = (
        "predicted, us",
        "NCCL by its formula",
        "our kernels",
        "attainable",
        "by",
        "bound",
        "NCCL / attainable",
    )
    lines = [f"| {' | '.join(header)} |", "|" + "---:|" * len(header)]
    for nbytes in (n for n in _SIZES if n in at):
        p = at[nbytes]
        nccl = f"{phrases.spread(p.nccl)} {p.nccl_choice}" if p.nccl else ""
        cells = (
            units.size(nbytes),
            nccl,
            phrases.spread(p.kernels),
            phrases.spread(p.floor.attainable),
            p.floor.algorithm,
            units.number(p.floor.bound.value),
            phrases.times_the_floor(p),
        )
        lines.append(f"| {' | '.join(cells)} |")
    return lines
