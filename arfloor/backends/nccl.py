"""NCCL through torch's process groups: as a user gets it, and in every setting it can be given.

NCCL reads NCCL_ALGO and NCCL_PROTO when a communicator is made, so one process holds a communicator
a combination; channels go through the communicator's own configuration. Peer access is read once a
process: NCCL_P2P_DISABLE and NCCL_P2P_LEVEL are `settings`, each with processes of its own. So is
NCCL_GRAPH_MIXING_SUPPORT=0 (variants `one-graph` and `16ch-one-graph`, in graphs only), which asks something
of the program (`arfloor.core.demands`). Timing keeps to it: one graph is replayed at a time and waited for,
and uncaptured calls (connecting, checking, warming up) are made while none is under way, and waited for.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from arfloor.backends.base import SUPPORTED, Group, PreparedOp, Support, Variant
from arfloor.backends.slots import TorchSlots
from arfloor.core import nccl_log
from arfloor.core.cases import Case, Machine, Ran, Settings, record
from arfloor.core.cases import Path as Way
from arfloor.core.demands import GRAPH_MIXING_OFF
from arfloor.runtime import health

P2P_OFF: Settings = (("NCCL_P2P_DISABLE", "1"),)
P2P_ANYWHERE: Settings = (("NCCL_P2P_LEVEL", "SYS"),)
ONE_GRAPH = "one-graph"
# the default, and the channels that were best over a host bridge
ONE_GRAPH_VARIANTS = (ONE_GRAPH, f"16ch-{ONE_GRAPH}")

SUBSYSTEMS = "INIT,ENV,GRAPH,COLL,TUNING,P2P,SHM,NET"

ALGORITHMS = ("ring", "tree")
PROTOCOLS = ("ll", "ll128", "simple")
CHANNELS = (1, 2, 4, 8, 16, 32)
# measured by the default recipe beside the default: more channels than NCCL picks for a few hundred KiB,
# and Simple at the largest sizes; each was the fastest somewhere over the host of two H200s. On 16 channels
# NCCL chooses LL by itself up to 256 KiB, where `ring-ll-16ch` was within 2 %; at 512 KiB that was 5 %
# faster. It is left to the grid, as is LL128, for the sake of the recipe's time.
CONTENDERS = frozenset({"16ch", "ring-simple-8ch"})
# over NVLink, Simple on 8 channels took twice the default's time up to 256 KiB and 1.3 times it at 4 MiB
CONTENDERS_OF_NVLINK = frozenset({"16ch"})
# a tree of two ranks is a ring with a longer way round
CONTENDERS_OF_MANY = frozenset({"tree-ll"})


@record
class Plan:
    """A variant's name taken apart: None means that NCCL chooses. `one_graph`: graph mixing is off."""

    algorithm: str | None = None
    protocol: str | None = None
    channels: int | None = None
    one_graph: bool = False

    @property
    def environment(self) -> dict[str, str]:
        """What must be set while the communicator is made."""
        made = {}
        if self.algorithm:
            made["NCCL_ALGO"] = self.algorithm.capitalize()
        if self.protocol:
            made["NCCL_PROTO"] = {"ll": "LL", "ll128": "LL128", "simple": "Simple"}[self.protocol]
        return made

    @property
    def advice(self) -> str:
        """What a user sets beside its `settings` to get it, as shell assignments; empty for the default."""
        made = dict(self.environment)
        if self.channels:
            made |= {"NCCL_MIN_NCHANNELS": str(self.channels), "NCCL_MAX_NCHANNELS": str(self.channels)}
        return " ".join(f"{name}={value}" for name, value in made.items())


def parse_variant(name: str) -> Plan:
    """`default`, `16ch`, `ring-ll`, `ring-ll128-16ch`; `one-graph`, `16ch-one-graph`: with graph mixing off.

    Raises ValueError on anything else.
    """
    if name == ONE_GRAPH:
        return Plan(one_graph=True)
    plain = name.removesuffix(f"-{ONE_GRAPH}")
    return replace(_parse(plain), one_graph=True) if plain not in (name, "default") else _parse(name)


def _parse(name: str) -> Plan:
    plan: dict[str, Any] = {}
    for part in [] if name == "default" else name.split("-"):
        if part in ALGORITHMS and not plan:
            plan["algorithm"] = part
        elif part in PROTOCOLS and set(plan) == {"algorithm"}:
            plan["protocol"] = part
        elif part.endswith("ch") and part[:-2].isdecimal() and "channels" not in plan:
            plan["channels"] = int(part[:-2])
        else:
            raise ValueError(
                f"nccl variant {name!r}: expected default, Nch, or algorithm-protocol[-Nch], [-]one-graph"
            )
    return Plan(**plan)


