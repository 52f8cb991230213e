"""How to start MPI ranks: the `mpiexec` of this environment, with what it needs to run anywhere."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path


def mpiexec() -> str | None:
    """Path of mpiexec: this Python environment's own (a wheel brings one), else the one on PATH."""
    own = Path(sys.prefix) / "bin" / "mpiexec"
    return str(own) if own.is_file() else shutil.which("mpiexec")


def command(ranks: int) -> list[str]:
    """`mpiexec -n N`. Raises FileNotFoundError where there is none."""
    found = mpiexec()
    if found is None:
        raise FileNotFoundError("expected mpiexec in this environment or on PATH, found none")
    return [found, "-n", str(ranks)]


def environment(ranks: int) -> dict[str, str]:
    """Open MPI's permissions by variable rather than by option, so that other MPIs ignore them.

    It refuses to run as root, and to start more ranks than there are cores, unless told otherwise.
    Where the cores suffice it is left alone: it then binds each rank to a core of its own, as it does
    for any user; allowed to oversubscribe, it binds none, and two ranks may meet on one core.
    """
    env = {}
    if ranks > len(os.sched_getaffinity(0)):
        env["PRTE_MCA_rmaps_default_mapping_policy"] = ":oversubscribe"
    if os.geteuid() == 0:
        env |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    return env
