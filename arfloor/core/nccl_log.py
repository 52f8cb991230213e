"""What NCCL says it does: its debug log (`NCCL_DEBUG=INFO`) read into records.

A kernel's name proves nothing about which algorithm, protocol and transport carried a message, and
what a user set is not what ran. NCCL states all of it with
`NCCL_DEBUG_SUBSYS=INIT,ENV,GRAPH,COLL,TUNING,P2P,SHM,NET`. Read here, for NCCL 2.18 to 2.29:

- the choice per message: 2.24 and later print names and channels, 2.20 to 2.23 numbers and NCCL's
  estimate of the time, 2.18 and 2.19 nothing (the choice then follows from the table);
- the transport of every connection; the channels of a communicator; what NCCL read from the environment;
- the table of latencies and bandwidths that NCCL computed for the box, from which it chooses.

Ranks may share a file: lines are told apart by their `host:pid:tid [device]` front, a line torn by
another writer or by the end of the text is dropped, and lines of no interest are passed over.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import field

from arfloor.core.cases import Ran, record

# NCCL's enumeration order, which 2.20 to 2.23 print as numbers
ALGORITHMS = ("TREE", "RING", "COLLNET_DIRECT", "COLLNET_CHAIN", "NVLS", "NVLS_TREE", "PAT")
PROTOCOLS = ("LL", "LL128", "SIMPLE")

# bytes of an element by NCCL's datatype number (int8 .. float8)
_DATATYPE_BYTES = (1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1)


@record
class Choice:
    """NCCL's choice for one message. `predicted_us` only where that version prints its estimate."""

    device: int
    collective: str
    nbytes: int
    algorithm: str
    protocol: str
    channels: int | None = None
    predicted_us: float | None = None


@record
class Connection:
    """One direction of one channel between two ranks, and what carries it (`P2P/CUMEM/read`)."""

    channel: int
    src: int
    dst: int
    transport: str


@record
class Call:
    """One collective as the program asked for it."""

    device: int
    collective: str
    nbytes: int
    comm: str
    nranks: int


@record
class Cell:
    """One entry of NCCL's table: base latency in us, algorithm bandwidth in GB/s (0: not allowed)."""

    latency_us: float
    bandwidth_gbps: float


@record
class TuningTable:
    """NCCL's model of one communicator: (collective, algorithm, protocol) -> latency and bandwidth."""

    cells: dict[tuple[str, str, str], Cell] = field(default_factory=dict)
    max_threads: dict[tuple[str, str], int] = field(default_factory=dict)

    def predict_us(
        self, algorithm: str, protocol: str, nbytes: int, collective: str = "AllReduce"
    ) -> float | None:
        """NCCL's estimate of one operation: latency + bytes / bandwidth; None where it is not allowed.

        NCCL divides Tree's bandwidth further by an efficiency between 0.4 and 1 that depends on the
        size; that table is not in the log, so Tree's estimate here is the least that NCCL's can be.
        """
        cell = self.cells.get((collective, algorithm, protocol))
        if cell is None or cell.bandwidth_gbps <= 0:
            return None
        return cell.latency_us + nbytes / (1000 * cell.bandwidth_gbps)

    def pick(self, nbytes: int, collective: str = "AllReduce") -> tuple[str, str, float] | None:
        """Algorithm, protocol and estimate (us) that the table ranks first for a size."""
        options = [
            (us, algorithm, protocol)
            for name, algorithm, protocol in self.cells
            if name == collective
            and (us := self.predict_us(algorithm, protocol, nbytes, collective)) is not None
        ]
        if not options:
            return None
        us, algorithm, protocol = min(options)
        return algorithm, protocol, us


@record
class NcclLog:
    """Everything read from one log text, in the order of the lines."""

    version: str | None = None
    choices: tuple[Choice, ...] = ()
    connections: tuple[Connection, ...] = ()
    calls: tuple[Call, ...] = ()
    tables: tuple[TuningTable, ...] = ()
    coll_channels: tuple[int, ...] = ()
    env: dict[str, str] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()


