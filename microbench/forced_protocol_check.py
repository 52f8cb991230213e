"""Is a protocol that NCCL was forced into still right?

    NCCL_P2P_DISABLE=1 torchrun --standalone --nproc-per-node=2 microbench/forced_protocol_check.py
    NCCL_P2P_DISABLE=1 torchrun ... microbench/forced_protocol_check.py ring-ll128-16ch 30

NCCL leaves LL128 off over PCIe, because a store of 128 bytes may arrive in two parts there: the flag in
its last 8 bytes then vouches for data that is not there yet. NCCL_PROTO=LL128 forces it all the same.
This reduces 256 KiB over and over for some seconds (default 10), each time integers that change with
every operation, and compares every element on the GPU: a line that was read half old is a wrong sum.

What to look for: wrong elements, even one. None says that tearing is rarer than one in the lines shown,
not that it cannot happen; a slower host, another CPU or a busy bridge may tear.

The seconds asked for, and ten for starting. Two H200s gave none in 9e7 lines (docs/measurements.md).
"""

from __future__ import annotations

import time

import torch
import torch.distributed as dist
from gpu_ranks import command_line, join

from arfloor.backends.nccl import Nccl, NcclOp

NBYTES = 256 << 10
BATCH = 200  # operations between two looks at the counters
LINE_NBYTES = 120  # payload of an LL128 line


def main() -> None:
    parser = command_line(__doc__, limit_s=60)
    parser.add_argument("variant", nargs="?", default="ring-ll128", help="of NCCL (%(default)s)")
    parser.add_argument("seconds", nargs="?", type=float, default=10.0, help="how long (%(default)g)")
    chosen = parser.parse_args()
    variant, seconds = chosen.variant, chosen.seconds
    ranks = join(chosen.limit_s + seconds)
    case = ranks.case("nccl", variant, NBYTES, "eager")
    op = Nccl().prepare(case, ranks.group, 2)
    assert isinstance(op, NcclOp)
    # integers up to 256 are exact in bfloat16, also summed over eight ranks; neighbours differ, and so
    # does the same place an operation later
    place = torch.arange(case.numel, device="cuda") % 23
    wrong = torch.zeros((), dtype=torch.int64, device="cuda")
    operations, end = 0, time.monotonic() + seconds
    while ranks.group.broadcast(time.monotonic() < end):
        for _ in range(BATCH):
            operations += 1
            slot, shift = operations % 2, operations % 19
            op.inputs[slot].copy_((place + shift) % 23 + ranks.rank)
            op.run(slot)
            expected = ((place + shift) % 23) * ranks.world + ranks.world * (ranks.world - 1) // 2
            wrong += (op.inputs[slot] != expected).sum()
        torch.cuda.synchronize()
    found = ranks.group.all_gather(int(wrong))
    lines = operations * NBYTES // LINE_NBYTES
    ranks.say(
        f"nccl {variant} on path {ranks.path}: {operations} operations of {NBYTES} B, "
        f"{lines:.2e} lines a rank, wrong elements by rank: {found}"
    )
    dist.barrier()
    ranks.leave()


if __name__ == "__main__":
    main()
