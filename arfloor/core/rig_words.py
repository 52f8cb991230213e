"""What a figure of a described box is, in words: boxes name their figures as they like."""

from __future__ import annotations

from collections.abc import Iterable

from arfloor.core.rig import Pattern, Rig

_LINKS = {
    "pcie": "PCIe",
    "nvlink": "NVLink",
    "link": "the GPUs' direct links",
    "uplink": "a switch's uplink",
    "switch-fabric": "the fabric between virtual switches",
    "root-complex": "the root complex",
    "inter-socket": "the link between sockets",
    "memory": "host memory",
}
_SHARES: dict[Pattern, str] = {
    "dense": "when every rank talks to all others at once",
    "staged": "with one stream in and one out at a time",
    "host": "when all ranks use host memory at once",
}


def words(rig: Rig, figures: Iterable[str]) -> tuple[str, ...]:
    """What the named figures of a rig are, each phrase once; the name itself where nothing uses it."""
    used = _uses(rig)
    return tuple(dict.fromkeys(used.get(name, name) for name in figures))


def assumed_rates(rig: Rig) -> str:
    """The rates of links that somebody assumed for want of a fact, and where to put it; empty without one."""
    names = [k.write for k in rig.links if k.kind in ("pcie", "uplink")]
    names += [rig.nccl.bus] if rig.nccl else []
    guessed = [n for n in dict.fromkeys(names) if rig.figures[n].origin == "assumed"]
    if not guessed:
        return ""
    what = " and ".join(words(rig, guessed))
    return f"assumed in it: {what} (topology.toml: {', '.join(guessed)}); put what is known there"


def _uses(rig: Rig) -> dict[str, str]:
    """Figure -> words; of a figure with several uses those of the first."""
    found: dict[str, str] = {rig.launch: "the launch of a graph node"}
    for link in rig.links:
        what = link_words(link.kind)
        apart = link.read not in (None, link.write)
        found.setdefault(link.write, f"the rate of {'writes over ' if apart else ''}{what}")
        if link.read is not None:
            found.setdefault(link.read, f"the rate of reads over {what}")
        found.setdefault(link.latency, f"a flag's latency over {what}")
    for d in rig.derates:
        found.setdefault(d.share, f"what {link_words(d.kind)} keeps of its rate {_SHARES[d.pattern]}")
    for c in rig.collapses:
        found.setdefault(c.rate, f"the rate of writes over {link_words(c.kind)} to several root ports")
    if rig.nccl:
        found.setdefault(rig.nccl.bus, "the bus bandwidth that NCCL reckons with")
        found.setdefault(rig.nccl.error, "how far NCCL's own formula is off")
    return found


def link_words(kind: str) -> str:
    """What links of a kind are: `a switch's uplink`."""
    return _LINKS.get(kind, f"{kind} links")
