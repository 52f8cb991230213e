"""How to get the all-reduces that others wrote and that arfloor only knows published figures of."""

from __future__ import annotations

from arfloor.core.cases import record


@record
class Outside:
    """`how`: what to install and set, in Markdown code where it is to be typed; `source`: who says so."""

    how: str
    source: str


OUTSIDE: dict[str, Outside] = {
    "pcie_oneshot": Outside(
        how="SGLang's fork `github.com/lukealonso/sglang` at d39236a, `--enable-pcie-oneshot-allreduce`; "
        "left alone it kept NCCL above 120 KB on 4 GPUs, `--pcie-oneshot-allreduce-max-size` sets that",
        source="local-inference-lab/rtx6kpro, optimization/pcie-oneshot-allreduce.md at 18af540",
    ),
}
"""By the backend's name in published figures. Those that arfloor runs are `arfloor.backends`'."""


def how_to_get(backend: str) -> str:
    """What to install and set, and who says so; empty for what is not known here."""
    found = OUTSIDE.get(backend)
    return f"{found.how} ({found.source})" if found else ""
