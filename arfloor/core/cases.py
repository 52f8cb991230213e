"""The records everything else speaks in: what is measured, what came of it, and what it says.

All are frozen, keyword-only, slotted dataclasses. They are validated where they enter the program
(`arfloor.rundir`), not here, so that core stays plain. Units stand in the names: `us` microseconds,
`gbps` gigabytes (1e9 B) a second, `nbytes` bytes.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar, dataclass_transform

SCHEMA_VERSION = 1

DType = Literal["float32", "float16", "bfloat16"]
Mode = Literal["graph", "eager", "isolated"]
Path = Literal["peer", "host", "cpu"]
Status = Literal["ok", "wrong", "failed", "timeout", "unsupported", "skipped"]
Origin = Literal["measured", "published", "assumed", "predicted"]
VerdictStatus = Literal["switch", "at_floor", "gap", "undecided", "no_data"]

ITEMSIZE: dict[str, int] = {"float32": 4, "float16": 2, "bfloat16": 2}

Settings = tuple[tuple[str, str], ...]

T = TypeVar("T")


@dataclass_transform(kw_only_default=True, frozen_default=True, field_specifiers=(field,))
def record(cls: type[T]) -> type[T]:
    """Make a frozen, keyword-only, slotted dataclass that a pydantic TypeAdapter validates strictly.

    The configuration is plain data that pydantic looks up by name, so core needs no pydantic.
    """
    made = dataclass(frozen=True, slots=True, kw_only=True)(cls)
    made.__pydantic_config__ = {"extra": "forbid", "allow_inf_nan": False}  # type: ignore[attr-defined]
    return made


@record
class Case:
    """One thing to measure: an implementation with its settings, on given devices, at one size.

    `settings` are the process-wide choices (environment variables, `launcher`) as sorted pairs of
    name and value. `devices` names one device a rank (`cuda:0`, `cpu:1`). `groups` partitions the
    ranks into the groups that reduce at the same time; one group of all ranks is the usual case.
    """

    op: str = "all_reduce"
    backend: str
    variant: str = "default"
    settings: Settings = ()
    path: Path
    devices: tuple[str, ...]
    groups: tuple[tuple[int, ...], ...] = ()
    numel: int
    dtype: DType
    mode: Mode
    inplace: bool = True

    @property
    def world(self) -> int:
        """Ranks that take part in one reduce (the size of the first group)."""
        return len(self.groups[0]) if self.groups else len(self.devices)

    @property
    def nbytes(self) -> int:
        """Size of one rank's message in bytes."""
        return self.numel * ITEMSIZE[self.dtype]

    @property
    def id(self) -> str:
        """Stable id: readable front, then ten hexadecimal digits of a digest over every field."""
        parts = (
            self.op,
            self.backend,
            self.variant,
            self.settings,
            self.path,
            self.devices,
            self.groups,
            self.numel,
            self.dtype,
            self.mode,
            self.inplace,
        )
        digest = hashlib.sha256(repr(parts).encode()).hexdigest()[:10]
        return f"{self.backend}:{self.variant}:{self.path}:{self.nbytes}:{self.mode}:{digest}"

    @property
    def label(self) -> str:
        """What a reader calls it: backend, variant unless default, settings in brackets."""
        name = self.backend if self.variant == "default" else f"{self.backend} {self.variant}"
        shown = " ".join(f"{k}={v}" for k, v in self.settings if k != "launcher")
        return f"{name} [{shown}]" if shown else name


@record
class Estimate:
    """A value with its 95 % interval, from `n` samples, in `unit`."""

    value: float
    lo: float
    hi: float
    n: int
    unit: str


@record
class Samples:
    """What one rank timed in one round of one launch: one value per replay, in microseconds an op.

    `chains_us`, where `us` is derived from chains of operations: what the clock read, first every replay
    of the longer chain, then every one of the shorter (or empty) one. Nothing is computed from it here;
    it is kept so that another way to derive `us` can be tried on what was measured.
    """

    case_id: str
    launch: int
    round: int
    rank: int
    us: tuple[float, ...]
    chains_us: tuple[float, ...] = ()


@record
class Check:
    """Worst result of the correctness checks over all ranks and slots.

    `max_error` is the largest |result - reference| over the stated `bound` for random inputs (so
    correct means at most 1); `wrong` counts elements outside it or inexact integers.
    """

    max_error: float
    bound: float
    wrong: int
    bitwise_equal: bool


@record
class Ran:
    """What really ran, and how that is known (`source`: log, log table, api, self).

    `predicted_us`: what the library itself expects of this choice, in us, where it says so.
    """

    algorithm: str | None = None
    protocol: str | None = None
    channels: int | None = None
    transport: str | None = None
    link: str | None = None
    library: str | None = None
    source: str = "self"
    predicted_us: float | None = None


@record
class RanRecord:
    """What a probe worker saw running for one case: one line of `ran.jsonl`."""

    case_id: str
    ran: Ran


