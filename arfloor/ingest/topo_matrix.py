"""Pasted output of `nvidia-smi topo -m` and `nvidia-smi topo -p2p r|w|n|a|p` -> a `Box`.

People paste it with its ANSI codes or without the escape byte, with tabs or spaces, from Markdown
tables and block quotes, with cells lost or glued. A cell that is not certainly there is left out and
named by its line; the matrix of relations is symmetric, so its mirror may still give it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace

from arfloor.core.box import RELATIONS, Box, GpuFacts, Pair
from arfloor.core.box_tree import tree_from_relations
from arfloor.ingest.outside import IngestError, Warned, bounded, one_line

MAX_LINES = 50_000
MAX_LINE = 20_000
MAX_DEVICES = 128
MAX_MATRICES = 16

_ANSI = re.compile(r"(?:\x1b|\u241b|\^\[|\\e|\\033|\\x1b)?\[[0-9;]{0,16}m|\x1b\([AB0]", re.IGNORECASE)
_COMMAND = re.compile(
    r"nvidia-smi\s+topo\s+(?:(?P<m>-m|--matrix)|(?:-p2p|--p2pstatus)[\s=]+(?P<p2p>[rwnap]{1,5}))(?:\s|$)",
    re.IGNORECASE,
)
_SEPARATORS = str.maketrans(
    {"\u00a0": " ", "\u200b": "", "\ufeff": "", "\u2502": "|", "\u2503": "|", "\r": ""}
)
_RELATION = r"X|NV\d{1,2}|PIX|PXB|PHB|NODE|SYS|SOC"
_STATUS = r"OK|CNS|GNS|TNS|NS|DR|U"
_CELL = re.compile(rf"{_RELATION}|{_STATUS}")
_CELLS = re.compile(rf"(?:{_RELATION}|{_STATUS})+")
_CPUS = re.compile(r"\d{1,5}(?:-\d{1,5})?(?:,\d{1,5}(?:-\d{1,5})?){0,200},?")
_DEVICE = re.compile(r"GPU\d{1,4}|[A-Za-z][\w.-]{0,40}\d", re.ASCII)
_NIC_NAME = re.compile(r"[ \t]*(NIC\d{1,4})[ \t]*:[ \t]*([\w.-]{1,60})[ \t]*", re.ASCII)
_TAIL_COLUMNS = ("CPU Affinity", "NUMA Affinity", "GPU NUMA ID")
_SELF = {"", "-", "--", "—", "SELF", "X"}
_CAPABILITY = {"r": "read", "w": "write", "a": "atomics", "n": "p2p_nvlink", "p": "p2p_pcie"}


@dataclass(slots=True)
class Matrix:
    """One table as pasted: its columns, the line of its header, and the cells that are certainly there.

    `capabilities`: the letters of `-p2p`, empty for a matrix of relations. `cells` maps (row, column)
    to the word printed.
    """

    line: int
    names: tuple[str, ...]
    tail: tuple[str, ...]
    capabilities: str | None = None
    cells: dict[tuple[str, str], str] = field(default_factory=dict)
    lines: dict[str, int] = field(default_factory=dict)
    cpus: dict[str, str] = field(default_factory=dict)
    numa: dict[str, int] = field(default_factory=dict)

    @property
    def is_p2p(self) -> bool:
        """Whether its cells are status words of `-p2p` rather than relations."""
        words = [w for w in self.cells.values() if w != "X"]
        return sum(re.fullmatch(_STATUS, w) is not None for w in words) * 2 > len(words)


@dataclass(frozen=True, slots=True)
class _Row:
    cells: list[str | None]
    tail: list[str]


def read_topo_matrix(text: str) -> tuple[Box, tuple[Warned, ...]]:
    """The box that a pasted `nvidia-smi topo` describes, and what in it could not be read.

    Raises IngestError when the text holds no such table.
    """
    matrices, warned = parse_matrices(text)
    relations = [m for m in matrices if not m.is_p2p]
    box_names = (relations or matrices)[0].names
    for extra in relations[1:]:
        warned.append(Warned(line=extra.line, text="a second matrix: only the first is read"))
    gpus = tuple(n for n in box_names if n.startswith("GPU"))
    pairs = {(a, b): Pair(a=a, b=b) for a in gpus for b in gpus if a != b}
    box = Box(source="nvidia-smi topo", gpus=tuple(GpuFacts(id=g) for g in gpus), pairs=tuple(pairs.values()))
    if relations:
        box = _with_nic_names(_with_relations(box, relations[0], warned), text)
    for matrix in matrices:
        if matrix.is_p2p:
            box = _with_status(box, matrix, warned)
    stated = "NCCL's topology XML and `lstopo --of xml` do"
    unknown = [("links", f"nvidia-smi topo prints no PCIe generation or width; {stated}")]
    if not relations:
        unknown.append(("tree", "nvidia-smi topo -p2p prints no connections: paste topo -m as well"))
    asked = {c for m in matrices if m.is_p2p for c in m.capabilities or "r"}
    unknown += _not_asked(asked, box)
    return replace(box, unknown=box.unknown + tuple(unknown)), tuple(warned)


def _not_asked(asked: set[str], box: Box) -> list[tuple[str, str]]:
    """What of peer access the pasted capabilities (letters of `-p2p`) leave open."""
    if "r" not in asked:
        paste = "paste `nvidia-smi topo -p2p r` as well"
        told = "-m does not say it" if not asked else "-p2p r was not pasted, and nothing else says it"
        return [("p2p", f"nvidia-smi topo {told}: {paste}")]
    if "w" not in asked and any(p.read == "OK" for p in box.pairs):
        why = (
            "-p2p r asks of reads alone: writes are taken to be like them; paste `nvidia-smi topo -p2p w` too"
        )
        return [("P2P writes", why)]
    return []


def parse_matrices(text: str) -> tuple[list[Matrix], list[Warned]]:
    """Every table of the text that has a header and a row. Raises IngestError when there is none."""
    lines = bounded(text, "a pasted `nvidia-smi topo`").splitlines()
    if len(lines) > MAX_LINES:
        raise IngestError(f"not a pasted `nvidia-smi topo`: {len(lines)} lines, at most {MAX_LINES} are read")
    warned: list[Warned] = []
    matrices: list[Matrix] = []
    capabilities: str | None = None
    for number, raw in enumerate(lines, start=1):
        line = _clean(raw[:MAX_LINE])
        command = _COMMAND.search(line)
        if command:
            capabilities = (command["p2p"] or "").lower()
            line = line[command.end() :]
        header = _header(line)
        if header is not None:
            _open(matrices, number, header, capabilities, warned)
            capabilities = None
        elif matrices:
            _read_row(matrices[-1], number, line, warned)
    found = [m for m in matrices if m.cells]
    if not found:
        raise IngestError(
            "not `nvidia-smi topo`: expected a header of GPU columns and rows that begin with GPU0, "
            f"found {'a header without rows' if matrices else 'none'}; paste its whole output"
        )
    return found, warned


def _clean(line: str) -> str:
    line = _ANSI.sub("", line).translate(_SEPARATORS)
    line = re.sub(r"^[ \t]*(?:>[ \t]*)+", "", line)
    return line.replace("`", "")


def _header(line: str) -> tuple[tuple[str, ...], tuple[str, ...]] | None:
    """Device columns and affinity columns of a header line; None for any other line."""
    spaced = re.sub(r"(?<=\w)(?=(?:GPU|NIC)\d)", " ", line.replace("|", " "))
    spaced = re.sub(r"(?<=\S)(?=(?:CPU|NUMA) Affinity|GPU NUMA ID)", " ", spaced)
    tail = tuple(sorted((c for c in _TAIL_COLUMNS if c in spaced), key=spaced.find))
    first_tail = min((spaced.find(c) for c in tail), default=len(spaced))
    words = spaced[:first_tail].split()
    if not words or not re.fullmatch(r"GPU\d{1,4}", words[0]) or (len(words) == 1 and not tail):
        return None
    if any(_DEVICE.fullmatch(w) is None or _CELLS.fullmatch(w) for w in words):
        return None
    return tuple(words), tail


def _open(
    matrices: list[Matrix],
    number: int,
    header: tuple[tuple[str, ...], tuple[str, ...]],
    capabilities: str | None,
    warned: list[Warned],
) -> None:
    names = tuple(dict.fromkeys(header[0]))
    if len(names) > MAX_DEVICES:
        raise IngestError(f"line {number}: {len(names)} columns, at most {MAX_DEVICES} devices are read")
    if len(names) != len(header[0]):
        warned.append(Warned(line=number, text="a column name stands twice; its second column is left out"))
    if len(matrices) >= MAX_MATRICES:
        raise IngestError(f"line {number}: more than {MAX_MATRICES} matrices; paste those of one machine")
    # duplicated names would shift the columns, so the rows are read against what was printed
    matrices.append(Matrix(line=number, names=header[0], tail=header[1], capabilities=capabilities))


def _read_row(matrix: Matrix, number: int, line: str, warned: list[Warned]) -> None:
    body = line.strip().lstrip("|").strip()
    label = re.match(r"GPU\d{1,4}", body)
    name = label[0] if label else next((w for w in re.split(r"[\s|]+", body)[:1] if w in matrix.names), None)
    if name is None or "=" in body or body.startswith(f"{name}:"):
        return
    if name not in matrix.names:
        warned.append(Warned(line=number, text=f"row {name} has no column in the header; left out"))
        return
    if name in matrix.lines:
        warned.append(Warned(line=number, text=f"a second row {name}; left out"))
        return
    row = _split_row(body[len(name) :], matrix.names.index(name), len(matrix.names))
    missing = 0
    for column, word in zip(matrix.names, row.cells, strict=True):
        if column == name:
            continue
        if word is None:
            missing += 1
        else:
            matrix.cells.setdefault((name, column), "SYS" if word == "SOC" else word)
    if missing:
        text = f"row {name}: {missing} of {len(matrix.names) - 1} cells empty, glued or unknown; left out"
        warned.append(Warned(line=number, text=text))
    matrix.lines[name] = number
    if len(matrix.names) == 1 and "X" in row.cells:
        matrix.cells[(name, name)] = "X"
    _read_tail(matrix, name, row.tail, number, warned)


def _split_row(rest: str, own: int, columns: int) -> _Row:
    """The cells of one row, in column order; None where a cell is not certain."""
    if "\t" in rest or "|" in rest:
        parts = [p.strip() for p in re.split(r"[\t|]", rest)]
        parts = parts[1:] if parts and not parts[0] else parts
        row = _split_by_place(parts, own, columns)
        if row is not None:
            return row
    return _split_by_words(rest.replace("|", " "), own, columns)


def _split_by_place(parts: list[str], own: int, columns: int) -> _Row | None:
    """Cells by their separators; None when the separators cannot be right, so that words must do."""
    if len(parts) < columns:
        return None  # a cell went with its separator, which moves the ones after it
    cells, tail = parts[:columns], [p for p in parts[columns:] if p]
    glued = any(len(_CELL.findall(c)) > 1 and _CELLS.fullmatch(c) for c in cells)
    strayed = any(_CPUS.fullmatch(c) or (c == "X" and i != own) for i, c in enumerate(cells))
    if glued or strayed or cells[own].upper() not in _SELF or any(_CELLS.fullmatch(p) for p in tail):
        return None
    words = [c if _CELL.fullmatch(c) else None for c in cells]
    words[own] = "X"
    if not cells[-1] and not tail and own != columns - 1:
        words[own + 1 :] = [None] * (columns - own - 1)  # was the last cell empty, or one before it lost?
    return _Row(words, tail)


def _split_by_words(rest: str, own: int, columns: int) -> _Row:
    """Cells by their words, aligned by the row's own X, which must stand in the row's own column."""
    tokens: list[str | None] = []
    words = rest.split()
    tail: list[str] = []
    for at, word in enumerate(words):
        match = _CELLS.match(word)
        left = word[match.end() :] if match else word
        if len(tokens) >= columns or word == "N/A" or (match is None and _CPUS.fullmatch(word)):
            tail = words[at:]
            break
        if match and not left:
            tokens.extend(_CELL.findall(word))
        elif match and _CPUS.fullmatch(left) and not _CELL.findall(match[0])[-1].startswith("NV"):
            tokens.extend(_CELL.findall(match[0]))
            tail = [left, *words[at + 1 :]]
            break
        else:
            tokens.append(None)
    cells: list[str | None] = [None] * columns
    cells[own] = "X"
    selves = [i for i, t in enumerate(tokens) if t == "X"]
    if not selves and len(tokens) == columns - 1:
        tokens.insert(own, "X")
        selves = [own]
    if len(selves) == 1:
        at = selves[0]
        if at == own:
            cells[:own] = tokens[:at]
        if len(tokens) - at == columns - own:
            cells[own:] = tokens[at:]
    return _Row(cells, tail)


def _read_tail(matrix: Matrix, name: str, tail: list[str], number: int, warned: list[Warned]) -> None:
    """CPU and NUMA affinity, which stand in the header's order; N/A and a CPU-less row give nothing."""
    if not name.startswith("GPU"):
        return
    for column, word in zip(matrix.tail, tail, strict=False):
        if column == "CPU Affinity" and _CPUS.fullmatch(word):
            matrix.cpus[name] = word.rstrip(",")
        elif column == "NUMA Affinity" and re.fullmatch(r"\d{1,4}", word):
            matrix.numa[name] = int(word)
        elif word.upper() != "N/A" and column != "GPU NUMA ID" and not _CPUS.fullmatch(word):
            warned.append(Warned(line=number, text=f"row {name}: {column} {one_line(word)!r} left out"))
            return


