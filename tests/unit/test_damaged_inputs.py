"""Tables, configs and places that people mistype: one line that says what was expected and found."""

from __future__ import annotations

import json

import pytest

from arfloor import models
from arfloor.cli import main
from arfloor.core.decode import MissingInput, shape_from_config
from arfloor.report.whatif import table
from tests.synthetic import cpu_world, write_run

HEADER = "backend,nbytes,us\n"
GOOD = HEADER + "nccl,1024,10\nnccl,1048576,80\n"


def read(tmp_path, text, encoding="utf-8"):
    file = tmp_path / "t.csv"
    file.write_bytes(text.encode(encoding))
    return table.read(file)


TABLES = {
    "semicolons": ("backend;nbytes;us\nnccl;1024;10\n", "with commas; backend is missing"),
    "no header": ("nccl,1024,10\n", "backend is missing"),
    "a column twice": ("backend,nbytes,us,us\nnccl,1024,10,20\n", "us stands in it twice"),
    "a size twice": (HEADER + "nccl,1024,10\nnccl,1024,11\n", "line 3: expected each size once"),
    "negative": (HEADER + "nccl,1024,-10\n", "line 2: expected 0 < lo <= us <= hi, found -10"),
    "zero": (HEADER + "nccl,1024,0\n", "line 2: expected 0 < lo"),
    "not a number": (HEADER + "nccl,1024,nan\n", "line 2: us: expected a plain number without unit"),
    "infinite": (HEADER + "nccl,1024,1e400\n", "line 2: us: expected a plain number"),
    "tiny": (HEADER + "nccl,1024,1e-300\n", "line 2: expected 0 < lo"),
    "a unit": (HEADER + "\nnccl,1KiB,10\n", "line 3: nbytes: expected a plain number without unit"),
    "underscores": (HEADER + "nccl,1_024,10\n", "nbytes: expected a plain number"),
    "half a byte": (HEADER + "nccl,1024.5,10\n", "expected a whole number of bytes"),
    "too few cells": (HEADER + "nccl,1024\n", "line 2: us is missing"),
    "too many cells": (HEADER + "nccl,1024,10,11\n", "line 2: expected 3 cells, found 4"),
    "ends swapped": ("backend,nbytes,us,lo,hi\nnccl,1024,10,11,9\n", "expected 0 < lo <= us <= hi, found 11"),
    "the floor's name": (HEADER + "attainable,1024,10\n", "expected the name of an implementation"),
    "an escape": (HEADER + "n\x1b[31m,1024,10\n", "expected the name of an implementation"),
    "an open quote": (HEADER + '"nccl,1024,10\n', "expected CSV"),
    "one huge cell": (HEADER + "a" * 200_000 + ",1024,10\n", "expected CSV"),
    "nothing": ("", "found none"),
}


@pytest.mark.parametrize("kind", TABLES)
def test_tables_that_are_none(kind, tmp_path):
    text, said = TABLES[kind]
    with pytest.raises(MissingInput) as caught:
        read(tmp_path, text)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [GOOD, GOOD.replace("\n", "\r\n"), "\ufeff" + GOOD, "\n" + GOOD.replace(",", " , "), GOOD.strip()],
)
def test_what_spreadsheets_write_is_read(text, tmp_path):
    assert [(n, e.value) for n, e in read(tmp_path, text)["nccl"].items()] == [(1024, 10), (1048576, 80)]


def test_places_of_tables(tmp_path):
    for place in (tmp_path, tmp_path / "none", tmp_path / "a\0b"):
        with pytest.raises(MissingInput, match="expected a readable CSV file"):
            table.read(place)
    with pytest.raises(MissingInput, match="expected a readable CSV file in UTF-8"):
        read(tmp_path, GOOD, "utf-16")
    with pytest.raises(MissingInput, match="larger than"):
        read(tmp_path, GOOD + "\n" * (5 << 20))


CONFIG = {"hidden_size": 4096, "num_hidden_layers": 32}


@pytest.mark.parametrize("value", [0, -1, True, "4096", 4096.5, 10**400])
@pytest.mark.parametrize("key", CONFIG)
def test_figures_that_no_model_has_are_refused(key, value):
    with pytest.raises(MissingInput, match=key):
        shape_from_config(CONFIG | {key: value})


def test_expert_layers_never_outnumber_the_layers():
    experts = CONFIG | {"num_experts": 8}
    for more, moe in (
        ({}, 32),
        ({"mlp_only_layers": list(range(99))}, 0),
        ({"mlp_only_layers": [0, 1]}, 30),
        ({"first_k_dense_replace": 99}, 0),
        ({"moe_layer_freq": [0, *[1] * 31]}, 31),
        ({"moe_layer_freq": 2}, 16),
    ):
        assert shape_from_config(experts | more).moe_layers == moe
    assert shape_from_config(CONFIG | {"num_experts": -8}).moe_layers == 0
    assert shape_from_config(experts).shared_experts == 0
    assert shape_from_config(experts | {"shared_expert_intermediate_size": 512}).shared_experts == 1
    assert shape_from_config(experts | {"n_shared_experts": 2}).shared_experts == 2


def test_a_config_with_a_mark_is_read_and_a_nested_one_refused(tmp_path):
    file = tmp_path / "config.json"
    file.write_text("\ufeff" + json.dumps(CONFIG | {"_name_or_path": "\x1b[31m"}), encoding="utf-8")
    assert models.load(str(file)).name == tmp_path.name
    file.write_text("[" * 100_000)
    with pytest.raises(MissingInput, match=r"readable config\.json"):
        models.load(str(file))


@pytest.mark.parametrize("place", ["file/x", "a\0b", "n" * 5000])
def test_places_that_cannot_be_written(place, tmp_path, capsys):
    run = write_run(tmp_path / "run", cpu_world(sizes=(1024,), launches=1, rounds=1, replays=2))
    (tmp_path / "file").write_text("# nThread 1\n")
    target = str(tmp_path / place)
    topology = tmp_path / "topo.txt"
    topology.write_text("\tGPU0\tGPU1\nGPU0\t X \tPHB\nGPU1\tPHB\t X \n")
    table = tmp_path / "t.csv"
    table.write_text("num_gpus,message_size,latency,allreduce_dtype\n2,1024,0.01,half\n")
    for command in (
        ["report", run, "--figures", target],
        ["export", run, "--out", target],
        ["import", table, "--out", target],
        ["doctor", "--from", topology, "--svg", target],
        ["doctor", "--from", topology, "--write", target],
    ):
        assert main([str(word) for word in command]) == 2, command
        error = capsys.readouterr().err
        assert "cannot be written" in error or "no topology to write" in error
        assert error.count("\n") == 1


@pytest.mark.parametrize("world", ["1", "0", "-2", "1025"])
def test_a_number_of_ranks_that_cannot_be_imported(world, tmp_path, capsys):
    assert main(["import", "x", "--world", world, "--out", str(tmp_path / "o")]) == 2
    assert f"--world {world}: expected the number of ranks" in capsys.readouterr().err
