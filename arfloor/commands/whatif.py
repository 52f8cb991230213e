"""`arfloor whatif`: what faster, fewer or hidden all-reduces would be worth in tokens a second."""

from __future__ import annotations

import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from arfloor.commands.options import Whole
from arfloor.core.cases import Path as Way
from arfloor.core.decode import MissingInput

if TYPE_CHECKING:
    from arfloor.core.decode import ModelShape
    from arfloor.core.whatif.step import Situation
    from arfloor.report.whatif.latencies import Latencies

_MOST_WORTH = 1e3  # a thousand times the speed: no larger number is meant

_Texts = Annotated[list[str] | None, Parameter(consume_multiple=False, negative=())]


@Parameter(name="*")
@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """What is served, how fast, and what was profiled of it."""

    model: str | None = None
    """A model of the library (`--model list` names them) or a Hugging Face config.json."""
    tp: Whole | None = None
    """Ranks that split the model."""
    tok_s: str | None = None
    """Tokens a second over all sequences per concurrency, as 1:58.7,16:279,64:509."""
    tpot: str | None = None
    """Instead: time per output token in ms per concurrency, as 64:125.7."""
    share: _Texts = None
    """Profiled share of the step spent in reduces, as 0.19@64. Repeatable."""
    waiting: _Texts = None
    """Identified waiting per reduce in us, as 120@64. Repeatable."""
    pcie_counter: _Texts = None
    """A PCIe counter to set beside the traffic of the reduces, as 200MB/s@64. Repeatable."""
    using: str | None = None
    """Which implementation the server uses now (the default one unless given)."""
    in_situ: str | None = None
    """In-situ over standalone latency of a reduce, where measured, as 0.9..1.2."""
    transport_part: str | None = None
    """Part of the unexplained time that scales with transport (0 waiting, 1 transport), as 0..1."""


@Parameter(name="*")
@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Where the latency of a reduce comes from."""

    run: Path | None = None
    """A run directory with the latencies A(S) of this box."""
    topology: str | None = None
    """A box of the library: its recorded run, else what its description predicts."""
    table: Path | None = None
    """A CSV table of latencies: backend,nbytes,us[,lo,hi]."""
    path: Way | None = None
    """Which path of the run the server uses, where it has several."""

    def given(self) -> int:
        """How many places it is to come from."""
        return sum(x is not None for x in (self.run, self.topology, self.table))


def command(
    *,
    server: Server | None = None,
    source: Source | None = None,
    apply: _Texts = None,
    at: Whole | None = None,
    worth: float = 0.02,
    format: Literal["text", "json"] = "text",
    plot: Path | None = None,
) -> None:
    """Predict tokens a second after changes to the all-reduces, with intervals and what they rest on.

    Nothing is guessed: a missing input is an error that names it; what has to be assumed is listed.
    A share alone (--share 0.19, or 0.19@64) gives its bounds, and says what would sharpen them.

    Parameters
    ----------
    apply
        Changes in order, as switch:NAME,fuse; also overlap, merge, spec:verify=2:accept=1.7,
        quant:fp8:overhead_us=1..3, dp_attention:compute=1..1.2, rest:1.5, free. Repeatable.
    at
        Concurrency to answer at (the profiled one unless given).
    worth
        Least gain that is worth the work.
    format
        text for a terminal, json for programs.
    plot
        Also draw the waterfall to this .png or .svg file.
    """
    from arfloor import models
    from arfloor.report.whatif import inputs, rows, text
    from arfloor.report.whatif.question import answer

    server, source = server or Server(), source or Source()
    if server.model == "list":
        sys.stdout.write("\n".join(models.names()) + "\n")
        return
    if not 0 <= worth <= _MOST_WORTH:
        raise MissingInput(f"--worth: expected a gain from 0 to {_MOST_WORTH:g}, as 0.02, found {worth:g}")
    width = shutil.get_terminal_size(fallback=(120, 24)).columns  # COLUMNS, where it is no terminal
    share = _only_share(server)
    if share is not None and not apply and at is None and plot is None:
        sys.stdout.write(_of_share(share, server, source, worth, None if format == "json" else width))
        return
    if server.model is None:
        raise MissingInput(f"--model: not given; one of {', '.join(models.names())}, or a config.json")
    tp = _ranks(server)
    if plot is not None and plot.suffix.lower() not in (".png", ".svg", ".pdf"):
        raise MissingInput(f"--plot {plot}: expected a file ending in .png, .svg or .pdf")
    situation, latencies = _situation(models.load(server.model), tp, server, source)
    counters = [inputs.counter(c) for c in server.pcie_counter or []]
    try:
        found = answer(situation, latencies, at=at, scenarios=apply or [], counters=counters, worth=worth)
    except ValueError as error:
        raise MissingInput(str(error)) from error
    sys.stdout.write(rows.render(found) if format == "json" else text.render(found, width=width))
    if plot is not None:
        from arfloor.report.whatif.plot import save

        save(found, plot)


def _ranks(server: Server) -> int:
    if server.tp is None or server.tp < 2:
        raise MissingInput(f"--tp: expected the number of ranks, 2 or more, found {server.tp}")
    return server.tp


def _only_share(server: Server) -> str | None:
    """The share, where it is all that is known of a step."""
    more = (server.tok_s, server.tpot, server.waiting, server.pcie_counter)
    return server.share[0] if server.share and len(server.share) == 1 and not any(more) else None


def _of_share(share: str, server: Server, source: Source, worth: float, width: int | None) -> str:
    """The bounds that a share alone gives, as text of `width` columns, or as JSON."""
    from arfloor import models
    from arfloor.report.whatif import share_only

    tp = _ranks(server) if source.given() else None
    found = share_only.answer(
        share,
        shape=models.load(server.model) if server.model else None,
        latencies=None if tp is None else _latencies(source, tp),
        using=server.using,
        worth=worth,
    )
    return share_only.to_json(found) if width is None else share_only.render(found, width=width)


def _situation(shape: ModelShape, tp: int, server: Server, source: Source) -> tuple[Situation, Latencies]:
    from arfloor.report.whatif import inputs

    steps = _steps(server.tok_s, server.tpot)
    latencies = _latencies(source, tp)
    situation = inputs.situation(
        shape,
        tp,
        latencies,
        steps,
        using=server.using,
        profiled=inputs.shares(server.share or []),
        waiting=inputs.waits(server.waiting or []),
        in_situ=inputs.in_situ(server.in_situ),
        transport_part=inputs.transport_part(server.transport_part),
    )
    return situation, latencies


def _steps(tok_s: str | None, tpot: str | None):
    from arfloor.report.whatif import inputs

    if (tok_s is None) == (tpot is None):
        given = "neither" if tok_s is None else "both"
        raise MissingInput(
            f"--tok-s: expected tokens a second per concurrency, as 1:58.7,64:509 (or --tpot), found {given}"
        )
    if tok_s is not None:
        return inputs.tok_s_steps(inputs.per_concurrency(tok_s, "tok/s", "--tok-s"))
    return inputs.tpot_steps(inputs.per_concurrency(tpot, "ms", "--tpot"))


def _latencies(source: Source, tp: int) -> Latencies:
    from arfloor.report.whatif import latencies

    if source.given() != 1:
        raise MissingInput(
            "A(S), the latency of a reduce: expected one of --run RUN, --topology NAME or --table CSV, "
            f"found {source.given() or 'none'}"
        )
    if source.table is not None:
        return latencies.from_csv(source.table)
    if source.topology is not None:
        return latencies.from_topology(source.topology, tp, source.path)
    return latencies.from_run_directory(source.run, tp, source.path)
