"""The commands of `arfloor`: one small module each, imported only when its command is called.

A command is a function `command(...)` whose parameters cyclopts turns into arguments; register it by
one line in `arfloor.cli.COMMANDS`. It prints to standard output, and raises
`arfloor.core.errors.InputError` (one line) for anything that the user can mend.
"""
