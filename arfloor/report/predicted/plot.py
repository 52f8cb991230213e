"""The picture of a prediction: attainable, our kernels and NCCL's formula as bands, and the best schedule."""

from __future__ import annotations

from io import BytesIO
from itertools import groupby, pairwise
from math import log, sqrt
from pathlib import Path
from typing import TYPE_CHECKING

from arfloor.core import units
from arfloor.core.cases import Estimate
from arfloor.core.outlook import Outlook
from arfloor.report import style
from arfloor.report.predicted import phrases
from arfloor.report.style import Label

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Line = list[tuple[int, Estimate]]

_WIDTH = 8.6
_CAPTION = (
    "no latency was measured: bands are all figures of the description at their fast and slow ends; "
    "dotted: bound; markers: published by others"
)


def write(outlook: Outlook, folder: Path) -> list[Path]:
    """Write predicted-NAME-PATH-WORLD.png and .svg; returns the paths."""
    folder.mkdir(parents=True, exist_ok=True)
    figure = draw(outlook)
    written = []
    for kind in ("png", "svg"):
        path = folder / f"predicted-{outlook.rig}-{outlook.path}-{outlook.world}.{kind}"
        path.write_bytes(save(figure, kind))
        written.append(path)
    return written


def draw(outlook: Outlook) -> Figure:
    """Latency against size, and under it the schedule that is attainable's best."""
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    with style.styled():
        figure = Figure(figsize=(_WIDTH, 5.2))
        latency, strip = figure.subplots(2, 1, sharex=True, gridspec_kw={"height_ratios": [14, 1]})
        heading = f"{outlook.title}\n{phrases.MARK}: {outlook.world} ranks, {outlook.path} path"
        figure.suptitle(heading, x=0.01, ha="left", fontsize=11, fontweight="bold")
        style.size_axis(latency, [p.nbytes for p in outlook.rows])
        labels = _latency(latency, outlook)
        _strip(strip, outlook)
        strip.set_xlabel("message size of a rank")
        figure.text(0.01, 0.008, _CAPTION, fontsize=7.5, color=style.FAINT)
        margin = style.label_width(labels) / figure.get_figwidth()
        layout = ConstrainedLayoutEngine(rect=(0, 0.03, 1 - margin, 0.97), hspace=0.03)
        layout.execute(figure)
        figure.set_layout_engine("none")
        style.label_ends(latency, labels)
    return figure


def save(figure: Figure, kind: str) -> bytes:
    """The figure as a file of a kind, png or svg."""
    stream = BytesIO()
    with style.styled():
        figure.savefig(stream, format=kind, metadata={"Date": None} if kind == "svg" else None)
    return stream.getvalue()


def _latency(axes: Axes, outlook: Outlook) -> list[Label]:
    attainable: Line = [(p.nbytes, p.floor.attainable) for p in outlook.rows]
    bound: Line = [(p.nbytes, p.floor.bound) for p in outlook.rows]
    kernels: Line = [(p.nbytes, p.kernels) for p in outlook.rows]
    nccl: Line = [(p.nbytes, p.nccl) for p in outlook.rows if p.nccl is not None]
    labels = [_band(axes, attainable, style.FLOOR, "attainable", "--", bold=True)]
    labels.append(_band(axes, kernels, style.CONTENDERS[0].color, "our kernels, predicted", "-"))
    if nccl:
        labels.append(_band(axes, nccl, style.DEFAULT.color, "NCCL by its own formula", "-", bold=True))
    xs = [n for n, _ in bound]
    axes.plot(xs, [e.value for _, e in bound], color=style.FLOOR, linewidth=1.1, ls=":")
    labels.append(Label(text="bound", y=bound[-1][1].value, color=style.FLOOR))
    drawn = [e for line in (attainable, kernels, nccl) for _, e in line]
    lo, hi = min(e.value for _, e in bound), max(e.hi for e in drawn)
    for s, look in zip(outlook.series, style.CONTENDERS[1:], strict=False):
        points = [(n, us) for n, us in s.points if xs[0] <= n <= xs[-1]]
        if points:
            name = f"{s.backend}, published"
            axes.plot(*zip(*points, strict=True), look.marker, color=look.color, zorder=4, label=name)
            lo, hi = min(lo, *(us for _, us in points)), max(hi, *(us for _, us in points))
    style.log_axis(axes, lo / 1.4, hi * 1.2)
    axes.fill_between(xs, [e.value for _, e in bound], lo / 3, color=style.FORBIDDEN, lw=0, zorder=0)
    axes.set_ylabel("latency, us")
    if outlook.series:
        axes.legend(loc="upper left", frameon=False, fontsize=8.5, labelcolor="linecolor")
    return labels


def _band(axes: Axes, line: Line, color: str, name: str, dashes: str, *, bold: bool = False) -> Label:
    xs = [n for n, _ in line]
    axes.fill_between(xs, [e.lo for _, e in line], [e.hi for _, e in line], color=color, alpha=0.13, lw=0)
    axes.plot(xs, [e.value for _, e in line], color=color, linewidth=1.6, linestyle=dashes)
    return Label(text=style.wrapped(name), y=line[-1][1].value, color=color, bold=bold)


def _strip(axes: Axes, outlook: Outlook) -> None:
    """The schedule that attainable rests on, by size; it changes at the crossovers."""
    style.bare(axes, "best by")
    left, right = axes.get_xlim()
    if outlook.crossovers:
        names = [outlook.crossovers[0].first, *(c.second for c in outlook.crossovers)]
        cuts = [c.nbytes.value for c in outlook.crossovers]
    else:
        names, cuts = [next(k for k, _ in groupby(p.floor.algorithm for p in outlook.rows))], []
    edges = [left, *cuts, right]
    for number, (name, (lo, hi)) in enumerate(zip(names, pairwise(edges), strict=True)):
        color = style.CONTENDERS[number % len(style.CONTENDERS)].color
        axes.axvspan(lo, hi, color=color, alpha=0.25, lw=0)
        if log(hi / lo) / log(right / left) * _WIDTH * 0.7 > 0.075 * len(name):
            axes.text(sqrt(lo * hi), 0.46, name, ha="center", va="center", fontsize=8)


def alt(outlook: Outlook) -> str:
    """The picture in words."""
    p = outlook.headline
    return (
        f"Predicted latency against size; at {units.size(p.nbytes)} attainable "
        f"{phrases.spread(p.floor.attainable)} us, our kernels {phrases.spread(p.kernels)} us"
    )
