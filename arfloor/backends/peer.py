"""Our own kernels over peer memory: loads and stores to other GPUs' memory."""

from __future__ import annotations

from arfloor.backends.own_backend import OwnBackend


class Peer(OwnBackend):
    """The backend; see `arfloor.backends.own_backend`."""

    name = "peer"
    path = "peer"
