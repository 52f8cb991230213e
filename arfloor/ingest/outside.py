"""What every reader of an outside format shares: one error, warnings by line, and bounded input."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from arfloor.core.errors import InputError, reason

MAX_BYTES = 4 * 1024 * 1024


class IngestError(InputError):
    """Input that cannot be read as what it was said to be; the message is one line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Warned:
    """Something at a line of the input that was left out, and why. Line 0 is the whole document."""

    line: int
    text: str

    def __str__(self) -> str:
        return f"line {self.line}: {self.text}" if self.line else self.text


def one_line(text: object, limit: int = 60) -> str:
    """Foreign text made safe to print in one line: control bytes escaped, long text cut."""
    shown = ascii(str(text)[: limit + 1])[1:-1]
    return shown if len(shown) <= limit else shown[: limit - 3] + "..."


def read_bounded(path: Path, limit: int = MAX_BYTES) -> str:
    """The text of a file, at most `limit` bytes. Raises IngestError when it cannot be read or is larger."""
    try:
        with path.open("rb") as stream:
            data = stream.read(limit + 1)
    except (OSError, ValueError) as error:  # ValueError: a null byte in the name
        raise IngestError(
            f"{str(path)[:200]!r}: cannot be read ({reason(error)}); give a readable file"
        ) from error
    if len(data) > limit:
        raise IngestError(f"{path}: larger than {limit} bytes, which no such file is; give the right one")
    return decode(data)


def decode(data: bytes) -> str:
    """Text of UTF-8 bytes or, with a byte order mark, UTF-16 (PowerShell's `>`); bad bytes become U+FFFD."""
    if data[:2] in (b"\xff\xfe", b"\xfe\xff"):
        return data.decode("utf-16", errors="replace")
    return data.decode("utf-8-sig", errors="replace")


def bounded(text: str, what: str, limit: int = MAX_BYTES) -> str:
    """The text itself. Raises IngestError when it is longer than `limit` characters."""
    if len(text) > limit:
        raise IngestError(f"not {what}: {len(text)} characters, at most {limit} are read")
    return text
