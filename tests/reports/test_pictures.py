"""Pictures and the page: what stands in them, and that they stand alone."""

import xml.etree.ElementTree as ET
from dataclasses import replace
from html.parser import HTMLParser
from itertools import combinations, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from arfloor import library, rundir
from arfloor.core.verdict import AT_FLOOR
from arfloor.report import html, model, plots, style
from arfloor.report.series import series
from tests.synthetic import Kind, cpu_world, gpu_world, write_run

SOME = (1024, 2048, 16384, 65536, 262144, 1048576)


@pytest.fixture(scope="module")
def gpu(tmp_path_factory):
    return model.build(rundir.load(write_run(tmp_path_factory.mktemp("gpu"), gpu_world(sizes=SOME))))


@pytest.fixture(scope="module")
def page(gpu):
    return html.render(gpu)


def test_series_name_the_default_the_winner_and_the_librarys_own_best(gpu):
    host = series(gpu.sections[1])
    assert [(s.label, s.role) for s in host] == [
        ("nccl", "default"),
        ("host line64", "contender"),
        ("nccl ring-ll-16ch", "contender"),
        ("host flag", "other"),
    ]
    # truth: 3.7 us + bytes / 30.8 GB/s
    (segment,) = host[1].fit.segments
    assert segment.alpha.value == pytest.approx(3.7, rel=0.02)
    assert segment.gbps == pytest.approx(30.8, rel=0.02)


def test_both_kinds_of_file_are_written_for_a_section(gpu, tmp_path):
    one = replace(gpu, sections=gpu.sections[:1])
    written = plots.write(one, tmp_path / "new")
    assert [p.name for p in written] == [f"peer-nvlink-2-bfloat16-graph{s}" for s in (".png", ".svg")]
    for path in written:
        content = path.read_bytes()
        if path.suffix == ".png":
            assert content.startswith(b"\x89PNG")
        else:
            words = "".join(ET.fromstring(content).itertext())
            assert "nccl (default)" in words
            assert "attainable" in words


def test_the_same_run_draws_the_same_picture(gpu, page):
    assert plots.inline_svg(gpu.sections[0], gpu.box, "s0") in page


class Outside(HTMLParser):
    """Collects ids, and whatever would be fetched from elsewhere."""

    def __init__(self):
        super().__init__()
        self.ids, self.fetched = [], []

    def handle_starttag(self, tag, attributes):
        for name, value in attributes:
            if name == "id":
                self.ids.append(value)
            if name in ("src", "href", "xlink:href") and not value.startswith("#"):
                self.fetched.append((tag, value))
        if tag in ("script", "iframe", "link"):
            self.fetched.append((tag, ""))


def test_the_page_is_whole_and_fetches_nothing(gpu, page):
    seen = Outside()
    seen.feed(page)
    assert seen.fetched == []
    assert len(seen.ids) == len(set(seen.ids))
    for v in gpu.verdicts:
        assert v.sentence.split(";")[0].replace("'", "&#39;") in page
    assert page.count("<svg") == 2


def test_what_a_run_says_is_escaped(tmp_path):
    bad = Kind(backend="<img src=x>", path="cpu", status="failed", reason="worker_died", detail="<i>x</i>")
    names = {"run_id": "<script>alert(1)</script>", "versions": {"torch": "<b>2</b>"}}
    world = cpu_world(sizes=(1024,), kinds=(bad,), **names)
    shown = html.render(model.build(rundir.load(write_run(tmp_path, world))))
    assert "<script>" not in shown
    assert "<b>2</b>" not in shown
    assert "<img" not in shown
    assert "<i>" not in shown
    assert "&lt;img src=x&gt;" in shown


def test_colours_of_one_picture_differ():
    looks = (style.DEFAULT, *style.CONTENDERS)
    assert len({look.color for look in looks}) == len({look.marker for look in looks}) == len(looks)
    assert AT_FLOOR > 1


def test_names_of_outliers_touch_neither_each_other_nor_a_ring():
    """NCCL over the host takes 2 us more at 3, 6 and 12 KiB, with any number of channels."""
    found = model.build(rundir.load(library.recorded_run("h200-x2-host-bridge")))
    axes = plots.draw(found.sections[0], found.box).axes[0]
    names = [t for t in axes.texts if ", fit " in t.get_text()]
    rings = [line for line in axes.lines if line.get_markerfacecolor() == "none"]
    assert len(names) == len(rings) > 1
    boxes = [name.get_window_extent() for name in names]
    assert not any(a.overlaps(b) for a, b in combinations(boxes, 2))
    assert not any(
        box.contains(*axes.transData.transform(ring.get_xydata()[0])) for box in boxes for ring in rings
    )


labels = st.lists(
    st.tuples(st.floats(min_value=0, max_value=1), st.floats(min_value=0.01, max_value=0.12)),
    min_size=1,
    max_size=8,
)


@given(labels)
def test_labels_never_touch_and_keep_their_order(labels):
    wanted, heights = [y for y, _ in labels], [h for _, h in labels]
    placed = style.spread(wanted, heights)
    order = sorted(range(len(wanted)), key=lambda i: wanted[i])
    for below, above in pairwise(order):
        assert placed[above] - placed[below] >= (heights[below] + heights[above]) / 2 - 1e-9
    if sum(heights) <= 1:
        assert min(placed) >= -1e-9
        assert max(placed) <= 1 + 1e-9


def test_labels_that_do_not_touch_stay_where_they_are():
    assert style.spread([0.9, 0.1, 0.5], [0.2, 0.2, 0.3]) == pytest.approx([0.9, 0.1, 0.5])


def test_long_names_are_cut_where_they_would_fill_the_picture():
    assert style.wrapped("nccl ring-ll-16ch") == "nccl ring-ll-16ch"
    cut = style.wrapped("a very long name " * 9)
    assert cut.count("\n") == 2
    assert cut.endswith("…")
