"""The kernels' logic on a CPU: exact sums, the fused forms against float64, 8 bits on the wire, faults."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("cuda.core", reason="needs cuda-core: pip install 'arfloor[cuda]'")
torch = pytest.importorskip("torch")

import emulator  # noqa: E402

from arfloor.backends.fused import BY_ROW, MACROS, FusedEndpoint, RowEndpoint, Rows  # noqa: E402
from arfloor.core import lossy  # noqa: E402
from arfloor.core.fused import by_row_flaw  # noqa: E402
from arfloor.core.plans import parse  # noqa: E402
from arfloor.runtime.verify import ROUNDOFF  # noqa: E402
from arfloor.runtime.verify_norm import expected, wrong  # noqa: E402

pytestmark = pytest.mark.skipif(emulator.COMPILER is None, reason="needs g++")
EPS = 1e-5


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("emulated")


class Tensor:
    """A bfloat16 tensor at an aligned address, `offset` elements in."""

    def __init__(self, values: torch.Tensor, offset: int = 0) -> None:
        self._memory = emulator.Memory(2 * (values.numel() + offset))
        whole = torch.from_numpy(self._memory.bytes).view(torch.bfloat16)
        self.data = whole[offset:].view(values.shape)
        self.data.copy_(values)
        self.address = self._memory.address + 2 * offset

    @property
    def numbers(self) -> np.ndarray:
        return self.data.double().numpy()


def random(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).bfloat16()


def reduced(ranks: Any, terms: list[torch.Tensor], offset: int = 0) -> list[Tensor]:
    sources = [Tensor(t, offset) for t in terms]
    targets = [Tensor(torch.full_like(t, float("nan")), offset) for t in terms]
    ranks.launch(
        [
            end.bind(s.address, t.address, 2 * terms[0].numel())
            for end, s, t in zip(ranks.ends, sources, targets, strict=True)
        ]
    )
    return targets


PLAIN = [
    ("line128t64-one-2x64", 2, "host"),
    ("line64t32-two-2x64-ahead1", 4, "peer"),
    ("line16t32-one-staged-2x64", 4, "peer"),
    ("line128t64-islands-2x64", 4, "peer"),
    ("ll-two-2x64", 2, "peer"),
    ("flag-two-2x64", 2, "host"),
    ("flag-one-pull-2x64", 4, "peer"),
    # three ranks: chunks of which the last is short or empty
    ("line512t64-two-2x64-ahead1", 3, "host"),
    ("line128t64-two-staged-2x64", 3, "peer"),
    ("ll-one-2x64", 3, "peer"),
    ("flag-two-pull-2x64", 3, "peer"),
    ("line512t64-one-2x64-ahead1-pace20-lag100-window1", 3, "host"),
]


@pytest.mark.parametrize(
    ("plan", "world", "path"), [PLAIN[0], *(pytest.param(*p, marks=pytest.mark.slow) for p in PLAIN[1:])]
)
def test_sums_are_exact_through_two_to_the_32nd(built: Path, plan: str, world: int, path: str) -> None:
    ranks = emulator.EmulatedRanks(built, plan, world, path=path)
    ranks.set_sequence(0xFFFFFFFF - 2)
    for seed, (numel, offset) in enumerate([(1, 0), (2, 0), (333, 1), (4096, 0), (2001, 3), (5003, 0)]):
        terms = [random(10 * seed + r, numel) for r in range(world)]
        halves = [terms] if "islands" not in plan else [terms[: world // 2], terms[world // 2 :]]
        partial = [sum((t.float() for t in half[1:]), half[0].float()) for half in halves]
        must = sum(partial[1:], partial[0]).bfloat16()
        assert all(torch.equal(t.data, must) for t in reduced(ranks, terms, offset)), (numel, offset)
    assert ranks.errors() == [None] * world


@pytest.mark.parametrize(("plan", "absent"), [("line32t64-one-2x64", 4), ("line128t64-one-2x64", 2)])
def test_lines_that_do_not_exist_are_no_torn_ones(built: Path, plan: str, absent: int) -> None:
    """The last tile lacks lines; each poll of it would count them all, from the third operation on."""

    def torn() -> int:
        ranks = emulator.EmulatedRanks(built, plan, 2, path="host", macros={"ARF_COUNT_TEARS": 1})
        for seed in range(6):  # of one size: what is not new has been whole two operations ago
            terms = [random(10 * seed + r, 333) for r in range(2)]
            assert all(torch.equal(t.data, terms[0] + terms[1]) for t in reduced(ranks, terms))
        return max(int(state.bytes[8:16].view(np.uint64)[0]) for state in ranks.states)

    # a thread may be stopped in the middle of a line, which is a true tear, and rare
    assert any(torn() < 4 * absent for _ in range(6))


FUSED = [
    ("line128t64-one-3x288", 2, "peer", True),
    ("line128t64-one-3x64", 2, "host", False),
    ("line512t64-one-2x288-ahead1-pace20-lag100-window1", 2, "host", True),
    ("ll-one-2x512", 2, "peer", True),
    ("line16t32-one-3x384-ahead1", 4, "peer", True),
    ("line512t64-one-3x64-ahead1", 2, "peer", False),
    ("ll-one-3x64-ahead2", 4, "peer", False),
    ("flag-one-3x64", 2, "host", False),
]
SHAPES = [(1, 2048), (5, 2048), (3, 2056), (4, 2120), (3, 256), (7, 1032), (5, 536)]


def fused_ranks(built: Path, plan: str, world: int, path: str, by_row: bool, **more: Any) -> Any:
    end = RowEndpoint if by_row else FusedEndpoint
    macros = (BY_ROW if by_row else MACROS) | more.pop("macros", {})
    return emulator.EmulatedRanks(built, plan, world, path=path, end_type=end, macros=macros, **more)


def run_fused(ranks: Any, rows: int, hidden: int, seed: int) -> tuple[int, list[Tensor]]:
    """(wrong elements and ranks that differ, every rank's rows); in place every other time."""
    world = len(ranks.ends)
    terms = [random(100 * seed + r, rows, hidden) for r in range(world)]
    residual, weight = random(100 * seed + 50, rows, hidden), Tensor(random(100 * seed + 51, hidden))
    numbers = [t.double().numpy() for t in (*terms, residual)]
    must = expected(numbers[:world], numbers[-1], weight.numbers, EPS, "bfloat16")
    sources, residuals = [Tensor(t) for t in terms], [Tensor(residual) for _ in terms]
    outs = sources if seed % 2 else [Tensor(torch.full_like(t, float("nan"))) for t in terms]
    ranks.launch(
        [
            end.bind_rows(
                Rows(
                    source=s.address,
                    residual=r.address,
                    weight=weight.address,
                    out=o.address,
                    rows=rows,
                    hidden=hidden,
                    eps=EPS,
                )
            )
            for end, s, r, o in zip(ranks.ends, sources, residuals, outs, strict=True)
        ]
    )
    bad = sum(wrong(must, r.numbers, o.numbers)[1] for r, o in zip(residuals, outs, strict=True))
    return bad + sum(not torch.equal(o.data, outs[0].data) for o in outs[1:]), outs


@pytest.mark.parametrize(
    ("plan", "world", "path", "by_row"),
    [*FUSED[:2], *(pytest.param(*p, marks=pytest.mark.slow) for p in FUSED[2:])],
)
def test_fused_rows_are_right_and_alike(built: Path, plan: str, world: int, path: str, by_row: bool) -> None:
    ranks = fused_ranks(built, plan, world, path, by_row)
    ranks.set_sequence(0xFFFFFFFF - 2)
    shapes = [s for s in SHAPES if not by_row or not by_row_flaw(parse(plan), 2 * s[1], s[0])]
    assert len(shapes) >= 2
    assert [run_fused(ranks, *shape, seed)[0] for seed, shape in enumerate(shapes)] == [0] * len(shapes)
    assert ranks.errors() == [None] * world


@pytest.mark.slow
def test_without_the_sequence_a_sum_of_before_is_taken(built: Path) -> None:
    ranks = fused_ranks(built, "line128t64-one-3x64", 2, "peer", False, macros={"ARF_UNSAFE_SLOTS": 1})
    assert sum(run_fused(ranks, 5, 2048, seed)[0] for seed in range(4)) > 0


@pytest.mark.slow
@pytest.mark.parametrize("by_row", [True, False])
def test_a_spent_error_spoils_everything(built: Path, by_row: bool) -> None:
    ranks = fused_ranks(built, "line128t64-one-3x288", 2, "peer", by_row)
    for state in ranks.states:
        state.bytes[0] = 1
    _, outs = run_fused(ranks, 5, 2048, 0)
    assert all(o.data.isnan().all() for o in outs)


@pytest.mark.parametrize("wire", [lossy.FAMILIES[1], pytest.param(lossy.FAMILIES[0], marks=pytest.mark.slow)])
def test_eight_bits_on_the_wire_stay_within_their_bound(built: Path, wire: Any) -> None:
    ranks = emulator.EmulatedRanks(built, f"line128t64-one-2x64-ahead1-{wire}", 2, path="host")
    for seed, (numel, offset) in enumerate([(1, 0), (333, 1), (5000, 2)]):
        terms = [random(10 * seed + r, numel) for r in range(2)]
        numbers = [t.double().numpy() for t in terms]
        results = reduced(ranks, terms, offset)
        error = np.abs(results[0].numbers - sum(numbers))
        assert (error <= lossy.bound(numbers, wire, ROUNDOFF["bfloat16"])).all()
        assert torch.equal(results[0].data, results[1].data)
