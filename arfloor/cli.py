"""`arfloor`: the commands that need no ranks. `torchrun -m arfloor.sweep` measures; these read."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Sequence

from cyclopts import App, CycloptsError

from arfloor import __version__
from arfloor.core.errors import InputError

COMMANDS = {
    "compare": ("arfloor.commands.compare:command", "What became faster or slower between two runs."),
    "doctor": ("arfloor.commands.doctor:command", "This box, or a pasted one: what would spoil a result."),
    "export": ("arfloor.commands.export:command", "A recorded run in the shape of other tools."),
    "import": ("arfloor.commands.import_:command", "Other tools' measurements as a run directory."),
    "report": ("arfloor.commands.report:command", "What a recorded run says: sizes, floors, verdicts."),
    "whatif": ("arfloor.commands.whatif:command", "What a faster, fused or hidden all-reduce is worth."),
}
"""name -> (`module:function`, imported when called; what it does in a line)."""

app = App(
    name="arfloor",
    help="How far is an all-reduce from what the wires allow? Measure with `torchrun -m arfloor.sweep`.",
    version=__version__,
)
for _name, (_target, _help) in COMMANDS.items():
    app.command(_target, name=_name, help=_help)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit status: 0, or 2 for what the user can mend (one line on stderr)."""
    if sys.stdout is None:  # `>&-`
        return _refuse("expected an open standard output, found it closed; redirect it to a file")
    _speak_utf8()
    try:
        result = app(
            list(sys.argv[1:] if argv is None else argv),
            exit_on_error=False,
            print_error=False,
            result_action="return_value",
        )
        sys.stdout.flush()
    except InputError as error:
        return _refuse(str(error))
    except CycloptsError as error:
        return _refuse(str(error))
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # `arfloor report RUN | head`
        _forget_output()
        return 0
    except OSError as error:  # a full disk behind standard output, a folder that may not be entered
        _forget_output()
        return _refuse(f"{error.filename or 'standard output'}: {error.strerror or error}")
    return result if isinstance(result, int) else 0


def _speak_utf8() -> None:
    """Files and pipes get UTF-8 in any locale; a terminal gets its own encoding, and `?` for the rest."""
    if not isinstance(sys.stdout, io.TextIOWrapper):
        return
    if sys.stdout.isatty():
        sys.stdout.reconfigure(errors="replace")
    else:
        sys.stdout.reconfigure(encoding="utf-8")


def _forget_output() -> None:
    sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115, PTH123  (the interpreter flushes it at exit)


def _refuse(message: str) -> int:
    print(f"arfloor: {' '.join(message.split())}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
