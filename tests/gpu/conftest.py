"""GPU tests run where there are GPUs; elsewhere they are skipped, saying so."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest

# Before CUDA starts: virtual ranks need a hardware queue a stream.
os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "32")

# markers, and the GPUs that a test with one needs
MARKERS = {"gpu": 1, "gpu2": 2, "gpu3": 3, "gpu4": 4}


def _gpus() -> int:
    try:
        import torch
    except ImportError:
        return 0
    return torch.cuda.device_count() if torch.cuda.is_available() else 0


@pytest.fixture(scope="module")
def crews() -> Iterator[Any]:
    """Processes on real GPUs that the tests of a module share; see `launching.Crews`."""
    from launching import Crews

    made = Crews()
    yield made
    made.close()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    found = None
    for item in items:
        wanted = max((n for name, n in MARKERS.items() if item.get_closest_marker(name)), default=0)
        if wanted:
            found = _gpus() if found is None else found
            if found < wanted:
                item.add_marker(pytest.mark.skip(reason=f"needs {wanted} NVIDIA GPUs, found {found}"))
