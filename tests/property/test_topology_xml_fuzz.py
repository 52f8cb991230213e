"""No XML, whole, damaged or random, makes a topology reader raise anything but its own error."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from arfloor.core.box import relation_in_tree
from arfloor.ingest.hwloc_xml import read_hwloc_xml
from arfloor.ingest.nccl_topo_xml import read_nccl_topo_xml
from arfloor.ingest.outside import IngestError

READERS = pytest.mark.parametrize("read", [read_nccl_topo_xml, read_hwloc_xml])
VALUES = st.sampled_from(
    (
        *("", "0", "-1", "1", "16", "x", "0000:01:00.0", "0000:02:00.0", "zz", "0x060400", "0x030200"),
        *("0x020700", "32.0 GT/s PCIe", "Unknown", "9" * 30, "\u0663", "1e999", "63.0", "0-1", "1-1"),
        *("0000:[00-ff]", "0302 [10de:1]", "Machine", "Package", "NUMANode", "Bridge", "PCIDev", "OSDev"),
        *("Group", "cuda0", "0x00000003", "0x,0x"),
    )
)
NAMES = st.sampled_from(
    (
        *("numaid", "busid", "class", "link_speed", "link_width", "dev", "sm", "gcn", "target", "count"),
        *("tclass", "type", "bridge_type", "bridge_pci", "pci_busid", "pci_type", "pci_link_speed"),
        *("os_index", "name", "value", "nodeset", "host_hash"),
    )
)
TAGS = st.sampled_from(
    ["system", "cpu", "pci", "gpu", "nic", "net", "nvlink", "xgmi", "c2c", "topology", "object", "info", "x"]
)


@st.composite
def elements(draw, depth=0):
    tag = draw(TAGS)
    attributes = " ".join(f'{k}="{v}"' for k, v in draw(st.dictionaries(NAMES, VALUES, max_size=5)).items())
    inside = "".join(draw(st.lists(elements(depth + 1), max_size=3))) if depth < 4 else ""
    return f"<{tag} {attributes}>{inside}</{tag}>"


def check(read, text):
    try:
        box, warned = read(text)
    except IngestError as error:
        said = [str(error)]
    else:
        said = [str(w) for w in warned]
        assert len({g.id for g in box.gpus}) == len(box.gpus)
        assert {g.id for g in box.gpus} <= {p.id for p in box.places}
        for pair in box.pairs:
            relation_in_tree(box, pair.a, pair.b)
    assert not any("\n" in line for line in said)


@READERS
@settings(max_examples=12, deadline=None)
@given(elements())
def test_any_elements(read, text):
    check(read, text)


@READERS
@settings(max_examples=12, deadline=None)
@given(st.text(st.sampled_from("<>/=\"'&;![]- abc0\n\x00é?"), max_size=80))
def test_any_markup(read, text):
    check(read, text)


@READERS
@settings(max_examples=12, deadline=None)
@given(elements(), st.integers(0, 400), st.integers(0, 400), st.text(max_size=4))
def test_damaged_elements(read, text, start, stop, inserted):
    check(read, text[:start] + inserted + text[max(start, stop) :])
