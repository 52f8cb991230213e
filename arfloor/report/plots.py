"""Pictures of a report: latency and headroom against size, per path, as PNG and SVG."""

from __future__ import annotations

import re
from collections.abc import Sequence
from io import BytesIO
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from arfloor.core import units
from arfloor.core.cases import Estimate
from arfloor.core.curves import Outlier
from arfloor.core.verdict import AT_FLOOR
from arfloor.report import style
from arfloor.report.model import Report, Section, status_spans
from arfloor.report.series import Series, series
from arfloor.report.style import Label, Look

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Points = Sequence[tuple[int, Estimate]]

_WIDTH = 8.6  # inches
_RING_PT = 11
_CAPTION = (
    "markers: latency, 95 % interval; lines: fits, thin where they switch; grey: other cases; "
    "dashed: best known schedule at measured rates; dotted: bound"
)


def write(report: Report, folder: Path) -> list[Path]:
    """Write NAME.png and NAME.svg for every section with a measurement; returns the paths."""
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for section in drawable(report):
        figure = draw(section, report.box)
        for suffix, content in ((".png", _save(figure, "png")), (".svg", _save(figure, "svg"))):
            path = folder / f"{file_name(section)}{suffix}"
            path.write_bytes(content)
            written.append(path)
    return written


def drawable(report: Report) -> list[Section]:
    """Sections that hold at least one correct measurement."""
    return [s for s in report.sections if any(row.verdict.best for row in s.rows)]


def file_name(section: Section) -> str:
    """`host-pcie-2-bfloat16-graph`, with the devices where the ranks form groups."""
    parts = [section.path, section.link, str(section.world), section.dtype, section.mode]
    if len(section.groups) > 1 or len(section.devices) != section.world:
        parts += [f"on{len(section.devices)}"]
    return re.sub(r"[^a-z0-9]+", "-", "-".join(p for p in parts if p).lower())


def inline_svg(section: Section, box: str, prefix: str) -> str:
    """The picture as an SVG element to stand in a page; `prefix` keeps its ids apart from others'."""
    return stand_alone(_save(draw(section, box), "svg").decode(), prefix)


def stand_alone(text: str, prefix: str) -> str:
    """The SVG element of a drawing, without a size of its own, its ids behind `prefix`."""
    text = text[text.index("<svg") :]
    text = re.sub(r'\bid="', f'id="{prefix}-', text)
    text = text.replace("url(#", f"url(#{prefix}-").replace('href="#', f'href="#{prefix}-')
    return re.sub(
        r'(<svg[^>]*?) width="[^"]*" height="[^"]*"|(<svg[^>]*?) height="[^"]*" width="[^"]*"',
        r"\1\2",
        text,
        count=1,
    )


def draw(section: Section, box: str) -> Figure:
    """Three panels over one size axis: latency with fits and floor, the verdicts, the headroom."""
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    with style.styled():
        figure = Figure(figsize=(_WIDTH, 6.4))
        latency, strip, headroom = figure.subplots(
            3, 1, sharex=True, gridspec_kw={"height_ratios": [10, 0.7, 4.5], "hspace": 0.03}
        )
        figure.suptitle(f"{box}: {section.title}", x=0.01, ha="left", fontsize=11, fontweight="bold")
        sizes = [row.nbytes for row in section.rows]
        style.size_axis(latency, sizes)
        latency_labels, outliers = _latency(latency, section)
        _strip(strip, section)
        headroom_labels = _headroom(headroom, section)
        headroom.set_xlabel("message size of a rank")
        figure.text(0.01, 0.008, _CAPTION, fontsize=7.5, color=style.FAINT)
        margin = style.label_width([*latency_labels, *headroom_labels]) / figure.get_figwidth()
        layout = ConstrainedLayoutEngine(rect=(0, 0.025, 1 - margin, 0.975), hspace=0.03)
        layout.execute(figure)
        figure.set_layout_engine("none")  # what labels are placed by is settled; they must not move it
        style.label_ends(latency, latency_labels)
        style.label_ends(headroom, headroom_labels)
        _name_outliers(latency, outliers)
    return figure