_FRONT = re.compile(r"(?P<who>[^\s:]+:\d+:\d+) \[(?P<device>\d+)\] (?:\S+:\d+ )?NCCL (?P<level>INFO|WARN) ")
_VERSION = re.compile(r"NCCL version (\d+\.\d+(?:\.\d+)?)(?:[^\s+]*)?\+cuda\d+\.\d+\s*$")
_CHOICE_NAMES = re.compile(
    r"(\w+): (\d+) Bytes -> Algo ([A-Z][A-Z_0-9]*) proto (LL128|LL|SIMPLE) "
    r"channel\{Lo\.\.Hi\}=\{(\d+)\.\.(\d+)\}\s*$"
)
_CHOICE_NUMBERS = re.compile(r"(\d+) Bytes -> Algo (\d+) proto (\d+) time (\d+\.\d{6})\s*$")
_CHOICE_SYMMETRIC = re.compile(
    r"(\w+) \[Symmetric\]: (\d+) Bytes -> Kernel (\S+) nchannels (\d+) nthreads \d+(?: nWorks \d+)?\s*$"
)
_CALL = re.compile(
    r"(\w+): opCount [0-9a-f]+ sendbuff \S+ recvbuff \S+ count (\d+) datatype (\d+) op \d+ root -?\d+ "
    r"comm (0x[0-9a-f]+) \[nranks=(\d+)\] stream \S+\s*$"
)
_CONNECTION = re.compile(
    r"Channel (\d+)(?:/\d+)? : (\d+)\[\w+\] -> (\d+)\[\w+\](?: \[(?:send|receive)\])? via "
    r"((?:P2P|SHM|NET|COLLNET|NVLS)(?:/(?:direct pointer\S*|\S+))?)(?: comm \S+.*)?\s*$"
)
_CHANNELS = re.compile(r"(\d+) coll channels, (?:\d+ \w+ channels, )*\d+ p2p channels(?:,|\s*$)")
_ENV = re.compile(r"(NCCL_[A-Z0-9_]+) set by environment to (.*?)\.?\s*$")


class _Reader:
    def __init__(self) -> None:
        self.version: str | None = None
        self.choices: list[Choice] = []
        self.connections: list[Connection] = []
        self.calls: list[Call] = []
        self.tables: list[TuningTable] = []
        self.coll_channels: list[int] = []
        self.env: dict[str, str] = {}
        self.warnings: list[str] = []
        self.tables_by_writer: dict[str, _TableReader] = {}

    def line(self, who: str, device: int, text: str) -> None:
        if "|" in text:
            self.tables_by_writer.setdefault(who, _TableReader(self.tables)).line(text)
        elif "Bytes ->" in text:
            self._choice(device, text)
        elif m := _CALL.match(text):
            size = _DATATYPE_BYTES[int(m[3])] if int(m[3]) < len(_DATATYPE_BYTES) else 1
            self.calls.append(
                Call(device=device, collective=m[1], nbytes=int(m[2]) * size, comm=m[4], nranks=int(m[5]))
            )
        elif m := _CONNECTION.match(text):
            self.connections.append(
                Connection(channel=int(m[1]), src=int(m[2]), dst=int(m[3]), transport=m[4])
            )
        elif m := _CHANNELS.match(text):
            self.coll_channels.append(int(m[1]))
        elif m := _VERSION.match(text):
            self.version = m[1]
        elif m := _ENV.match(text):
            self.env[m[1]] = m[2]

    def _choice(self, device: int, text: str) -> None:
        if m := _CHOICE_NAMES.match(text):
            self.choices.append(
                Choice(
                    device=device,
                    collective=m[1],
                    nbytes=int(m[2]),
                    algorithm=m[3],
                    protocol=m[4],
                    channels=int(m[6]) - int(m[5]) + 1,
                )
            )
        elif m := _CHOICE_SYMMETRIC.match(text):
            self.choices.append(
                Choice(
                    device=device,
                    collective=m[1],
                    nbytes=int(m[2]),
                    algorithm="SYMMETRIC",
                    protocol=m[3],
                    channels=int(m[4]),
                )
            )
        elif (m := _CHOICE_NUMBERS.match(text)) and int(m[2]) < len(ALGORITHMS) and int(m[3]) < 3:
            self.choices.append(
                Choice(
                    device=device,
                    collective=self.calls[-1].collective if self.calls else "AllReduce",
                    nbytes=int(m[1]),
                    algorithm=ALGORITHMS[int(m[2])],
                    protocol=PROTOCOLS[int(m[3])],
                    predicted_us=float(m[4]),
                )
            )


