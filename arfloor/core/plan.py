"""From a recipe and the facts of a machine to launches of blocks of cases. Pure: equal on all ranks.

    cases    every offer of every backend at every size, dtype and mode that the recipe asks for
    blocks   the cases of one size, dtype and settings tuple: measured interleaved, written together
    launches a fresh set of worker processes that measures all blocks of one settings tuple

Different settings cannot share a process, so their launches are ordered A B B A: a slow drift of the
machine then falls on both alike.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from arfloor.core.cases import ITEMSIZE, Block, Case, Machine, Path, Result, Settings, record
from arfloor.core.recipe import BadInput, Recipe

# seconds that a launch needs before its first measurement: importing torch, or MPI alone, and meeting
STARTUP_S = {"supervisor": 5.0, "mpiexec": 2.0}
PRIMITIVES_S = 7.0
# seconds of a case besides: preparing it, checking a small message, its first capture
CASE_S = 0.03
# seconds per case and MiB for preparing and verifying it, a rough figure used for time estimates alone
VERIFY_S_PER_MIB = 0.05

# seconds of a case in a probe launch
PROBE_S = 0.01
# `LaunchPlan.launch` of probes, which belong to no timed launch
PROBE_LAUNCH = -1


@record
class Offer:
    """One variant of one backend, as its `Variant` says. `reason` is set when it cannot run here at all."""

    backend: str
    variant: str
    path: Path
    settings: Settings = ()
    default: bool = False
    contender: bool = True
    modes: tuple[str, ...] = ("graph", "eager", "isolated")
    inplace: bool = True
    reason: str | None = None
    detail: str = ""
    probes: bool = False


@record
class BlockPlan:
    """A block with the cases to measure, and the results known without measuring."""

    block: Block
    cases: tuple[Case, ...]
    decided: tuple[Result, ...] = ()


@record
class LaunchPlan:
    """One start of a set of workers. `index` is its place in the run, `launch` pairs it with others.

    `timed_s` is the time budget of one case in this launch. A `probe` times nothing: its workers run
    every case once, with the library's log on, to see what runs.
    """

    index: int
    launch: int
    settings: Settings
    blocks: tuple[BlockPlan, ...]
    timed_s: float
    primitives: bool = False
    probe: bool = False

    @property
    def launcher(self) -> str:
        """`supervisor`: every rank starts its own worker; `mpiexec`: rank 0 starts all of them."""
        return dict(self.settings).get("launcher", "supervisor")


@record
class RunPlan:
    """Everything a run will do, in order."""

    launches: tuple[LaunchPlan, ...]
    estimate_s: float

    @property
    def blocks(self) -> int:
        """Blocks times launches: the units of progress."""
        return sum(len(launch.blocks) for launch in self.launches if not launch.probe)


Supports = Callable[[Case], tuple[str, str] | None]  # None, or the reason code and a sentence


def dtypes_of(recipe: Recipe, machine: Machine) -> tuple[str, ...]:
    """The recipe's dtypes, else what this kind of device usually reduces."""
    return recipe.dtypes or (("float32",) if machine.device_kind == "cpu" else ("bfloat16",))


def modes_of(recipe: Recipe, machine: Machine) -> tuple[str, ...]:
    """The recipe's modes, else what this kind of device is measured in."""
    return recipe.modes or (("eager",) if machine.device_kind == "cpu" else ("graph",))


def devices_of(machine: Machine) -> tuple[str, ...]:
    """One device a rank."""
    return tuple(f"{machine.device_kind}:{rank}" for rank in range(machine.world))


