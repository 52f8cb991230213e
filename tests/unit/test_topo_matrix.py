"""Pasted `nvidia-smi topo` in the shapes that people paste it."""

import pytest

from arfloor.core.box import relation_in_tree
from arfloor.core.doctor import diagnose
from arfloor.ingest.outside import IngestError
from arfloor.ingest.topo_matrix import read_topo_matrix

FOUR = """\
\tGPU0\tGPU1\tGPU2\tGPU3\tNIC0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID
GPU0\t X \tPIX\tNODE\tSYS\tPHB\t0-15,32-47\t0\t\tN/A
GPU1\tPIX\t X \tNODE\tSYS\tPHB\t0-15,32-47\t0\t\tN/A
GPU2\tNODE\tNODE\t X \tSYS\tNODE\t0-15,32-47\t0\t\tN/A
GPU3\tSYS\tSYS\tSYS\t X \tSYS\t16-31,48-63\t1\t\tN/A
NIC0\tPHB\tPHB\tNODE\tSYS\t X \t\t\t

Legend:

  X    = Self
  SYS  = Connection traversing PCIe as well as the SMP interconnect between NUMA nodes (e.g., QPI/UPI)
  NV#  = Connection traversing a bonded set of # NVLinks

NIC Legend:

  NIC0: mlx5_0
"""


def relations(text):
    box, warned = read_topo_matrix(text)
    return {(p.a[3:], p.b[3:]): p.relation or (f"NV{p.nvlinks}" if p.nvlinks else None) for p in box.pairs}, [
        str(w) for w in warned
    ]


TRUTH = relations(FOUR)[0]


def test_plain_paste_is_read_whole():
    box, warned = read_topo_matrix(FOUR)
    assert warned == ()
    assert [g.id for g in box.gpus] == ["GPU0", "GPU1", "GPU2", "GPU3"]
    assert [g.numa for g in box.gpus] == [0, 0, 0, 1]
    assert box.gpus[3].cpus == "16-31,48-63"
    assert TRUTH["0", "1"] == "PIX"
    assert TRUTH["2", "0"] == "NODE"
    assert TRUTH["3", "1"] == "SYS"


def test_tree_says_what_the_matrix_says():
    box, _ = read_topo_matrix(FOUR)
    for pair in box.pairs:
        assert relation_in_tree(box, pair.a, pair.b) == pair.relation
    assert relation_in_tree(box, "GPU1", "NIC0") == "PHB"
    assert {p.id for p in box.places if p.kind == "socket"} == {"numa0", "numa1"}


def header_underlined(text, opening, closing):
    first, rest = text.split("\n", 1)
    return f"\t{opening}{first[1:]}{closing}\n{rest}"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("ansi", header_underlined(FOUR, "\x1b[4m", "\x1b[0m")),
        ("escape byte lost", header_underlined(FOUR, "[4m", "[0m")),
        ("caret", header_underlined(FOUR, "^[[4m", "^[[0m")),
        ("spaces", FOUR.expandtabs(8)),
        ("single spaces", "\n".join(" ".join(line.split()) for line in FOUR.splitlines())),
        ("no leading tab", FOUR[1:]),
        ("quoted", "".join(f"> {line}\n" for line in FOUR.splitlines())),
        ("indented", "".join(f"    {line}\n" for line in FOUR.splitlines())),
        ("windows", FOUR.replace("\n", "\r\n")),
        ("no-break spaces", FOUR.expandtabs(8).replace("  ", "\u00a0 ")),
        ("command before the header", "root@box:~# nvidia-smi topo -m    " + FOUR),
        ("fenced", "```\n" + FOUR + "```\n"),
        ("header glued", FOUR.replace("GPU0\tGPU1\tGPU2", "GPU0GPU1GPU2", 1)),
        ("cells glued", FOUR.replace("GPU3\tSYS\tSYS\tSYS", "GPU3\tSYSSYSSYS")),
        ("label glued", FOUR.replace("GPU1\tPIX", "GPU1PIX")),
        ("affinity glued", FOUR.expandtabs(8).replace("SYS     PHB     0-15", "SYS     PHB0-15")),
        ("nic legend and columns", FOUR.replace("NIC0", "mlx5_0")),
        ("old word", FOUR.replace("SYS", "SOC")),
    ],
)
def test_other_shapes_of_the_same_paste(name, text):
    found, warned = relations(text)
    assert found == TRUTH, name
    assert warned == []


def test_markdown_table():
    rows = [line.split("\t") for line in FOUR.splitlines()[:6]]
    rows = [[c.strip() for c in row[:7]] for row in rows]
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    lines.insert(1, "|" + "---|" * 7)
    found, warned = relations("\n".join(lines))
    assert found == TRUTH
    assert warned == []


def test_an_empty_cell_is_taken_from_its_mirror_and_named():
    found, warned = relations(FOUR.replace("GPU2\tNODE\tNODE", "GPU2\t\tNODE"))
    assert found == TRUTH
    assert warned == ["line 4: row GPU2: 1 of 4 cells empty, glued or unknown; left out"]


