"""Kinds of options that several commands share."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated, Any

from cyclopts import Parameter, Token


def _whole(kind: object, tokens: Sequence[Token]) -> Any:
    # the library's own reading rounds: 4.4 ranks would silently be 4
    text = tokens[0].value
    if not re.fullmatch(r"[-+]?[0-9]{1,18}", text):
        raise ValueError(f"expected a whole number, found {text!r}")
    return int(text)


Whole = Annotated[int, Parameter(converter=_whole)]
"""A whole number; a fraction is refused, not rounded."""
