"""What to measure: a recipe, its sizes in words, and the checks that need no machine."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Literal, get_args

from arfloor.core.cases import DType, Mode, Path, record

DTYPES: tuple[str, ...] = get_args(DType)
MODES: tuple[str, ...] = get_args(Mode)
PATHS: tuple[str, ...] = get_args(Path)
Devices = Literal["auto", "cpu", "cuda"]

_UNITS = {"": 1, "b": 1, "k": 1024, "kib": 1024, "kb": 1000, "m": 1024**2, "mib": 1024**2, "mb": 1000**2}
# all vector widths in use divide 16 B, and every backend may rely on it
SIZE_STEP = 16
SIZE_MAX = 1 << 30


class BadInput(Exception):
    """Input that cannot be used. The message is one line: key, value found, what is allowed."""


@record
class Recipe:
    """What a sweep measures. An empty tuple means: what suits the devices found.

    sizes: bytes of one rank's message. dtypes: empty is float32 on CPU ranks, bfloat16 on GPUs.
    modes: empty is `eager` on CPU ranks, `graph` on GPUs. extra_modes: measured beside them on GPUs,
    at extra_sizes only. groups: a partition of the ranks; empty is one group of all ranks.
    budget_s: seconds of timing in the whole run, shared evenly. interval: a case stops when its 95 %
    interval is within this fraction of the latency. timeout_s: what a step of one case may take
    before its worker counts as hung. grid: also the variants that are no contenders. also: of these, only
    those named, as `backend:variant`.
    """

    name: str = "custom"
    sizes: tuple[int, ...] = (1024, 262144)
    dtypes: tuple[str, ...] = ()
    backends: tuple[str, ...] = ()
    paths: tuple[str, ...] = ()
    modes: tuple[str, ...] = ()
    extra_modes: tuple[str, ...] = ()
    extra_sizes: tuple[int, ...] = ()
    devices: Devices = "auto"
    groups: tuple[tuple[int, ...], ...] = ()
    budget_s: float = 60.0
    launches: int = 2
    interval: float = 0.01
    timeout_s: float = 30.0
    primitives: bool = True
    grid: bool = False
    also: tuple[str, ...] = ()
    seed: int = 0


def parse_size(value: int | str, key: str = "sizes") -> int:
    """Bytes of `262144`, `"256KiB"`, `"256k"` (binary) or `"1.5 MiB"`. Raises BadInput."""
    text = str(value).strip().lower()
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([a-z]*)", text)
    if isinstance(value, bool) or not found or found[2] not in _UNITS:
        raise BadInput(
            f"{key}: {value!r} is no size; give bytes (262144) or a number with KiB or MiB (256KiB)"
        )
    nbytes = float(found[1]) * _UNITS[found[2]]
    if nbytes != int(nbytes) or not 0 < nbytes <= SIZE_MAX or nbytes % SIZE_STEP:
        raise BadInput(
            f"{key}: {value!r} is not allowed; give a multiple of {SIZE_STEP} B up to {SIZE_MAX} B (1 GiB)"
        )
    return int(nbytes)


def parse_groups(text: str) -> tuple[tuple[int, ...], ...]:
    """`0,1;2,3` as ((0, 1), (2, 3)). Raises BadInput."""
    try:
        return tuple(tuple(int(rank) for rank in part.split(",")) for part in text.split(";") if part.strip())
    except ValueError:
        raise BadInput(
            f"groups: {text!r} is no partition of ranks; write `0,1;2,3` for two groups of two"
        ) from None


def check(recipe: Recipe) -> Recipe:
    """The recipe with sorted, distinct sizes. Raises BadInput on values that no machine could serve."""
    _allowed("dtypes", recipe.dtypes, DTYPES)
    _allowed("modes", recipe.modes, MODES)
    _allowed("extra_modes", recipe.extra_modes, MODES)
    _allowed("paths", recipe.paths, PATHS)
    if not recipe.sizes:
        raise BadInput("sizes: none given; give at least one size in bytes")
    for key, least, value in (
        ("launches", 1, recipe.launches),
        ("budget_s", 0.1, recipe.budget_s),
        ("timeout_s", 0.5, recipe.timeout_s),
        ("interval", 0.0, recipe.interval),
    ):
        if value < least:
            raise BadInput(f"{key}: {value} is not allowed; give at least {least}")
    sizes = tuple(sorted({parse_size(s) for s in recipe.sizes}))
    extra = tuple(sorted({parse_size(s, "extra_sizes") for s in recipe.extra_sizes}))
    return replace(recipe, sizes=sizes, extra_sizes=extra)


def check_groups(recipe: Recipe, world: int) -> None:
    """Raises BadInput unless `groups` is empty or partitions the ranks into groups of one size >= 2."""
    if not recipe.groups:
        return
    ranks = sorted(rank for group in recipe.groups for rank in group)
    sizes = {len(group) for group in recipe.groups}
    if ranks != list(range(world)) or len(sizes) != 1 or min(sizes) < 2:
        shown = ";".join(",".join(map(str, g)) for g in recipe.groups)
        raise BadInput(
            f"groups: {shown!r} is not allowed; name each of the ranks 0 to {world - 1} once, "
            "in groups of one size of at least two"
        )


def _allowed(key: str, values: tuple[str, ...], allowed: tuple[str, ...]) -> None:
    for value in values:
        if value not in allowed:
            raise BadInput(f"{key}: {value!r} is not allowed; choose from {', '.join(allowed)}")
