"""The kernels of arfloor/kernels compiled for the CPU: their logic can be tested where there is no GPU.

Inline PTX is replaced by what it means, one instruction at a time; everything else is compiled as it stands,
by g++, against emulator.hpp. bfloat16 and float32. It cannot show memory ordering, nor anything about time.
"""

from __future__ import annotations

import ctypes
import hashlib
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from arfloor.backends.fused import FusedEndpoint, RowEndpoint
from arfloor.backends.ours import Endpoint, args_type
from arfloor.core import fused
from arfloor.core.plans import STATE_COUNTERS, decode_error, defines, layout, parse, sources
from arfloor.runtime import jit

COMPILER = shutil.which("g++")

# what a PTX instruction of the sources does, in the names of the function that it stands in
PTX = {
    "st.relaxed.sys.global.v4": "store_words((u32*)at, w)",
    "ld.relaxed.sys.global.v4": "load_words((u32*)at, w)",
    "ld.acquire.sys.global.b64": "v = polled((u64*)at)",
    "st.release.sys.global.b64": "__atomic_store_n((u64*)at, v, __ATOMIC_SEQ_CST)",
    "ld.relaxed.gpu.global.b32": "v = __atomic_load_n((u32*)at, __ATOMIC_ACQUIRE)",
    "ld.relaxed.gpu.global.b64": "v = __atomic_load_n((u64*)at, __ATOMIC_ACQUIRE)",
    "st.relaxed.gpu.global.b32": "__atomic_store_n((u32*)at, v, __ATOMIC_RELEASE)",
    "st.relaxed.gpu.global.b64": (
        "__atomic_store_n((u64*)slot, (u64)sequence << 32 | __float_as_uint(sum), __ATOMIC_RELEASE)"
    ),
    "atom.relaxed.gpu.global.cas.b64": "old = compare_and_swap((u64*)a.state, word)",
    "%globaltimer": "t = now()",
    "%clock64": "t = now() * 2",
    "cvt.rn.bf16x2.f32": "w = bf16(f[0]) | bf16(f[1]) << 16",
    "cvt.rni.sat.s8.f32": (
        "q = (u32)(int)(x != x ? 0 : nearbyintf(x) > 127 ? 127 : nearbyintf(x) < -128 ? -128 : nearbyintf(x))"
    ),
    "cvt.rni.u32.f32": "small = rounded_to_integer(__uint_as_float(magnitude) * 512.0f)",
    # of dtypes and builds that are not emulated
    "cvt.f32.f16": "",
    "cvt.rn.f16x2.f32": "",
    "fence.acq_rel.sys": "",
}

HARNESS = """
static thread_local const Args* launched;
static void enter() { all_reduce(*launched); finish(); }
static void block(Args a, unsigned index, unsigned blocks, unsigned threads) {
  launched = &a;
  run_fibers(enter, index, blocks, threads);
}
extern "C" void launch(const Args* args, unsigned ranks, unsigned blocks, unsigned threads) {
  std::vector<std::thread> running;
  for (unsigned r = 0; r < ranks; r++)
    for (unsigned b = 0; b < blocks; b++) running.emplace_back(block, args[r], b, blocks, threads);
  for (auto& thread : running) thread.join();
}
"""


def without_ptx(source: str) -> str:
    """The source with every asm statement replaced. Raises KeyError on an instruction that is not known."""
    parts, end = [], 0
    for match in re.finditer(r"\basm(?: volatile)?\(", source):
        at, depth, quoted = match.end(), 1, False
        while depth:
            quoted ^= source[at] == '"'
            depth += 0 if quoted else (source[at] == "(") - (source[at] == ")")
            at += 1
        statement = source[match.start() : at]
        known = [does for what, does in PTX.items() if what in statement]
        if not known:
            raise KeyError(f"PTX that the emulator does not know: {statement}")
        parts += [source[end : match.start()], known[0]]
        end = at
    return "".join([*parts, source[end:]])


