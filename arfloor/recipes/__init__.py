"""Recipes: TOML files, some of which come with arfloor beside this file."""

from __future__ import annotations

import tomllib
from dataclasses import fields
from importlib import resources
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from arfloor import rundir
from arfloor.core.recipe import BadInput, Recipe, check, parse_size

KEYS = tuple(field.name for field in fields(Recipe))


def shipped() -> list[str]:
    """Names of the recipes that come with arfloor."""
    return sorted(
        entry.name.removesuffix(".toml")
        for entry in resources.files(__name__).iterdir()
        if entry.name.endswith(".toml")
    )


def load(name: str) -> dict[str, Any]:
    """A recipe's keys and values, unchecked: by the name of a shipped one, or from a file.

    Raises BadInput when there is none or it is no TOML.
    """
    file = Path(name)
    if name in shipped():
        text = resources.files(__name__).joinpath(f"{name}.toml").read_text(encoding="utf-8")
    elif file.is_file():
        text = file.read_text(encoding="utf-8", errors="replace")
    else:
        raise BadInput(
            f"recipe: {name!r} is neither a file nor a shipped recipe; choose from {', '.join(shipped())}, "
            "or give a TOML file"
        )
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise BadInput(f"recipe: {name} is not valid TOML: {error}") from error


def make(values: dict[str, Any]) -> Recipe:
    """A checked recipe. Raises BadInput naming the key, the value found and what is allowed."""
    unknown = [key for key in values if key not in KEYS]
    if unknown:
        raise BadInput(f"{unknown[0]}: no such key in a recipe; choose from {', '.join(KEYS)}")
    values = dict(values)
    for key in ("sizes", "extra_sizes"):
        if key in values:
            listed = values[key] if isinstance(values[key], list | tuple) else [values[key]]
            values[key] = [parse_size(size, key) for size in listed]
    try:
        recipe: Recipe = rundir.adapter(Recipe).validate_python(values)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        key = str(first["loc"][0])
        raise BadInput(f"{key}: {first['input']!r} is not allowed; {first['msg'].lower()}") from error
    return check(recipe)
