"""The one kind of error that a user caused and can mend."""

from __future__ import annotations


class InputError(Exception):
    """Bad input. The message is one line: what was expected, what was found, what to do."""
