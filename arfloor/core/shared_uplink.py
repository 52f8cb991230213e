"""Several ranks behind one GPU's uplink to the host: what its wires need for an all-reduce of theirs.

Each uplink is three links in a row: within the GPU (as good as free), the wire (what one direction alone
carries), and a bridge whose capacity reads, their requests and writes share, so that both directions at
once get what both were measured to get. Flows of the ranks then share it by max-min fairness
(`arfloor.core.flows`), like the switches and ports of any described box. What ranks do to each other by
polling too early is not in it: `arfloor.core.polls`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from arfloor.core.cases import Node, Primitive, record
from arfloor.core.patterns import Model, Timing, phases
from arfloor.core.rates import latency_of, usable
from arfloor.core.rig import RIG_SCHEMA, Figure, Link, Rig
from arfloor.core.topology import READ_REQUEST_SHARE


@record
class Uplink:
    """A GPU's way to host memory as loads and stores of its multiprocessors were probed, all GPUs at once.

    `both_gbps`: each way, while the other way is as busy. `flag_us`: one way, from GPU to GPU.
    """

    write_gbps: float
    read_gbps: float
    both_gbps: float
    flag_us: float


def uplink_of(primitives: Iterable[Primitive]) -> Uplink:
    """The uplink by a run's probes. Raises ValueError when a pattern or the flag was not probed."""
    probes = usable(primitives, path="host")
    flag = latency_of(probes, "relaxed")
    rates = {
        "writes": _rate(probes, "write", ("all_one_way", "one_way")),
        "reads": _rate(probes, "read", ("all_one_way", "one_way")),
        "both at once": _rate(probes, "read", ("all", "both_ways")),
    }
    missing = [name for name, rate in rates.items() if rate is None] + ([] if flag else ["flags"])
    write, read, both = rates.values()
    if write is None or read is None or both is None or flag is None:
        raise ValueError(
            f"shared uplink: expected probes of the host path, found none of {', '.join(missing)}"
        )
    return Uplink(write_gbps=write, read_gbps=read, both_gbps=both, flag_us=flag.value)


def _rate(probes: Sequence[Primitive], access: str, patterns: Sequence[str]) -> float | None:
    """The slowest GPU's rate in the first pattern that was probed, at its largest message.

    Four ranks read six messages over a link: what it carries in a burst it does not go on carrying.
    """
    for active in patterns:
        found = [
            (p.nbytes, p.estimate.value)
            for p in probes
            if (p.kind, p.engine, p.access, p.active) == ("stream", "sm", access, active) and p.estimate
        ]
        if found:
            largest = max(nbytes for nbytes, _ in found)
            return min(rate for nbytes, rate in found if nbytes == largest)
    return None


def rig_of(uplink: Uplink, *, gpus: int, ranks_a_gpu: int) -> Rig:
    """A box of `gpus` uplinks with so many ranks behind each; rank r is `rank{r}`, GPU by GPU."""
    nodes, links = [Node(id="memory0", kind="memory")], []
    for gpu in range(gpus):
        port, bridge = f"port{gpu}", f"bridge{gpu}"
        nodes += [Node(id=port, kind="switch"), Node(id=bridge, kind="root_port")]
        for rank in range(gpu * ranks_a_gpu, (gpu + 1) * ranks_a_gpu):
            nodes.append(Node(id=f"rank{rank}", kind="gpu"))
            links.append(Link(a=f"rank{rank}", b=port, kind="inside", write="free", latency="none"))
        links.append(Link(a=port, b=bridge, kind="pcie", write="write", read="read", latency="hop"))
        links.append(
            Link(a=bridge, b="memory0", kind="bridge", write="both", latency="none", shared=f"uplink {gpu}")
        )
    return Rig(
        schema=RIG_SCHEMA,
        name=f"{gpus}-uplinks-x{ranks_a_gpu}",
        title=f"{ranks_a_gpu} ranks behind each of {gpus} uplinks",
        gpu="",
        compute_capability=(8, 0),
        p2p=False,
        launch="none",
        nodes=tuple(nodes),
        gpus=tuple(f"rank{r}" for r in range(gpus * ranks_a_gpu)),
        links=tuple(links),
        figures={
            "free": _figure(1e5, "GB/s"),
            "none": _figure(1e-5, "us"),
            "hop": _figure(uplink.flag_us / 3, "us"),  # the write, and a poll there and back
            "write": _figure(uplink.write_gbps, "GB/s"),
            "read": _figure(uplink.read_gbps, "GB/s"),
            "both": _figure(uplink.both_gbps * (2 + READ_REQUEST_SHARE), "GB/s"),
        },
    )


def _figure(value: float, unit: str) -> Figure:
    kind = "GB/s" if unit == "GB/s" else "us"
    return Figure(value=value, unit=kind, origin="measured", source="probes")  # type: ignore[arg-type]


def timing(model: Model, shape: str, nbytes: int) -> Timing:
    """A shape of the host path (`one-shot`, `two-shot`) among all ranks of a rig, without launch."""
    return model.time(shape, phases(model, shape, model.rig.gpus, "host", nbytes), "host")