def _latency(axes: Axes, section: Section) -> tuple[list[Label], list[tuple[Outlier, str]]]:
    """Labels of what was drawn, and the outliers of its fits with their colours."""
    drawn = series(section)
    labels: list[Label] = []
    outliers: list[tuple[Outlier, str]] = []
    contenders = iter(style.CONTENDERS)
    everything = [e for s in drawn for _, e in s.points]
    for s in drawn:
        if s.role == "other":
            xs, ys = zip(*((x, e.value) for x, e in s.points), strict=True)
            axes.plot(xs, ys, color=style.FAINT, linewidth=0.7, alpha=0.5, zorder=1)
            continue
        look = style.DEFAULT if s.role == "default" else next(contenders)
        labels.append(_one(axes, s, look))
        outliers += [(outlier, look.color) for outlier in s.fit.outliers] if s.fit else []
    floors = _floor_lines(axes, section)
    everything += [e for points in floors.values() for _, e in points]
    lo, hi = _window(everything)
    style.log_axis(axes, lo, hi)
    if floors:
        _forbidden(axes, floors["bound"], lo)
        labels += [
            Label(text="attainable", y=floors["attainable"][-1][1].value, color=style.FLOOR, bold=True),
            Label(text="bound", y=floors["bound"][-1][1].value, color=style.FLOOR),
        ]
    axes.set_ylabel("latency, us")
    return labels, outliers


def _window(estimates: Sequence[Estimate]) -> tuple[float, float]:
    """Limits that show every value; an interval of several decades runs out of the picture."""
    least, most = min(e.value for e in estimates), max(e.value for e in estimates)
    lo = max(min(e.lo for e in estimates), least / 4)
    hi = min(max(e.hi for e in estimates), most * 4)
    return lo / 1.4, hi * 1.3


def _one(axes: Axes, s: Series, look: Look) -> Label:
    """Points with their intervals, the fit as a line, outliers of the fit ringed."""
    _dots(axes, s.points, look)
    end = s.points[-1][1].value
    if s.fit is not None:
        for piece in s.fit.segments:
            xs = np.geomspace(piece.start, piece.end, 60)
            axes.plot(xs, [piece.us(x) for x in xs], color=look.color, linewidth=1.3, zorder=3)
        for one, other in pairwise(s.fit.segments):
            ends = [one.us(one.end), other.us(other.start)]
            axes.plot([one.end, other.start], ends, color=look.color, linewidth=0.7, alpha=0.6, zorder=2)
        for outlier in s.fit.outliers:
            axes.plot(outlier.nbytes, outlier.us, "o", mfc="none", mec=look.color, ms=_RING_PT, mew=1.2)
    name = f"{s.label} (default)" if s.role == "default" else s.label
    return Label(text=style.wrapped(name), y=end, color=look.color, bold=s.role == "default")


def _name_outliers(axes: Axes, outliers: Sequence[tuple[Outlier, str]]) -> None:
    """What each was and should have been, beside its ring; from the right on, above what is in the way."""
    from matplotlib.transforms import Bbox

    dpi = axes.get_figure(root=True).dpi
    centres = [axes.transData.transform((o.nbytes, o.us)) for o, _ in outliers]
    taken = [Bbox((c - _RING_PT / 2 * dpi / 72, c + _RING_PT / 2 * dpi / 72)) for c in centres]
    for outlier, color in sorted(outliers, key=lambda o: (-o[0].nbytes, o[0].us)):
        text = axes.annotate(
            f"{units.us(outlier.us)}, fit {units.number(outlier.expected_us)}",
            (outlier.nbytes, outlier.us),
            xytext=(9, 4),
            textcoords="offset points",
            fontsize=7.5,
            color=color,
        )
        box = start = text.get_window_extent()
        while hit := [other for other in taken if other.overlaps(box)]:
            box = box.translated(0, max(other.y1 for other in hit) + 1 - box.y0)
        text.xyann = (9, 4 + (box.y0 - start.y0) * 72 / dpi)
        taken.append(box)


def _dots(axes: Axes, points: Points, look: Look) -> None:
    xs = [x for x, _ in points]
    ys = np.array([e.value for _, e in points])
    below = np.maximum(ys - np.array([e.lo for _, e in points]), 0)
    above = np.maximum(np.array([e.hi for _, e in points]) - ys, 0)
    axes.errorbar(
        xs,
        ys,
        yerr=(below, above),
        fmt=look.marker,
        color=look.color,
        markersize=4,
        elinewidth=1,
        capsize=1.8,
        zorder=4,
    )