class _TableReader:
    """One writer's table: blocks of up to three algorithms, each with a column per protocol."""

    def __init__(self, tables: list[TuningTable]) -> None:
        self.tables = tables
        self.columns: list[tuple[str, str]] = []
        self.algorithms: list[str] = []
        self.table: TuningTable | None = None

    def line(self, text: str) -> None:
        if not text.rstrip().endswith("|"):
            return  # torn
        first, *cells = (cell.strip() for cell in text.rstrip().rstrip("|").split("|"))
        if first == "Algorithm":
            self.algorithms = [_algorithm_name(name) for name in cells if name]
            self.columns = []
            if "TREE" in self.algorithms or self.table is None:  # the first block opens a new table
                self.table = TuningTable()
                self.tables.append(self.table)
        elif first == "Protocol":
            per_algorithm = [cell.upper() for cell in cells[:3]]
            self.columns = [(a, p) for a in self.algorithms for p in per_algorithm]
        elif self.table is not None and self.columns and len(cells) >= len(self.columns):
            self._row(self.table, first, cells)

    def _row(self, table: TuningTable, first: str, cells: list[str]) -> None:
        for (algorithm, protocol), cell in zip(self.columns, cells, strict=False):
            if first == "Max NThreads":
                if cell.isdecimal():
                    table.max_threads[(algorithm, protocol)] = int(cell)
            elif m := re.fullmatch(r"(\d+\.\d)/\s*(\d+\.\d)", cell):
                table.cells[(first, algorithm, protocol)] = Cell(
                    latency_us=float(m[1]), bandwidth_gbps=float(m[2])
                )


def _algorithm_name(name: str) -> str:
    """`CollNetDirect` as the table writes it -> `COLLNET_DIRECT` as the choices write it."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])|(?<=NVLS)(?=T)", "_", name.replace("CollNet", "Collnet")).upper()


def _messages(text: str) -> Iterator[tuple[str, int, str, str]]:
    whole, newline, _torn = text.rpartition("\n")
    if not newline:
        return
    for line in whole.split("\n"):
        fronts = list(_FRONT.finditer(line))
        if fronts:
            front = fronts[-1]  # what stands before a second front was torn by another writer
            yield front["who"], int(front["device"]), front["level"], line[front.end() :]
        elif (m := _VERSION.search(line)) and "NCCL version" in line:
            yield "", 0, "INFO", m[0]


def parse(text: str) -> NcclLog:
    """Read a log of any number of ranks. Never raises on any text: what it cannot read it skips."""
    reader = _Reader()
    for who, device, level, message in _messages(text):
        if level == "WARN":
            reader.warnings.append(message.strip())
        else:
            reader.line(who, device, message)
    return NcclLog(
        version=reader.version,
        choices=tuple(reader.choices),
        connections=tuple(reader.connections),
        calls=tuple(reader.calls),
        tables=tuple(t for t in reader.tables if t.cells),
        coll_channels=tuple(reader.coll_channels),
        env=reader.env,
        warnings=tuple(reader.warnings),
    )


def transport(connections: Iterable[Connection]) -> str | None:
    """The transports in use, most used first, joined by ` + ` when they differ; None without any."""
    count: dict[str, int] = {}
    for c in connections:
        name = "P2P/indirect" if c.transport.startswith("P2P/indirect") else c.transport
        count[name] = count.get(name, 0) + 1
    return " + ".join(sorted(count, key=lambda name: (-count[name], name))) or None


def ran(log: NcclLog, nbytes: int, *, link: str | None = None, collective: str = "AllReduce") -> Ran | None:
    """What ran for messages of one size, from the log of one communicator; None when it says nothing.

    The last choice for that size counts (the first may precede the connection of its channels).
    Without a line per message (2.18, 2.19) the choice is the table's, and `source` says so.
    """
    library = f"NCCL {log.version}" if log.version else "NCCL"
    carried = transport(log.connections)
    found = [c for c in log.choices if c.nbytes == nbytes and c.collective == collective]
    if found:
        c = found[-1]
        return Ran(
            algorithm=c.algorithm,
            protocol=c.protocol,
            channels=c.channels,
            transport=carried,
            link=link,
            library=library,
            source="log",
            predicted_us=c.predicted_us or _prediction(log, c.algorithm, c.protocol, nbytes, collective),
        )
    picked = log.tables[-1].pick(nbytes, collective) if log.tables else None
    if picked is None or not any(c.nbytes == nbytes and c.collective == collective for c in log.calls):
        return None
    return Ran(
        algorithm=picked[0],
        protocol=picked[1],
        transport=carried,
        link=link,
        library=library,
        source="log table",
        predicted_us=picked[2],
    )


def _prediction(log: NcclLog, algorithm: str, protocol: str, nbytes: int, collective: str) -> float | None:
    return log.tables[-1].predict_us(algorithm, protocol, nbytes, collective) if log.tables else None
