"""Write docs/starting-case.md from its template and the numbers that the code computes.

python tools/starting_case.py
"""

from __future__ import annotations

from pathlib import Path

import jinja2

from arfloor.report.whatif.starting_case import facts

DOCS = Path(__file__).resolve().parent.parent / "docs"
PAGE, TEMPLATE = DOCS / "starting-case.md", DOCS / "starting-case.md.j2"


def render() -> str:
    """The page; an unknown name in the template raises."""
    environment = jinja2.Environment(undefined=jinja2.StrictUndefined, keep_trailing_newline=True)
    return environment.from_string(TEMPLATE.read_text(encoding="utf-8")).render(facts())


if __name__ == "__main__":
    PAGE.write_text(render(), encoding="utf-8")
    print(PAGE)