def _floor_lines(axes: Axes, section: Section) -> dict[str, list[tuple[int, Estimate]]]:
    attainable = [(r.nbytes, r.verdict.attainable) for r in section.rows if r.verdict.attainable]
    bound = [(r.nbytes, r.verdict.bound) for r in section.rows if r.verdict.bound]
    if not attainable or not bound:
        return {}
    xs = [x for x, _ in attainable]
    axes.plot(
        xs, [e.value for _, e in attainable], color=style.FLOOR, linewidth=1.6, linestyle="--", zorder=2
    )
    least = dict(bound)  # a wide interval of what was measured may reach below what is possible
    lows = [max(e.lo, least[x].value) if x in least else e.lo for x, e in attainable]
    axes.fill_between(xs, lows, [e.hi for _, e in attainable], color=style.FLOOR, alpha=0.12, lw=0)
    axes.plot(
        [x for x, _ in bound], [e.value for _, e in bound], color=style.FLOOR, linewidth=1.1, zorder=2, ls=":"
    )
    return {"attainable": attainable, "bound": bound}


def _forbidden(axes: Axes, bound: Points, bottom: float) -> None:
    xs = [x for x, _ in bound]
    axes.fill_between(xs, [e.value for _, e in bound], bottom / 2, color=style.FORBIDDEN, lw=0, zorder=0)
    axes.text(
        0.975,
        0.05,
        "no software gets here",
        transform=axes.transAxes,
        ha="right",
        fontsize=8,
        style="italic",
        color=style.FAINT,
    )


def _strip(axes: Axes, section: Section) -> None:
    """One coloured bar a run of sizes with the same verdict, the verdict's name on it."""
    style.bare(axes, "verdict")
    sizes = [row.nbytes for row in section.rows]
    left, right = axes.get_xlim()
    edges = [left, *(float(np.sqrt(a * b)) for a, b in pairwise(sizes)), right]
    start = 0
    for status, members in status_spans(section):
        end = start + len(members)
        lo, hi = edges[start], edges[end]
        axes.axvspan(lo, hi, color=style.STATUS[status], alpha=0.28, lw=0)
        room = np.log(hi / lo) / np.log(right / left) * axes.get_position().width * _WIDTH
        if room > 0.085 * len(status):
            axes.text(
                float(np.sqrt(lo * hi)), 0.46, status.replace("_", " "), ha="center", va="center", fontsize=8
            )
        start = end


def _headroom(axes: Axes, section: Section) -> list[Label]:
    now = [(r.nbytes, r.verdict.headroom_now) for r in section.rows if r.verdict.headroom_now]
    left = [(r.nbytes, r.verdict.headroom_left) for r in section.rows if r.verdict.headroom_left]
    labels = []
    rows = (
        (now, style.DEFAULT, "now: default / best"),
        (left, style.CONTENDERS[0], "left: best / attainable"),
    )
    drawn = [Estimate(value=v, lo=v, hi=v, n=0, unit="ratio") for v in (1.0, 1.8)]
    for points, look, name in rows:
        if points:
            _dots(axes, points, look)
            axes.plot([x for x, _ in points], [e.value for _, e in points], color=look.color, linewidth=1.2)
            labels.append(Label(text=style.wrapped(name), y=points[-1][1].value, color=look.color))
            drawn += [e for _, e in points]
    bottom, top = _window(drawn)
    style.log_axis(axes, bottom * 1.25, top / 1.13, unit="x", steps=(1, 1.5, 2, 3, 5, 7))
    axes.axhspan(1, AT_FLOOR, color=style.STATUS["at_floor"], alpha=0.13, lw=0, zorder=0)
    if left and top < 40:  # else the band is too thin for words
        axes.text(
            0.012,
            1.01,
            "at the floor",
            transform=axes.get_yaxis_transform(),
            va="bottom",
            fontsize=7.5,
            style="italic",
            color=style.FAINT,
            zorder=1,
        )
    axes.axhline(1, color=style.FAINT, linewidth=0.9)
    axes.set_ylabel("headroom")
    return labels


def _save(figure: Figure, kind: str) -> bytes:
    stream = BytesIO()
    with style.styled():
        figure.savefig(stream, format=kind, metadata={"Date": None} if kind == "svg" else None)
    return stream.getvalue()
