"""The process that a supervisor started: what the end of its output says of the device."""

from __future__ import annotations

import os
import sys

import pytest

from arfloor.runtime.driver import LAST_WORDS_NBYTES, Worker

LOST = "CUDA error: an illegal memory access was encountered"


@pytest.mark.parametrize(
    ("before", "prints", "reason"),
    [
        ("", f"print({LOST!r})", "illegal_address"),
        ("", f"print({LOST!r}); print('x' * {2 * LAST_WORDS_NBYTES})", None),
        (LOST, "print('nothing to say')", None),  # of an earlier attempt in the same file
    ],
)
def test_only_the_end_of_its_own_output_tells_of_a_lost_device(tmp_path, before, prints, reason):
    log = tmp_path / "worker.log"
    log.write_text(before)
    worker = Worker([sys.executable, "-c", prints], dict(os.environ), log, gentle=False)
    worker._process.wait(30)
    assert worker.lost() == reason
    worker.kill()
