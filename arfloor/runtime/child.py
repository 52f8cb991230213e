"""Run a module of this package in a child process with a deadline: a sick driver must not hang us."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Sequence


class ChildError(Exception):
    """A child that died, hung or could not start; the message is one line."""


# never a multicast object, whatever library a child loads
SAFE_ENVIRONMENT = {
    "NCCL_NVLS_ENABLE": "0",
    "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1",
    "NVSHMEM_DISABLE_NVLS": "1",
    "MSCCLPP_FORCE_DISABLE_NVLS": "1",
}


def run_module(module: str, *args: str, seconds: float) -> str:
    """Standard output of `python -m module args`, in its own session, killed after `seconds`.

    Raises ChildError when it does not end in time or fails; the message carries its last line.
    """
    command: Sequence[str] = (sys.executable, "-m", module, *args)
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        env={**os.environ, **SAFE_ENVIRONMENT, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
        start_new_session=True,
    )
    try:
        out, err = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired as error:
        _kill(process)
        raise ChildError(f"{module} did not answer within {seconds:g} s and was killed") from error
    except BaseException:
        _kill(process)
        raise
    if process.returncode != 0:
        last = (err.strip().splitlines() or ["no message"])[-1]
        raise ChildError(f"{module} ended with status {process.returncode}: {last[:200]}")
    return out


def _kill(process: subprocess.Popen[str]) -> None:
    """End the child and what it started. A child stuck in the driver may not even die: it is left then."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.communicate(timeout=2)
