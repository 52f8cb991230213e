"""Every kernel compiles for every architecture without a GPU."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import pytest

from arfloor.core.plans import defines, flaw, parse, sources
from arfloor.runtime import jit

pytest.importorskip("cuda.core", reason="needs cuda-core: pip install 'arfloor[cuda]'")

# one of each protocol and shape; the rest differ in numbers only
SHAPES = ["line512t64-one-8x64", "line64t32-two-8x64", "ll-islands-8x64", "flag-two-pull-8x64"]
ALL = [
    f"{front}-{shot}-8x64"
    for front, shot in product(
        ("line16t32", "line32t32", "line64t64", "line128t64", "line512t64", "ll", "flag"),
        ("one", "two", "islands", "one-staged", "two-staged", "one-pull", "two-pull"),
    )
]


@pytest.fixture(autouse=True)
def _cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ARFLOOR_CACHE_DIR", str(tmp_path))  # compile here and now, whatever was before


def compiled(name: str, arch: str, world: int, dtype: str, path: Any, **extra: int) -> bytes:
    plan = parse(name)
    macros = defines(plan, world, dtype, path) | extra
    return jit.compile_cubin(jit.read_sources(*sources(plan)), arch=arch, defines=macros)


@pytest.mark.parametrize("arch", jit.ARCHS)
def test_each_shape_compiles_for_each_architecture(arch: str) -> None:
    name = SHAPES[jit.ARCHS.index(arch) % len(SHAPES)]
    assert compiled(name, arch, 4, "bfloat16", "peer")[:4] == b"\x7fELF"


@pytest.mark.slow
@pytest.mark.parametrize("arch", jit.ARCHS)
def test_the_decode_steps_kernels_compile(arch: str) -> None:
    assert jit.compile_cubin(jit.read_sources("decode.cu"), arch=arch)[:4] == b"\x7fELF"


@pytest.mark.parametrize("name", ["line512t64-one-8x64-int8", "line32t32-one-8x64-fp8"])
def test_quantised_wires_compile(name: str) -> None:
    for arch in ("sm_80", "sm_120"):
        assert compiled(name, arch, 2, "float16", "host")[:4] == b"\x7fELF"


@pytest.mark.slow
@pytest.mark.parametrize("arch", jit.ARCHS)
@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_shapes_and_dtypes_compile_for_each_architecture(arch: str, name: str, dtype: str) -> None:
    assert compiled(name, arch, 4, dtype, "peer")[:4] == b"\x7fELF"


@pytest.mark.slow
@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize(("world", "path"), [(2, "peer"), (4, "peer"), (8, "peer"), (2, "host"), (8, "host")])
def test_every_plan_that_may_exist_compiles(name: str, world: int, path: Any) -> None:
    try:
        plan = parse(name)
    except ValueError:
        pytest.skip("no such plan")
    if flaw(plan, world, path):
        pytest.skip("no such plan here")
    assert compiled(name, "sm_90", world, "bfloat16", path)[:4] == b"\x7fELF"


@pytest.mark.slow
@pytest.mark.parametrize(
    "extra",
    ["STALL", "TEAR", "COUNT_TEARS", "UNSAFE_HASH", "UNSAFE_PARITY", "UNSAFE_REGIONS", "UNSAFE_SIGNED"],
)
@pytest.mark.parametrize("name", SHAPES)
def test_builds_for_tests_compile(name: str, extra: str) -> None:
    assert compiled(name, "sm_90", 4, "bfloat16", "peer", **{f"ARF_{extra}": 1})[:4] == b"\x7fELF"
