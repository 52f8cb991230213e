"""Long stress on two real ranks: every element of every operation compared, for as long as you like.

    PYTHONPATH=. python tests/gpu/stress.py 15 host:line128t64-one-33x128 peer:flag-one-6x64:ARF_STALL

Seconds, then what to reduce with: path, plan, and macros to compile with, if any. A line of JSON a plan, as
rank 0 saw it: packets received (`lines`), operations, wrong elements and operations, torn packets where
ARF_COUNT_TEARS counts them, the kernel's error. Exits with 1 if an element was wrong or a kernel gave up on
any rank, or a rank was lost.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Sequence

from launching import Crew, CrewLost

from arfloor.core.plans import flaw, parse


def seconds(text: str) -> float:
    """A time that passes."""
    found = float(text)
    if not 0 < found < math.inf:
        raise argparse.ArgumentTypeError(f"expected a number of seconds above 0, found {text!r}")
    return found


def scenario(text: str) -> tuple[str, ...]:
    """Path, plan and macros of PATH:PLAN[:MACRO...]."""
    path, _, rest = text.partition(":")
    plan = rest.partition(":")[0]
    if path not in ("host", "peer"):
        raise argparse.ArgumentTypeError(f"expected host:PLAN or peer:PLAN, found {text!r}")
    try:
        problem = flaw(parse(plan), 2, path)  # type: ignore[arg-type]
    except ValueError as error:
        problem = str(error)
    if problem:
        raise argparse.ArgumentTypeError(f"{text!r}: {problem}")
    return tuple(text.split(":"))


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("seconds", type=seconds, help="how long each plan reduces")
    parser.add_argument("plans", nargs="+", type=scenario, metavar="PATH:PLAN[:MACRO...]")
    chosen = parser.parse_args(argv)
    good = True
    crew = Crew(2)
    try:
        for path, plan, *macros in chosen.plans:
            found = crew.ask(
                "stress", path, plan, str(chosen.seconds), *macros, timeout_s=chosen.seconds + 45
            )
            words = ":".join((path, plan, *macros))
            print(words, json.dumps(found[0]), flush=True)
            for rank, seen in enumerate(found):
                if seen["wrong_elements"] or seen["error"]:
                    good = False
                    print(f"{words}: rank {rank} found {json.dumps(seen)}", file=sys.stderr)
    except CrewLost as error:
        print(error, file=sys.stderr)
        return 1
    finally:
        crew.close()
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
