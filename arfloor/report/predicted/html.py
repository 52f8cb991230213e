"""A prediction as one self-contained page: no script, no request, its picture inline."""

from __future__ import annotations

from arfloor.core import units
from arfloor.core.outlook import Outlook
from arfloor.report.html import templates
from arfloor.report.predicted import phrases, plot


def render(outlook: Outlook) -> str:
    """The page. Everything that comes from the description is escaped."""
    from markupsafe import Markup

    from arfloor.report.plots import stand_alone

    svg = stand_alone(plot.save(plot.draw(outlook), "svg").decode(), "p")
    return (
        templates()
        .get_template("predicted.html")
        .render(
            o=outlook,
            phrases=phrases,
            svg=Markup(svg),
            alt=plot.alt(outlook),
            at=units.size(outlook.headline.nbytes),
            size=units.size,
            us=units.us,
            number=units.number,
            ratio=units.ratio,
            ends=units.ends,
        )
    )
