"""Libraries side by side: untouched, at their best, paired; the winner map; a winner whose ranks differ."""

from __future__ import annotations

from dataclasses import replace

import pytest

from arfloor import rundir
from arfloor.core.cases import Case
from arfloor.core.libraries import by_library, is_untouched, tied
from arfloor.core.verdict import Comparison, compare_unpaired, is_correct
from arfloor.report import card, html, libraries, model, rows, text
from tests.synthetic import Kind, gpu_world, write_run

SIZES = (8192, 65536, 262144, 1048576)
PEERS = (
    Kind(backend="nccl", path="peer", alpha_us=10.0, gbps=90.0),
    Kind(backend="nccl", variant="16ch", path="peer", alpha_us=9.0, gbps=90.0),
    Kind(backend="mscclpp", variant="packet", path="peer", alpha_us=4.0, gbps=100.0),
    Kind(backend="mscclpp", variant="packet-tuned", path="peer", alpha_us=3.0, gbps=100.0),
    Kind(
        backend="mscclpp",
        variant="allpair_packet-tuned",
        path="peer",
        alpha_us=2.0,
        gbps=50.0,
        bitwise_equal=False,
    ),
    Kind(backend="torch_symm", variant="one_shot", path="peer", alpha_us=6.0, gbps=100.0),
    Kind(backend="peer", variant="auto", path="peer", alpha_us=2.5, gbps=300.0),
    *(
        Kind(
            backend="flashinfer",
            variant=name,
            path="peer",
            status="unsupported",
            reason="not_installed",
            detail="the package is not installed",
        )
        for name in ("oneshot", "twoshot", "pcie_ipc", "pcie_ipc-tuned")
    ),
)
OFF = (("NCCL_P2P_DISABLE", "1"),)
HOSTS = (
    Kind(backend="nccl", settings=OFF, alpha_us=15.0, gbps=10.0),
    Kind(backend="host", variant="auto", settings=OFF, alpha_us=3.0, gbps=30.0),
)


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    folder = tmp_path_factory.mktemp("libraries") / "run"
    write_run(folder, replace(gpu_world(), kinds=(*PEERS, *HOSTS), sizes=SIZES))
    return model.build(rundir.load(folder))


def section_of(report, path):
    return next(s for s in report.sections if s.path == path)


@pytest.mark.parametrize(
    ("backend", "variant", "untouched"),
    [
        ("nccl", "default", True),
        ("nccl", "16ch", False),
        ("mscclpp", "packet", True),
        ("mscclpp", "packet-tuned", False),
        ("mscclpp", "packet-32x512", False),
        ("peer", "auto", False),
        ("host", "rule", True),
        ("torch_symm", "two_shot", True),
        ("flashinfer", "pcie_ipc-tuned", False),
    ],
)
def test_what_nobody_tuned_is_told_apart(backend, variant, untouched):
    case = Case(
        backend=backend,
        variant=variant,
        path="peer",
        devices=("cuda:0", "cuda:1"),
        numel=8,
        dtype="bfloat16",
        mode="graph",
    )
    assert is_untouched(case) is untouched


def test_every_library_has_its_untouched_and_its_best_paired_with_the_default(report):
    row = next(r for r in section_of(report, "peer").rows if r.nbytes == 262144)
    by_name = {library.backend: library for library in row.libraries}
    assert list(by_name) == ["peer", "mscclpp", "torch_symm", "nccl"]
    packets = by_name["mscclpp"]
    assert packets.untouched.case.variant == "packet"
    assert packets.best.case.variant == "packet-tuned"
    assert packets.comparison.pairing == "round"
    assert packets.comparison.ratio.value == pytest.approx(12.9 / 5.62, rel=0.05)
    assert packets.behind.ratio.value == pytest.approx(5.62 / 3.37, rel=0.05)
    assert by_name["peer"].behind is None
    assert by_name["peer"].untouched is None
    assert by_name["nccl"].untouched.case.variant == "default"


@pytest.mark.parametrize("default", ["wrong", "absent", "correct"])
def test_libraries_are_compared_with_a_default_that_is_correct_and_with_nothing_else(default, report):
    row = next(r for r in section_of(report, "peer").rows if r.nbytes == 262144)
    results = [r for r in row.results if r is not row.verdict.default or default != "absent"]
    if default == "wrong":
        untrue = replace(row.verdict.default, status="wrong", reason="wrong_result", latency=None)
        results = [untrue if r is row.verdict.default else r for r in results]
    found = {library.backend: library for library in by_library(results, compare_unpaired)}
    assert set(found) == {"peer", "mscclpp", "torch_symm", "nccl"}
    for library in found.values():
        assert (library.comparison is not None) == (default == "correct")
    assert found["nccl"].best.case.variant == "16ch"


