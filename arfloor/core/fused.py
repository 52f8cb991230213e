"""What the fused all-reduce + residual add + RMSNorm needs of a plan and a shape: pure arithmetic.

Mirrors arfloor/kernels/fused.cuh: a warp's tile is `span` bytes of the message, a row is made of `pieces`.
In the form by rows a block has whole rows, and each of its warps one tile of them.
"""

from __future__ import annotations

from dataclasses import replace

from arfloor.core.plans import Plan, ceil_div

SOURCES: dict[str, tuple[str, ...]] = {
    "line": ("common.cuh", "line.cu", "fused.cuh", "packets.cuh", "shots.cuh"),
    "ll": ("common.cuh", "ll.cu", "fused.cuh", "packets.cuh", "shots.cuh"),
    "flag": ("common.cuh", "fused.cuh", "flag.cu"),
}
ALIGNMENT = 16
MIN_ROW_NBYTES = 512
"""The longest tile; a shorter row would let a tile touch three rows."""

MIN_ROW_BY_ROW = 4096
"""Shorter rows would leave too much of the wire empty: a row's last tile is sent whole."""
MOST_ROUNDS = 16
"""Rows of a block at most (ARF_ROUNDS)."""


def flaw(plan: Plan) -> str:
    """Why a plan has no fused form; empty when it has."""
    if plan.wire:
        return "the fused epilogue follows exact sums, not 8 bits an element"
    if plan.shot != 1:
        return "the fused epilogue follows one-shot plans: in the others no warp sees a row as it is summed"
    return ""


def row_flaw(row_nbytes: int) -> str:
    """Why rows of so many bytes cannot be normalised in the kernel; empty when they can."""
    if row_nbytes < MIN_ROW_NBYTES or row_nbytes % ALIGNMENT:
        return f"rows of at least {MIN_ROW_NBYTES} bytes and a multiple of {ALIGNMENT}, not {row_nbytes}"
    return ""


def span(plan: Plan) -> int:
    """Bytes of the message that a warp handles as one tile."""
    if plan.protocol == "flag":
        return 32 * plan.payload
    return 32 // (plan.packet // 16) * plan.payload


def pieces(plan: Plan, row_nbytes: int) -> int:
    """The most tiles that a row has a part in."""
    return (row_nbytes - 2) // span(plan) + 2


def most_slots(plan: Plan, max_nbytes: int) -> int:
    """Sums of squares kept for messages of up to `max_nbytes`, whatever their rows."""
    return ceil_div(max_nbytes, span(plan)) + 2 * ceil_div(max_nbytes, MIN_ROW_NBYTES)


def row_tiles(plan: Plan, row_nbytes: int) -> int:
    """Tiles of a row that begins with a tile."""
    return ceil_div(row_nbytes, span(plan))


def by_row_flaw(plan: Plan, row_nbytes: int, rows: int) -> str:
    """Why a plan's grid cannot take rows by block; empty when it can."""
    if plan.protocol == "flag":
        return "packets (line, LL)"
    if row_nbytes < MIN_ROW_BY_ROW or row_flaw(row_nbytes):
        return f"rows of at least {MIN_ROW_BY_ROW} bytes and a multiple of {ALIGNMENT}, not {row_nbytes}"
    if 32 * row_tiles(plan, row_nbytes) > plan.threads:
        return f"a warp a tile: {32 * row_tiles(plan, row_nbytes)} threads, not {plan.threads}"
    if rows > plan.blocks * MOST_ROUNDS:
        return f"at most {MOST_ROUNDS} rows a block, not {rows} on {plan.blocks}"
    return ""


def by_row(plan: Plan, row_nbytes: int, rows: int, most_blocks: int) -> Plan:
    """The plan with a grid for `rows` rows at once, a block each up to `most_blocks`."""
    blocks = min(rows, most_blocks)
    threads = 32 * row_tiles(plan, row_nbytes)
    return replace(plan, blocks=blocks, threads=threads, lookahead=0 if rows <= blocks else 1)


def padded(plan: Plan, max_nbytes: int) -> int:
    """Bytes of message that travel at most for rows by block: each row's last tile is sent whole."""
    return max_nbytes + ceil_div(max_nbytes, MIN_ROW_BY_ROW) * span(plan)
