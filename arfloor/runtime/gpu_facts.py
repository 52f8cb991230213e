"""Child process: print as JSON what NVML and the CUDA driver say of the GPUs, allocating nothing there."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from typing import Any

from arfloor.runtime import cuda_facts, nvml_facts


def collect(nvml: Any, driver: Any) -> dict[str, Any]:
    """Both libraries' facts; for a library that is missing (None) or refuses, the reason under `why`."""
    found: dict[str, Any] = {"nvml": None, "cuda": None, "why": {}}
    if nvml is None:
        found["why"]["nvml"] = "the package nvidia-ml-py is not installed: pip install 'arfloor[cuda]'"
    else:
        try:
            found["nvml"] = asdict(nvml_facts.read(nvml))
        except nvml_facts.NvmlError as error:
            found["why"]["nvml"] = f"NVML does not start: {error}"
    if driver is None:
        found["why"]["cuda"] = "the package cuda-bindings is not installed: pip install 'arfloor[cuda]'"
    else:
        try:
            found["cuda"] = [asdict(f) for f in cuda_facts.read(driver)]
        except cuda_facts.CudaFactsError as error:
            found["why"]["cuda"] = f"the CUDA driver does not start: {error}"
    return found


def main() -> int:
    """Print the facts; always 0 unless the process dies."""
    nvml: Any = None
    driver: Any = None
    try:
        import pynvml

        nvml = pynvml
    except ImportError:
        pass
    try:
        from cuda.bindings import driver as loaded

        driver = loaded
    except ImportError:
        pass
    json.dump(collect(nvml, driver), sys.stdout)
    return 0


if __name__ == "__main__":
    sys.exit(main())
