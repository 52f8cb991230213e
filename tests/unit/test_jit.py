"""Compiling without a GPU, and the cubin cache."""

from __future__ import annotations

from pathlib import Path

import pytest

from arfloor.runtime import jit

pytest.importorskip("cuda.core", reason="needs cuda-core: pip install 'arfloor[cuda]'")

SOURCE = 'extern "C" __global__ void fill(float* x) { x[threadIdx.x] = VALUE; }'


@pytest.fixture(autouse=True)
def _cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ARFLOOR_CACHE_DIR", str(tmp_path / "cache"))


def test_compiles_once_and_reads_the_cache_after(monkeypatch: pytest.MonkeyPatch) -> None:
    first = jit.compile_cubin(SOURCE, arch="sm_90", defines={"VALUE": 1})
    assert first[:4] == b"\x7fELF"
    monkeypatch.setattr(jit, "_compile", lambda *_: pytest.fail("compiled again"))
    assert jit.compile_cubin(SOURCE, arch="sm_90", defines={"VALUE": 1}) == first
    assert [file.suffix for file in jit.cache_dir().iterdir()] == [".cubin"]


@pytest.mark.parametrize(
    "other",
    [
        (SOURCE + " ", "sm_90", {"VALUE": 1}, "13.0"),
        (SOURCE, "sm_80", {"VALUE": 1}, "13.0"),
        (SOURCE, "sm_90", {"VALUE": 2}, "13.0"),
        (SOURCE, "sm_90", {"VALUE": 1, "X": None}, "13.0"),
        (SOURCE, "sm_90", {"VALUE": 1}, "12.9"),
    ],
)
def test_the_key_covers_everything_that_decides_the_code(other: tuple[str, str, dict, str]) -> None:
    assert jit.cache_key(*other) != jit.cache_key(SOURCE, "sm_90", {"VALUE": 1}, "13.0")


def test_a_cache_that_cannot_be_written_only_costs_time(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    monkeypatch.setenv("ARFLOOR_CACHE_DIR", str(blocked / "below"))
    assert jit.compile_cubin(SOURCE, arch="sm_80", defines={"VALUE": 3})[:4] == b"\x7fELF"


def test_an_error_names_kernel_architecture_and_line() -> None:
    with pytest.raises(jit.JitError, match=r"broken\.cu does not compile for sm_90.*broken\.cu\(1\)"):
        jit.compile_cubin("nonsense", arch="sm_90", name="broken.cu")
