"""Our own kernels through pinned host memory: for GPUs that cannot address each other."""

from __future__ import annotations

from arfloor.backends.nccl import P2P_OFF
from arfloor.backends.own_backend import OwnBackend


class Host(OwnBackend):
    """The backend; see `arfloor.backends.own_backend`."""

    name = "host"
    path = "host"
    # not for these kernels, which need no setting: so that they run in the processes of NCCL's host path,
    # interleaved with it and compared pair by pair
    settings = P2P_OFF
