"""8 bits an element on the wire, by virtual ranks on one GPU: within the stated bound, alike on all ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

pytest.importorskip("cuda.bindings", reason="needs cuda-core: pip install 'arfloor[cuda]'")
torch = pytest.importorskip("torch")

from arfloor.backends.virtual import VirtualRanks  # noqa: E402
from arfloor.core import lossy  # noqa: E402
from arfloor.core.plans import parse  # noqa: E402
from arfloor.runtime.verify import ROUNDOFF  # noqa: E402

pytestmark = pytest.mark.gpu

FRONTS = ["line32t32-one-6x64", "line128t64-one-6x64-ahead1", "line512t64-one-6x64-pace20-lag100-window1"]
# numel, offset of the buffers in elements
SHAPES = [(1, 0), (7, 1), (333, 2), (4096, 0), (30001, 3), (100000, 0)]


@pytest.fixture
def closing() -> Iterator[Callable[..., VirtualRanks]]:
    made: list[VirtualRanks] = []

    def make(plan: str, world: int, dtype: str, path: str = "peer") -> VirtualRanks:
        made.append(
            VirtualRanks(
                plan=parse(plan),
                path=path,
                dtype=dtype,
                world=world,
                device=0,
                max_nbytes=1 << 18,
                spin_s=1.0,
            )
        )
        return made[-1]

    yield make
    for ranks in made:
        ranks.close()


def reduced(ranks: VirtualRanks, terms: list[torch.Tensor], offset: int, inplace: bool) -> list[torch.Tensor]:
    numel, dtype = terms[0].numel(), terms[0].dtype
    sources = [torch.zeros(numel + offset + 8, dtype=dtype, device="cuda") for _ in terms]
    for source, term in zip(sources, terms, strict=True):
        source[offset : offset + numel] = term
    targets = sources if inplace else [torch.full_like(s, float("nan")) for s in sources]
    tails = [t[numel + offset :].clone() for t in targets]
    skip = offset * dtype.itemsize
    bound = ranks.bind(
        [s.data_ptr() + skip for s in sources], [t.data_ptr() + skip for t in targets], numel * dtype.itemsize
    )
    torch.cuda.synchronize()
    ranks.launch(bound)
    torch.cuda.synchronize()
    for target, tail in zip(targets, tails, strict=True):  # nothing is written beyond the end
        assert torch.equal(target[numel + offset :].view(torch.int16), tail.view(torch.int16))
    return [t[offset : offset + numel] for t in targets]


@pytest.mark.parametrize("path", ["peer", "host"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("world", [2, 4])
@pytest.mark.parametrize("wire", lossy.FAMILIES)
@pytest.mark.parametrize("front", FRONTS)
def test_within_the_bound_and_alike(
    closing: Any, front: str, wire: Any, world: int, dtype: str, path: str
) -> None:
    ranks, kind = closing(f"{front}-{wire}", world, dtype, path), getattr(torch, dtype)
    for seed, (numel, offset) in enumerate(SHAPES):
        random = torch.Generator(device="cuda").manual_seed(seed)
        terms = [torch.randn(numel, generator=random, device="cuda").to(kind) for _ in range(world)]
        numbers = [t.double().cpu().numpy() for t in terms]
        allowed = lossy.bound(numbers, wire, ROUNDOFF[dtype])
        results = reduced(ranks, terms, offset, inplace=seed % 2 == 1)
        error = np.abs(results[0].double().cpu().numpy() - np.sum(numbers, axis=0))
        assert (error <= allowed).all(), (numel, float((error / allowed).max()))
        assert all(torch.equal(r, results[0]) for r in results[1:])
    assert ranks.errors() == [None] * world


@pytest.mark.parametrize("wire", lossy.FAMILIES)
def test_what_is_not_finite_stays_so_and_zeros_stay_zero(closing: Any, wire: Any) -> None:
    ranks = closing(f"line128t64-one-6x64-{wire}", 2, "bfloat16")
    terms = [torch.zeros(4096, dtype=torch.bfloat16, device="cuda") for _ in range(2)]
    terms[0][100], terms[1][3000] = float("nan"), float("inf")
    result = reduced(ranks, terms, 0, inplace=False)[0]
    assert not result[[100, 3000]].isfinite().any()
    assert int((~result.isfinite()).sum()) <= 28
    assert (result[result.isfinite()] == 0).all()
