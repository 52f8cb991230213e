"""MSCCL++'s native collection, at its own defaults and tuned over blocks x threads, over peer memory.

The package `mscclpp` is not on PyPI: it is built from its authors' repository (microsoft/mscclpp, 0.9),
and needs cupy. Its algorithms are looked up by name in the collection it builds; every one is offered
here by hand, so that what ran is what the case says, whatever its selector would have chosen.

`packet`          an algorithm at its own default grid
`packet-tuned`    the fastest of its grids in `GRIDS`, found by measuring when the case is prepared
`packet-32x512`   one grid, blocks x threads; for grid recipes

`packet` and `allpair_packet` add their own contribution first, then the others' in rank order, and round to
the dtype after each addition. Two terms commute; from three ranks on, the ranks of `allpair_packet` may
therefore differ in the last place (`packet` sums a part once and sends the sum to all).
"""

from __future__ import annotations

import atexit
import gc
import importlib
import statistics
from collections import defaultdict
from collections.abc import Sequence
from functools import partial
from typing import Any

from arfloor.backends import kept
from arfloor.backends.base import SUPPORTED, Group, Support, Variant
from arfloor.backends.slots import ForeignMemory, TorchSlots
from arfloor.core.cases import Case, Machine, Ran
from arfloor.core.slopes import chain_us, slopes_us

ALGORITHMS = ("allpair_packet", "packet", "fullmesh", "rsag", "rsag_zero_copy")
PACKETS = frozenset({"allpair_packet", "packet"})
# these signal with `red.sys` on the peer's memory: where the link has no atomics, they hang
REMOTE_ATOMICS = frozenset({"fullmesh", "rsag", "rsag_zero_copy"})
# its kernel is compiled for these numbers of ranks alone
WORLDS = {"rsag_zero_copy": (4, 8, 16)}
# blocks x threads. At most 64 blocks, `packet` 112, `rsag_zero_copy` 128; 128 threads or more in all, and in
# a block of `packet`: each launch advances all 128 flags. A block of `allpair_packet` sends with one warp a
# peer, so that it wants many blocks.
GRIDS = {
    "allpair_packet": (
        *("8x256", "8x512", "16x128", "16x256", "16x512", "32x128", "32x256", "32x512"),
        *("64x64", "64x128", "64x256", "64x512"),
    ),
    "packet": (
        *("4x256", "4x512", "8x256", "8x512", "8x1024", "16x512", "16x1024", "32x512", "32x1024"),
        *("64x256", "64x512", "64x1024", "112x512"),
    ),
    "fullmesh": ("4x512", "8x512", "8x1024", "16x512", "16x1024", "32x512", "32x1024", "64x512", "64x1024"),
    "rsag": ("4x512", "8x512", "8x1024", "16x512", "16x1024", "32x512", "32x1024", "64x256", "64x512"),
    "rsag_zero_copy": ("8x512", "16x512", "16x1024", "32x512", "32x1024", "64x512", "128x512"),
}
TUNED = "-tuned"
# what its own examples of these algorithms use: two halves of 70 MiB
SCRATCH_NBYTES = 140 << 20
# a buffer is a multiple of this, so that none shares a physical page, nor an IPC handle, with another
PAGE = 2 << 20
MISSING = (
    "the package mscclpp is not installed; it is not on PyPI: build it from the repository "
    "microsoft/mscclpp (its Python package needs cupy)"
)


def parse_variant(name: str) -> tuple[str, int, int]:
    """(algorithm, blocks, threads) of `packet` or `packet-32x512`; 0 blocks: MSCCL++'s own choice.

    `packet-tuned` is (`packet`, 0, 0) until it is tuned. Raises ValueError on a name not among `names()`.
    """
    if name not in names():
        known = ", ".join(ALGORITHMS)
        raise ValueError(f"mscclpp variant {name!r}: expected one of {known}, NAME{TUNED} or NAME-BxT")
    algorithm, _, grid = name.removesuffix(TUNED).partition("-")
    blocks, _, threads = grid.partition("x")
    return algorithm, int(blocks or 0), int(threads or 0)


def names() -> tuple[str, ...]:
    """Every variant: each algorithm at its own default, tuned, then at each grid."""
    return tuple(n for a in ALGORITHMS for n in (a, f"{a}{TUNED}", *(f"{a}-{grid}" for grid in GRIDS[a])))