def _with_relations(box: Box, matrix: Matrix, warned: list[Warned]) -> Box:
    names = tuple(dict.fromkeys(matrix.names))
    words = {(a, b): _mirrored(matrix, a, b, warned) for a in names for b in names if a != b}
    pairs = tuple(_pair_with(p, words[p.a, p.b]) for p in box.pairs)

    def relation(a: str, b: str) -> str | None:
        word = words[a, b]
        return word if word in RELATIONS else None

    kinds = {n: "gpu" if n.startswith("GPU") else "nic" for n in names}
    places, problems = tree_from_relations(kinds, relation, matrix.numa)
    warned.extend(Warned(line=matrix.line, text=p) for p in problems if " said to be " in p)
    lost = tuple(("tree", p) for p in problems if " said to be " not in p)
    gpus = tuple(
        replace(g, cpus=matrix.cpus.get(g.id), numa=matrix.numa.get(g.id), nvlinks=_links(words, g.id))
        for g in box.gpus
    )
    return replace(box, pairs=pairs, places=places, gpus=gpus, unknown=box.unknown + lost)


def _with_nic_names(box: Box, text: str) -> Box:
    """Adapters with the names that the legend under the matrix gives them (`NIC0: mlx5_0`)."""
    found = [_NIC_NAME.fullmatch(_clean(raw[:MAX_LINE])) for raw in text.splitlines()]
    names = {m[1]: m[2] for m in reversed(found) if m}
    return replace(
        box, places=tuple(replace(p, name=names[p.id]) if p.id in names else p for p in box.places)
    )