def test_the_winner_map_marks_a_winner_whose_ranks_differ(report):
    found = libraries.winners(report)
    assert [nbytes for nbytes, _ in found.rows] == list(SIZES)
    cells = dict(found.rows)
    assert cells[8192][0].startswith("mscclpp allpair_packet-tuned*")
    assert cells[262144][0].startswith("peer auto ")
    assert all(cell.startswith("host auto ") for _, (_, cell) in found.rows)
    assert found.notes == (libraries.NOTE,)


def test_a_winner_that_cannot_be_told_from_the_next_is_tied_with_it(tmp_path):
    """By the rule of the verdicts: `near` is 0.4 % slower, `far` 8 %, and the default is twice as slow."""
    truths = {"near": 3.012, "far": 3.24}
    kinds = [Kind(backend="host", variant=n, settings=OFF, alpha_us=us, gbps=1e5) for n, us in truths.items()]
    first = Kind(backend="host", variant="first", settings=OFF, alpha_us=3.0, gbps=1e5)
    slow = Kind(backend="nccl", settings=OFF, alpha_us=6.0, gbps=1e5)
    kinds = (PEERS[0], slow, first, *kinds)
    world = gpu_world(kinds=kinds, sizes=SIZES[:2], noise=0.002, rounds=6, primitives=())
    built = model.build(rundir.load(write_run(tmp_path, world)))
    for row in section_of(built, "host").rows:
        assert [row.verdict.best.case.variant, *(r.case.variant for r in row.tied)] in (
            ["first", "near"],
            ["near", "first"],
        )
    found = libraries.winners(built)
    assert all(cells[1].count(" or ") == 1 and "far" not in cells[1] for _, cells in found.rows)
    assert all(" or " not in cells[0] for _, cells in found.rows)
    assert libraries.TIE_NOTE in text.render(built)
    assert {len(r.tied_labels) for r in rows.rows(built) if r.path == "host"} == {1}


@pytest.mark.parametrize(("answer", "count"), [("same", 1), ("undecided", 1), ("faster", 0)])
def test_what_the_best_is_not_surely_faster_than_is_tied_with_it(report, answer, count):
    row = next(r for r in section_of(report, "peer").rows if r.nbytes == 262144)
    best = row.verdict.best
    others = [r for r in row.results if is_correct(r) and r is not best]
    second = min(others, key=lambda r: r.latency.value)
    untrue = replace(second, status="wrong", reason="wrong_result")

    def compare(default, candidate):
        assert candidate is best
        told = answer if default.case == second.case else "faster"
        return Comparison(answer=told, ratio=None, pairing="round", reason=told)

    assert tied((*row.results, untrue), best, compare) == (second,) * count
    assert tied(row.results, None, compare) == ()


def test_the_default_that_wins_ties_by_the_spread_of_the_other(tmp_path):
    """A ratio to the default is as sure whichever of the two is the faster."""
    peer = Kind(backend="peer", variant="slower", path="peer", alpha_us=10.4, gbps=90.0)
    more = [replace(peer, variant=f"v{n}", alpha_us=12.0 + n) for n in range(4)]
    world = gpu_world(kinds=(PEERS[0], peer, *more, *HOSTS), sizes=SIZES[:1], noise=0.004)
    (row,) = section_of(model.build(rundir.load(write_run(tmp_path, world))), "peer").rows
    assert row.verdict.best is row.verdict.default
    assert row.tied == ()
    behind = row.libraries[1].behind
    assert 1.02 < behind.decided_on[0] < behind.decided_on[1] < 1.06


def test_all_formats_show_the_map_the_libraries_and_the_mark(report):
    page = html.render(report)
    assert '<th class="n">best us</th><th>which</th><th class="n">default / best</th>' in page
    for shown in (text.render(report), page):
        assert "Fastest by size and path" in shown
        assert "by library" in shown.lower()
        assert "allpair_packet-tuned*" in shown
        assert libraries.NOTE in shown
    pasted = card.render(report)
    assert len(pasted.splitlines()) <= card.MAX_LINES
    assert "By library at 256 KiB, us: peer auto" in pasted
    assert "mscclpp packet-tuned" in pasted
    assert "(untouched 6.6" in pasted


def test_json_says_where_a_winners_ranks_differ(report):
    found = {(r.path, r.nbytes): r.best_ranks_equal for r in rows.rows(report)}
    assert found["peer", 8192] is False
    assert found["peer", 262144] is True


def test_variants_refused_for_one_reason_are_one_line(report):
    assert [f.label for f in report.failures] == ["flashinfer (4 variants)"]


def test_few_libraries_need_no_table(report):
    assert libraries.rows_of(section_of(report, "host")) == ()
    assert libraries.rows_of(section_of(report, "peer"))
