"""What `arfloor doctor --format json` prints: box, findings, engines, in one document."""

from __future__ import annotations

import json

from arfloor.core.box import Box
from arfloor.core.cases import record
from arfloor.core.engines import EngineUse
from arfloor.core.findings import Finding, exit_status
from arfloor.rundir import adapter

SCHEMA = 1


@record
class Diagnosis:
    """One diagnosis. `warnings`: what of a pasted description could not be read, by line."""

    schema: int
    exit_status: int
    box: Box
    findings: tuple[Finding, ...]
    engines: tuple[EngineUse, ...]
    warnings: tuple[str, ...] = ()


def render(
    box: Box, findings: tuple[Finding, ...], uses: tuple[EngineUse, ...], warnings: tuple[str, ...]
) -> str:
    """The document as JSON text. Raises ValueError if a number is not finite."""
    diagnosis = Diagnosis(
        schema=SCHEMA,
        exit_status=exit_status(findings),
        box=box,
        findings=findings,
        engines=uses,
        warnings=warnings,
    )
    plain = adapter(Diagnosis).dump_python(diagnosis, mode="json")
    return json.dumps(plain, indent=1, allow_nan=False) + "\n"


def json_schema() -> dict[str, object]:
    """The JSON Schema of `render`'s output (published as docs/schemas/doctor.schema.json)."""
    return adapter(Diagnosis).json_schema(mode="serialization")
