"""The command line: what it prints, and one line with status 2 for what a user can mend."""

import json
import os
import subprocess
import sys

import pytest

from arfloor import library
from arfloor.cli import COMMANDS, app, main
from tests.synthetic import cpu_world, write_run


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return write_run(tmp_path_factory.mktemp("run"), cpu_world(sizes=(1024, 262144)))


def refused(capsys, *arguments):
    assert main([str(a) for a in arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert "Traceback" not in captured.err
    return captured.err


def test_text_markdown_and_json(run, capsys):
    assert main(["report", str(run)]) == 0
    assert "256 KiB" in capsys.readouterr().out
    assert main(["report", str(run), "--format", "md"]) == 0
    assert capsys.readouterr().out.startswith("### arfloor")
    assert main(["report", str(run), "--format", "json"]) == 0
    assert len(json.loads(capsys.readouterr().out)) == 2
    assert main(["report", str(run), "--table", "nccl-tests"]) == 0
    assert "out-of-place" in capsys.readouterr().out
    for other in ("md", "json", "html"):  # has no text tables whose shape to choose
        said = refused(capsys, "report", run, "--table", "nccl-tests", "--format", other)
        assert f"found {other}" in said


def test_no_run_a_foreign_folder_and_a_missing_one(tmp_path, capsys):
    assert "expected a run directory" in refused(capsys, "report")
    assert "expected a run directory" in refused(capsys, "report", tmp_path)
    assert "expected a run directory" in refused(capsys, "report", tmp_path / "nowhere")


def test_damaged_and_newer_runs(tmp_path, capsys):
    (tmp_path / "manifest.json").write_text('{"schema": 1, "run_id": ')
    assert "not valid JSON" in refused(capsys, "report", tmp_path)
    (tmp_path / "manifest.json").write_text('{"schema": 99}')
    assert "upgrade arfloor" in refused(capsys, "report", tmp_path)
    (tmp_path / "manifest.json").write_text('{"name": "another program"}')
    assert "not an arfloor manifest" in refused(capsys, "report", tmp_path)


@pytest.fixture
def boxes(tmp_path, monkeypatch):
    write_run(tmp_path / "recorded" / "run", cpu_world(sizes=(1024,)))
    (tmp_path / "described").mkdir()
    monkeypatch.setattr(library, "root", lambda: tmp_path)


def test_a_box_of_the_library_shows_its_recorded_run(boxes, capsys):
    assert main(["report", "--topology", "recorded", "--world", "2", "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["nbytes"] == 1024
    assert "recorded: recorded" in refused(capsys, "report", "--topology", "described")
    assert "described, recorded" in refused(capsys, "report", "--topology", "unheard-of")
    assert "measured: 2 ranks" in refused(capsys, "report", "--topology", "recorded", "--world", "8")
    both = refused(capsys, "report", "somewhere", "--topology", "recorded")
    assert "found both" in both
    assert "leave out somewhere to see the floor of recorded" in both


def test_wrong_arguments_name_what_is_allowed(run, capsys):
    assert "json" in refused(capsys, "report", run, "--format", "xml")
    assert "--colour" in refused(capsys, "report", run, "--colour")
    assert "frobnicate" in refused(capsys, "frobnicate")


def test_every_registered_command_can_be_imported():
    for name in COMMANDS:
        assert app[name] is not None


def test_python_dash_m_works_without_torch_matplotlib_or_cuda(run):
    code = (
        "import sys; sys.modules.update(dict.fromkeys(['torch', 'mpi4py', 'cuda', 'matplotlib', 'jinja2']))\n"
        "import arfloor.report\n"
        "from arfloor.cli import main\n"
        f"sys.exit(main(['report', {str(run)!r}, '--format', 'md']))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("### arfloor")


def _shell(command):
    command = f'"{sys.executable}" -m arfloor {command}'
    env = {**os.environ, "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "LC_ALL": "C"}
    return subprocess.run(command, shell=True, capture_output=True, env=env, check=False)


def test_output_that_cannot_be_written_is_one_line(run):
    closed = _shell(f'report "{run}" >&-')
    assert (closed.returncode, closed.stderr.count(b"\n")) == (2, 1)
    assert b"standard output" in closed.stderr
    full = _shell(f'report "{run}" >/dev/full')
    assert (full.returncode, full.stderr.count(b"\n")) == (2, 1)
    assert b"standard output: No space left" in full.stderr


def test_pipes_and_files_hold_utf8_in_any_locale(run, tmp_path):
    told = _shell(f'report "{run}" --figures "{tmp_path}"')
    assert told.returncode == 0, told.stderr
    assert "±" in told.stdout.decode("utf-8")
    assert list(tmp_path.glob("*.svg"))
