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
        console.print("from row to column")
        console.print(_ways(box))
        console.print(Text(_ways_legend(box)))
    console.print()
    console.print(Text(summary(findings)))
    for finding in findings:
        _print_finding(console, finding)
    if uses:
        console.print()
        _print_engines(console, uses)
    return stream.getvalue()


def summary(findings: Sequence[Finding]) -> str:
    """How many findings of each grave kind, in one line."""
    problems, warnings, open_ = (
        sum(f.level == level for f in findings) for level in ("problem", "warning", "unknown")
    )
    words = [f"{problems} problem{'s' * (problems != 1)}" if problems else "no problem found"]
    words += [f"{warnings} warning{'s' * (warnings != 1)}"] if warnings else []
    words += [f"{open_} not checked"] if open_ else []
    return ", ".join(words)


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
        words = [f"host bridge {place.id}"]
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
    table = Table(box=None, pad_edge=False)
    table.add_column("")
    ids = [g.id for g in box.gpus]
    for name in ids:
        table.add_column(name)
    for a in ids:
        table.add_row(a, *["-" if a == b else way(box, a, b) for b in ids])
    return table


def _ways_legend(box: Box) -> str:
    ids = [g.id for g in box.gpus]
    words = {way(box, a, b) for a in ids for b in ids if a != b}
    plain = {w.rstrip("!") for w in words}
    legend = [f"{w}: {meaning}" for w, meaning in RELATION_MEANING.items() if w in plain]
    legend += ["NV#: # bonded NVLinks"] if any(w.startswith("NV") for w in plain) else []
    legend += ["!: the driver refuses peer access"] if any(w.endswith("!") for w in words) else []
    return "; ".join(legend)


def _print_finding(console: Console, finding: Finding) -> None:
    mark = Text(f"{_MARKS[finding.level]:8}", style=_STYLES[finding.level])
    console.print(mark, Text(f"{finding.subject}: {finding.says}"), sep=" ")
    console.print(Text(f"         known from: {finding.evidence}"))
    if finding.remedy:
        console.print(Text(f"         do: {finding.remedy}"))


def _print_engines(console: Console, uses: Sequence[EngineUse]) -> None:
    """One row an implementation, one column a number of GPUs (the first so many), and what decided."""
    worlds = sorted({u.world for u in uses})
    table = Table(title="what engines can use with the first GPUs here", title_justify="left", title_style="")
    table.add_column("engine")
    table.add_column("all-reduce", overflow="fold")
    for world in worlds:
        table.add_column(f"{world} GPUs")
    table.add_column("because, or how", overflow="fold")
    rows: dict[tuple[str, str], list[EngineUse]] = {}
    for use in uses:
        rows.setdefault((use.engine, use.implementation), []).append(use)
    for (engine, implementation), found in rows.items():
        by_world = {u.world: u for u in found}
        cells = [Text(by_world[w].outcome, style=_OUTCOMES[by_world[w].outcome]) for w in worlds]
        table.add_row(engine, implementation, *cells, Text(_because(found)))
    console.print(table)
    console.print("each gate's source: --format json, or docs/doctor.md")


_OUTCOMES = {"usable": "green", "refused": "red", "unknown": "magenta"}


def _because(uses: Sequence[EngineUse]) -> str:
    """What decided, said once; with the numbers of GPUs it speaks of where they differ."""
    said: dict[str, list[int]] = {}
    for use in uses:
        text = _reason(use)
        said.setdefault(text, []).append(use.world)
    if len(said) == 1:
        return next(iter(said))
    return "\n".join(f"{', '.join(map(str, worlds))}: {text}" for text, worlds in said.items())


def _reason(use: EngineUse) -> str:
    if use.outcome == "usable":
        return use.enable
    then = f"; then {use.then}" if use.then else ""
    return f"{use.gate}{then}{f'; to use it: {use.enable}' if use.enable else ''}"
