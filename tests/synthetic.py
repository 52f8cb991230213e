"""Runs with a known truth: latencies are drawn about stated lines, nothing here was ever measured.

write_run(path, gpu_world())     # two paths, NCCL and a kernel, failures of several kinds
write_run(path, cpu_world())     # gloo and MPI
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass, field, replace

import numpy as np

from arfloor import rundir
from arfloor.core.cases import (
    ITEMSIZE,
    Block,
    BlockRecord,
    Case,
    Check,
    Estimate,
    Machine,
    Manifest,
    Primitive,
    Ran,
    Result,
    Samples,
)

SIZES = tuple(sorted({s * k // 2 for s in (2**i for i in range(10, 22)) for k in (2, 3)} | {1 << 22}))


@dataclass(frozen=True, kw_only=True)
class Kind:
    """An implementation whose true latency is alpha + nbytes / gbps, from `knot` on with other values."""

    backend: str
    variant: str = "default"
    path: str = "host"
    settings: tuple = ()
    alpha_us: float = 10.0
    gbps: float = 10.0
    knot: int | None = None
    alpha2_us: float = 0.0
    gbps2: float = 1.0
    ran: Ran | None = None
    status: str = "ok"
    reason: str | None = None
    detail: str = ""
    bitwise_equal: bool = True
    marks: tuple[str, ...] = ()
    modes: tuple[str, ...] = ()

    def us(self, nbytes: int) -> float:
        if self.knot is not None and nbytes >= self.knot:
            return self.alpha2_us + nbytes / self.gbps2 / 1e3
        return self.alpha_us + nbytes / self.gbps / 1e3


@dataclass(frozen=True, kw_only=True)
class World:
    machine: Machine
    kinds: tuple[Kind, ...]
    primitives: tuple[Primitive, ...]
    sizes: tuple[int, ...] = SIZES
    dtype: str = "bfloat16"
    mode: str = "graph"
    launches: int = 2
    rounds: int = 3
    replays: int = 15
    noise: float = 0.01
    seed: int = 7
    run_id: str = "synthetic"
    origin: str = "measured"
    versions: dict = field(default_factory=dict)

    def case(self, kind: Kind, nbytes: int, mode: str | None = None) -> Case:
        device = self.machine.device_kind
        return Case(
            backend=kind.backend,
            variant=kind.variant,
            settings=kind.settings,
            path=kind.path,
            devices=tuple(f"{device}:{i}" for i in range(self.machine.world)),
            numel=nbytes // ITEMSIZE[self.dtype],
            dtype=self.dtype,
            mode=mode or self.mode,
        )


def about(value: float, spread: float = 0.01, unit: str = "us") -> Estimate:
    return Estimate(value=value, lo=value * (1 - spread), hi=value * (1 + spread), n=30, unit=unit)


def probe(kind: str, value: float, spread: float = 0.01, **changes) -> Primitive:
    fields = {
        "kind": kind,
        "engine": "sm",
        "access": "relaxed" if kind == "pingpong" else "write",
        "src": "cuda:0",
        "dst": "host",
        "path": "host",
        "link": "pcie",
        "nbytes": 4 if kind == "pingpong" else 1 << 22,
        "active": "one_way",
        "estimate": about(value, spread, unit="us" if kind in ("pingpong", "launch") else "GB/s"),
    }
    return Primitive(**(fields | changes))


def gpu_kinds() -> tuple[Kind, ...]:
    """What runs on `gpu_world`: NCCL, kernels of ours, and implementations that refuse, fail or err."""
    off = (("NCCL_P2P_DISABLE", "1"),)
    ring = Ran(algorithm="RING", protocol="LL", channels=4, transport="SHM", link="pcie", source="log")
    peer_ring = replace(ring, transport="P2P", link="nvlink", channels=16)
    kernel = Ran(algorithm="one-shot, push", protocol="line64", channels=16)
    refused = {"status": "unsupported", "reason": "needs_multicast"}
    return (
        Kind(backend="nccl", path="peer", alpha_us=10.0, gbps=90.0, ran=peer_ring),
        Kind(
            backend="nccl",
            path="peer",
            variant="ring-simple-16ch",
            alpha_us=14.0,
            gbps=160.0,
            ran=replace(peer_ring, protocol="SIMPLE"),
        ),
        Kind(backend="peer", path="peer", variant="line64", alpha_us=2.6, gbps=215.0, ran=kernel),
        Kind(backend="flashinfer", path="peer", **refused),
        Kind(
            backend="nccl",
            settings=off,
            alpha_us=14.5,
            gbps=9.7,
            knot=786432,
            alpha2_us=40,
            gbps2=39,
            ran=ring,
        ),
        Kind(
            backend="nccl",
            variant="ring-ll-16ch",
            settings=off,
            alpha_us=12.6,
            gbps=16.4,
            ran=replace(ring, channels=16),
        ),
        Kind(
            backend="nccl",
            variant="ring-ll128-16ch",
            settings=off,
            status="wrong",
            reason="wrong_result",
            detail="276 of 400 results differ",
        ),
        Kind(backend="host", variant="line64", settings=off, alpha_us=3.7, gbps=30.8, ran=kernel),
        Kind(backend="host", variant="flag", settings=off, alpha_us=6.0, gbps=28.0, bitwise_equal=True),
        Kind(
            backend="torch_symm",
            settings=off,
            status="failed",
            reason="prepare_failed",
            detail="rendezvous refused",
        ),
    )


def gpu_probes() -> tuple[Primitive, ...]:
    """The links of `gpu_world`."""
    primitives = []
    for a, b in (("cuda:0", "cuda:1"), ("cuda:1", "cuda:0")):
        peer = {"path": "peer", "link": "nvlink", "src": a, "dst": b}
        primitives += [
            probe("pingpong", 0.9, **peer),
            probe("stream", 380.0, engine="ce", **peer),
            probe("stream", 300.0, active="both_ways", **peer),
            probe("pingpong", 1.3, src=a),
            probe("stream", 55.0, engine="ce", src=a),
            probe("stream", 37.0, active="all", src=a),
            probe("stream", 37.0, access="read", active="all", src=a),
            probe("launch", 1.3, src=a, dst=a, path="peer", link=""),
        ]
    return tuple(primitives)


def gpu_world(**changes) -> World:
    """Two GPUs, peer over NVLink and host over PCIe: NCCL far from the floor on host, near on peer."""
    machine = Machine(world=2, device_kind="cuda", device_name="Example GPU", compute_capability=(9, 0))
    made = World(
        machine=machine,
        kinds=gpu_kinds(),
        primitives=gpu_probes(),
        versions={"torch": "2.13.0", "nccl": "2.28.9", "driver": "580.0", "arfloor": "0.1.0"},
        run_id="synthetic-gpu",
    )
    return replace(made, **changes)


def cpu_world(**changes) -> World:
    """Two CPU ranks: MPI beats gloo below 64 KiB and loses above; the machine is shared and noisy."""
    mpi = (("launcher", "mpiexec"),)
    kinds = (
        Kind(backend="gloo", path="cpu", alpha_us=95.0, gbps=2.4, ran=Ran(transport="tcp", link="tcp")),
        Kind(backend="mpi", path="cpu", settings=mpi, alpha_us=9.0, gbps=0.85, ran=Ran(link="shm")),
    )
    primitives = []
    for source, latency, rate, link in (("gloo", 32.0, 3.0, "tcp"), ("mpi", 1.2, 4.0, "shm")):
        cpu = {"engine": "cpu", "access": "sendrecv", "path": "cpu", "link": link, "source": source}
        for a, b in (("cpu:0", "cpu:1"), ("cpu:1", "cpu:0")):
            primitives += [
                probe("pingpong", latency, src=a, dst=b, **cpu),
                probe("stream", rate, src=a, dst=b, active="both_ways", **cpu),
                probe("stream", 1.3 * rate, src=a, dst=b, **cpu),
            ]
    primitives.append(
        probe("reduce", 9.0, engine="cpu", access="sum", src="cpu:0", dst="", path="cpu", link="")
    )
    made = World(
        machine=Machine(world=2, device_kind="cpu", device_name="Example CPU"),
        kinds=kinds,
        primitives=tuple(primitives),
        dtype="float32",
        mode="eager",
        noise=0.06,
        versions={"torch": "2.13.0", "python": "3.11.9", "mpi": "Open MPI 5.0.8", "arfloor": "0.1.0"},
        run_id="synthetic-cpu",
    )
    return replace(made, **changes)


def write_run(path, world: World):
    """Write `world` as a run directory at `path`, as a sweep would; returns `path`."""
    writer = rundir.Writer(path)
    blocks = []
    for launch in range(world.launches):
        for nbytes in world.sizes:
            for settings in sorted({k.settings for k in world.kinds}):
                kinds = [k for k in world.kinds if k.settings == settings]
                for path_ in sorted({k.path for k in kinds}):
                    own = [k for k in kinds if k.path == path_]
                    blocks.append(_write_block(writer, world, own, nbytes, launch))
    writer.primitives(world.primitives)
    writer.manifest(
        Manifest(
            schema=1,
            run_id=world.run_id,
            origin=world.origin,
            started="2026-01-01T00:00:00Z",
            recipe={"name": "decode"},
            seed=world.seed,
            launches=world.launches,
            machine=world.machine,
            versions=world.versions,
            env={},
            blocks_done=tuple(dict.fromkeys(blocks)),
        )
    )
    return path


def _write_block(writer, world: World, kinds: list[Kind], nbytes: int, launch: int) -> str:
    cases = [world.case(k, nbytes) for k in kinds]
    block_id = f"{kinds[0].path}-{nbytes}-{zlib.crc32(repr(kinds[0].settings).encode()):08x}"
    results, samples = [], {rank: [] for rank in range(world.machine.world)}
    drift = np.random.default_rng((world.seed, launch, nbytes)).normal(0, world.noise / 3)
    for kind, case in zip(kinds, cases, strict=True):
        timed = kind.status == "ok"
        if timed:
            for s in _samples(world, kind, case, launch, drift):
                samples[s.rank].append(s)
        check = Check(max_error=0.0, bound=1e-2, wrong=0, bitwise_equal=kind.bitwise_equal)
        if kind.status == "wrong":
            check = replace(check, max_error=40.0, wrong=276, bitwise_equal=False)
        results.append(
            Result(
                case=case,
                status=kind.status,
                reason=kind.reason,
                detail=kind.detail,
                latency=about(kind.us(nbytes)) if timed else None,
                check=check if kind.status in ("ok", "wrong") else None,
                ran=kind.ran,
                marks=kind.marks,
                block_id=block_id,
            )
        )
    block = Block(
        id=block_id,
        settings=kinds[0].settings,
        path=kinds[0].path,
        devices=cases[0].devices,
        dtype=world.dtype,
        numel=cases[0].numel,
        case_ids=tuple(c.id for c in cases),
    )
    for rank, own in samples.items():
        writer.samples(rank, own)
    writer.block(BlockRecord(schema=1, block=block, launch=launch, results=tuple(results)))
    return block_id


def _samples(world: World, kind: Kind, case: Case, launch: int, drift: float):
    rng = np.random.default_rng((world.seed, launch, zlib.crc32(case.id.encode())))
    truth = kind.us(case.nbytes) * (1 + drift)
    for number in range(world.rounds):
        slowest = truth * np.exp(rng.normal(0, world.noise, world.replays))
        for rank in range(world.machine.world):
            early = 1.0 if rank == 0 else 1 - 0.01 * rng.random(world.replays)
            us = tuple(float(v) for v in slowest * early)
            yield Samples(case_id=case.id, launch=launch, round=number, rank=rank, us=us)