def build(folder: Path, name: str, world: int, dtype: str, path: Any, macros: dict[str, Any]) -> ctypes.CDLL:
    """A plan's kernel as a library of the CPU; built once a folder."""
    plan = parse(name)
    every = defines(plan, world, dtype, path) | macros
    files = fused.SOURCES[plan.protocol] if "ARF_FUSED" in every else sources(plan)
    text = without_ptx(re.sub(r"(?m)^#line.*$", "", jit.read_sources(*files)))
    kernel = re.sub(r'extern "C" __global__ void __launch_bounds__\(ARF_THREADS\)', "static void", text)
    heads = "".join(f"#define {k} {v}\n" for k, v in every.items())
    code = heads + f'#include "{Path(__file__).with_suffix(".hpp")}"\n' + kernel + HARNESS
    stem = folder / hashlib.sha256(code.encode()).hexdigest()[:16]
    library = stem.with_suffix(".so")
    if not library.exists():
        stem.with_suffix(".cpp").write_text(code)
        flags = ["-std=c++17", "-O1", "-fno-strict-aliasing", "-w", "-shared", "-fPIC", "-pthread"]
        subprocess.run(
            [str(COMPILER), *flags, "-o", str(library), str(stem.with_suffix(".cpp"))], check=True, timeout=60
        )
    return ctypes.CDLL(str(library))


class Memory:
    """Zeroed memory at an address that is a multiple of 256."""

    def __init__(self, nbytes: int) -> None:
        self._raw = np.zeros(nbytes + 256, np.uint8)
        skip = -self._raw.ctypes.data % 256
        self.bytes = self._raw[skip : skip + nbytes]
        self.address = self.bytes.ctypes.data


class _Bound:
    """In place of `jit.Function`: keeps what would be launched."""

    def bind(self, blocks: int, threads: int, args: Any) -> tuple[int, int, Any]:
        return blocks, threads, args


class EmulatedRanks:
    """All ranks of a plan in this process; `ends` are `Endpoint`s whose memory is the CPU's."""

    def __init__(
        self,
        folder: Path,
        plan: str,
        world: int,
        *,
        path: Any = "peer",
        dtype: str = "bfloat16",
        end_type: type[Endpoint] = Endpoint,
        macros: dict[str, Any] | None = None,
        max_nbytes: int = 1 << 17,
        spin_s: float = 20.0,
    ) -> None:
        self._library = build(folder, plan, world, dtype, path, macros or {})
        epilogue = issubclass(end_type, FusedEndpoint)
        made = parse(plan)
        room = fused.padded(made, max_nbytes) if issubclass(end_type, RowEndpoint) else max_nbytes
        shape = layout(made, world, path, room)
        self._args = args_type(world, epilogue=epilogue)
        self._keep = [Memory(shape.nbytes) for _ in range(world)]
        self.states = [Memory(shape.state_nbytes) for _ in range(world)]
        sums = [Memory(8 * fused.most_slots(made, room)) for _ in range(world)]
        self.ends = []
        for rank in range(world):
            end = end_type.__new__(end_type)  # its constructor allocates on a GPU
            vars(end).update(
                plan=made,
                path=path,
                dtype=dtype,
                rank=rank,
                world=world,
                pointers=tuple(m.address for m in self._keep),
                max_nbytes=room,
                spin_s=spin_s,
                function=_Bound(),
                layout=shape,
                epoch=0,
                stall_ns=0,
                _args=self._args,
                _state=self.states[rank].address,
                _partials=sums[rank].address,
            )
            self.ends.append(end)
        self._sums = sums

    def set_sequence(self, last: int) -> None:
        """Every counter of every rank."""
        for state in self.states:
            state.bytes.view(np.uint32)[STATE_COUNTERS // 4 :] = last

    def launch(self, operations: Sequence[Any]) -> None:
        """Run one operation a rank, all at the same time, to the end."""
        blocks, threads, _ = operations[0].bound
        every = (self._args * len(operations))(*(o.bound[2] for o in operations))
        self._library.launch(ctypes.byref(every), len(operations), blocks, threads)

    def errors(self) -> list[Any]:
        """Every rank's error word."""
        return [decode_error(int(state.bytes[:8].view(np.uint64)[0])) for state in self.states]
