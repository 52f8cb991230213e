"""The line on what it is worth: `arfloor whatif`'s answer, and never one without its inputs."""

import json

import pytest

from arfloor.cli import main
from arfloor.core.decode import MissingInput
from arfloor.report import card, worth
from tests.synthetic import gpu_world, write_run

ASKED = "model=Llama-3.3-70B,tp=2,tok_s=32:800"


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    sizes = (65536, 262144, 524288, 1048576)
    return write_run(tmp_path_factory.mktemp("run") / "r", gpu_world(sizes=sizes))


def test_the_line_is_what_whatif_answers(run, capsys):
    line = worth.line(ASKED, run=run, way="host")
    arguments = ["whatif", "--run", str(run), "--path", "host", "--model", "Llama-3.3-70B", "--tp", "2"]
    assert main([*arguments, "--tok-s", "32:800", "--format", "json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["verdict"]["sentence"] in line
    assert "Llama-3.3-70B, TP2, concurrency 32, 800 tok/s now" in line
    assert "PREDICTED" not in line


def test_it_stands_in_text_and_card_which_stays_short(run, capsys):
    line = worth.line(ASKED, run=run, way="host")
    for form in ("text", "md"):
        assert main(["report", str(run), "--path", "host", "--format", form, "--worth", ASKED]) == 0
        assert line in capsys.readouterr().out
        assert main(["report", str(run), "--path", "host", "--format", form]) == 0
        assert "Worth" not in capsys.readouterr().out
    from arfloor import rundir
    from arfloor.report.model import build

    both = build(rundir.load(run))
    assert len(both.sections) == 2
    assert len(card.render(both, line).splitlines()) <= card.MAX_LINES


def test_a_predicted_box_says_that_its_latencies_are_predicted(capsys):
    box = ["report", "--topology", "rtx-a6000-x4", "--format", "md"]
    assert main([*box, "--worth", "model=Llama-3.3-70B,tp=4,tok_s=32:800"]) == 0
    assert "PREDICTED latencies:" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("tp=2,tok_s=32:800", "model: not given"),
        ("model=Llama-3.3-70B,tok_s=32:800", "tp: not given"),
        ("model=Llama-3.3-70B,tp=2", "one of tok_s and tpot"),
        ("model=Llama-3.3-70B,tp=two,tok_s=32:800", "found 'two'"),
        ("model=Llama-3.3-70B,tp=2,speed=9", "found 'speed=9'"),
        ("model=a,model=b,tp=2", "at most once"),
        ("model=Llama-3.3-70B,tp=4,tok_s=32:800", "at 4 ranks"),
        ("model=Llama-3.3-70B,tp=2,tok_s=32:0", "more than 0"),
        ("", "expected each of"),
    ],
)
def test_without_its_inputs_there_is_no_line(run, text, words, capsys):
    with pytest.raises(MissingInput, match=words):
        worth.line(text, run=run, way="host")
    assert main(["report", str(run), "--worth", text or "x"]) == 2
    assert capsys.readouterr().out == ""


def test_several_paths_and_other_formats_are_refused(run, capsys):
    assert main(["report", str(run), "--worth", ASKED]) == 2
    assert "choose the one that the server uses" in capsys.readouterr().err
    assert main(["report", str(run), "--path", "host", "--format", "json", "--worth", ASKED]) == 2
    assert "arfloor whatif" in capsys.readouterr().err


def test_several_concurrencies_and_shares_keep_their_commas():
    read = worth.read("model=M,tp=4,tok_s=1:58.7,16:279,share=0.19@64,0.1@16")
    assert read == {"model": "M", "tp": "4", "tok_s": "1:58.7,16:279", "share": "0.19@64,0.1@16"}