def _links(words: dict[tuple[str, str], str | None], gpu: str) -> int | None:
    counts = [int(w[2:]) for (a, _), w in words.items() if a == gpu and w and w.startswith("NV")]
    return max(counts) if counts else None


def _mirrored(matrix: Matrix, a: str, b: str, warned: list[Warned]) -> str | None:
    one, other = matrix.cells.get((a, b)), matrix.cells.get((b, a))
    if one is None or other is None or one == other:
        word = one if one is not None else other
        return word if word and (word in RELATIONS or word.startswith("NV")) else None
    if matrix.names.index(a) < matrix.names.index(b):
        text = f"{a} to {b} is {one} here and {other} in its mirror; the farther is taken"
        warned.append(Warned(line=matrix.lines.get(a, matrix.line), text=text))
    known = [w for w in (one, other) if w in RELATIONS]
    return max(known, key=RELATIONS.index) if known else min(one, other)


def _pair_with(pair: Pair, word: str | None) -> Pair:
    if word is None:
        return pair
    if word.startswith("NV"):
        return replace(pair, nvlinks=int(word[2:]))
    return replace(pair, relation=word)


def _with_status(box: Box, matrix: Matrix, warned: list[Warned]) -> Box:
    capabilities = matrix.capabilities
    if not capabilities:
        capabilities = "r"
        text = "which capability this is was not pasted (the command's own line); taken as `-p2p r`"
        warned.append(Warned(line=matrix.line, text=text))
    pairs = []
    for pair in box.pairs:
        word = matrix.cells.get((pair.a, pair.b))
        known = word is not None and re.fullmatch(_STATUS, word)
        pairs.append(replace(pair, **{_CAPABILITY[c]: word for c in capabilities}) if known else pair)
    return replace(box, pairs=tuple(pairs))