def make_plan(recipe: Recipe, machine: Machine, offers: Sequence[Offer], supports: Supports) -> RunPlan:
    """Plan a run. Raises BadInput when the recipe leaves nothing to plan."""
    paths = recipe.paths or ("cpu",) if machine.device_kind == "cpu" else recipe.paths
    named = _named(recipe, offers)
    wanted = [
        o
        for o in offers
        if (o.contender or recipe.grid or _name(o) in named) and (not paths or o.path in paths)
    ]
    if not wanted:
        offered = sorted({o.path for o in offers})
        raise BadInput(
            f"paths: {', '.join(paths) or 'none'} leaves no case; "
            f"the chosen backends offer {', '.join(offered) or 'nothing here'}"
        )
    built: dict[Settings, dict[tuple[int, str, Path], list[Case]]] = {}
    decided: dict[str, Result] = {}
    for offer in wanted:
        for case in _cases(offer, recipe, machine):
            rows = built.setdefault(offer.settings, {})
            rows.setdefault((case.nbytes, case.dtype, case.path), []).append(case)
            refusal = _refusal(offer, case, supports)
            if refusal is not None:
                decided[case.id] = _unsupported(case, *refusal)
    blocks = {
        settings: tuple(_block(settings, cases, decided) for _, cases in sorted(rows.items()))
        for settings, rows in built.items()
    }
    return _ordered(recipe, blocks, frozenset(o.backend for o in wanted if o.probes))


def _name(offer: Offer) -> str:
    return f"{offer.backend}:{offer.variant}"


def _named(recipe: Recipe, offers: Sequence[Offer]) -> frozenset[str]:
    """Names in `also`, of this run's backends. Raises BadInput on one that its backend does not offer."""
    backends = {o.backend for o in offers}
    named = frozenset(n for n in recipe.also if n.partition(":")[0] in backends)
    unknown = sorted(named - {_name(o) for o in offers})
    if unknown:
        backend = unknown[0].partition(":")[0]
        offered = ", ".join(dict.fromkeys(o.variant for o in offers if o.backend == backend))
        raise BadInput(f"also: {unknown[0]!r} is not offered; {backend} offers {offered}")
    return named


def _cases(offer: Offer, recipe: Recipe, machine: Machine) -> Iterable[Case]:
    main = modes_of(recipe, machine)
    extra = recipe.extra_modes if machine.device_kind == "cuda" else ()
    for dtype in dtypes_of(recipe, machine):
        for size in sorted({*recipe.sizes, *(recipe.extra_sizes if extra else ())}):
            modes = main if size in recipe.sizes else ()
            if size in recipe.extra_sizes:
                modes = (*modes, *(m for m in extra if m not in modes and m in offer.modes))
            for mode in modes:
                yield Case(
                    backend=offer.backend,
                    variant=offer.variant,
                    settings=offer.settings,
                    path=offer.path,
                    devices=devices_of(machine),
                    groups=recipe.groups,
                    numel=size // ITEMSIZE[dtype],
                    dtype=dtype,  # type: ignore[arg-type]
                    mode=mode,  # type: ignore[arg-type]
                    inplace=offer.inplace,
                )


def _refusal(offer: Offer, case: Case, supports: Supports) -> tuple[str, str] | None:
    if offer.reason is not None:
        return offer.reason, offer.detail
    if case.mode not in offer.modes:
        return "mode", f"{offer.backend} is measured in {', '.join(offer.modes)}"
    return supports(case)


def _unsupported(case: Case, reason: str, detail: str) -> Result:
    return Result(case=case, status="unsupported", reason=reason, detail=detail)


def block_id(settings: Settings, case: Case) -> str:
    """Stable id of the block that a case belongs to."""
    parts = (settings, case.path, case.devices, case.groups, case.dtype, case.numel)
    digest = hashlib.sha256(repr(parts).encode()).hexdigest()[:8]
    return f"{case.path}:{case.nbytes}:{case.dtype}:{digest}"


def _block(settings: Settings, cases: Sequence[Case], decided: dict[str, Result]) -> BlockPlan:
    first = cases[0]
    name = block_id(settings, first)
    return BlockPlan(
        block=Block(
            id=name,
            settings=settings,
            path=first.path,
            devices=first.devices,
            dtype=first.dtype,
            numel=first.numel,
            case_ids=tuple(c.id for c in cases),
        ),
        cases=tuple(c for c in cases if c.id not in decided),
        decided=tuple(replace(decided[c.id], block_id=name) for c in cases if c.id in decided),
    )


def _probes(blocks: dict[Settings, tuple[BlockPlan, ...]], probing: frozenset[str]) -> list[LaunchPlan]:
    """Launches that see what runs, one a settings tuple, over all cases of backends that can tell."""
    launches: list[LaunchPlan] = []
    for settings, rows in blocks.items():
        kept = []
        for row in rows:
            cases = tuple(c for c in row.cases if c.backend in probing)
            if cases:
                kept.append(replace(row, cases=cases, decided=()))
        if kept:
            launches.append(
                LaunchPlan(
                    index=len(launches),
                    launch=PROBE_LAUNCH,
                    settings=settings,
                    blocks=tuple(kept),
                    timed_s=0.0,
                    probe=True,
                )
            )
    return launches


