"""How every picture looks: colours, type, axes, and labels that stand beside what they name.

Colours are those of Okabe and Ito (2008), which stay apart for the common kinds of colour blindness;
each role also has its own marker and line, so that a print in grey can be read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from textwrap import wrap
from typing import TYPE_CHECKING, Any

from arfloor.core import units

if TYPE_CHECKING:
    from matplotlib.axes import Axes

INK = "#222222"
FAINT = "#8a8a8a"
GRID = "#e6e6e6"
FORBIDDEN = "#f1efe9"
FLOOR = "#000000"


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """How a series is drawn: matplotlib's colour, marker and line style."""

    color: str
    marker: str
    line: str = "-"


DEFAULT = Look(color="#D55E00", marker="o")
# contenders in the order in which they are shown; the default has a colour of its own
CONTENDERS = (
    Look(color="#0072B2", marker="s"),
    Look(color="#009E73", marker="^"),
    Look(color="#CC79A7", marker="D"),
    Look(color="#56B4E9", marker="v"),
)
STATUS = {
    "switch": "#0072B2",
    "at_floor": "#009E73",
    "gap": "#E69F00",
    "undecided": "#CC79A7",
    "no_data": "#8a8a8a",
}

_RC: dict[str, Any] = {
    "font.family": "sans-serif",
    # Verdana has the widths of DejaVu Sans, so a browser without the latter places text alike
    "font.sans-serif": ["DejaVu Sans", "Verdana", "sans-serif"],
    "font.size": 9,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": FAINT,
    "axes.titlesize": 10,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.grid": True,
    "grid.color": GRID,
    "grid.linewidth": 0.8,
    "xtick.color": INK,
    "ytick.color": INK,
    "xtick.minor.visible": False,
    "lines.linewidth": 1.6,
    "lines.markersize": 4,
    "figure.dpi": 100,
    "savefig.dpi": 160,
    "svg.fonttype": "none",
    "svg.hashsalt": "arfloor",
}


@contextmanager
def styled() -> Iterator[None]:
    """Draw in the project's style, and in no window: the Agg canvas needs no display."""
    import matplotlib as mpl

    with mpl.rc_context(_RC):
        yield


def size_axis(axes: Axes, sizes: Sequence[int]) -> None:
    """A log axis of message sizes with ticks at powers of four, named as people name them."""
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    axes.set_xscale("log", base=2)
    lo, hi = min(sizes), max(sizes)
    axes.set_xlim(lo / 1.15, hi * 1.15 if hi > lo else hi * 2)
    ticks = [1 << p for p in range(0, 41, 2) if lo / 1.15 <= 1 << p <= hi * 1.15]
    if len(ticks) < 2:
        ticks = sorted(set(sizes))
    axes.xaxis.set_major_locator(FixedLocator(ticks))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: units.size(round(x))))


def log_axis(
    axes: Axes, lo: float, hi: float, *, unit: str = "", steps: tuple[float, ...] = (1, 2, 5)
) -> None:
    """A log axis of values from `lo` to `hi` with plain numbers at the `steps` of each decade.

    Too many ticks are thinned to the powers of ten.
    """
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    axes.set_yscale("log")
    axes.set_ylim(lo, hi)
    ticks = [m * 10.0**e for e in range(-4, 9) for m in steps if lo <= m * 10.0**e <= hi]
    if len(ticks) > 10:
        ticks = [10.0**e for e in range(-4, 9) if lo <= 10.0**e <= hi]
    axes.yaxis.set_major_locator(FixedLocator(ticks))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{_plain(y)}{unit}"))


def bare(axes: Axes, label: str) -> None:
    """Axes as a strip under a picture: 0 to 1, no ticks or frame, a label at the left."""
    axes.set_ylim(0, 1)
    axes.set_yticks([])
    axes.set_ylabel(label, rotation=0, ha="right", va="center", fontsize=8)
    axes.grid(False)
    for spine in axes.spines.values():
        spine.set_visible(False)
    axes.tick_params(axis="x", length=0)


def _plain(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:g}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Label:
    """A name to be written at the right end of what it names, at height `y` in data."""

    text: str
    y: float
    color: str
    bold: bool = False


def label_width(labels: Sequence[Label]) -> float:
    """Inches of right margin that the labels need, their joining lines included."""
    longest = max((len(line) for label in labels for line in label.text.splitlines()), default=0)
    return 0.45 + 0.066 * longest


def label_ends(axes: Axes, labels: Sequence[Label], *, gap_points: float = 11.0) -> None:
    """Write the labels in the right margin, each at its own height, pushed apart where they would touch.

    Call after the limits are set. A thin line joins a label to its place when it had to move.
    """
    figure = axes.figure
    height_points = axes.get_position().height * figure.get_size_inches()[1] * 72
    heights = [gap_points * (1 + label.text.count("\n")) / height_points for label in labels]
    to_axes = axes.transData + axes.transAxes.inverted()
    wanted = [float(to_axes.transform((axes.get_xlim()[1], label.y))[1]) for label in labels]
    placed = spread(wanted, heights)
    for label, start, end in zip(labels, wanted, placed, strict=True):
        axes.plot(
            [1.0, 1.02, 1.035],
            [start, end, end],
            transform=axes.transAxes,
            color=label.color,
            linewidth=0.8,
            clip_on=False,
            solid_capstyle="butt",
        )
        axes.text(
            1.045,
            end,
            label.text,
            transform=axes.transAxes,
            color=label.color,
            va="center",
            ha="left",
            fontsize=8.5,
            fontweight="bold" if label.bold else "normal",
        )


def spread(
    wanted: Sequence[float], heights: Sequence[float], lo: float = 0.0, hi: float = 1.0
) -> list[float]:
    """Middles nearest to `wanted`, in the same order, of labels that do not touch; within lo..hi if they fit.

    Neighbours that would touch become a group about the mean of what they wanted (pool adjacent
    violators), so that a crowd spreads both ways.
    """
    if not wanted:
        return []
    order = sorted(range(len(wanted)), key=lambda i: wanted[i])
    offsets = [0.0]
    for below, above in pairwise(order):
        offsets.append(offsets[-1] + (heights[below] + heights[above]) / 2)
    groups: list[tuple[float, int]] = []  # mean of (wanted - offset), members
    for offset, i in zip(offsets, order, strict=True):
        mean, count = wanted[i] - offset, 1
        while groups and groups[-1][0] > mean:
            other, members = groups.pop()
            mean, count = (mean * count + other * members) / (count + members), count + members
        groups.append((mean, count))
    base = [mean for mean, count in groups for _ in range(count)]
    placed = [0.0] * len(wanted)
    for at, offset, i in zip(base, offsets, order, strict=True):
        placed[i] = min(max(at, lo), max(lo, hi - offsets[-1])) + offset
    return placed


def wrapped(text: str, width: int = 26, lines: int = 3) -> str:
    """Text broken into at most `lines` lines; what does not fit is cut with an ellipsis."""
    broken = wrap(text, width)
    if len(broken) > lines:
        broken = [*broken[: lines - 1], broken[lines - 1][: width - 1] + "…"]
    return "\n".join(broken)
