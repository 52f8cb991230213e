"""The published JSON Schemas are those of the code, and the outputs meet them."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator, ValidationError

from arfloor.cli import main
from arfloor.report.schemas import schemas
from tests.synthetic import cpu_world, write_run

PUBLISHED = Path(__file__).parents[2] / "docs" / "schemas"


def validator(name):
    return Draft202012Validator(json.loads((PUBLISHED / name).read_text()))


@pytest.mark.parametrize("name", sorted(schemas()))
def test_what_is_published_is_what_the_code_says(name):
    hint = "run: python -m arfloor.report.schemas docs/schemas"
    assert (PUBLISHED / name).read_text() == schemas()[name], hint


def test_reports_meet_the_schema_and_other_things_do_not(tmp_path, capsys):
    write_run(tmp_path, cpu_world(sizes=(1024,)))
    main(["report", str(tmp_path), "--format", "json"])
    shown = json.loads(capsys.readouterr().out)
    validator("report.schema.json").validate(shown)
    with pytest.raises(ValidationError):
        validator("report.schema.json").validate([shown[0] | {"status": "fine"}])
    with pytest.raises(ValidationError):
        validator("report.schema.json").validate([shown[0] | {"more": 1}])


def test_comparisons_meet_the_schema_and_find_a_planted_change(tmp_path, capsys):
    world = cpu_world(sizes=(1024, 65536, 262144), noise=0.005)
    slower = tuple(replace(k, alpha_us=k.alpha_us * 1.2, gbps=k.gbps / 1.2) for k in world.kinds[:1])
    write_run(tmp_path / "a", world)
    write_run(tmp_path / "b", replace(world, kinds=slower, seed=8, versions={"torch": "2.14.0"}))
    arguments = ["compare", str(tmp_path / "a"), str(tmp_path / "b")]
    assert main([*arguments, "--format", "json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    validator("compare.schema.json").validate(shown)
    by_backend = {}
    for row in shown:
        by_backend.setdefault(row["case"].split(":")[0], []).append(row)
    assert {r["answer"] for r in by_backend["gloo"]} == {"slower"}
    assert all(r["ratio_lo"] < 1.2 < r["ratio_hi"] for r in by_backend["gloo"])
    assert {r["reason"] for r in by_backend["mpi"]} == {"only_in_a"}
    assert main(arguments) == 0
    told = capsys.readouterr().out
    assert "3 slower" in told
    assert "torch: 2.13.0 -> 2.14.0" in told
    assert "only the first run has it" in told
