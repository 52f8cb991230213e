"""The fused all-reduce + RMSNorm without a GPU: its arithmetic of tiles and rows, and that it compiles."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from arfloor.core import fused
from arfloor.core.plans import defines, parse
from arfloor.runtime import jit

PLANS = ["line16t32-one-8x64", "line64t32-one-8x64", "line512t64-one-8x64", "ll-one-8x64", "flag-one-8x64"]


@pytest.mark.parametrize("name", PLANS)
def test_slots_hold_every_piece_of_every_row(name: str) -> None:
    plan, rng = parse(name), random.Random(name)
    span = fused.span(plan)
    assert span <= fused.MIN_ROW_NBYTES  # so a tile touches two rows at most
    for _ in range(300):
        row, rows = fused.ALIGNMENT * rng.randint(32, 2000), rng.randint(1, 40)
        assert not fused.row_flaw(row)
        pieces = [((r + 1) * row - 1) // span - r * row // span + 1 for r in range(rows)]
        assert max(pieces) <= fused.pieces(plan, row)
        assert rows * fused.pieces(plan, row) <= fused.most_slots(plan, rows * row)


def test_what_has_no_fused_form_says_so() -> None:
    assert not fused.flaw(parse("flag-one-pull-8x64"))
    assert "one-shot" in fused.flaw(parse("line64t32-two-8x64"))
    assert "not 496" in fused.row_flaw(496)
    assert "not 520" in fused.row_flaw(520)


@pytest.mark.parametrize("name", PLANS[:-1])
def test_rows_by_block_fit_the_slab(name: str) -> None:
    rng = random.Random(name)
    for _ in range(300):
        row, rows = fused.ALIGNMENT * rng.randint(256, 1000), rng.randint(1, 200)
        plan = fused.by_row(parse(name), row, rows, 132)
        if plan.threads <= 1024:
            assert not fused.by_row_flaw(plan, row, rows)
        travels = rows * fused.row_tiles(plan, row) * fused.span(plan)
        assert rows * row <= travels <= fused.padded(plan, rows * row)
    few = parse("line512t64-one-4x288")
    assert "rows of at least 4096" in fused.by_row_flaw(few, 2048, 1)
    assert "threads, not 288" in fused.by_row_flaw(few, 8192, 1)
    assert "not 65 on 4" in fused.by_row_flaw(few, 4096, 65)


@pytest.fixture
def _cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pytest.importorskip("cuda.core", reason="needs cuda-core: pip install 'arfloor[cuda]'")
    monkeypatch.setenv("ARFLOOR_CACHE_DIR", str(tmp_path))


def compiled(name: str, arch: str, world: int, dtype: str, path: Any, form: int = 1) -> bytes:
    plan = parse(name)
    macros = defines(plan, world, dtype, path) | {"ARF_FUSED": form}
    return jit.compile_cubin(jit.read_sources(*fused.SOURCES[plan.protocol]), arch=arch, defines=macros)


@pytest.mark.usefixtures("_cache")
@pytest.mark.parametrize(("name", "arch"), [("line512t64-one-8x64", "sm_90"), ("flag-one-8x64", "sm_120")])
def test_it_compiles(name: str, arch: str) -> None:
    assert compiled(name, arch, 2, "bfloat16", "host")[:4] == b"\x7fELF"


@pytest.mark.usefixtures("_cache")
def test_rows_by_block_compile() -> None:
    assert compiled("ll-one-8x64", "sm_80", 2, "bfloat16", "host", 2)[:4] == b"\x7fELF"


@pytest.mark.slow
@pytest.mark.usefixtures("_cache")
@pytest.mark.parametrize("arch", jit.ARCHS)
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("name", [*PLANS, "flag-one-pull-8x64", "line128t64-one-staged-8x64"])
def test_every_form_compiles(name: str, dtype: str, arch: str) -> None:
    for world, form in ((2, 1), (8, 1), (2, 1 if "flag" in name else 2)):
        assert compiled(name, arch, world, dtype, "peer", form)[:4] == b"\x7fELF"


@pytest.mark.usefixtures("_cache")
def test_the_norm_alone_compiles() -> None:
    source = jit.read_sources("common.cuh", "rmsnorm.cu")
    macros = {"ARF_DTYPE": 2, "ARF_WORLD": 2, "ARF_HOST": 0, "ARF_SHOT": 1}
    assert jit.compile_cubin(source, arch="sm_90", defines=macros)[:4] == b"\x7fELF"
