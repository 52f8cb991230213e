"""A box drawn as SVG: sockets, host bridges, switches, GPUs as nested frames; links between GPUs as arcs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from xml.sax.saxutils import escape

from arfloor.core.box import Box, Place

_GPU_W, _GPU_H, _PAD, _HEAD, _GAP = 132, 60, 12, 22, 14
_TITLE, _MARGIN, _ARCS = 34, 18, 26
# an Okabe-Ito based set: told apart with and without colour vision, readable on white and on dark
_FILL = {"socket": "#f4f6f8", "host_bridge": "#e6ebf0", "root_port": "#dbe3ea", "switch": "#cfe3f5"}
_NAMES = {"host_bridge": "host bridge", "root_port": "root port", "switch": "switch"}
_GOOD, _BAD, _NVLINK = "#009e73", "#d55e00", "#0072b2"


@dataclass(slots=True)
class _Frame:
    place: Place
    children: list[_Frame]
    x: float = 0
    y: float = 0
    w: float = _GPU_W
    h: float = _GPU_H

    def walk(self) -> Iterator[_Frame]:
        yield self
        for child in self.children:
            yield from child.walk()


def render(box: Box) -> str:
    """The drawing as a standalone SVG document. GPUs of unknown place stand beside the tree."""
    roots = _frames(box)
    x: float = _MARGIN
    for root in roots:
        _lay_out(root)
        _move(root, x, _TITLE + _MARGIN)
        x += root.w + _GAP
    leaves = {f.place.id: f for r in roots for f in r.walk() if f.place.kind == "gpu"}
    bottom = max((r.y + r.h for r in roots), default=_TITLE + _MARGIN)
    for root in roots:
        root.h = bottom - root.y
    arcs = list(_arcs(box, leaves, bottom))
    levels = max((depth for _, depth in arcs), default=0)
    legend = _legend(box)
    height = bottom + (_ARCS + 16 * levels if arcs else 0) + 20 * len(legend) + _MARGIN
    width = max(x - _GAP + _MARGIN, 420)
    body = [_text(_MARGIN, 24, f"{box.source}: {len(box.gpus)} GPUs", 15, bold=True)]
    body += [part for root in roots for part in _draw(box, root)]
    body += [part for part, _ in arcs]
    for number, (color, text) in enumerate(legend):
        y = height - _MARGIN - 20 * (len(legend) - 1 - number)
        body.append(
            f'<line x1="{_MARGIN}" y1="{y - 4:.0f}" x2="{_MARGIN + 26}" y2="{y - 4:.0f}" {_stroke(color)}/>'
        )
        body.append(_text(_MARGIN + 34, y, text, 12))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}" '
        f'viewBox="0 0 {width:.0f} {height:.0f}" font-family="system-ui, sans-serif" role="img" '
        f'aria-label="{escape(f"topology of {len(box.gpus)} GPUs", {chr(34): "&quot;"})}">'
        f'<rect width="100%" height="100%" fill="#ffffff"/>{"".join(body)}</svg>\n'
    )


def _frames(box: Box) -> list[_Frame]:
    """The places as nested frames; a place that leads to no GPU or adapter is left out."""
    below: dict[str | None, list[Place]] = defaultdict(list)
    known = {p.id for p in box.places}
    for place in box.places:
        below[place.parent if place.parent in known else None].append(place)
    seen: set[str] = set()

    def build(place: Place) -> _Frame | None:
        if place.id in seen:
            return None  # a loop in bad input
        seen.add(place.id)
        children = [f for c in below[place.id] if (f := build(c)) is not None]
        return _Frame(place, children) if children or place.kind in ("gpu", "nic") else None

    roots = [f for p in below[None] if (f := build(p)) is not None]
    roots += [_Frame(Place(id=g.id, kind="gpu"), []) for g in box.gpus if g.id not in known]
    return roots


def _lay_out(frame: _Frame) -> None:
    """Sizes from the leaves up: children stand side by side, at most eight in a row."""
    for child in frame.children:
        _lay_out(child)
    if not frame.children:
        return
    frame.w = max(sum(c.w for c in frame.children) + _GAP * (len(frame.children) - 1) + 2 * _PAD, _GPU_W)
    frame.h = max(c.h for c in frame.children) + _HEAD + 2 * _PAD


def _move(frame: _Frame, x: float, y: float) -> None:
    frame.x, frame.y = x, y
    at = x + _PAD
    for child in frame.children:
        _move(child, at, y + _HEAD + _PAD)
        at += child.w + _GAP


def _draw(box: Box, frame: _Frame) -> Iterator[str]:
    place = frame.place
    if frame.children:
        bad = place.acs_redirect and place.kind == "switch"
        yield _box(frame, _FILL.get(place.kind, "#ffffff"), _BAD if bad else "#8795a1")
        title = (
            (f"NUMA node {place.numa}" if place.numa is not None else place.id)
            if place.kind == "socket"
            else f"{_NAMES.get(place.kind, place.kind)} {place.bus_id or place.id}"
        )
        yield _text(frame.x + _PAD, frame.y + 19, title + ("  ACS redirect on" if bad else ""), 12)
        for child in frame.children:
            yield from _draw(box, child)
        return
    gpu = place.kind == "gpu"
    yield _box(frame, "#eaf7f1" if gpu else "#fff6e0", _GOOD if gpu else "#b58900")
    facts = next((g for g in box.gpus if g.id == place.id), None)
    name = (facts.name if facts else "") or place.name
    yield _text(frame.x + 8, frame.y + 18, place.id, 13, bold=True)
    yield _text(frame.x + 8, frame.y + 35, _short(name.removeprefix("NVIDIA ")), 11)
    link = place.link
    if link is not None and (link.gen or link.width):
        low = link.narrow or link.slow
        now = f"Gen{link.gen or '?'} x{link.width or '?'}"
        now += f" of Gen{link.gen_max or '?'} x{link.width_max or '?'}" if low else ""
        yield _text(frame.x + 8, frame.y + 51, now, 11, color=_BAD if low else "#1f2933")
    elif link is not None and link.stated_gbps:
        yield _text(frame.x + 8, frame.y + 51, f"{link.stated_gbps:.1f} GB/s", 11)


def _short(text: str) -> str:
    return text if len(text) <= 19 else text[:18] + "…"


def _arcs(box: Box, leaves: dict[str, _Frame], bottom: float) -> Iterator[tuple[str, int]]:
    """One arc under the tree for each neighbouring pair with NVLink, or a refusal; (SVG, depth).

    With many GPUs an arc for each pair would be a thicket: pairs that are all alike are one line that
    spans them.
    """
    ids = [g.id for g in box.gpus if g.id in leaves]
    kinds = {(a, b): _kind(box, a, b) for i, a in enumerate(ids) for b in ids[i + 1 :]}
    known = {k for k in kinds.values() if k is not None}
    if len(ids) > 4 and len(known) == 1 and None not in kinds.values():
        pairs = [((ids[0], ids[-1]), known.pop(), f"all {len(ids)} GPUs: ")]
    else:
        pairs = [(pair, kind, "") for pair, kind in kinds.items() if kind is not None]
        pairs = pairs if len(pairs) <= 12 else []
    ends = [i for (pair, _, _) in pairs for i in pair]
    taken: dict[str, int] = defaultdict(int)

    def anchor(name: str) -> float:
        """The next of the evenly spaced points under a GPU, so that arcs do not lie on each other."""
        taken[name] += 1
        return leaves[name].x + leaves[name].w * taken[name] / (ends.count(name) + 1)

    for depth, ((a, b), (color, text), prefix) in enumerate(pairs, start=1):
        xa, xb = anchor(a), anchor(b)
        ya, yb = (leaves[i].y + leaves[i].h for i in (a, b))
        low = bottom + 4 + 16 * depth
        path = f"M{xa:.0f} {ya:.0f}V{low:.0f}H{xb:.0f}V{yb:.0f}"
        arc = f'<path d="{path}" fill="none" {_stroke(color)}/>'
        yield arc + _label((xa + xb) / 2, low, prefix + text), depth


def _label(x: float, y: float, text: str) -> str:
    """Text that breaks the line it stands on."""
    half = 3.1 * len(text) + 4
    blank = f'<rect x="{x - half:.0f}" y="{y - 7:.0f}" width="{2 * half:.0f}" height="14" fill="#ffffff"/>'
    return (
        blank + f'<text x="{x:.0f}" y="{y + 4:.0f}" font-size="11" text-anchor="middle">{escape(text)}</text>'
    )


def _kind(box: Box, a: str, b: str) -> tuple[str, str] | None:
    pair = box.pair(a, b) or box.pair(b, a)
    if pair is None:
        return None
    if pair.read not in (None, "OK"):
        return _BAD, f"no P2P ({pair.read})"
    if pair.nvlinks:
        return _NVLINK, f"{pair.nvlinks} {pair.fabric} links"
    return (_GOOD, f"P2P {pair.relation or ''}".strip()) if pair.read == "OK" else None


def _legend(box: Box) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    if any(p.nvlinks for p in box.pairs):
        found.append((_NVLINK, "bonded links between GPUs"))
    if any(p.read == "OK" and not p.nvlinks for p in box.pairs):
        found.append((_GOOD, "peer access over PCIe, by the driver's word"))
    if any(p.read not in (None, "OK") for p in box.pairs):
        found.append((_BAD, "no peer access: traffic goes through host memory"))
    return found


def _box(frame: _Frame, fill: str, stroke: str) -> str:
    return (
        f'<rect x="{frame.x:.0f}" y="{frame.y:.0f}" width="{frame.w:.0f}" height="{frame.h:.0f}" rx="6" '
        f'fill="{fill}" stroke="{stroke}"/>'
    )


def _stroke(color: str) -> str:
    return f'stroke="{color}" stroke-width="2"'


def _text(x: float, y: float, text: str, size: int, *, bold: bool = False, color: str = "#1f2933") -> str:
    weight = ' font-weight="600"' if bold else ""
    return f'<text x="{x:.0f}" y="{y:.0f}" font-size="{size}" fill="{color}"{weight}>{escape(text)}</text>'
