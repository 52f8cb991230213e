"""What a kernel of our own is set up as, and what that needs of memory: pure arithmetic.

A `Plan` names one build of a kernel and its launch. A `Layout` says how a rank's region of a slab is
divided for it, and must agree with `arfloor/kernels/*.cu*`, which computes the same places.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from arfloor.core.cases import Path

Protocol = Literal["line", "ll", "flag"]
Wire = Literal["", "int8", "fp8"]

LINES = (16, 32, 64, 128, 256, 512)
DTYPE_NUMBER = {"float32": 0, "float16": 1, "bfloat16": 2}
MAX_WORLD = 8
FLAG_STRIDE = 64
STATE_COUNTERS = 64
"""Byte offset of the first sequence counter in the state; the error word stands at 0."""

SOURCES: dict[str, tuple[str, ...]] = {
    "line": ("common.cuh", "line.cu", "packets.cuh", "shots.cuh"),
    "ll": ("common.cuh", "ll.cu", "packets.cuh", "shots.cuh"),
    "flag": ("common.cuh", "flag.cu"),
}

_NAME = re.compile(
    r"(?:line(?P<line>\d+)t(?P<tag>\d+)|(?P<other>ll|flag))"
    r"-(?P<shot>one|two|islands)(?P<staged>-staged)?(?P<pull>-pull)?"
    r"-(?P<blocks>\d+)x(?P<threads>\d+)(?:-ahead(?P<ahead>\d+))?(?:-pace(?P<pace>\d+))?(?:-lag(?P<lag>\d+))?"
    r"(?:-window(?P<window>\d+))?(?:-(?P<wire>int8|fp8))?"
)
_SHOTS = {"one": 1, "two": 2, "islands": 4}
_SHOT_NAMES = {number: name for name, number in _SHOTS.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """One way to run a kernel. `line`: bytes of a line; `tag_bits`: 32 or 64; `shot`: 1, 2, or 4 for the
    island-aware two-shot; `lookahead`: tiles that a warp sends ahead of the one it waits for; `pace`: SM
    cycles between the sends of consecutive tiles (one-shot; 0: at once), which interleaves both directions
    of a link that is slower than the SMs; `lag`: SM cycles from a send to the first poll; `window`: how many
    warps of a block poll at a time (0: all). `wire`: 8 bits an element travel, with a scale for 14 of them
    (`arfloor.core.lossy`): another result, so such a plan is never chosen for a user."""

    protocol: Protocol
    shot: int = 1
    blocks: int = 32
    threads: int = 512
    line: int = 128
    tag_bits: int = 64
    lookahead: int = 0
    staged: bool = False
    pull: bool = False
    pace: int = 0
    lag: int = 0
    window: int = 0
    wire: Wire = ""

    @property
    def name(self) -> str:
        """Stable name, which `parse` reads: `line128t64-one-32x512-ahead1`."""
        front = self.packets + (f"t{self.tag_bits}" if self.protocol == "line" else "")
        options = ("-staged" if self.staged else "") + ("-pull" if self.pull else "")
        ahead = f"-ahead{self.lookahead}" if self.lookahead else ""
        timing = "".join(
            f"-{key}{value}"
            for key, value in (("pace", self.pace), ("lag", self.lag), ("window", self.window))
            if value
        )
        wire = f"-{self.wire}" if self.wire else ""
        return f"{front}-{_SHOT_NAMES[self.shot]}{options}-{self.blocks}x{self.threads}{ahead}{timing}{wire}"

    @property
    def packets(self) -> str:
        """The protocol as results name it, a line with its length: `line128`, `ll`, `flag`."""
        return f"line{self.line}" if self.protocol == "line" else self.protocol

    @property
    def packet(self) -> int:
        """Bytes that travel and are checked together."""
        return self.line if self.protocol == "line" else 16

    @property
    def payload(self) -> int:
        """Bytes of the message in a packet."""
        if self.wire:  # of 16-bit elements: 14 a lane, fewer in the last, beside the tag
            return 28 * (self.line // 16 - 1) + (12 if self.tag_bits == 64 else 20)
        if self.protocol == "line":
            return self.line - self.tag_bits // 8
        return 8 if self.protocol == "ll" else 16

    @property
    def warps(self) -> int:
        """Warps of the grid."""
        return self.blocks * self.threads // 32

    @property
    def kernel(self) -> tuple[object, ...]:
        """What decides the machine code, but for world, dtype and path."""
        line = (self.line, self.tag_bits) if self.protocol == "line" else ()
        return (self.protocol, self.shot, self.staged, self.pull, self.wire, *line)


def parse(name: str) -> Plan:
    """The plan of a name. Raises ValueError, saying what a name looks like."""
    match = _NAME.fullmatch(name)
    if match is None:
        raise ValueError(
            f"expected a plan such as line128t64-one-32x512-ahead1, ll-two-16x256 or flag-one-pull-8x512, "
            f"got {name!r}"
        )
    plan = Plan(
        protocol="line" if match["line"] else match["other"],  # type: ignore[arg-type]
        shot=_SHOTS[match["shot"]],
        blocks=int(match["blocks"]),
        threads=int(match["threads"]),
        line=int(match["line"] or 128),
        tag_bits=int(match["tag"] or 64),
        lookahead=int(match["ahead"] or 0),
        staged=bool(match["staged"]),
        pull=bool(match["pull"]),
        pace=int(match["pace"] or 0),
        lag=int(match["lag"] or 0),
        window=int(match["window"] or 0),
        wire=match["wire"] or "",  # type: ignore[arg-type]
    )
    problem = flaw(plan)
    if problem:
        raise ValueError(f"{name}: {problem}")
    return plan


def max_threads(plan: Plan, world: int) -> int:
    """Threads a block may have: what the kernel's launch bounds promise (ARF_THREADS)."""
    return 1024 if world == 2 or (world == 4 and plan.shot == 1) else 512


