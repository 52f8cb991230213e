"""The JSON Schemas of what the commands print and of topology.toml, as published under docs/schemas.

python -m arfloor.report.schemas docs/schemas    # write them again after a change
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from arfloor import topologies_io
from arfloor.report import box_json, comparison, rows


def schemas() -> dict[str, str]:
    """File name -> text of every schema."""
    found = {
        "report.schema.json": rows.json_schema(),
        "compare.schema.json": comparison.json_schema(),
        "doctor.schema.json": box_json.json_schema(),
        "topology.schema.json": topologies_io.json_schema(),
    }
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema"}
    return {name: json.dumps(head | schema, indent=1) + "\n" for name, schema in found.items()}


def main(folder: str) -> None:
    """Write every published schema into a folder, which is made where there is none."""
    root = Path(folder)
    root.mkdir(parents=True, exist_ok=True)
    for name, text in schemas().items():
        (root / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
