"""No paste makes the reader raise anything but its own error, and no damage makes it read a cell wrongly."""

from hypothesis import given, settings
from hypothesis import strategies as st

from arfloor.core.box import RELATIONS
from arfloor.ingest.outside import IngestError
from arfloor.ingest.topo_matrix import read_topo_matrix

WORDS = (*RELATIONS, "NV1", "NV4", "NV12", "NV18")
PIECES = st.sampled_from(
    (
        *("GPU0", "GPU1", "GPU10", "NIC0", "mlx5_0", " X ", "\t", " ", "\n", "\r\n", "|", "---"),
        *(
            "[4m",
            "\x1b[0m",
            "CPU Affinity",
            "NUMA Affinity",
            "GPU NUMA ID",
            "0-31",
            "N/A",
            "OK",
            "GNS",
            "SOC",
        ),
        *("NV", "NV999", "=", "nvidia-smi topo -p2p rwx", "nvidia-smi topo -m", "Legend:"),
        *WORDS,
    )
)


def only_ingest_error(text):
    try:
        box, warned = read_topo_matrix(text)
    except IngestError as error:
        said = [str(error)]
    else:
        assert box.gpus
        said = [str(w) for w in warned]
    assert not any("\n" in line for line in said)


@settings(max_examples=30, deadline=None)
@given(st.one_of(st.text(max_size=300), st.lists(PIECES, max_size=80).map("".join)))
def test_any_text(text):
    only_ingest_error(text)


@st.composite
def matrices(draw):
    n = draw(st.integers(2, 5))
    truth = {(a, b): draw(st.sampled_from(WORDS)) for a in range(n) for b in range(a)}
    truth |= {(b, a): word for (a, b), word in truth.items()}
    return n, truth


@settings(max_examples=40, deadline=None)
@given(matrices(), st.data())
def test_damage_loses_cells_and_never_misreads_one(matrix, data):
    n, truth = matrix
    separator = data.draw(st.sampled_from(["\t", "  ", " | "]))
    affinity = data.draw(st.booleans())
    names = [f"GPU{i}" for i in range(n)]
    lines = [separator.join(["", *names] + ["CPU Affinity"] * affinity)]
    for a in range(n):
        cells = ["X" if a == b else truth[a, b] for b in range(n)]
        damage = data.draw(st.sampled_from(["none", "drop", "empty", "unknown", "glue", "shift"]))
        at = data.draw(st.integers(0, n - 1))
        if damage == "drop":
            del cells[at]
        elif damage == "empty":
            cells[at] = ""
        elif damage == "unknown" and at != a:
            cells[at] = data.draw(st.sampled_from(["???", "FOO", "1", "N/A"]))
        elif damage == "glue" and at + 1 < n:
            cells[at : at + 2] = [cells[at] + cells[at + 1]]
        elif damage == "shift":
            cells.insert(at, "")
        lines.append(separator.join([names[a], *cells] + ["0-15"] * affinity))
    try:
        box, _ = read_topo_matrix("\n".join(lines))
    except IngestError:
        return
    for pair in box.pairs:
        read = pair.relation or (f"NV{pair.nvlinks}" if pair.nvlinks else None)
        assert read in (None, truth[int(pair.a[3:]), int(pair.b[3:])]), "\n".join(lines)


@settings(max_examples=30, deadline=None)
@given(matrices(), st.sampled_from(["\t", "  ", "   ", " | "]), st.booleans())
def test_undamaged_matrices_are_read_whole(matrix, separator, ansi):
    n, truth = matrix
    names = [f"GPU{i}" for i in range(n)]
    head = separator.join(["", *names, "CPU Affinity"])
    lines = [f"\x1b[4m{head}\x1b[0m" if ansi else head]
    lines += [
        separator.join([names[a], *(" X " if a == b else truth[a, b] for b in range(n)), "0-15"])
        for a in range(n)
    ]
    box, _ = read_topo_matrix("\n".join(lines))
    read = {(int(p.a[3:]), int(p.b[3:])): p.relation or f"NV{p.nvlinks}" for p in box.pairs}
    assert read == truth
