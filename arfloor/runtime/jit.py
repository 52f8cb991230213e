"""CUDA C++ to machine code at run time: NVRTC through `cuda.core`, cubins cached on disk.

Compiling needs no GPU, only the NVRTC package, so that every kernel is compiled for every supported
architecture in CI. Loading and launching need a GPU and its driver; both go through `cuda.bindings`.

A cached cubin is keyed by source, options, architecture and NVRTC's version, and written atomically:
ranks that compile the same kernel at once do double work but never read half a file.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

ARCHS = ("sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_120")
"""Architectures that every kernel of the package must compile for."""

Define = str | int | None


class JitError(Exception):
    """A kernel that could not be compiled, loaded or launched; the message says what to do."""


def read_sources(*names: str) -> str:
    """Files of `arfloor.kernels`, one after the other, as one translation unit with true line numbers."""
    folder = resources.files("arfloor.kernels")
    return "".join(f'#line 1 "{name}"\n{(folder / name).read_text(encoding="utf-8")}\n' for name in names)


def cache_dir() -> Path:
    """Where cubins are kept: ARFLOOR_CACHE_DIR, or `arfloor` in the XDG cache directory."""
    chosen = os.environ.get("ARFLOOR_CACHE_DIR")
    if chosen:
        return Path(chosen)
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "arfloor" / "cubins"


def cache_key(source: str, arch: str, defines: Mapping[str, Define], compiler: str) -> str:
    """Hexadecimal digest over everything that decides the machine code."""
    text = repr((source, arch, sorted(defines.items()), compiler))
    return hashlib.sha256(text.encode()).hexdigest()[:40]


def compile_cubin(
    source: str, *, arch: str, defines: Mapping[str, Define] | None = None, name: str = "kernel.cu"
) -> bytes:
    """Compile `source` for `arch` (`sm_90`) with macros `defines` (None: defined without a value).

    Raises JitError when NVRTC is not installed or the source does not compile.
    """
    macros = dict(defines or {})
    compiler = nvrtc_version()
    file = cache_dir() / f"{cache_key(source, arch, macros, compiler)}.cubin"
    try:
        return file.read_bytes()
    except OSError:
        pass
    code = _compile(source, arch, macros, name)
    _write_atomically(file, code)
    return code


def nvrtc_version() -> str:
    """NVRTC's version, as `13.0`. Raises JitError when it, or cuda.core, is not installed."""
    try:
        from cuda.bindings import nvrtc

        status, major, minor = nvrtc.nvrtcVersion()
    except (ImportError, RuntimeError, OSError) as error:
        raise JitError(f"NVRTC is not available ({error}); pip install 'arfloor[cuda]'") from error
    if int(status) != 0:
        raise JitError(f"NVRTC does not answer ({status}); reinstall with pip install 'arfloor[cuda]'")
    return f"{major}.{minor}"


def _compile(source: str, arch: str, defines: Mapping[str, Define], name: str) -> bytes:
    try:
        from cuda.core import Program, ProgramOptions
    except ImportError:
        try:  # before 1.0 the same classes lived here
            from cuda.core.experimental import Program, ProgramOptions
        except ImportError as error:
            raise JitError(f"cuda.core is not installed ({error}); pip install 'arfloor[cuda]'") from error
    macros = [key if value is None else (key, str(value)) for key, value in defines.items()]
    options = ProgramOptions(arch=arch, std="c++17", name=name, define_macro=macros or None)
    try:
        code = Program(source, "c++", options).compile("cubin").code
    except Exception as error:
        raise JitError(f"{name} does not compile for {arch} with {dict(defines)}: {_cause(error)}") from error
    return bytes(code)


def _cause(error: Exception) -> str:
    """The first error line of a compilation log, which also runs to hundreds of lines."""
    lines = [line.strip() for line in str(error).splitlines()]
    return next((line for line in lines if "error:" in line), lines[0] if lines else type(error).__name__)


