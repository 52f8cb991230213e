"""Shapes of real models, one TOML file each: every figure with its source, or named as assumed."""

from __future__ import annotations

import json
import tomllib
from dataclasses import fields
from importlib import resources
from pathlib import Path

from arfloor.core.decode import MissingInput, ModelShape, shape_from_config

_HERE = resources.files(__name__)


def names() -> list[str]:
    """The models of the library, as `--model` takes them."""
    return sorted(f.name.removesuffix(".toml") for f in _HERE.iterdir() if f.name.endswith(".toml"))


def load(model: str) -> ModelShape:
    """A model of the library by name (any case), or from a Hugging Face config.json by path.

    Raises MissingInput naming the models there are, or the key that a config lacks.
    """
    path = Path(model)
    if path.suffix == ".json":
        return _from_config(path)
    matches = [name for name in names() if name.lower() == model.lower()]
    if not matches:
        raise MissingInput(
            f"--model {model}: expected one of {', '.join(names())}, or a Hugging Face config.json"
        )
    return from_toml(_HERE.joinpath(f"{matches[0]}.toml").read_text(encoding="utf-8"), matches[0])


def from_toml(text: str, name: str) -> ModelShape:
    """A shape from the library's format: figures = {value, source} tables, `assumed` ones marked.

    Raises ValueError for a figure without a source, or an unknown one."""
    known = {f.name for f in fields(ModelShape)} - {"name", "sources", "assumed"}
    values, sources, assumed = {}, [], []
    for figure, entry in tomllib.loads(text).items():
        if figure not in known or not isinstance(entry, dict) or set(entry) - {"value", "source", "assumed"}:
            raise ValueError(
                f"{name}.toml: {figure}: expected a figure of {sorted(known)} with value and source"
            )
        if "source" not in entry or "value" not in entry:
            raise ValueError(f"{name}.toml: {figure} has no source: cite one, or mark it assumed and say why")
        values[figure] = entry["value"]
        sources.append((figure, entry["source"]))
        if entry.get("assumed"):
            assumed.append(figure)
    return ModelShape(name=name, sources=tuple(sources), assumed=tuple(assumed), **values)


def _from_config(path: Path) -> ModelShape:
    try:
        config = json.loads(path.read_text(encoding="utf-8-sig"))
    except (OSError, ValueError, RecursionError) as error:
        raise MissingInput(f"--model {path}: expected a readable config.json, found {error}") from error
    if not isinstance(config, dict):
        raise MissingInput(f"--model {path}: expected a JSON object, found a {type(config).__name__}")
    name = config.get("_name_or_path")
    named = isinstance(name, str) and name.isprintable()
    return shape_from_config(config, name=(named and name) or path.resolve().parent.name or path.stem)
