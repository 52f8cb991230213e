"""The waterfall: where a step's time goes and what each change takes from it, then tokens a second."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from arfloor.core import units
from arfloor.core.errors import InputError
from arfloor.core.whatif import partition as parts
from arfloor.core.whatif.scenario import Stage
from arfloor.report.style import FAINT, INK, styled
from arfloor.report.whatif.question import Whatif

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's palette, which colour-blind readers can tell apart
COLOURS = {
    parts.REST: "#c9c9c9",
    parts.LAUNCH: "#56b4e9",
    parts.BOUND: "#0072b2",
    parts.PROTOCOL: "#e69f00",
    parts.TRANSPORT: "#e69f00",
    parts.WAITING: "#cc79a7",
    parts.UNEXPLAINED: "#f0e442",
}
_VISIBLE = 0.003
"""Share of a step from which a part's bar can be seen, so that the legend names it."""
SAVED, COST = "#009e73", "#d55e00"


def save(answer: Whatif, path: Path) -> None:
    """Draw to a file; its ending (.png, .svg, .pdf) is the format. Raises InputError when it cannot."""
    kind = path.suffix.lower().lstrip(".")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with styled():
            figure(answer).savefig(path, format=kind, metadata={"Date": None} if kind == "svg" else None)
    except OSError as error:
        raise InputError(
            f"--plot {path}: cannot be written ({error.strerror}); give another place"
        ) from error


def figure(answer: Whatif) -> Figure:
    """The waterfall as a matplotlib figure; draw and save it within `style.styled`."""
    from matplotlib.figure import Figure

    rows = _rows(answer)
    fig = Figure(figsize=(11, 1.7 + 0.42 * (len(rows) + 2)), layout="constrained")
    time, speed = fig.subplots(1, 2, sharey=True, width_ratios=[3, 2])
    _times(time, answer, rows)
    _speeds(speed, answer, rows)
    s, a = answer.situation, answer.analysis
    fig.suptitle(
        f"{s.shape.name}, TP{s.tp}, concurrency {a.sequences}: {s.curve.backend} of {answer.latencies.label}",
        fontweight="bold",
    )
    return fig


def _rows(answer: Whatif) -> list[tuple[Stage, float, bool]]:
    """Stages in order, with the time a token each starts from (ms), and whether it follows another."""
    rows = []
    for scenario in (*answer.analysis.scenarios, answer.analysis.free):
        at = answer.analysis.token_us.estimate.value / 1e3
        for i, stage in enumerate(scenario.stages):
            rows.append((stage, at, i > 0))
            at -= stage.saved_us.estimate.value / 1e3
    return rows


def _times(axes: Axes, answer: Whatif, rows: list[tuple[Stage, float, bool]]) -> None:
    left = 0.0
    partition = answer.analysis.partition
    for part in (partition.parts[-1], *partition.reduce_parts):
        width = part.us.estimate.value / 1e3
        label = part.name if part.share.estimate.value >= _VISIBLE else None
        axes.barh(0, width, left=left, color=COLOURS[part.name], label=label, height=0.62)
        left += width
    axes.axvline(left, color=FAINT, linewidth=0.8, linestyle=":")
    for y, (stage, start, _) in enumerate(rows, start=1):
        saved = stage.saved_us.estimate
        axes.barh(y, -saved.value / 1e3, left=start, color=SAVED if saved.value >= 0 else COST, height=0.62)
        middle = start - saved.value / 1e3
        ends = [[(saved.hi - saved.value) / 1e3], [(saved.value - saved.lo) / 1e3]]
        axes.errorbar(middle, y, xerr=ends, color=INK, capsize=3, linewidth=1)
    labels = ["today", *(("+ " if follows else "") + stage.label for stage, _, follows in rows)]
    axes.set_yticks(range(len(labels)), labels)
    axes.invert_yaxis()
    axes.set_xlabel("time per token of a sequence, ms (bars: saved green, cost orange; lines: 95 %)")
    axes.legend(fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.14), ncols=3, frameon=False)
    axes.set_xlim(left=0)
    axes.grid(visible=False, axis="y")


def _speeds(axes: Axes, answer: Whatif, rows: list[tuple[Stage, float, bool]]) -> None:
    estimates = [answer.analysis.tok_s.estimate, *(stage.tok_s.estimate for stage, _, _ in rows)]
    today = estimates[0].value
    axes.axvline(today, color=FAINT, linewidth=0.8, linestyle=":")
    for y, e in enumerate(estimates):
        axes.errorbar(
            e.value,
            y,
            xerr=[[e.value - e.lo], [e.hi - e.value]],
            fmt="o",
            color=INK if y == 0 else SAVED if e.value >= today else COST,
            capsize=3,
        )
        gain = "" if y == 0 else f"  {(e.value / today - 1) * 100:+.1f} %"
        axes.annotate(
            f"{units.number(e.value)}{gain}",
            (1.02, y),
            xycoords=("axes fraction", "data"),
            va="center",
            fontsize=9,
            annotation_clip=False,
        )
    axes.set_xlabel("tokens a second, all sequences (95 %)")
    axes.margins(x=0.05)
    axes.grid(visible=False, axis="y")
