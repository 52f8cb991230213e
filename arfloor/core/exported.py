"""What a table in another tool's shape says besides, so that it can be read back: whose figures they are."""

from __future__ import annotations

from arfloor.core.cases import Case, record

MARK = "# arfloor table:"
"""What the line of a table begins with that holds an `Exported` as JSON."""


@record
class Exported:
    """The case behind each row of one table, but for its size and whether it is in place; link and device."""

    case: Case
    link: str = ""
    device: str = ""