def flaw(plan: Plan, world: int = 2, path: Path = "peer") -> str:
    """Why no kernel exists for a plan; empty when one does."""
    if plan.protocol == "line" and (plan.line not in LINES or plan.tag_bits not in (32, 64)):
        return f"lines have {LINES} bytes and tags 32 or 64 bits"
    if plan.protocol == "line" and path == "host" and plan.line > 64 and plan.tag_bits < 64:
        return "over the host, lines of more than 64 bytes tear: they need 64-bit tags"
    if plan.threads % 32 or not 32 <= plan.threads <= max_threads(plan, world):
        return f"a block has a multiple of 32 threads, at most {max_threads(plan, world)} here"
    if plan.protocol == "flag" and plan.threads < world:
        return "a flag block needs a thread a rank"
    if plan.pull and (plan.protocol != "flag" or path == "host"):
        return "pulling is for flag over the peer path (over the host every read is a pull)"
    if plan.staged and (plan.protocol == "flag" or path == "host" or plan.shot == 4):
        return "staging is for packets pushed over the peer path"
    if plan.shot == 4 and (plan.protocol == "flag" or world % 2 or (world < 4 and world != 2)):
        return "the island-aware shape is for packets and an even world of at least 4"
    if plan.wire and (plan.protocol != "line" or plan.shot != 1 or plan.line < 32):
        return "8 bits an element are for one-shot lines of at least 32 bytes"
    if plan.blocks < 1:
        return "a grid has at least one block"
    return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """How a rank's region is divided. `capacity`: packets a source's part of an area holds, of the largest
    message; offsets and `nbytes` in bytes from the region's start."""

    capacity: int
    phase2: int
    phase3: int
    nbytes: int
    state_nbytes: int