def _write_atomically(file: Path, code: bytes) -> None:
    """Best effort: a cache that cannot be written (read-only home, full disk) costs time, nothing else."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=file.parent, prefix=".tmp-")
        with os.fdopen(handle, "wb") as stream:
            stream.write(code)
        Path(temporary).replace(file)
    except OSError:
        return


def checked(answer: Any) -> Any:
    """The values of a `cuda.bindings` call, or JitError with the name of its error code."""
    status, *values = answer if isinstance(answer, tuple) else (answer,)
    if int(status) != 0:
        raise JitError(f"CUDA says {getattr(status, 'name', status)}")
    return values[0] if len(values) == 1 else tuple(values)


def device_arch(ordinal: int) -> str:
    """Architecture of a visible device, as `sm_90`."""
    from cuda.bindings import runtime

    attribute = runtime.cudaDeviceAttr
    major = checked(runtime.cudaDeviceGetAttribute(attribute.cudaDevAttrComputeCapabilityMajor, ordinal))
    minor = checked(runtime.cudaDeviceGetAttribute(attribute.cudaDevAttrComputeCapabilityMinor, ordinal))
    return f"sm_{major}{minor}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """A launch with its arguments packed: `Function.bind` once, then `launch` any number of times."""

    function: Function
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared_bytes: int
    values: tuple[Any, ...]
    pointers: Any

    def launch(self, stream: int) -> None:
        """Enqueue on `stream` (the handle as an integer); works inside stream capture."""
        from cuda.bindings import driver

        answer = driver.cuLaunchKernel(
            self.function.handle,
            *self.grid,
            *self.block,
            self.shared_bytes,
            stream,
            ctypes.addressof(self.pointers),
            0,
        )
        if int(answer[0]) != 0:
            raise JitError(
                f"{self.function.symbol} was not launched with grid {self.grid} and block {self.block}: "
                f"CUDA says {answer[0].name}"
            )


class Function:
    """A kernel loaded into the current context. The module stays loaded as long as this lives."""

    def __init__(self, cubin: bytes, symbol: str) -> None:
        from cuda.bindings import driver, runtime

        checked(runtime.cudaFree(0))  # makes the device's primary context current where it is not yet
        self.symbol = symbol
        self._module = checked(driver.cuModuleLoadData(cubin))
        self.handle = checked(driver.cuModuleGetFunction(self._module, symbol.encode()))
        load = getattr(driver, "cuFuncLoad", None)
        if load is not None:  # lazily loaded code would be loaded behind a kernel that spins: a deadlock
            checked(load(self.handle))

    def attribute(self, name: str) -> int:
        """A CUfunction_attribute by its short name, for example `NUM_REGS`."""
        from cuda.bindings import driver

        which = getattr(driver.CUfunction_attribute, f"CU_FUNC_ATTRIBUTE_{name}")
        return int(checked(driver.cuFuncGetAttribute(which, self.handle)))

    def blocks_per_multiprocessor(self, threads: int, shared_bytes: int = 0) -> int:
        """How many blocks of `threads` threads are resident on one multiprocessor at once."""
        from cuda.bindings import driver

        return int(
            checked(driver.cuOccupancyMaxActiveBlocksPerMultiprocessor(self.handle, threads, shared_bytes))
        )

    def bind(
        self,
        grid: int | Sequence[int],
        block: int | Sequence[int],
        *args: Any,
        shared_bytes: int = 0,
    ) -> Launch:
        """Pack ctypes `args` (simple values or structures, in the kernel's order) for `grid` and `block`."""
        pointers = (ctypes.c_void_p * max(1, len(args)))(*(ctypes.addressof(a) for a in args))
        return Launch(
            function=self,
            grid=_three(grid),
            block=_three(block),
            shared_bytes=shared_bytes,
            values=args,
            pointers=pointers,
        )

    def launch(self, grid: int | Sequence[int], block: int | Sequence[int], stream: int, *args: Any) -> None:
        """Pack and enqueue in one call; `args` are ctypes values."""
        self.bind(grid, block, *args).launch(stream)


def _three(shape: int | Sequence[int]) -> tuple[int, int, int]:
    full = ((shape,) if isinstance(shape, int) else tuple(shape)) + (1, 1, 1)
    return full[0], full[1], full[2]


def load_function(
    source: str, symbol: str, *, device: int, defines: Mapping[str, Define] | None = None, name: str = ""
) -> Function:
    """Compile `source` for visible device `device`, which must be the current one, and load `symbol`."""
    cubin = compile_cubin(source, arch=device_arch(device), defines=defines, name=name or f"{symbol}.cu")
    return Function(cubin, symbol)
