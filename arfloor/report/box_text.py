"""A box, its findings and what engines can use there, as text for a terminal (rich)."""

from __future__ import annotations

from collections.abc import Sequence
from io import StringIO

from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text
from rich.tree import Tree

from arfloor.core.box import RELATION_MEANING, Box, Place
from arfloor.core.engines import EngineUse
from arfloor.core.findings import Finding

_MARKS = {"problem": "PROBLEM", "warning": "warning", "note": "note", "unknown": "unknown", "ok": "ok"}
_STYLES = {"problem": "bold red", "warning": "yellow", "note": "cyan", "unknown": "magenta", "ok": "green"}
_KINDS = {
    "socket": "NUMA node",
    "host_bridge": "host bridge",
    "root_port": "root port",
    "switch": "PCIe switch",
}


def render(
    box: Box,
    findings: Sequence[Finding],
    uses: Sequence[EngineUse],
    warnings: Sequence[str] = (),
    *,
    width: int = 110,
    color: bool = False,
) -> str:
    """The whole diagnosis as text: tree, ways between GPUs, findings, engines."""
    stream = StringIO()
    console = Console(
        file=stream, width=width, force_terminal=color, no_color=not color, highlight=False, markup=True
    )
    for warning in warnings:
        console.print(f"[yellow]{escape(warning)}[/]")
    console.print(tree(box))
    if len(box.gpus) > 1:
        console.print()
        console.print(_ways(box))
    console.print()
    for finding in findings:
        _print_finding(console, finding)
    if uses:
        console.print()
        _print_engines(console, uses)
    return stream.getvalue()


def tree(box: Box) -> Tree:
    """The PCIe tree with GPUs and adapters; devices of unknown place hang off the top."""
    limits = box.limits
    facts = [f"{limits.cpus} CPUs" if limits.cpus else "", f"kernel {limits.kernel}" if limits.kernel else ""]
    facts.append(f"driver {limits.driver}" if limits.driver else "")
    title = ", ".join([box.source, *(f for f in facts if f)])
    top = Tree(escape(title))
    nodes: dict[str, Tree] = {}
    placed = {p.id for p in box.places}
    waiting = list(box.places)
    while waiting:
        ready = [p for p in waiting if p.parent is None or p.parent in nodes or p.parent not in placed]
        if not ready:  # a loop in bad input: show what is left, flat
            ready = waiting
        for place in ready:
            nodes[place.id] = nodes.get(place.parent or "", top).add(escape(label(box, place)))
        waiting = [p for p in waiting if p.id not in nodes]
    for gpu in box.gpus:
        if gpu.id not in placed:
            top.add(escape(f"{gpu.id} {gpu.name}".strip() + " (its place is not known)"))
    if not box.gpus:
        top.add("no GPU")
    return top


def label(box: Box, place: Place) -> str:
    """One line for a place: kind or GPU, name, bus id, link."""
    facts = next((g for g in box.gpus if g.id == place.id), None)
    words = [_KINDS.get(place.kind, place.id)]
    if place.kind == "socket":
        words = [f"NUMA node {place.numa}" if place.numa is not None else f"socket {place.id}", place.name]
    elif place.kind == "host_bridge":
        words.append(place.id)
    else:
        name = place.name or (facts.name if facts else "")
        words += [name, place.bus_id or ""]
    link = place.link
    if link is not None and (link.gen or link.width):
        words.append(f"Gen{link.gen or '?'} x{link.width or '?'}")
        if link.slow or link.narrow:
            words.append(f"of Gen{link.gen_max or '?'} x{link.width_max or '?'}")
    elif link is not None and link.stated_gbps:
        words.append(f"{link.stated_gbps:.1f} GB/s")
    if facts is not None and facts.nvlinks:
        words.append(f"{facts.nvlinks} NVLinks")
    if place.acs_redirect:
        words.append("ACS redirect on")
    return "  ".join(w for w in words if w)


def way(box: Box, a: str, b: str) -> str:
    """How `a` reaches `b` in a few characters: NV18, PIX, ..., with `!` where the driver refuses P2P."""
    pair = box.pair(a, b)
    if pair is None:
        return "?"
    word = (
        f"{'XG' if pair.fabric == 'XGMI' else 'NV'}{pair.nvlinks}" if pair.nvlinks else pair.relation or "?"
    )
    return word + ("!" if pair.read not in (None, "OK") or pair.write not in (None, "OK") else "")


def _ways(box: Box) -> Table:
    table = Table(title="from row to column", title_justify="left", title_style="", box=None, pad_edge=False)
    table.add_column("")
    ids = [g.id for g in box.gpus]
    for name in ids:
        table.add_column(name)
    words = set()
    for a in ids:
        row = ["-" if a == b else way(box, a, b) for b in ids]
        words |= {w.rstrip("!") for w in row}
        table.add_row(a, *row)
    legend = [f"{w} {RELATION_MEANING[w]}" for w in RELATION_MEANING if w in words]
    if any(w.startswith("NV") for w in words):
        legend.append("NV# bonded NVLinks")
    if any(way(box, a, b).endswith("!") for a in ids for b in ids if a != b):
        legend.append("! the driver refuses peer access")
    table.caption = "; ".join(legend)
    table.caption_justify = "left"
    table.caption_style = ""
    return table


def _print_finding(console: Console, finding: Finding) -> None:
    mark = Text(f"{_MARKS[finding.level]:8}", style=_STYLES[finding.level])
    console.print(mark, Text(f"{finding.subject}: {finding.says}"), sep=" ")
    console.print(Text(f"         known from: {finding.evidence}"))
    if finding.remedy:
        console.print(Text(f"         do: {finding.remedy}"))


def _print_engines(console: Console, uses: Sequence[EngineUse]) -> None:
    worlds = sorted({u.world for u in uses})
    for world in worlds:
        table = Table(
            title=f"what engines can use with {world} GPUs (the first {world})", title_justify="left"
        )
        for column in ("engine", "all-reduce", "here", "because, or how"):
            table.add_column(column, overflow="fold")
        for use in (u for u in uses if u.world == world):
            text = use.gate + (f"; then {use.then}" if use.then else "") if use.gate else use.enable
            style = {"usable": "green", "refused": "red", "unknown": "magenta"}[use.outcome]
            table.add_row(use.engine, use.implementation, Text(use.outcome, style=style), Text(text))
        console.print(table)
    console.print("each gate's source: --format json, or docs/doctor.md")