def ceil_div(a: int, b: int) -> int:
    """a / b rounded up."""
    return -(-a // b)


def extent(plan: Plan, world: int, nbytes: int) -> tuple[int, int, int]:
    """(packets of a message, packets a chunk, tiles a phase loops over)."""
    units = ceil_div(nbytes, plan.payload)
    owners = {1: 1, 2: world, 4: max(1, world // 2)}[plan.shot]
    chunk = ceil_div(units, owners)
    lanes = plan.packet // 16
    return units, chunk, ceil_div(chunk, 32 // lanes)


def layout(plan: Plan, world: int, path: Path, max_nbytes: int) -> Layout:
    """Layout for messages of up to `max_nbytes`: two buffers (parities) of every part of every phase."""
    _, capacity, _ = extent(plan, world, max_nbytes)
    writer_holds = path == "host" or plan.pull
    addressed = 2 * world * capacity * plan.packet
    shared = (2 * capacity * plan.packet) if writer_holds else addressed
    areas = {1: (shared, 0, 0), 2: (addressed, shared, 0), 4: (addressed, 2 * addressed, shared)}[plan.shot]
    phase2 = _aligned(areas[0])
    phase3 = phase2 + _aligned(areas[1])
    end = phase3 + _aligned(areas[2])
    if plan.protocol == "flag":
        end = phase3 + 2 * world * plan.blocks * FLAG_STRIDE
    state = STATE_COUNTERS + 4 * max(plan.warps, plan.blocks)
    return Layout(
        capacity=capacity, phase2=phase2, phase3=phase3, nbytes=_aligned(end), state_nbytes=_aligned(state)
    )


def _aligned(nbytes: int) -> int:
    return ceil_div(nbytes, 256) * 256


def defines(plan: Plan, world: int, dtype: str, path: Path) -> dict[str, str | int | None]:
    """Macros of a plan's kernel."""
    macros: dict[str, str | int | None] = {
        "ARF_DTYPE": DTYPE_NUMBER[dtype],
        "ARF_WORLD": world,
        "ARF_HOST": int(path == "host"),
        "ARF_SHOT": plan.shot,
    }
    if plan.protocol == "line":
        macros |= {"ARF_LINE": plan.line, "ARF_TAG64": int(plan.tag_bits == 64)}
    if plan.staged:
        macros["ARF_STAGED"] = 1
    if plan.pull:
        macros["ARF_PULL"] = 1
    if plan.wire:
        macros["ARF_QUANT"] = 1 if plan.wire == "int8" else 2
    return macros


def sources(plan: Plan) -> tuple[str, ...]:
    """Files of `arfloor.kernels` that make a plan's kernel, in order."""
    return SOURCES[plan.protocol] + (("quantised.cuh",) if plan.wire else ())


def next_sequence(sequence: int) -> int:
    """The sequence after one. 0 marks memory nobody wrote; parity must go on alternating past 2^32 - 1."""
    return 2 if sequence == 0xFFFFFFFF else sequence + 1


def reached(flag: int, wanted: int) -> bool:
    """Whether a flag's sequence is the wanted one or later, as signed 32-bit difference; 0 never is."""
    return flag != 0 and ((flag - wanted) & 0xFFFFFFFF) < 0x80000000


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceError:
    """An error word of a kernel, taken apart."""

    kind: int
    waited_for: int
    block: int
    sequence: int

    def sentence(self, rank: int, seconds: float) -> str:
        """For people: who waited, for whom, where, how long."""
        return (
            f"rank {rank}, block {self.block}: rank {self.waited_for} did not arrive within {seconds:.1f} s "
            f"in operation {self.sequence}; outputs are NaN from there on"
        )


def decode_error(word: int) -> DeviceError | None:
    """The parts of a device error word; None for 0, no error."""
    if word == 0:
        return None
    return DeviceError(
        kind=word & 0xFF,
        waited_for=(word >> 8) & 0xFF,
        block=(word >> 16) & 0xFFFF,
        sequence=(word >> 32) & 0xFFFFFFFF,
    )
