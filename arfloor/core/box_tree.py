"""The PCIe tree that a matrix of relations implies: the same tree that sysfs or an XML states outright."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from arfloor.core.box import RELATIONS, Place

# what the devices that are within one relation of each other share
_SHARED_KIND = {"PIX": "switch", "PXB": "switch", "PHB": "host_bridge", "NODE": "socket"}


def tree_from_relations(
    devices: Mapping[str, str],
    relation: Callable[[str, str], str | None],
    numa: Mapping[str, int],
) -> tuple[tuple[Place, ...], tuple[str, ...]]:
    """Places for `devices` (id -> kind, `gpu` or `nic`) and what could not be placed or contradicts itself.

    `relation(a, b)` is one of `RELATIONS` or None (unknown, or hidden behind NVLink). Devices nearer than
    a level are grouped at that level. A device that nothing places keeps no parent and is named.
    """
    names = list(devices)
    clusters = {level: _clusters(names, relation, level) for level in RELATIONS[:-1]}
    places: dict[str, Place] = {}
    parents: dict[str, str] = {}
    for level in reversed(RELATIONS[:-1]):
        for number, members in enumerate(clusters[level]):
            above = parents.get(members[0])
            if not _placed(level, members, names, relation, numa):
                continue
            if len(members) == 1 and _SHARED_KIND[level] == "switch":
                continue
            if level == "PXB" and members in clusters["PIX"]:
                continue  # one switch holds them all: the PIX level makes it
            node = _numa_of(members, numa) if level == "NODE" else None
            name = _place_id(level, number, node, places)
            places[name] = Place(id=name, kind=_SHARED_KIND[level], parent=above, numa=node)
            parents.update(dict.fromkeys(members, name))
    for device in names:
        places[device] = Place(
            id=device, kind=devices[device], parent=parents.get(device), numa=numa.get(device)
        )
    lost = [f"{d}: its place under the CPU is not stated" for d in names if d not in parents]
    return tuple(places.values()), (*lost, *_contradictions(names, relation, clusters))


def _clusters(
    names: Sequence[str], relation: Callable[[str, str], str | None], level: str
) -> list[tuple[str, ...]]:
    """Groups of devices joined by relations at `level` or nearer, in order of first appearance."""
    near = set(RELATIONS[: RELATIONS.index(level) + 1])
    group = {name: name for name in names}

    def root(name: str) -> str:
        while group[name] != name:
            group[name] = group[group[name]]
            name = group[name]
        return name

    for i, a in enumerate(names):
        for b in names[i + 1 :]:
            if relation(a, b) in near:
                group[root(b)] = root(a)
    found: dict[str, list[str]] = {}
    for name in names:
        found.setdefault(root(name), []).append(name)
    return [tuple(members) for members in found.values()]


def _placed(
    level: str,
    members: Sequence[str],
    names: Sequence[str],
    relation: Callable[[str, str], str | None],
    numa: Mapping[str, int],
) -> bool:
    """Whether the input says that these devices share a place at `level`, rather than leaving it open."""
    if len(members) > 1:
        return True
    alone = members[0]
    if level == "NODE" and alone in numa:
        return True
    others = [relation(alone, other) for other in names if other != alone]
    return bool(others) and all(r is not None for r in others)


def _numa_of(members: Iterable[str], numa: Mapping[str, int]) -> int | None:
    nodes = {numa[m] for m in members if m in numa}
    return nodes.pop() if len(nodes) == 1 else None


def _place_id(level: str, number: int, node: int | None, taken: Mapping[str, Place]) -> str:
    stem = {"PIX": "sw", "PXB": "swx", "PHB": "hb", "NODE": "socket"}[level]
    name = f"numa{node}" if node is not None else f"{stem}{number}"
    while name in taken:
        name += "b"
    return name


def _contradictions(
    names: Sequence[str],
    relation: Callable[[str, str], str | None],
    clusters: Mapping[str, Sequence[tuple[str, ...]]],
) -> list[str]:
    found = []
    member: dict[str, dict[str, int]] = {
        level: {d: i for i, group in enumerate(groups) for d in group} for level, groups in clusters.items()
    }
    for i, a in enumerate(names):
        for b in names[i + 1 :]:
            stated = relation(a, b)
            implied = next((lv for lv in RELATIONS[:-1] if member[lv][a] == member[lv][b]), "SYS")
            if stated is not None and RELATIONS.index(implied) < RELATIONS.index(stated):
                found.append(f"{a} and {b} are said to be {stated}, but the others put them {implied}")
    return found[:8]
