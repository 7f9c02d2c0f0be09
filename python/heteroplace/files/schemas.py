"""The structs that describe the files -> their JSON Schemas: `python -m heteroplace.files.schemas`.

For editors and other programs; written into `schemas/`, where a test checks that they are current.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from heteroplace.files.fields.cluster_fields import ClusterFile
from heteroplace.files.fields.cost_fields import CostsFile
from heteroplace.files.fields.graph_fields import GraphDescription
from heteroplace.files.measurements import MeasurementsFile
from heteroplace.files.output import write_text
from heteroplace.files.plan import CollectiveStep, CopyStep, LoadStep, PlanFile, RunStep
from heteroplace.files.route_profile import RouteProfileFile

FOLDER = Path(__file__).resolve().parent.parent / "schemas"
_FILES: dict[str, tuple[type[Struct], ...]] = {
    "cluster": (ClusterFile,),
    "graph": (GraphDescription,),
    "costs": (CostsFile,),
    "plan": (PlanFile, CollectiveStep, CopyStep, LoadStep, RunStep),
    "measurements": (MeasurementsFile,),
    "routes": (RouteProfileFile,),
}
"""The struct of each file, and those that it only names."""
_NO_DEFAULTS: tuple[object, ...] = (None, "", [], {})
"""Of fields that are just absent then."""


def schema_texts() -> dict[str, str]:
    """Return the text of each schema by the name of its file."""
    texts = {}
    for name, files in _FILES.items():
        (root, *_), parts = msgspec.json.schema_components(files)
        parts = {part: _plain(schema) for part, schema in parts.items()}
        top = parts.pop(root["$ref"].rpartition("/")[2])
        title = top.pop("description")
        schema = {
            "$schema": "https://json-schema.org/draft/2020-12/schema",
            "title": title,
            **top,
            "$defs": parts,
        }
        text = _layout(schema).replace("#/components/schemas/", "#/$defs/")
        texts[f"{name}.schema.json"] = text + "\n"
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


def _plain(schema: Any) -> Any:
    """A schema as msgspec makes it -> with what a kind of field says in place of the type's."""
    if isinstance(schema, list):
        return [_plain(element) for element in schema]
    if not isinstance(schema, dict):
        return schema
    if "replaced" in schema:
        kept = {key: schema[key] for key in ("description", "default") if key in schema}
        return _plain({**kept, **schema["replaced"]})
    is_optional = "default" in schema and schema["default"] is None
    found = {
        key: _plain(value)
        for key, value in schema.items()
        # Titles are the names of the structs, which users need not know.
        if not (key == "title" and isinstance(value, str))
        and not (key == "default" and value in _NO_DEFAULTS)
    }
    if is_optional and "anyOf" in found:
        # Absent, and then None; null is no value of a file.
        kinds = [choice for choice in found.pop("anyOf") if choice != {"type": "null"}]
        found |= kinds[0] if len(kinds) == 1 else {"anyOf": kinds}
    return found


def main() -> None:
    """Write all schemas."""
    for name, text in schema_texts().items():
        write_text(text, FOLDER / name)


if __name__ == "__main__":
    main()
