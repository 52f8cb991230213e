"""All-reduce + residual + RMSNorm in one kernel, by virtual ranks: against float64, faults, safeguards."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

pytest.importorskip("cuda.bindings", reason="needs cuda-core: pip install 'arfloor[cuda]'")
torch = pytest.importorskip("torch")

from arfloor.backends.fused import BY_ROW, MACROS, AddRmsNorm, FusedEndpoint, RowEndpoint, Rows  # noqa: E402
from arfloor.backends.ours import OursError  # noqa: E402
from arfloor.backends.virtual import VirtualRanks  # noqa: E402
from arfloor.core.fused import by_row_flaw  # noqa: E402
from arfloor.core.plans import parse  # noqa: E402
from arfloor.runtime.verify_norm import expected, wrong  # noqa: E402

pytestmark = pytest.mark.gpu

PLANS = [
    "line16t32-one-6x64",
    "line64t32-one-6x64-ahead1",
    "line128t64-one-6x64",
    "line512t64-one-6x64-ahead1-pace20-lag100-window1",
    "line128t64-one-staged-6x64",
    "ll-one-6x64-ahead2",
    "flag-one-6x64",
    "flag-one-pull-6x64",
]
# rows, hidden: rows of odd lengths (in 16-byte steps), one row, rows longer than all warps' first tiles
SHAPES = [(1, 4096), (3, 256), (7, 1032), (2, 7168), (16, 2048), (5, 536)]
EPS = 1e-5


@pytest.fixture
def closing() -> Iterator[Callable[..., VirtualRanks]]:
    made: list[VirtualRanks] = []

    def make(plan: str, world: int, **options: Any) -> VirtualRanks:
        options = {"path": "peer", "dtype": "bfloat16", "max_nbytes": 1 << 18, "spin_s": 1.0} | options
        by_row = options.pop("by_row", False)
        extra = (BY_ROW if by_row else MACROS) | options.pop("extra", {})
        end = RowEndpoint if by_row else FusedEndpoint
        made.append(
            VirtualRanks(plan=parse(plan), world=world, device=0, end_type=end, extra=extra, **options)
        )
        return made[-1]

    yield make
    for ranks in made:
        ranks.close()


class Operation:
    """One operation over virtual ranks, with its own payload; in place every other time."""

    def __init__(self, ranks: VirtualRanks, rows: int, hidden: int, seed: int) -> None:
        world, name = len(ranks.ends), ranks.ends[0].dtype
        dtype = getattr(torch, name)
        random = torch.Generator(device="cuda").manual_seed(seed)

        def made(*shape: int) -> torch.Tensor:
            return torch.randn(shape, generator=random, device="cuda").to(dtype)

        self._ranks, terms, residual = ranks, [made(rows, hidden) for _ in range(world)], made(rows, hidden)
        self._weight = made(hidden)
        numbers = [t.double().cpu().numpy() for t in (*terms, residual, self._weight)]
        self._expected = expected(numbers[:world], numbers[-2], numbers[-1], EPS, name)
        self.residuals = [residual.clone() for _ in range(world)]
        self._terms = terms
        self.outs = terms if seed % 2 else [torch.full_like(t, float("nan")) for t in terms]
        self._bound = [
            end.bind_rows(
                Rows(
                    source=term.data_ptr(),
                    residual=kept.data_ptr(),
                    weight=self._weight.data_ptr(),
                    out=out.data_ptr(),
                    rows=rows,
                    hidden=hidden,
                    eps=EPS,
                )
            )
            for end, term, kept, out in zip(ranks.ends, terms, self.residuals, self.outs, strict=True)
        ]
        torch.cuda.synchronize()

    def launch(self, ranks: Sequence[int] | None = None) -> None:
        self._ranks.launch(self._bound, ranks)

    def wrong(self) -> int:
        """Wrong elements over all ranks, and ranks that differ from the first in any bit."""
        torch.cuda.synchronize()
        bad = sum(
            wrong(self._expected, h.double().cpu().numpy(), out.double().cpu().numpy())[1]
            for h, out in zip(self.residuals, self.outs, strict=True)
        )
        return bad + sum(not torch.equal(out, self.outs[0]) for out in self.outs[1:])


@pytest.mark.parametrize("path", ["peer", "host"])
@pytest.mark.parametrize("world", [2, 8])
@pytest.mark.parametrize("plan", PLANS)
def test_every_row_of_every_rank_is_right(closing: Any, plan: str, world: int, path: str) -> None:
    if path == "host" and ("staged" in plan or "pull" in plan):
        pytest.skip("no such shape")
    ranks = closing(plan, world, path=path)
    operations = [Operation(ranks, *shape, seed) for seed, shape in enumerate(SHAPES)]
    for operation in operations:  # enqueued at once, so that ranks run apart
        operation.launch()
    assert [operation.wrong() for operation in operations] == [0] * len(SHAPES)
    assert ranks.errors() == [None] * world


ROW_PLANS = [
    "line16t32-one-3x384-ahead1",
    "line128t64-one-4x288",
    "line512t64-one-5x288-ahead2",
    "ll-one-3x512",
]
# rows of whole tiles and not, more rows than blocks, fewer, one
ROW_SHAPES = [(1, 2048), (7, 2048), (3, 2056), (12, 2048), (4, 2120)]


@pytest.mark.parametrize("path", ["peer", "host"])
@pytest.mark.parametrize("world", [2, 4])
@pytest.mark.parametrize("plan", ROW_PLANS)
def test_rows_by_block_are_right(closing: Any, plan: str, world: int, path: str) -> None:
    """Shapes take turns: the places of a packet wander among the warps."""
    ranks = closing(plan, world, path=path, by_row=True)
    shapes = [s for s in ROW_SHAPES if not by_row_flaw(parse(plan), 2 * s[1], s[0])]
    assert len(shapes) > 2
    ranks.set_sequence(0xFFFFFFFF - 5)
    operations = [Operation(ranks, *shape, seed) for seed, shape in enumerate(shapes * 2)]
    for operation in operations:
        operation.launch()
    assert [operation.wrong() for operation in operations] == [0] * len(operations)
    assert ranks.errors() == [None] * world


def test_a_rank_that_never_arrives_spoils_its_rows_by_block_too(closing: Any) -> None:
    ranks = closing("line128t64-one-4x288", 2, by_row=True, spin_s=0.2)
    lost = Operation(ranks, 7, 2048, 0)
    lost.launch(ranks=[0])
    torch.cuda.synchronize()
    assert ranks.errors()[0] is not None
    assert lost.outs[0].isnan().all()
    assert lost.residuals[0].isnan().all()
    ranks.new_epoch()
    again = Operation(ranks, 7, 2048, 2)
    again.launch()
    assert again.wrong() == 0


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("plan", PLANS[::3])
def test_other_dtypes(closing: Any, plan: str, dtype: str) -> None:
    ranks = closing(plan, 4, dtype=dtype)
    for seed, shape in enumerate(SHAPES):
        operation = Operation(ranks, *shape, seed)
        operation.launch()
        assert operation.wrong() == 0, shape


@pytest.mark.parametrize("safe", [True, False])
@pytest.mark.parametrize("plan", ["line128t64-one-6x64", "flag-one-6x64"])
def test_without_the_sequence_a_sum_of_before_is_taken(closing: Any, plan: str, safe: bool) -> None:
    extra = {"ARF_STALL": 1} | ({} if safe else {"ARF_UNSAFE_SLOTS": 1})
    ranks = closing(plan, 2, extra=extra, spin_s=3.0)
    for end in ranks.ends:
        end.stall_ns = 50_000
    ranks.set_sequence(0xFFFFFFFF - 7)
    operations = [Operation(ranks, 8, 4096, seed) for seed in range(16)]
    for operation in operations:
        operation.launch()
    assert (sum(operation.wrong() for operation in operations) == 0) is safe
    assert ranks.errors() == [None] * 2


@pytest.mark.parametrize("plan", ["line128t64-one-6x64", "flag-one-6x64"])
def test_a_rank_that_never_arrives_spoils_both_results(closing: Any, plan: str) -> None:
    ranks = closing(plan, 2, spin_s=0.2)
    lost = Operation(ranks, 8, 4096, 0)
    lost.launch(ranks=[0])
    torch.cuda.synchronize()
    assert ranks.errors()[0] is not None
    assert ranks.errors()[0].waited_for == 1
    assert lost.outs[0].isnan().any()
    assert lost.residuals[0].isnan().any()
    after = Operation(ranks, 8, 4096, 1)
    after.launch(ranks=[0])
    torch.cuda.synchronize()
    assert after.outs[0].isnan().all()
    assert after.residuals[0].isnan().all()
    ranks.new_epoch()
    again = Operation(ranks, 8, 4096, 2)
    again.launch()
    assert again.wrong() == 0


@pytest.mark.parametrize("dtype", ["bfloat16", "float32", "float16"])
def test_the_norm_alone(dtype: str) -> None:
    norm, kind = AddRmsNorm(dtype, 0), getattr(torch, dtype)
    for rows, hidden in (*SHAPES, (2, 16384)):
        x, residual, weight = (
            torch.randn(*shape, device="cuda").to(kind)
            for shape in ((rows, hidden), (rows, hidden), (hidden,))
        )
        numbers = [t.double().cpu().numpy() for t in (x, residual, weight)]
        must = expected(numbers[:1], numbers[1], numbers[2], EPS, dtype)
        out = torch.empty_like(x)
        buffers = Rows(
            source=x.data_ptr(),
            residual=residual.data_ptr(),
            weight=weight.data_ptr(),
            out=out.data_ptr(),
            rows=rows,
            hidden=hidden,
            eps=EPS,
        )
        norm.bind(buffers).launch(torch.cuda.current_stream().cuda_stream)
        assert wrong(must, residual.double().cpu().numpy(), out.double().cpu().numpy())[1] == 0


def test_shapes_that_no_kernel_takes(closing: Any) -> None:
    ranks = closing("line128t64-one-6x64", 2)
    with pytest.raises(OursError, match="at least 512 bytes"):
        Operation(ranks, 4, 128, 0)
    with pytest.raises(OursError, match="multiple of 16"):
        Operation(ranks, 4, 4097, 0)