def test_a_cell_lost_with_its_mirror_is_unknown_never_shifted():
    text = "GPU0 GPU1 GPU2\nGPU0 X PHB\nGPU1 X SYS\nGPU2 SYS X\n"
    found, warned = relations(text)
    assert found["0", "1"] is None
    assert found["1", "2"] == "SYS"
    assert len(warned) == 3


def test_mirrors_that_disagree_give_the_farther_and_a_warning():
    found, warned = relations(FOUR.replace("GPU1\tPIX", "GPU1\tSYS"))
    assert found["0", "1"] == found["1", "0"] == "SYS"
    assert any("line 2" in w and "farther" in w for w in warned)


def test_relations_that_contradict_each_other_are_named():
    text = "GPU0 GPU1 GPU2\nGPU0 X PIX SYS\nGPU1 PIX X PIX\nGPU2 SYS PIX X\n"
    _, warned = relations(text)
    assert any("GPU0 and GPU2 are said to be SYS" in w for w in warned)


def test_second_matrix_is_named_and_left_out():
    found, warned = relations(FOUR + "\n" + FOUR.replace("PIX", "SYS"))
    assert found == TRUTH
    assert warned == ["line 18: a second matrix: only the first is read"]


def test_p2p_after_topology_gives_both():
    p2p = " \tGPU0\tGPU1\t\n GPU0\tX\tOK\t\n GPU1\tGNS\tX\t\n"
    topo = "\tGPU0\tGPU1\tCPU Affinity\nGPU0\t X \tPHB\t0-7\nGPU1\tPHB\t X \t0-7\n"
    text = f"$ nvidia-smi topo -m\n{topo}$ nvidia-smi topo -p2p r\n{p2p}$ nvidia-smi topo -p2p aw\n{p2p}"
    box, warned = read_topo_matrix(text)
    assert warned == ()
    pair = box.pair("GPU0", "GPU1")
    assert (pair.relation, pair.read, pair.atomics, pair.write, pair.p2p_nvlink) == (
        "PHB",
        "OK",
        "OK",
        "OK",
        None,
    )
    assert box.pair("GPU1", "GPU0").read == "GNS"


def test_what_of_peer_access_was_not_asked_is_said():
    def p2p(letter, word="OK"):
        return f"$ nvidia-smi topo -p2p {letter}\n \tGPU0\tGPU1\t\n GPU0\tX\t{word}\t\n GPU1\t{word}\tX\t\n"

    def unknown(text):
        return dict(read_topo_matrix(text)[0].unknown)

    assert "paste `nvidia-smi topo -p2p w` too" in unknown(p2p("r"))["P2P writes"]
    assert "P2P writes" not in unknown(p2p("r") + p2p("w"))
    assert "P2P writes" not in unknown(p2p("r", "CNS"))  # refused whatever writes are
    assert "-p2p r was not pasted" in unknown(p2p("w"))["p2p"]
    (found,) = [f for f in diagnose(read_topo_matrix(p2p("r"))[0]) if f.code == "p2p_reported"]
    assert "(read; writes were not asked)" in found.evidence


def test_p2p_alone_says_what_it_assumed():
    box, warned = read_topo_matrix(" \tGPU0\tGPU1\t\n GPU0\tX\tNS\t\n GPU1\tNS\tX\t\n")
    assert box.pair("GPU0", "GPU1").read == "NS"
    assert box.places == ()
    assert [w.line for w in warned] == [1]
    assert "tree" in dict(box.unknown)


def test_sixteen_gpus_with_nvlink():
    names = [f"GPU{i}" for i in range(16)]
    head = "        " + "    ".join(names) + "  mlx5_0  CPU Affinity\n"
    rows = [
        f"{a} " + " ".join(" X " if a == b else "NV6" for b in names) + f" {'PIX' if i < 8 else 'SYS'} 0-23\n"
        for i, a in enumerate(names)
    ]
    found, warned = relations(head + "".join(rows))
    assert warned == []
    assert len(found) == 240
    assert set(found.values()) == {"NV6"}


def test_one_gpu():
    box, warned = read_topo_matrix("\tGPU0\tCPU Affinity\tNUMA Affinity\nGPU0\t X \t0-7\t0\n")
    assert warned == ()
    assert box.gpus[0].numa == 0
    assert box.pairs == ()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "hello world\n",
        "GPU0 and GPU1 are slow, what do I do?\n",
        "\tGPU0\tGPU1\tCPU Affinity\n",
        "Legend:\n\n  X    = Self\n",
        "GPU " * 5000,
        "\x00\x01\x02",
        "GPU1 " * 1000 + "\n",
    ],
)
def test_what_is_no_topology_is_refused_in_one_line(text):
    with pytest.raises(IngestError) as caught:
        read_topo_matrix(text)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 300


def test_size_is_bounded():
    with pytest.raises(IngestError, match="at most"):
        read_topo_matrix(FOUR * 100_000)
    with pytest.raises(IngestError, match="at most 128 devices"):
        read_topo_matrix(" ".join(f"GPU{i}" for i in range(300)))
