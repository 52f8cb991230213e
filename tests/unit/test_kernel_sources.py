"""What the kernels and Python both know must be the same: read from the sources, without a GPU."""

from __future__ import annotations

import ctypes
import re
from importlib import resources

import pytest

from arfloor.backends.ours import args_type
from arfloor.core import plans, tags
from arfloor.core.plans import Plan, max_threads

SOURCES = resources.files("arfloor.kernels")
WIDTH = {"u64": 8, "u32": 4}


def source(name: str) -> str:
    return (SOURCES / name).read_text()


@pytest.mark.parametrize("world", [2, 3, 8])
def test_arguments_have_the_same_fields_at_the_same_places(world: int) -> None:
    body = re.search(r"struct Args \{(.*?)\n\};", source("common.cuh"), re.DOTALL)
    assert body is not None
    plain = re.sub(r"#ifdef ARF_FUSED.*?#endif", "", body[1], flags=re.DOTALL)  # another build's
    fields, offset = [], 0
    for kind, names in re.findall(r"^\s*(u64|u32) ([^;]+);", plain, re.MULTILINE):
        for name in names.split(","):
            bare, _, array = name.strip().partition("[")
            offset = -(-offset // WIDTH[kind]) * WIDTH[kind]
            fields.append(({"in": "input", "out": "output"}.get(bare, bare), offset))
            offset += WIDTH[kind] * (world if array else 1)
    mirrored = args_type(world)
    assert fields == [(name, getattr(mirrored, name).offset) for name, _ in mirrored._fields_]
    assert ctypes.sizeof(mirrored) == offset


def test_the_hash_has_the_same_keys() -> None:
    text = source("line.cu")
    assert [int(k, 16) for k in re.findall(r"key \+ 0x([0-9A-F]+)u", text)] == [
        tags._KEYS[k] for k in (0, 1, 2, 3, 4, 5, 6, 7)
    ]
    assert f"lane * 0x{tags._LANE:X}u" in text
    for constant in ("0x9E3779B97F4A7C15", "0xC2B2AE3D27D4EB4F", "0x9E3779B1", "0x85EBCA77"):
        assert constant in text


def test_numbers_that_both_sides_use() -> None:
    assert f"#define ARF_STATE_COUNTERS {plans.STATE_COUNTERS} " in source("common.cuh")
    assert f"#define FLAG_STRIDE {plans.FLAG_STRIDE}\n" in source("flag.cu")
    assert "(ARF_WORLD == 2 || (ARF_WORLD == 4 && ARF_SHOT == 1) ? 1024 : 512)" in source("common.cuh")
    for world in range(2, 9):
        for shot in (1, 2, 4):
            promised = 1024 if world == 2 or (world == 4 and shot == 1) else 512
            assert max_threads(Plan(protocol="line", shot=shot), world) <= promised


def test_no_kernel_uses_multicast_or_asks_which_lanes_are_awake() -> None:
    for file in SOURCES.iterdir():
        if file.name.endswith((".cu", ".cuh")):
            text = file.read_text()
            assert "multimem" not in text
            assert "activemask" not in text
            assert "#include" not in text
