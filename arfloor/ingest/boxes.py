"""Any pasted description of a box -> a `Box`: the format is told from the content, never from the name."""

from __future__ import annotations

import re
from collections.abc import Callable

from arfloor.core.box import Box
from arfloor.ingest.hwloc_xml import read_hwloc_xml
from arfloor.ingest.nccl_topo_xml import read_nccl_topo_xml
from arfloor.ingest.outside import IngestError, Warned
from arfloor.ingest.topo_matrix import read_topo_matrix

Reader = Callable[[str], tuple[Box, tuple[Warned, ...]]]


def reader_of(text: str) -> Reader:
    """The reader for this content. Raises IngestError when it is empty or binary."""
    if not text.strip():
        raise IngestError("expected `nvidia-smi topo`, an NCCL topology XML or an hwloc XML, found nothing")
    if text.count("\0") + text.count("\ufffd") > len(text) // 20:
        raise IngestError("expected text or XML, found binary data; paste the command's output")
    head = text[:200_000]
    if re.search(r"<object\s[^>]*type\s*=|<topology[\s>]", head):
        return read_hwloc_xml
    if re.search(r"<(?:system|cpu|pci|gpu)[\s>/]", head):
        return read_nccl_topo_xml
    return read_topo_matrix


def read_box(text: str) -> tuple[Box, tuple[Warned, ...]]:
    """The box a text describes, and what in it could not be read. Raises IngestError when it is none."""
    return reader_of(text)(text)
