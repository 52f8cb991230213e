"""Kinds of options that several commands share."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
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


def _input(kind: object, tokens: Sequence[Token]) -> Any:
    # a mistyped option must not become the name of a file
    text = tokens[0].value
    if text.startswith("-") and text != "-":
        raise ValueError(f"expected a file, or `-` for standard input, found {text!r}")
    return Path(text)


Input = Annotated[Path, Parameter(converter=_input, allow_leading_hyphen=True)]
"""A file to read; `-` is standard input."""
