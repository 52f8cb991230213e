"""From a run's own probes to a described box: every figure measured, pairs of GPUs joined directly.

The result predicts sizes and worlds that were not measured on the same box; it knows nothing of
switches and ports in between, whose effect is in the measured shares.
"""

from __future__ import annotations

from collections.abc import Sequence

from arfloor.core.cases import Estimate, Machine, Node, Path, Primitive
from arfloor.core.rates import BEST, latency_of, usable
from arfloor.core.rig import RIG_SCHEMA, Derate, Figure, Link, NcclFacts, Rig


def rig_of_run(
    machine: Machine, primitives: Sequence[Primitive], *, name: str, title: str = "", source: str = "this run"
) -> Rig:
    """Describe the box of a run by its primitives. `source` names the run in every figure.

    Raises ValueError when neither path has both a latency and a rate.
    """
    gpus = tuple(f"gpu{i}" for i in range(machine.world))
    build = _Builder(gpus, source)
    peer = build.path("peer", usable(primitives, path="peer"))
    host = build.path("host", usable(primitives, path="host"))
    if not peer and not host:
        raise ValueError("rig_of_run: expected a pingpong and a stream on the peer or host path, found none")
    launch = [p for p in usable(primitives, path="host") if p.kind == "launch"]
    build.figure("launch", min((_of(p) for p in launch), key=lambda e: e.value, default=None), "us")
    nodes = [Node(id=g, kind="gpu") for g in gpus]
    if host:
        nodes.append(Node(id="memory0", kind="memory"))
    return Rig(
        schema=RIG_SCHEMA,
        name=name,
        title=title or f"{machine.world}x {machine.device_name}",
        gpu=machine.device_name,
        compute_capability=machine.compute_capability or (8, 0),
        p2p=peer,
        launch="launch",
        nodes=tuple(nodes),
        gpus=gpus,
        links=tuple(build.links),
        figures=build.figures,
        derates=tuple(build.derates),
        nccl=build.nccl(),
        notes=("Described by its own probes: pairs of GPUs joined directly, shares as measured.",),
    )


def _of(p: Primitive) -> Estimate:
    assert p.estimate is not None  # `usable` kept only those that have one
    return p.estimate


class _Builder:
    def __init__(self, gpus: tuple[str, ...], source: str) -> None:
        self.gpus, self.source = gpus, source
        self.figures: dict[str, Figure] = {}
        self.links: list[Link] = []
        self.derates: list[Derate] = []
        self._host_gbps = 0.0

    def figure(self, name: str, estimate: Estimate | None, unit: str) -> None:
        """A measured figure; where nothing was measured, an assumed one for the launch."""
        if estimate is None:
            self.figures[name] = Figure(
                value=0.5, lo=0.4, hi=1.3, unit="us", origin="assumed", source="no launch was probed"
            )
            return
        self.figures[name] = Figure(
            value=round(estimate.value, 4),
            lo=round(estimate.lo, 4),
            hi=round(estimate.hi, 4),
            unit="us" if unit == "us" else "GB/s" if unit == "GB/s" else "ratio",
            origin="measured",
            source=self.source,
        )

    def path(self, path: Path, probes: Sequence[Primitive]) -> bool:
        """Figures, links and shares of one path; False when its probes do not suffice."""
        flag = latency_of(probes, "relaxed") or latency_of(probes, "acquire_release")
        streams = [p for p in probes if p.kind == "stream" and p.active != BEST]
        alone = {a: _best(streams, a, ("one_way",)) for a in ("write", "read")}
        write = alone["write"] or alone["read"]
        if flag is None or write is None:
            return False
        hops = 3 if path == "host" else 1  # through memory: the write, then a poll there and back
        hop = Estimate(value=flag.value / hops, lo=flag.lo / hops, hi=flag.hi / hops, n=flag.n, unit="us")
        kind = "pcie" if path == "host" else "link"
        self.figure(f"{path}_flag_hop", hop, "us")
        self.figure(f"{path}_write", write, "GB/s")
        read = f"{path}_read" if alone["read"] else None
        if read:
            self.figure(read, alone["read"], "GB/s")
        self._join(path, kind, read)
        self._shares(path, kind, streams, write)
        if path == "host":
            self._host_gbps = write.value
        return True

    def _join(self, path: Path, kind: str, read: str | None) -> None:
        ends = (
            [(g, "memory0") for g in self.gpus]
            if path == "host"
            else [(a, b) for i, a in enumerate(self.gpus) for b in self.gpus[i + 1 :]]
        )
        for a, b in ends:
            self.links.append(
                Link(a=a, b=b, kind=kind, write=f"{path}_write", read=read, latency=f"{path}_flag_hop")
            )

    def _shares(self, path: Path, kind: str, streams: Sequence[Primitive], alone: Estimate) -> None:
        """What the measured patterns keep of the rate of one stream alone."""
        wanted = (
            [("host", ("all", "both_ways"))]
            if path == "host"
            else [("staged", ("both_ways",)), ("dense", ("all", "both_ways"))]
        )
        for pattern, actives in wanted:
            together = _best(streams, "write", actives) or _best(streams, "read", actives)
            if together is None:
                continue
            share = min(1.0, together.value / alone.value)
            lo, hi = min(share, together.lo / alone.hi), max(share, min(1.0, together.hi / alone.lo))
            estimate = Estimate(value=share, lo=lo, hi=hi, n=together.n, unit="ratio")
            self.figure(f"{path}_{pattern}", estimate, "ratio")
            self.derates.append(
                Derate(
                    pattern="host" if pattern == "host" else "staged" if pattern == "staged" else "dense",
                    kind=kind,
                    share=f"{path}_{pattern}",
                )
            )

    def nccl(self) -> NcclFacts | None:
        """NCCL's view of the host path, from the nearest generation of PCIe; None without a host path."""
        if not self._host_gbps:
            return None
        gbps = min((12.0 * 2.0**k for k in range(-2, 4)), key=lambda g: abs(g - self._host_gbps))
        self.figures["nccl_bus"] = Figure(
            value=gbps, lo=gbps * 0.75, hi=gbps * 1.1, unit="GB/s", origin="predicted",
            source="what NCCL's topology takes the nearest generation of PCIe x16 for",
        )  # fmt: skip
        self.figures["nccl_error"] = Figure(
            value=1.4,
            lo=0.95,
            hi=2.0,
            unit="ratio",
            origin="assumed",
            source="as on boxes with known series",
        )
        return NcclFacts(bus="nccl_bus", error="nccl_error")


def _best(streams: Sequence[Primitive], access: str, actives: Sequence[str]) -> Estimate | None:
    """The slowest pair's best rate over engines and sizes, in the first of the patterns that was probed."""
    for active in actives:
        pairs: dict[tuple[str, str], Estimate] = {}
        for p in streams:
            if p.access == access and p.active == active:
                key = (p.src, p.dst)
                if key not in pairs or _of(p).value > pairs[key].value:
                    pairs[key] = _of(p)
        if pairs:
            return min(pairs.values(), key=lambda e: e.value)
    return None
