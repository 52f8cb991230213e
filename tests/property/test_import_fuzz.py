"""No output of another tool, whole, damaged or random, makes a reader raise anything but its own error."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from arfloor.ingest.boxes import read_box
from arfloor.ingest.imported import Hints
from arfloor.ingest.outside import IngestError, decode
from arfloor.ingest.runs import READERS, read_run

FORMS = pytest.mark.parametrize("form", [*READERS, None])
WORDS = st.sampled_from(
    (
        *("# nThread 1 nGpus 4 graph: 1", "#  Rank  0 Group  0 Pid 1 on box device  0 [0x07] NVIDIA X"),
        *("# size count type redop root time algbw busbw #wrong", "1024 256 float sum -1 13.5 0.08 0.11 0"),
        *("1048576 262144 half sum 85.2 12.3 18.4 0 85 12.3 18.5 N/A", "Running host_to_device_memcpy_ce."),
        *("memcpy CE CPU(row) -> GPU(column) bandwidth (GB/s)", "0 1 2", "0 55.6 N/A 1e9", "SUM x 1"),
        *(
            "allreduce_dtype,num_gpus,message_size,latency",
            "half,2,128,0.0038",
            "half,٣,1e9,nan",
            '"',
            ",,,,",
        ),
        *("[1,0]<stdout>:", "host:12:34", "9" * 40, "\x00", "nvbandwidth Version: v0.8", "busbw"),
    )
)
JSONISH = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(["N/A", "25.5"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["nvbandwidth", "testcases", "name", "status", "bandwidth_matrix", "version", "x"]
            )
            | st.sampled_from(["bandwidth_description", "GPU Device list"]),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


def check(form, text):
    try:
        found = read_run(text, Hints(), form)
    except IngestError as error:
        said = [str(error)]
    else:
        said = [*(str(w) for w in found.warned), *found.assumed]
        assert all(r.latency is None or r.latency.value > 0 for r in found.results)
        assert all(2 <= r.case.world <= 1024 and r.case.numel > 0 for r in found.results)
        assert all(p.estimate.value > 0 and p.src != p.dst for p in found.primitives)
    assert not any("\n" in line for line in said)


@FORMS
@settings(max_examples=10, deadline=None)
@given(st.lists(WORDS | st.text(max_size=12), max_size=12).map("\n".join))
def test_any_lines(form, text):
    check(form, text)


@settings(max_examples=15, deadline=None)
@given(JSONISH)
def test_any_json(value):
    check("nvbandwidth", json.dumps({"nvbandwidth": value}))
    check("nvbandwidth", json.dumps({"nvbandwidth": {"testcases": value}}))
    check("nvbandwidth", json.dumps({"nvbandwidth": {"testcases": [value]}}))


@settings(max_examples=15, deadline=None)
@given(st.binary(max_size=200))
def test_any_bytes_of_a_box(data):
    try:
        read_box(decode(data))
    except IngestError as error:
        said = str(error)
        assert "\n" not in said
