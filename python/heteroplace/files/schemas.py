"""The structs that describe the files -> their JSON Schemas: `python -m heteroplace.files.schemas`.

For editors and other programs; written into `schemas/`, where a test checks that they are current.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from msgspec import Struct

from heteroplace.files.faults import schema_of
from heteroplace.files.fields.cluster_fields import ClusterFile
from heteroplace.files.fields.cost_fields import CostsFile
from heteroplace.files.fields.graph_fields import GraphDescription
from heteroplace.files.measurements import MeasurementsFile
from heteroplace.files.output import write_text
from heteroplace.files.plan_file import PlanFile
from heteroplace.files.route_profile_file import RouteProfileFile

FOLDER = Path(__file__).resolve().parent.parent / "schemas"
_FILES: dict[str, type[Struct]] = {
    "cluster": ClusterFile,
    "graph": GraphDescription,
    "costs": CostsFile,
    "plan": PlanFile,
    "measurements": MeasurementsFile,
    "routes": RouteProfileFile,
}
_NO_DEFAULTS: tuple[object, ...] = (None, "", [], {})
"""Of fields that are just absent then."""


def schema_texts() -> dict[str, str]:
    """Return the text of each schema by the name of its file."""
    texts = {}
    for name, file in _FILES.items():
        schema = schema_of(file)
        parts = {part: _without_titles(struct) for part, struct in schema["$defs"].items()}
        top = parts.pop(file.__name__)
        title = top.pop("description")
        schema = {
            "$schema": "https://json-schema.org/draft/2020-12/schema",
            "title": title,
            **top,
            "$defs": parts,
        }
        texts[f"{name}.schema.json"] = _layout(schema) + "\n"
    return texts


def _layout(value: Any, kind: str = "schema", indent: str = "") -> str:
    """JSON text with a line per field, as `write_json` has one per record."""
    if kind not in ("schema", "properties", "$defs"):
        return json.dumps(value, ensure_ascii=False)
    rows = []
    for key, item in value.items():
        inner = {"schema": key, "properties": "field", "$defs": "schema"}[kind]
        rows.append(f'{indent} "{key}": {_layout(item, inner, indent + " ")}')
    return "{\n" + ",\n".join(rows) + f"\n{indent}}}"


def _without_titles(schema: Any) -> Any:
    """A schema without the names of structs, which users need not know, and empty defaults."""
    if isinstance(schema, list):
        return [_without_titles(element) for element in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        key: _without_titles(value)
        for key, value in schema.items()
        if not (key == "title" and schema.get("type") == "object")
        and not (key == "default" and value in _NO_DEFAULTS)
    }


def main() -> None:
    """Write all schemas."""
    for name, text in schema_texts().items():
        write_text(text, FOLDER / name)


if __name__ == "__main__":
    main()
