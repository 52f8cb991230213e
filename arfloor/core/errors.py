"""The one kind of error that a user caused and can mend."""

from __future__ import annotations


class InputError(Exception):
    """Bad input. The message is one line: what was expected, what was found, what to do."""


def reason(error: Exception) -> str:
    """Why a file could not be read or written, in the system's words where it has any."""
    return (error.strerror if isinstance(error, OSError) else None) or str(error)
