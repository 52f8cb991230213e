"""MSCCL++'s native collection, at its own defaults and at chosen grids, over peer memory.

The package `mscclpp` is not on PyPI: it is built from its authors' repository (microsoft/mscclpp),
and needs cupy. Its algorithms are looked up by name in the collection it builds; every one is offered
here by hand, so that what ran is what the case says, whatever its selector would have chosen.
"""

from __future__ import annotations

import atexit
import gc
import importlib
from collections.abc import Sequence

from arfloor.backends.base import SUPPORTED, Group, Support, Variant
from arfloor.backends.slots import TorchSlots
from arfloor.core.cases import Case, Machine, Ran

ALGORITHMS = ("allpair_packet", "packet", "fullmesh", "rsag", "rsag_zero_copy")
# these signal with `red.sys` on the peer's memory: where the link has no atomics, they hang
REMOTE_ATOMICS = frozenset({"fullmesh", "rsag", "rsag_zero_copy"})
# blocks x threads; the collection's kernels accept at most 64 blocks, its packet kernel 112
GRIDS = {
    "allpair_packet": ("8x512", "16x512", "32x512", "64x256", "64x512", "64x1024"),
    "packet": ("8x512", "16x512", "32x512", "64x512", "64x1024"),
    "fullmesh": ("32x512", "64x1024"),
    "rsag": ("16x512", "32x512", "64x1024"),
    "rsag_zero_copy": ("16x512", "32x1024", "64x1024"),
}
SCRATCH_NBYTES = 64 << 20
MISSING = (
    "the package mscclpp is not installed; it is not on PyPI: build it from the repository "
    "microsoft/mscclpp (its Python package needs cupy)"
)


def parse_variant(name: str) -> tuple[str, int, int]:
    """(algorithm, blocks, threads) of `packet` or `packet-32x512`; 0 blocks: MSCCL++'s own choice.

    Raises ValueError on a name that is none of `names()`.
    """
    if name not in names():
        raise ValueError(f"mscclpp variant {name!r}: expected one of {', '.join(ALGORITHMS)}, or NAME-BxT")
    algorithm, _, grid = name.partition("-")
    blocks, _, threads = grid.partition("x")
    return algorithm, int(blocks or 0), int(threads or 0)


def names() -> tuple[str, ...]:
    """Every variant: each algorithm at its own default, then at each grid."""
    return tuple(n for a in ALGORITHMS for n in (a, *(f"{a}-{grid}" for grid in GRIDS[a])))


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
        if case.nbytes % 16:
            return Support(ok=False, reason="size", detail="it moves 16 bytes at a time")
        return SUPPORTED

    def variants(self, machine: Machine) -> Sequence[Variant]:
        """No variant is `default`: serving engines choose among them by size."""
        if machine.device_kind != "cuda":
            return ()
        modes = ("graph", "eager", "isolated")
        return [Variant(name=n, path="peer", contender=n in CONTENDERS, modes=modes) for n in names()]

    def prepare(self, case: Case, group: Group, slots: int) -> MscclppOp:
        """Collective: the first run of each algorithm connects the ranks, in one order."""
        return MscclppOp(case, _session(group), slots, device=case.devices[group.rank])


# its own defaults, and the largest grids that both packet kernels take at a common number of threads: a
# choice, not a measurement (no run of arfloor has measured MSCCL++ yet)
CONTENDERS = frozenset(
    {"allpair_packet", "packet", "rsag_zero_copy", "allpair_packet-64x512", "packet-64x512"}
)


class Session:
    """What a process holds once: the communicator, zeroed scratch memory, the collection."""

    def __init__(self, group: Group) -> None:
        import torch
        import torch.distributed as dist

        # after torch, which loads the CUDA libraries that mscclpp links against
        mscclpp = importlib.import_module("mscclpp")
        builders = importlib.import_module("mscclpp.ext")
        control = dist.new_group(list(range(group.world)), backend="gloo")
        self.comm = mscclpp.CommGroup(torch_group=control)
        self.scratch = torch.zeros(SCRATCH_NBYTES, dtype=torch.uint8, device="cuda")
        builder = builders.AlgorithmCollectionBuilder()
        collection = builder.build_default_algorithms(
            scratch_buffer=self.scratch.data_ptr(), scratch_buffer_size=SCRATCH_NBYTES, rank=group.rank
        )
        self.algorithms = {
            a.name.removeprefix("default_allreduce_"): a for a in collection if a.collective == "allreduce"
        }
        self.version = str(mscclpp.__version__)
        self.dtypes = {
            "float32": mscclpp.DataType.float32,
            "float16": mscclpp.DataType.float16,
            "bfloat16": mscclpp.DataType.bfloat16,
        }
        self.sum = mscclpp.ReduceOp.SUM

    def close(self) -> None:
        """Let go in the order the library needs: algorithms, then the communicator, then memory."""
        self.algorithms = {}
        importlib.import_module("mscclpp.ext").AlgorithmCollectionBuilder.reset()
        self.comm = None
        gc.collect()


_SESSIONS: list[Session] = []


def _session(group: Group) -> Session:
    if not _SESSIONS:
        _SESSIONS.append(Session(group))
        atexit.register(_close_session)  # at exit its objects must go before CUDA's context does
    return _SESSIONS[0]


def _close_session() -> None:
    while _SESSIONS:
        _SESSIONS.pop().close()


class MscclppOp(TorchSlots):
    """See `PreparedOp`."""

    def __init__(self, case: Case, session: Session, slots: int, *, device: str) -> None:
        super().__init__(case, slots, device=device)
        self._session = session
        self._nbytes = case.nbytes
        self._dtype_code = session.dtypes[case.dtype]
        name, self._blocks, self._threads = parse_variant(case.variant)
        if name not in session.algorithms:
            known = ", ".join(sorted(session.algorithms))
            raise RuntimeError(f"mscclpp {session.version} has no all-reduce {name!r}; it has {known}")
        self._name = name
        self._algorithm = session.algorithms[name]
        for slot in range(slots):  # connects the ranks for each buffer, which a capture must not do
            self.run(slot)

    def run(self, slot: int) -> None:
        """Enqueue one reduce on torch's current stream. Raises RuntimeError on a code other than 0."""
        import torch

        code = self._algorithm.execute(
            comm=self._session.comm.communicator,
            input_buffer=self.inputs[slot].data_ptr(),
            output_buffer=self.outputs[slot].data_ptr(),
            input_size=self._nbytes,
            output_size=self._nbytes,
            dtype=self._dtype_code,
            op=self._session.sum,
            stream=torch.cuda.current_stream().cuda_stream,
            nblocks=self._blocks,
            nthreads_per_block=self._threads,
            symmetric_memory=True,
        )
        if code != 0:
            raise RuntimeError(f"mscclpp {self._name} refused {self._nbytes} B with code {code}")

    def ran(self) -> Ran:
        """The algorithm was called by name: nothing chose for us."""
        return Ran(
            algorithm=self._name,
            protocol="packet" if self._name.endswith("packet") else "copy",
            channels=self._blocks or None,
            transport="cuda_ipc",
            library=f"MSCCL++ {self._session.version}",
            source="api",
        )