def _ordered(
    recipe: Recipe, blocks: dict[Settings, tuple[BlockPlan, ...]], probing: frozenset[str]
) -> RunPlan:
    runnable = sum(len(b.cases) for rows in blocks.values() for b in rows) * recipe.launches
    timed_s = recipe.budget_s / max(1, runnable)
    launches = _probes(blocks, probing)
    probed: set[str] = set()
    for launch in range(recipe.launches):
        order = list(blocks) if launch % 2 == 0 else list(reversed(blocks))
        for settings in order:
            rows = blocks[settings] if launch % 2 == 0 else tuple(reversed(blocks[settings]))
            plan = LaunchPlan(
                index=len(launches), launch=launch, settings=settings, blocks=rows, timed_s=timed_s
            )
            measures = any(row.cases for row in rows)
            probe = recipe.primitives and measures and plan.launcher not in probed
            if probe:
                probed.add(plan.launcher)
            launches.append(replace(plan, primitives=probe))
    return RunPlan(launches=tuple(launches), estimate_s=_estimate(launches))


def _estimate(launches: Sequence[LaunchPlan]) -> float:
    blocks = (block_s(launch, row) for launch in launches if not launch.probe for row in launch.blocks)
    return sum(map(start_s, launches)) + sum(blocks)


def start_s(launch: LaunchPlan) -> float:
    """Seconds until a launch writes its first block, link probes included; a probe launch as a whole."""
    cases = sum(len(row.cases) for row in launch.blocks)
    if launch.probe:
        return STARTUP_S[launch.launcher] + cases * PROBE_S
    if not cases:
        return 0.0
    return STARTUP_S[launch.launcher] + (PRIMITIVES_S if launch.primitives else 0.0)


def block_s(launch: LaunchPlan, row: BlockPlan) -> float:
    """Seconds that the cases of a block take in a launch."""
    verified = sum(case.nbytes / 2**20 for case in row.cases) * VERIFY_S_PER_MIB
    return len(row.cases) * (launch.timed_s + CASE_S) + verified


def without_done(plan: RunPlan, done: frozenset[tuple[str, int]]) -> RunPlan:
    """The plan less the (block id, launch) pairs already measured. Launches keep their index."""
    launches = []
    for launch in plan.launches:
        rows = tuple(row for row in launch.blocks if (row.block.id, launch.launch) not in done)
        if rows:
            # link probes come before the first block of their launch
            probed = launch.primitives and len(rows) == len(launch.blocks)
            launches.append(replace(launch, blocks=rows, primitives=probed))
    timed = {launch.settings for launch in launches if not launch.probe}
    launches = [launch for launch in launches if launch.settings in timed]
    return RunPlan(launches=tuple(launches), estimate_s=_estimate(launches))


def describe(plan: RunPlan) -> list[str]:
    """The plan as lines for people, for `--dry-run`."""
    lines = []
    for launch in plan.launches:
        shown = " ".join(f"{k}={v}" for k, v in launch.settings) or "no settings"
        cases = sum(len(row.cases) for row in launch.blocks)
        if launch.probe:
            lines.append(f"launch {launch.index}: {shown}: see what runs in {cases} cases")
            continue
        lines.append(
            f"launch {launch.index} (round {launch.launch}): {shown}: {len(launch.blocks)} blocks, "
            f"{cases} cases, {launch.timed_s:.2f} s of timing each"
            + (", link probes first" if launch.primitives else "")
        )
    timed = [launch for launch in plan.launches if not launch.probe]
    first = [launch for launch in timed if launch.launch == timed[0].launch]
    for launch in first:
        for row in launch.blocks:
            names = [f"{c.label}/{c.mode}" for c in row.cases]
            names += [f"{r.case.label}/{r.case.mode} ({r.reason})" for r in row.decided]
            lines.append(f"  {row.block.id}: {', '.join(names)}")
    lines.append(f"about {plan.estimate_s:.0f} s in all; nothing was measured")
    return lines