def scratch_nbytes(algorithm: str, world: int, nbytes: int) -> int:
    """Scratch memory that a message takes; the library does not check it for its packet kernels.

    A packet is half flags. `allpair_packet` keeps one of every rank, `packet` the message twice and the sum
    once, both in one of two halves. `fullmesh` keeps 256 KiB a block and rank. 0: none.
    """
    if algorithm == "allpair_packet":
        return 2 * 2 * world * nbytes
    if algorithm == "packet":
        return 2 * (2 * 2 + 2) * nbytes
    if algorithm == "fullmesh":
        return min(64, -(-nbytes // world // 8192)) * (256 << 10) * world
    return nbytes if algorithm == "rsag" else 0


class Mscclpp:
    """The backend; see `arfloor.backends.base.Backend`. A user who enables it gets no single default."""

    name = "mscclpp"

    def support(self, machine: Machine, case: Case) -> Support:
        """GPUs with peer access; remote atomics where the algorithm signals with them."""
        if machine.device_kind != "cuda":
            return Support(ok=False, reason="needs_gpu", detail="MSCCL++ reduces GPU memory")
        if "mscclpp" not in machine.versions:
            return Support(ok=False, reason="not_installed", detail=MISSING)
        if case.path != "peer" or machine.facts.get("p2p") is False:
            return Support(ok=False, reason="needs_p2p", detail="it writes to the other GPUs' memory")
        algorithm, _, _ = parse_variant(case.variant)
        if algorithm in REMOTE_ATOMICS and machine.facts.get("peer_atomics") is not True:
            detail = f"{algorithm} signals by atomics on peer memory, which this link does not report"
            return Support(ok=False, reason="needs_peer_atomics", detail=detail)
        if len(case.groups) > 1:
            return Support(ok=False, reason="world_size", detail="one group of all ranks only")
        worlds = WORLDS.get(algorithm)
        if worlds is not None and case.world not in worlds:
            detail = f"{algorithm} is compiled for {', '.join(map(str, worlds))} ranks, not {case.world}"
            return Support(ok=False, reason="world_size", detail=detail)
        if case.nbytes % (16 * case.world):
            detail = "each rank's part must be a multiple of 16 bytes: it moves 16 at a time"
            return Support(ok=False, reason="size", detail=detail)
        if scratch_nbytes(algorithm, case.world, case.nbytes) > SCRATCH_NBYTES:
            detail = f"{algorithm} would need more than {SCRATCH_NBYTES >> 20} MiB of scratch memory"
            return Support(ok=False, reason="size", detail=detail)
        return SUPPORTED

    def variants(self, machine: Machine) -> Sequence[Variant]:
        """No variant is `default`: serving engines choose among them by size. Its own grids and tuned ones
        are contenders."""
        if machine.device_kind != "cuda":
            return ()
        modes = ("graph", "eager", "isolated")
        contenders = {*ALGORITHMS, *(a + TUNED for a in ALGORITHMS)}
        return [Variant(name=n, path="peer", contender=n in contenders, modes=modes) for n in names()]

    def prepare(self, case: Case, group: Group, slots: int) -> MscclppOp:
        """Collective: the first run of each algorithm connects the ranks, in one order. Tuning takes about
        half a second, and less where an earlier launch of the run has tuned."""
        session = _session(group)
        op = MscclppOp(case, session, slots, device=case.devices[group.rank])
        if case.variant.endswith(TUNED):
            op.grid = tuned(op, case, group)
        return op


class Session:
    """What a process holds once: the communicator, zeroed scratch memory, the collection, buffers."""

    def __init__(self, group: Group) -> None:
        import torch.distributed as dist

        # after torch, which loads the CUDA libraries that mscclpp links against
        mscclpp = importlib.import_module("mscclpp")
        builders = importlib.import_module("mscclpp.ext")
        control = dist.new_group(list(range(group.world)), backend="gloo")
        self.comm = mscclpp.CommGroup(torch_group=control)
        self._make = mscclpp.RawGpuBuffer  # zeroed
        # packet kernels know a fresh packet by its flag words alone: nobody else may write where they poll
        self._scratch = [self._make(SCRATCH_NBYTES) for _ in range(2)]
        builder = builders.AlgorithmCollectionBuilder()
        self.algorithms: dict[str, Any] = {}
        for copies, scratch in enumerate(self._scratch):
            collection = builder.build_default_algorithms(
                scratch_buffer=scratch.data(), scratch_buffer_size=SCRATCH_NBYTES, rank=group.rank
            )
            for algorithm in collection:
                name = str(algorithm.name).removeprefix("default_allreduce_")
                if algorithm.collective == "allreduce" and (name not in PACKETS) == bool(copies):
                    self.algorithms[name] = algorithm
        self.version = str(mscclpp.__version__)
        self.dtypes = {
            "float32": mscclpp.DataType.float32,
            "float16": mscclpp.DataType.float16,
            "bfloat16": mscclpp.DataType.bfloat16,
        }
        self.sum = mscclpp.ReduceOp.SUM
        self._free: dict[int, list[Any]] = defaultdict(list)

    def take(self, nbytes: int, device: str) -> _Buffer:
        """A buffer of at least `nbytes`, an allocation of its own: the library knows buffers by the base of
        their allocation, and needs them at the same offset on all ranks. It keeps what it has registered for
        as long as the process lives, so buffers are used again and never freed."""
        import torch

        size = -(-nbytes // PAGE) * PAGE
        if self._free[size]:
            return self._free[size].pop()  # type: ignore[no-any-return]
        memory = self._make(size)
        view = torch.as_tensor(ForeignMemory(int(memory.data()), size), device=device)
        return _Buffer(size, memory, view)

    def give(self, buffers: Sequence[_Buffer]) -> None:
        """Take buffers back; in the same order on all ranks."""
        for buffer in reversed(buffers):
            self._free[buffer.nbytes].append(buffer)

    def close(self) -> None:
        """Let go in the order the library needs: algorithms, then the communicator, then memory."""
        self.algorithms = {}
        importlib.import_module("mscclpp.ext").AlgorithmCollectionBuilder.reset()
        self.comm = None
        gc.collect()
        self._free.clear()
        self._scratch = []


class _Buffer:
    """Memory of the library, and all of it as a torch tensor of bytes."""

    def __init__(self, nbytes: int, memory: Any, view: Any) -> None:
        self.nbytes, self.memory, self.view = nbytes, memory, view


_SESSIONS: list[Session] = []
_FAILED: list[str] = []


def _session(group: Group) -> Session:
    """The process's session, made once. Raises RuntimeError on every rank where any rank could not make it,
    and again at once: what waits for a rank that has failed waits for long."""
    if not _SESSIONS and not _FAILED:
        made, problem = None, None
        try:
            made = Session(group)
        except Exception as error:  # noqa: BLE001 - a library may raise anything, and all ranks must hear of it
            problem = f"{type(error).__name__}: {error}"
        problems = [f"rank {r}: {p}" for r, p in enumerate(group.all_gather(problem)) if p is not None]
        if problems or made is None:
            _FAILED.append("; ".join(problems))
        else:
            _SESSIONS.append(made)
            atexit.register(_close_session)  # at exit its objects must go before CUDA's context does
    if _FAILED:
        raise RuntimeError(f"mscclpp could not be set up: {_FAILED[0]}")
    return _SESSIONS[0]


def _close_session() -> None:
    while _SESSIONS:
        _SESSIONS.pop().close()


class MscclppOp(TorchSlots):
    """See `PreparedOp`. `grid`: blocks and threads; 0 of them: the library's own choice."""

    def __init__(self, case: Case, session: Any, slots: int, *, device: str) -> None:
        name, blocks, threads = parse_variant(case.variant)
        if name not in session.algorithms:
            known = ", ".join(sorted(session.algorithms))
            raise RuntimeError(f"mscclpp {session.version} has no all-reduce {name!r}; it has {known}")
        self._taken: list[_Buffer] = []
        super().__init__(case, slots, device=device, allocate=self._allocate(session, device), apart=True)
        self._session, self._name, self._nbytes = session, name, case.nbytes
        self.grid = (blocks, threads)
        self._calls = [
            partial(
                session.algorithms[name].execute,
                comm=session.comm.communicator,
                input_buffer=source.data_ptr(),
                output_buffer=target.data_ptr(),
                input_size=case.nbytes,
                output_size=case.nbytes,
                dtype=session.dtypes[case.dtype],
                op=session.sum,
                symmetric_memory=True,
            )
            for source, target in zip(self.inputs, self.outputs, strict=True)
        ]
        for slot in range(slots):  # connects the ranks for each buffer, which a capture must not do
            self.run(slot)

    def _allocate(self, session: Any, device: str) -> Any:
        def allocate(numel: int, dtype: Any) -> Any:
            buffer = session.take(numel * dtype.itemsize, device)
            self._taken.append(buffer)
            return buffer.view[: numel * dtype.itemsize].view(dtype)

        return allocate

    def run(self, slot: int) -> None:
        """Enqueue one reduce on torch's current stream. Raises RuntimeError on a code other than 0."""
        code = self.enqueue(slot, self.grid)
        if code != 0:
            raise RuntimeError(f"mscclpp {self._name} refused {self._nbytes} B with code {code}")

    def enqueue(self, slot: int, grid: tuple[int, int]) -> int:
        """The same on a grid; returns the library's code, other than 0 where it enqueued nothing."""
        import torch

        stream = torch.cuda.current_stream().cuda_stream
        code = self._calls[slot](stream=stream, nblocks=grid[0], nthreads_per_block=grid[1])
        return int(getattr(code, "value", code))  # an enumeration, of a kind that differs between builds

    def ran(self) -> Ran:
        """The algorithm was called by name: nothing chose for us."""
        return Ran(
            algorithm=f"{self._name} {self.grid[0]}x{self.grid[1]}" if self.grid[0] else self._name,
            protocol="packet" if self._name in PACKETS else "copy",
            transport="cuda_ipc",
            library=f"MSCCL++ {self._session.version}",
            source="api",
        )

    def close(self) -> None:
        """Give the buffers back."""
        super().close()
        self._calls = []
        self._session.give(self._taken)
        self._taken = []


QUICK = 6
"""Replays of each chain of a grid, of which the first warms up."""


class _OnGrid:
    """An op on one grid, as what a chain repeats."""

    def __init__(self, op: MscclppOp, grid: tuple[int, int]) -> None:
        self.slots, self._op, self._grid = op.slots, op, grid

    def run(self, slot: int) -> None:
        code = self._op.enqueue(slot, self._grid)
        if code != 0:
            raise RuntimeError(f"mscclpp refused the grid {self._grid[0]}x{self._grid[1]} with code {code}")


def tuned(op: MscclppOp, case: Case, group: Group) -> tuple[int, int]:
    """The grid on which an algorithm is fastest, by the median slope. Collective.

    Raises RuntimeError on every rank when the library takes none of the grids.
    """
    algorithm, _, _ = parse_variant(case.variant)
    name = f"mscclpp/{algorithm}/{case.world}/{case.dtype}/{case.nbytes}"
    found = group.broadcast(kept.read().get(name))
    if found is None:
        grids = [_grid(text) for text in GRIDS[algorithm]]
        times = _times(op, case, group, [g for g in grids if all(group.all_gather(_accepts(op, g)))])
        if not times:
            raise RuntimeError(f"mscclpp {algorithm} takes none of the grids {', '.join(GRIDS[algorithm])}")
        found = min(times, key=lambda text: (times[text], text))
        if group.rank == 0:
            kept.add(name, found)
    return _grid(found)


def _grid(text: str) -> tuple[int, int]:
    blocks, _, threads = text.partition("x")
    return int(blocks), int(threads)


def _accepts(op: MscclppOp, grid: tuple[int, int]) -> bool:
    """Whether the library takes a grid; every slot runs once on it."""
    return all(op.enqueue(slot, grid) == 0 for slot in range(op.slots))


def _times(op: MscclppOp, case: Case, group: Group, grids: Sequence[tuple[int, int]]) -> dict[str, float]:
    """Per grid, the median over replays of the ranks' common slope, in us."""
    import torch

    from arfloor.runtime.barrier import DeviceBarrier
    from arfloor.runtime.chains import Chain
    from arfloor.runtime.timing_gpu import FEW, MANY

    torch.cuda.synchronize()
    barrier = DeviceBarrier(group, "peer", device=torch.cuda.current_device())
    times: dict[str, float] = {}
    try:
        for grid in grids:
            chains = [Chain(_OnGrid(op, grid), n, barrier, graph=True) for n in (MANY, FEW)]
            taken: list[list[float]] = [[], []]
            for replay in range(QUICK):
                for chain, into in zip(chains, taken, strict=True):
                    us = chain.replay_us()
                    if replay:
                        into.append(us)
            for chain in chains:
                chain.close()
            everyone = group.all_gather(taken)
            many, few = (chain_us([rank[i] for rank in everyone]) for i in (0, 1))
            times[f"{grid[0]}x{grid[1]}"] = statistics.median(slopes_us(many, few, MANY, FEW))
        barrier.check()
    finally:
        barrier.close()
    return times
