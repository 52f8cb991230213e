"""The log parser, on lines in the formats of several NCCL versions, and on damaged text."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from arfloor.core.nccl_log import (
    ALGORITHMS,
    PROTOCOLS,
    Choice,
    Connection,
    NcclLog,
    TuningTable,
    parse,
    ran,
    transport,
)

FRONT = "box:101:101 [0] NCCL INFO "


def row(name: str, *cells: str) -> str:
    return f"{name:>13} |" + "".join(f" {cell:>14} |" for cell in cells)


ALGORITHM_ROW = "  Algorithm   |" + "".join(f" {'':14}   {name:>14}   {'':14} |" for name in ("Tree", "Ring"))
PROTOCOL_ROW = row("Protocol", *("LL", "LL128", "Simple") * 2)
THREADS_ROW = row("Max NThreads", "512", "640", "512", "512", "640", "256")
ALLREDUCE_ROW = row(
    "AllReduce", "8.4/   4.0", "16.1/  18.0", "20.0/  24.0", "8.6/   9.8", "17.5/   0.0", "22.9/  24.0"
)


def log_of(*messages: str, front: str = FRONT) -> str:
    return "".join(f"{front}{m}\n" for m in messages)


def call(nbytes: int) -> str:
    return (
        f"AllReduce: opCount 1f sendbuff 0x7f2a recvbuff 0x7f2a count {nbytes // 2} datatype 9 "
        "op 0 root 0 comm 0x55aa [nranks=2] stream 0x55bb"
    )


def test_a_choice_with_names_and_channels() -> None:
    log = parse(log_of("AllReduce: 262144 Bytes -> Algo RING proto LL channel{Lo..Hi}={0..3}"))
    assert log.choices == (
        Choice(device=0, collective="AllReduce", nbytes=262144, algorithm="RING", protocol="LL", channels=4),
    )


def test_a_choice_with_numbers_and_an_estimate() -> None:
    log = parse(log_of(call(262144), "262144 Bytes -> Algo 1 proto 2 time 33.822269"))
    assert log.calls[0].nbytes == 262144
    (choice,) = log.choices
    assert (choice.algorithm, choice.protocol, choice.channels) == ("RING", "SIMPLE", None)
    assert choice.predicted_us == pytest.approx(33.822269)


def test_a_symmetric_kernel() -> None:
    log = parse(
        log_of(
            "AllReduce [Symmetric]: 8192 Bytes -> Kernel AllReduce_AGxLL_R nchannels 8 nthreads 512 nWorks 1"
        )
    )
    assert (log.choices[0].algorithm, log.choices[0].protocol) == ("SYMMETRIC", "AllReduce_AGxLL_R")


@pytest.mark.parametrize(
    ("line", "transport"),
    [
        ("Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM/read", "P2P/CUMEM/read"),
        ("Channel 07/1 : 0[0] -> 1[1] via P2P/IPC", "P2P/IPC"),
        ("Channel 00/0 : 0[0] -> 1[1] via P2P/direct pointer/read", "P2P/direct pointer/read"),
        ("Channel 01 : 0[0] -> 1[1] via SHM/direct/direct", "SHM/direct/direct"),
        ("Channel 00/0 : 0[0] -> 1[1] [send] via NET/IB/0/GDRDMA", "NET/IB/0/GDRDMA"),
        ("Channel 00/0 : 0[1a000] -> 1[1b000] via P2P/indirect/2[3]", "P2P/indirect/2[3]"),
    ],
)
def test_transports(line: str, transport: str) -> None:
    (connection,) = parse(log_of(line)).connections
    assert (connection.src, connection.dst, connection.transport) == (0, 1, transport)


def test_the_table_and_what_it_predicts() -> None:
    log = parse(log_of(ALGORITHM_ROW, PROTOCOL_ROW, THREADS_ROW, ALLREDUCE_ROW))
    (table,) = log.tables
    assert table.max_threads[("RING", "SIMPLE")] == 256
    assert table.predict_us("RING", "LL", 262144) == pytest.approx(8.6 + 262144 / 9800)
    assert table.predict_us("RING", "LL128", 262144) is None  # bandwidth 0: not allowed on this box
    assert table.predict_us("NVLS", "SIMPLE", 262144) is None
    assert table.pick(1024) == ("TREE", "LL", pytest.approx(8.4 + 0.256))
    assert table.pick(1 << 24) is not None
    assert table.pick(1 << 24)[:2] == ("TREE", "SIMPLE")  # type: ignore[index]
    assert TuningTable().pick(1024) is None


def test_table_blocks_of_one_communicator_are_one_table_and_two_ranks_do_not_mix() -> None:
    second = "  Algorithm   |" + f" {'':14}   {'NVLS':>14}   {'':14} |"
    last = row("AllReduce", "0.0/   0.0", "0.0/   0.0", "25.0/ 120.0")
    one = [ALGORITHM_ROW, PROTOCOL_ROW, ALLREDUCE_ROW, second, PROTOCOL_ROW, last]
    other = [ALGORITHM_ROW, PROTOCOL_ROW, ALLREDUCE_ROW.replace("8.6/   9.8", "1.0/   1.0")]
    text = ""
    for index, message in enumerate(one):
        text += FRONT + message + "\n"
        if index < len(other):
            text += "box:202:202 [1] NCCL INFO " + other[index] + "\n"
    tables = parse(text).tables
    assert len(tables) == 2
    assert tables[0].cells[("AllReduce", "NVLS", "SIMPLE")].bandwidth_gbps == 120.0
    assert tables[0].cells[("AllReduce", "RING", "LL")].latency_us == 8.6
    assert tables[1].cells[("AllReduce", "RING", "LL")].latency_us == 1.0


def test_version_channels_environment_and_warnings() -> None:
    log = parse(
        "NCCL version 2.28.9+cuda13.0\n"
        + log_of(
            "16 coll channels, 0 nvls channels, 16 p2p channels, 8 p2p channels each",
            "NCCL_P2P_DISABLE set by environment to 1",
            "NCCL_PROTO set by environment to LL.",
        )
        + "box:101:101 [0] init.cc:42 NCCL WARN something is off\n"
    )
    assert log.version == "2.28.9"
    assert log.coll_channels == (16,)
    assert log.env == {"NCCL_P2P_DISABLE": "1", "NCCL_PROTO": "LL"}
    assert log.warnings == ("something is off",)


def test_what_ran_takes_the_last_choice_of_the_size_and_the_transport() -> None:
    text = log_of(
        "NCCL version 2.28.9+cuda13.0",
        "Channel 00/0 : 0[0] -> 1[1] via SHM/direct/direct",
        "AllReduce: 1024 Bytes -> Algo RING proto LL channel{Lo..Hi}={0..0}",
        "AllReduce: 262144 Bytes -> Algo TREE proto LL channel{Lo..Hi}={0..0}",
        "AllReduce: 262144 Bytes -> Algo RING proto SIMPLE channel{Lo..Hi}={0..7}",
    )
    found = ran(parse(text), 262144, link="pcie")
    assert found is not None
    assert (found.algorithm, found.protocol, found.channels) == ("RING", "SIMPLE", 8)
    assert (found.transport, found.library, found.source) == ("SHM/direct/direct", "NCCL 2.28.9", "log")
    assert ran(parse(text), 4096) is None


def test_a_version_that_prints_no_choice_is_answered_from_its_table_and_says_so() -> None:
    text = log_of(ALGORITHM_ROW, PROTOCOL_ROW, ALLREDUCE_ROW, call(1024))
    found = ran(parse(text), 1024)
    assert found is not None
    assert (found.algorithm, found.protocol, found.source) == ("TREE", "LL", "log table")
    assert ran(parse(log_of(ALGORITHM_ROW, PROTOCOL_ROW, ALLREDUCE_ROW)), 1024) is None


choices = st.builds(
    Choice,
    device=st.just(0),
    collective=st.sampled_from(["AllReduce", "AllGather"]),
    nbytes=st.integers(0, 1 << 40),
    algorithm=st.sampled_from(ALGORITHMS),
    protocol=st.sampled_from(PROTOCOLS),
    channels=st.integers(1, 64),
)
connections = st.builds(
    Connection,
    channel=st.integers(0, 63),
    src=st.integers(0, 15),
    dst=st.integers(0, 15),
    transport=st.sampled_from(["P2P/CUMEM", "P2P/CUMEM/read", "SHM/direct/direct", "NET/Socket/0"]),
)


def message_of(entry: Choice | Connection) -> str:
    if isinstance(entry, Connection):
        return f"Channel {entry.channel:02d}/0 : {entry.src}[0] -> {entry.dst}[1] via {entry.transport}"
    hi = 3 + (entry.channels or 1) - 1
    return (
        f"{entry.collective}: {entry.nbytes} Bytes -> Algo {entry.algorithm} proto {entry.protocol} "
        f"channel{{Lo..Hi}}={{3..{hi}}}"
    )


noise = st.text(
    alphabet=st.characters(blacklist_characters="\n\r\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029"), max_size=40
)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.one_of(choices, connections), noise), max_size=12), st.data())
def test_entries_survive_noise_and_a_cut_drops_only_what_it_cuts(
    entries: list[tuple[Choice | Connection, str]], data: st.DataObject
) -> None:
    lines = [
        line for entry, between in entries for line in (FRONT + message_of(entry) + "\n", between + "\n")
    ]
    log = parse("".join(lines))
    expected = [entry for entry, _ in entries]
    assert log.choices == tuple(e for e in expected if isinstance(e, Choice))
    assert log.connections == tuple(e for e in expected if isinstance(e, Connection))

    text = "".join(lines)
    cut = parse(text[: data.draw(st.integers(0, len(text)))])
    assert cut.choices == log.choices[: len(cut.choices)]
    assert cut.connections == log.connections[: len(cut.connections)]


@settings(max_examples=60, deadline=None)
@given(choices, choices, st.data())
def test_a_line_torn_by_another_writer_is_dropped(first: Choice, second: Choice, data: st.DataObject) -> None:
    torn = FRONT + message_of(first)
    at = data.draw(st.integers(0, len(torn) - 1))
    text = torn[:at] + "box:202:202 [1] NCCL INFO " + message_of(second) + "\n" + torn[at:] + "\n"
    found = {(c.nbytes, c.algorithm, c.protocol, c.channels) for c in parse(text).choices}
    truth = {(c.nbytes, c.algorithm, c.protocol, c.channels) for c in (first, second)}
    assert found <= truth
    assert (second.nbytes, second.algorithm, second.protocol, second.channels) in found


@settings(max_examples=100, deadline=None)
@given(
    st.lists(
        st.sampled_from([FRONT, "| ", "AllReduce", " 1.0/ 2.0 |", "\n", "Channel 0", "Protocol |", ": "])
    )
)
def test_no_text_makes_it_raise(pieces: list[str]) -> None:
    assert isinstance(parse("".join(pieces)), NcclLog)


def test_a_recorded_log_of_two_communicators() -> None:
    """Two H200s over NVLink, NCCL 2.28.9: the default, then ring-ll on 16 channels."""
    file = Path(__file__).resolve().parents[1] / "data" / "nccl-2.28.9-nvlink.log"
    log = parse(file.read_text())
    assert log.version == "2.28.9"
    assert log.coll_channels == (24, 16)
    assert transport(log.connections) == "P2P/CUMEM"
    assert log.env == {"NCCL_NVLS_ENABLE": "0", "NCCL_PROTO": "LL", "NCCL_ALGO": "Ring"}
    assert [(c.nbytes, c.protocol, c.channels) for c in log.choices] == [
        (16, "LL", 1),
        (1024, "LL", 1),
        (262144, "LL", 22),
        (4194304, "SIMPLE", 24),
        (16, "LL", 1),
        (1024, "LL", 1),
        (262144, "LL", 16),
        (4194304, "LL", 16),
    ]
    assert [c.nbytes for c in log.calls] == [c.nbytes for c in log.choices]
    default, forced = log.tables
    # its table agrees with what it chose, where the choice was free, and with what was forced
    assert default.pick(262144) == ("RING", "LL", pytest.approx(7.8 + 262144 / 141000))
    assert default.pick(4194304) is not None
    assert (default.pick(4194304) or ())[:2] == ("RING", "SIMPLE")
    assert {k for k, c in forced.cells.items() if k[0] == "AllReduce" and c.bandwidth_gbps} == {
        ("AllReduce", "RING", "LL")
    }