def names(world: int = 8) -> tuple[str, ...]:
    """Every variant: default, NCCL's choice on n channels, every protocol x algorithm x channels.

    Each needs a communicator of its own, all alive in one process. At two ranks a tree is a ring with a
    longer way round: it is there in every protocol, but not on every number of channels.
    """
    free = tuple(f"{n}ch" for n in CHANNELS)
    forced = tuple(f"{a}-{p}" for a in ALGORITHMS for p in PROTOCOLS)
    wide = tuple(f for f in forced if world > 2 or not f.startswith("tree"))
    return ("default", *free, *forced, *(f"{f}-{n}ch" for f in wide for n in CHANNELS))


class Nccl:
    """The backend; see `arfloor.backends.base.Backend`."""

    name = "nccl"

    def support(self, machine: Machine, case: Case) -> Support:
        """Any dtype and size on two or more GPUs; one group of all ranks, or equal groups."""
        if machine.device_kind != "cuda":
            return Support(ok=False, reason="needs_gpu", detail="NCCL reduces GPU memory")
        if not machine.facts.get("nccl", True):
            return Support(ok=False, reason="not_installed", detail="this torch is built without NCCL")
        if case.path == "peer" and machine.facts.get("p2p") is False:
            return Support(ok=False, reason="needs_p2p", detail="the GPUs have no peer access to each other")
        return SUPPORTED

    def variants(self, machine: Machine) -> Sequence[Variant]:
        """Both paths; peer access beyond one switch as a setting of its own where it changes anything; graph
        mixing off on both paths, for grids and recipes that name it."""
        if machine.device_kind != "cuda":
            return ()
        ways: list[tuple[Way, Settings]] = [("peer", ()), ("host", P2P_OFF)]
        beyond: list[tuple[Way, Settings]] = []
        if not machine.facts.get("nvlink", False) and machine.facts.get("p2p", False):
            beyond.append(("peer", P2P_ANYWHERE))
        contenders = {"host": CONTENDERS, "peer": CONTENDERS}
        if machine.facts.get("nvlink", False):
            contenders["peer"] = CONTENDERS_OF_NVLINK
        if machine.world > 2:
            contenders = {path: found | CONTENDERS_OF_MANY for path, found in contenders.items()}
        made = [
            Variant(
                name=name,
                path=path,
                settings=settings,
                default=name == "default" and settings != P2P_ANYWHERE,
                contender=name == "default" or name in contenders[path],
            )
            for path, settings in ways + beyond
            for name in names(machine.world)
        ]
        return made + [
            Variant(
                name=name,
                path=path,
                settings=tuple(sorted((*GRAPH_MIXING_OFF, *settings))),
                contender=False,
                modes=("graph",),
            )
            for path, settings in ways
            for name in ONE_GRAPH_VARIANTS
        ]

    def prepare(self, case: Case, group: Group, slots: int) -> PreparedOp:
        """A communicator for the variant, made once a process, and `slots` tensors reduced in place."""
        return NcclOp(case, _communicator(case, group), slots)

    def probe_environment(self, log: Path) -> dict[str, str]:
        """See `arfloor.backends.base.Probing`."""
        _LOG.file = log
        return {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": SUBSYSTEMS, "NCCL_DEBUG_FILE": str(log)}

    def probe(self, case: Case, group: Group) -> Ran | None:
        """Reduce once and read rank 0's log: only the first rank of a communicator logs its choices."""
        import torch

        op = self.prepare(case, group, 1)
        op.run(0)
        torch.cuda.synchronize()
        log = nccl_log.parse(_LOG.of(case.variant, case.path))
        op.close()
        found = nccl_log.ran(log, case.nbytes, link=health.link_of(group.world, case.path))
        if found is not None:  # the version stands in the log of the first communicator only
            found = replace(found, library=library())
        mine = None if found is None else [getattr(found, name) for name in _RAN_FIELDS]
        first = group.broadcast(mine)
        return None if first is None else Ran(**dict(zip(_RAN_FIELDS, first, strict=True)))


_RAN_FIELDS = ("algorithm", "protocol", "channels", "transport", "link", "library", "source", "predicted_us")
_COMMUNICATORS: dict[tuple[str, tuple[tuple[int, ...], ...]], Any] = {}


_REFUSED: dict[tuple[str, tuple[tuple[int, ...], ...]], str] = {}


class NcclError(Exception):
    """A setting for which NCCL makes no communicator; the message says which rank said why."""


def _communicator(case: Case, group: Group) -> Any:
    """The process group of a variant: made, and connected, while its environment holds. Collective.

    Raises NcclError on every rank when any rank fails, then and whenever it is asked for again: ranks of
    which one makes a communicator anew while the others use theirs would wait for each other.
    """
    key = (case.variant, case.groups)
    if key not in _COMMUNICATORS and key not in _REFUSED:
        made, error = None, None
        try:
            made = _make(case, group)
        except Exception as raised:  # noqa: BLE001 - torch raises several classes; the others must hear of it
            error = " ".join(f"{type(raised).__name__}: {raised}".split())[:200]
        errors = group.all_gather(error)
        first = next((f"rank {r}: {e}" for r, e in enumerate(errors) if e is not None), None)
        if first is None:
            _COMMUNICATORS[key] = made
        else:
            _REFUSED[key] = first
    if key in _REFUSED:
        raise NcclError(f"no communicator for {case.variant}: {_REFUSED[key]}")
    return _COMMUNICATORS[key]


def _make(case: Case, group: Group) -> Any:
    import torch
    import torch.distributed as dist

    plan = parse_variant(case.variant)
    if plan.one_graph and any(os.environ.get(name) != value for name, value in GRAPH_MIXING_OFF):
        raise NcclError(f"{case.variant} needs {GRAPH_MIXING_OFF[0][0]}=0 in the environment of the process")
    device = torch.device(case.devices[group.rank])
    with environment(plan.environment):
        options = _options(plan)
        mine = None
        for members in case.groups or (tuple(range(group.world)),):
            made = dist.new_group(list(members), backend="nccl", pg_options=options)
            if group.rank in members:
                mine = made
        # torch makes the communicator at its first collective: while the environment still holds
        dist.all_reduce(torch.zeros(4, device=device), group=mine)
        torch.cuda.synchronize(device)
    return mine


def default_communicator(case: Case, group: Group) -> Any:
    """The process group that NCCL's default variant uses, for backends that build on NCCL. Collective."""
    return _communicator(replace(case, variant="default"), group)


def _options(plan: Plan) -> Any:
    import torch.distributed as dist

    options = dist.ProcessGroupNCCL.Options()
    if plan.channels:
        options.config.min_ctas = plan.channels
        options.config.max_ctas = plan.channels
    return options


@contextlib.contextmanager
def environment(values: dict[str, str]) -> Iterator[None]:
    """Set environment variables for a while; on leaving, everything is as it was."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


class NcclOp(TorchSlots):
    """Slots of one arena, reduced in place."""

    def __init__(self, case: Case, communicator: Any, slots: int) -> None:
        import torch.distributed as dist

        super().__init__(case, slots, device="cuda")
        self._reduce = dist.all_reduce
        self.communicator = communicator

    def run(self, slot: int) -> None:
        """Enqueue one reduce on torch's current stream."""
        self._reduce(self.inputs[slot], group=self.communicator)

    def ran(self) -> Ran:
        """The library only: what really ran is read from the log of a probe worker."""
        return Ran(library=library(), source="api")


class _Log:
    """The log of this process, read in slices: what was written since the last look."""

    def __init__(self) -> None:
        self.file: Path | None = None
        self._seen = 0
        self._made: dict[tuple[str, str], str] = {}

    def since(self) -> str:
        """Lines written since the last call; empty when there is no log."""
        if self.file is None or not self.file.is_file():
            return ""
        with self.file.open(encoding="utf-8", errors="replace") as stream:
            stream.seek(self._seen)
            text = stream.read()
            self._seen = stream.tell()
        return text

    def of(self, variant: str, path: str) -> str:
        """The log of making a variant's communicator, kept, followed by what is new."""
        self._made[variant, path] = self._made.get((variant, path), "") + self.since()
        return self._made[variant, path]


_LOG = _Log()


def library() -> str:
    """`NCCL 2.28.9`, with the version torch was built against where that is another."""
    import torch

    built = ".".join(str(part) for part in torch.cuda.nccl.version())
    loaded = loaded_version() or built
    return f"NCCL {loaded}" if loaded == built else f"NCCL {loaded} (torch built against {built})"


def loaded_version() -> str | None:
    """Version of the NCCL library in this process; None where it is linked in or named otherwise."""
    number = ctypes.c_int(0)
    try:
        if ctypes.CDLL("libnccl.so.2").ncclGetVersion(ctypes.byref(number)) != 0:
            return None
    except (OSError, AttributeError):
        return None
    major, rest = divmod(number.value, 10000)
    return f"{major}.{rest // 100}.{rest % 100}"
