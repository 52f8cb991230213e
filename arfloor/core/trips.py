"""How often a worker of an all-reduce waits for its peer: once, and once more for each further pass.

A thread that has more than one packet of a message polls for the first, then for the next, and pays a
round trip for each. So a message of 3,072 bytes can take longer than one of 4,096: NCCL takes more threads
for the larger one, and each has a single packet.
"""

from __future__ import annotations

import math

from arfloor.core.cases import Result
from arfloor.core.plans import Plan, extent, parse

# Of NCCL 2.19 to 2.28, by protocol (src/enqueue.cc, src/graph/tuning.cc, src/include/comm.h and device.h of
# github.com/NVIDIA/nccl): threads a channel at most; bytes a thread below which it takes fewer threads, for
# ring LL times the ranks; payload that a thread moves in one pass; passes that the copy loop unrolls.
_MOST_THREADS = {"ll": 512, "ll128": 640, "simple": 512}
_THRESHOLD = {"ll": 8, "ll128": 8, "simple": 64}
_PASS_NBYTES = {"ll": 8, "ll128": 60, "simple": 16}
_UNROLLED = {"ll": 1, "ll128": 1, "simple": 8}  # 4 before sm_80 and 6 on sm_120, which are not told apart
_LEAST_THREADS = {
    "ll": 96,
    "ll128": 96,
    "simple": 64,
}  # three warps, of which Simple keeps one to synchronise


def nccl_threads(protocol: str, nbytes: int, world: int, channels: int) -> int:
    """Threads a channel that carry data in NCCL's ring all-reduce. Raises KeyError on an unknown protocol."""
    name = protocol.lower()
    threads = _MOST_THREADS[name]
    least = channels * _THRESHOLD[name] * (world if name == "ll" else 1)
    while nbytes < threads * least and threads % 128 == 0:
        threads //= 2
    return max(threads, _LEAST_THREADS[name])


def nccl_trips(protocol: str, nbytes: int, world: int, channels: int) -> int:
    """Passes over a channel's threads in each of the ring's rounds. Raises KeyError as `nccl_threads`."""
    name = protocol.lower()
    share = nbytes / world / channels
    passes = math.ceil(share / (nccl_threads(name, nbytes, world, channels) * _PASS_NBYTES[name]))
    whole, left = divmod(passes, _UNROLLED[name])
    return max(1, whole + left if _UNROLLED[name] > 1 else passes)


def plan_trips(plan: Plan, nbytes: int, world: int) -> int:
    """Tiles that a warp of our kernels waits for in a phase; one when it sends ahead, which hides them."""
    return 1 if plan.lookahead else math.ceil(extent(plan, world, nbytes)[2] / plan.warps)


def plan_of(result: Result) -> Plan | None:
    """The plan that ran, where one of our kernels did."""
    try:
        return parse((result.ran.algorithm if result.ran else None) or "")
    except ValueError:
        return None


def trips(result: Result) -> int:
    """How often a worker waits for its peer in a round of what ran; 1 where that is not known."""
    ran, case = result.ran, result.case
    plan = plan_of(result)
    if plan is not None:
        return plan_trips(plan, case.nbytes, case.world)
    ring = ran is not None and (ran.algorithm or "").lower() == "ring"
    if ran is None or not ring or case.backend != "nccl" or (ran.protocol or "").lower() not in _THRESHOLD:
        return 1
    return nccl_trips(ran.protocol or "", case.nbytes, case.world, ran.channels or 1)