@record
class Result:
    """What became of one case. `reason` is a code of `arfloor.core.reasons`; `detail` is for people."""

    case: Case
    status: Status
    reason: str | None = None
    detail: str = ""
    latency: Estimate | None = None
    check: Check | None = None
    ran: Ran | None = None
    marks: tuple[str, ...] = ()
    stop: str | None = None
    block_id: str = ""
    origin: Origin = "measured"


@record
class Verdict:
    """The answer for one world, path, size, dtype and mode.

    `switch`: best beats default; `at_floor`: best within 1.25 of attainable; `gap`: neither.
    `default` and `best` are results; `attainable` and `bound` are estimates in microseconds.
    `headroom_now` = default / best and `headroom_left` = best / attainable are ratios; `pairing` says
    how default and best were compared (`round`, `launch`, `unpaired`; None when they are the same).
    `decided_on` is the interval of default / best that decided (99 % where it comes from samples), `band`
    the half-width of the band of equality that it was held against.
    """

    world: int
    path: Path
    nbytes: int
    dtype: DType
    mode: Mode
    default: Result | None
    best: Result | None
    attainable: Estimate | None
    bound: Estimate | None
    status: VerdictStatus
    reason: str
    sentence: str
    attainable_algorithm: str | None = None
    headroom_now: Estimate | None = None
    headroom_left: Estimate | None = None
    pairing: str | None = None
    decided_on: tuple[float, float] | None = None
    band: float | None = None
    devices: tuple[str, ...] = ()
    groups: tuple[tuple[int, ...], ...] = ()


@record
class Block:
    """Cases of one size measured interleaved in one process set: the unit of writing and resuming."""

    id: str
    settings: Settings
    path: Path
    devices: tuple[str, ...]
    dtype: DType
    numel: int
    case_ids: tuple[str, ...]


@record
class Primitive:
    """One measured property of a link or device.

    kind: `pingpong` (one-way latency, us), `stream` (GB/s per direction and active pair), `launch`
    (empty graph node, us), `reduce` (GB/s of additions), `contention` (time beside reduces or products over
    time alone, a ratio: access `compute` or `reduce`, `src` the product, `dst` the reduce's blocks).
    engine: `sm`, `ce`, `cpu`. access: `write`, `read`, `relaxed`, `acquire_release`, `sendrecv`.
    src, dst: device or `host`. `active` names the
    traffic pattern: `one_way`, `both_ways`, `all`; `best` marks a single best repetition.
    """

    kind: str
    engine: str
    access: str
    src: str
    dst: str
    path: Path
    link: str
    nbytes: int
    active: str
    estimate: Estimate | None
    origin: Origin = "measured"
    source: str = ""
    status: Status = "ok"
    reason: str | None = None


@record
class Node:
    """A place bytes pass: kind is `gpu`, `cpu`, `switch`, `root_port`, `socket`, `memory` or `nic`."""

    id: str
    kind: str
    numa: int | None = None


@record
class Edge:
    """A directed link. `read_gbps` and `write_gbps` are the rates of payload that a reader at `src`
    pulls from `dst`, or a writer at `src` pushes to `dst`. Edges with the same `shared` name share
    one capacity (a half-duplex memory, a root complex)."""

    src: str
    dst: str
    kind: str
    read_gbps: float
    write_gbps: float
    latency_us: float
    shared: str | None = None
    origin: Origin = "assumed"
    source: str = ""


@record
class Topology:
    """A box as a directed graph; `gpus` lists the ids of the nodes that compute, in rank order."""

    schema: int
    name: str
    nodes: tuple[Node, ...]
    edges: tuple[Edge, ...]
    gpus: tuple[str, ...]


@record
class Machine:
    """Facts that are equal on all ranks: what `support` and `variants` may decide from.

    `facts` holds booleans and strings by name (`p2p`, `peer_atomics`, `multicast_forbidden`, `nvlink`).
    """

    world: int
    device_kind: Literal["cpu", "cuda"]
    device_name: str
    compute_capability: tuple[int, int] | None = None
    multiprocessors: int = 0
    versions: dict[str, str] = field(default_factory=dict)
    facts: dict[str, str | bool | int | float] = field(default_factory=dict)


@record
class Tuning:
    """How our plan for one message was chosen: one line of `tuning.jsonl`.

    `finalists_us`: by plan, the median and the mean of all but the slowest fiftieth of its replays, ranks
    together. `took_s`: the search.
    """

    path: Path
    world: int
    dtype: DType
    nbytes: int
    plan: str
    took_s: float
    finalists_us: dict[str, tuple[float, float]]


@record
class BlockRecord:
    """What one launch made of one block: one line of `results.jsonl`, complete or absent."""

    schema: int
    block: Block
    launch: int
    results: tuple[Result, ...]


@record
class Manifest:
    """What a run is: written when it starts, rewritten as blocks complete.

    `notes`: what a reader must know of it, one sentence each.
    """

    schema: int
    run_id: str
    origin: Origin
    started: str
    recipe: dict[str, Any]
    seed: int
    launches: int
    machine: Machine
    versions: dict[str, str]
    env: dict[str, str]
    topology: Topology | None = None
    git: str | None = None
    blocks_done: tuple[str, ...] = ()
    failures: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
