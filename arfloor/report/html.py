"""The report as one self-contained page: no script, no request, pictures inline."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from arfloor.core import units
from arfloor.core.verdict import is_noisy
from arfloor.report import libraries, phrases
from arfloor.report import why as whys
from arfloor.report.model import HEADLINE_NBYTES, Report, Row, Section, attainable, size_span, slow_probes
from arfloor.report.series import Series, series

if TYPE_CHECKING:
    from jinja2 import Environment


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    id: str
    section: Section
    headline: Row
    series: tuple[Series, ...]
    why: whys.Why
    svg: Any

    @property
    def floors(self) -> bool:
        return any(row.floor for row in self.section.rows)

    @property
    def slow(self) -> str:
        return slow_probes(self.section.rows)


def render(report: Report) -> str:
    """The page. Everything that comes from the run is escaped."""
    from markupsafe import Markup

    from arfloor.report import plots

    parts = [
        _Part(
            id=f"s{number}",
            section=section,
            headline=section.nearest(HEADLINE_NBYTES),
            series=(drawn := series(section)),
            why=whys.why(section, report.primitives, drawn),
            svg=Markup(plots.inline_svg(section, report.box, f"s{number}")),
        )
        for number, section in enumerate(plots.drawable(report))
    ]
    return (
        templates()
        .get_template("report.html")
        .render(
            report=report,
            manifest=report.manifest,
            parts=parts,
            facts=_facts(report),
            phrases=phrases,
            is_noisy=is_noisy,
            whys=whys,
            libraries=libraries,
            winners=libraries.winners(report),
            attainable=attainable,
            size=units.size,
            size_span=size_span,
            us=units.us,
            number=units.number,
            ratio=units.ratio,
        )
    )


def templates() -> Environment:
    """The pages' templates: what they are given is escaped; `ticks` turns `x` in a text into code."""
    from jinja2 import Environment, PackageLoader, StrictUndefined
    from markupsafe import Markup, escape

    environment = Environment(
        loader=PackageLoader("arfloor.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )

    def ticks(text: str) -> Markup:
        return Markup(re.sub(r"`([^`]*)`", r"<code>\1</code>", str(escape(text))))

    environment.filters["ticks"] = ticks
    return environment


def _facts(report: Report) -> list[tuple[str, str]]:
    manifest = report.manifest
    machine = manifest.machine
    rows = [
        ("recipe", str(manifest.recipe.get("name", ""))),
        ("seed", str(manifest.seed)),
        ("ranks", f"{machine.world} x {machine.device_name} ({machine.device_kind})"),
        ("versions", phrases.versions(manifest)),
        ("facts", ", ".join(f"{k}={v}" for k, v in sorted(machine.facts.items()))),
        ("environment", " ".join(f"{k}={v}" for k, v in sorted(manifest.env.items()))),
        ("source", manifest.git or ""),
        ("blocks measured", phrases.count_of(*report.blocks)),
        ("failures noted", "; ".join(manifest.failures)),
        ("notes", "; ".join(manifest.notes)),
    ]
    return [(name, value) for name, value in rows if value]
