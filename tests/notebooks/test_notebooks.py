"""The notebooks run, and are committed without outputs."""

from __future__ import annotations

import warnings
from pathlib import Path

import nbformat
import pytest

NOTEBOOKS = sorted((Path(__file__).parents[2] / "notebooks").glob("*.ipynb"))
IDS = [n.stem for n in NOTEBOOKS]


def test_there_are_notebooks():
    assert IDS == ["deepseek_v4_flash", "floor_tour", "whatif"]


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=IDS)
def test_outputs_are_stripped(notebook):
    for cell in nbformat.read(notebook, as_version=4).cells:
        if cell.cell_type == "code":
            assert cell.outputs == []
            assert cell.execution_count is None


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=IDS)
def test_cells_run_one_after_the_other(notebook, capsys, monkeypatch):
    """In this process, without a kernel: quick, and a failure shows its traceback."""
    shown = []
    monkeypatch.setattr("IPython.display.display", lambda *things, **_: shown.extend(things))
    scope = {"__name__": "__main__"}
    for cell in nbformat.read(notebook, as_version=4).cells:
        if cell.cell_type == "code":
            exec(compile(cell.source, f"{notebook.name}:{cell.id}", "exec"), scope)
    assert shown or capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=IDS)
def test_notebook_runs_in_a_kernel(notebook, tmp_path, monkeypatch):
    from nbclient import NotebookClient

    root = Path(__file__).parents[2]
    monkeypatch.setenv("PYTHONPATH", str(root))
    found = nbformat.read(notebook, as_version=4)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the notebook machinery, not of ours
        NotebookClient(
            found, timeout=120, resources={"metadata": {"path": str(root / "notebooks")}}
        ).execute()
    assert all(o.output_type != "error" for c in found.cells if c.cell_type == "code" for o in c.outputs)
