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
import sys
from collections.abc import Sequence

from launching import Crew, CrewLost


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("seconds", type=float, help="how long each plan reduces")
    parser.add_argument("plans", nargs="+", metavar="PATH:PLAN[:MACRO...]")
    chosen = parser.parse_args(argv)
    good = True
    crew = Crew(2)
    try:
        for words in chosen.plans:
            path, plan, *macros = words.split(":")
            found = crew.ask(
                "stress", path, plan, str(chosen.seconds), *macros, timeout_s=chosen.seconds + 45
            )
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
