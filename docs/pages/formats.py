"""The JSON Schemas of the package -> a page for each kind of file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import heteroplace

SCHEMAS = Path(heteroplace.__file__).parent / "schemas"


def schema_names() -> list[str]:
    """Return the kinds of files that have a schema."""
    return sorted(path.name.removesuffix(".schema.json") for path in SCHEMAS.glob("*.schema.json"))


def format_pages() -> dict[str, str]:
    """Return the text of each page by its name."""
    pages = {f"formats/{name}.md": _page(name) for name in schema_names()}
    pages["formats/index.md"] = (
        "# File formats\n\n`heteroplace check FILE` names the faults of these JSON files: first "
        "all that the schema sees, then all between records, such as names and cycles. Editors "
        "read the schemas in the package's folder `schemas`. A field without a default is needed. "
        "Other files have no schema: recordings of route decisions (a JSON value a line), compiled "
        "files, the store of costs (SQLite), tables (`--csv`).\n\n"
        "```{toctree}\n:maxdepth: 1\n\n" + "\n".join(schema_names()) + "\n```\n"
    )
    return pages


def _page(name: str) -> str:
    schema = json.loads((SCHEMAS / f"{name}.schema.json").read_text())
    text = f"# {name}\n\n{schema['title']}\n\n{_table(schema)}"
    for part, inner in sorted(schema.get("$defs", {}).items()):
        text += f"\n({name}-{part.lower()})=\n## {part}\n\n{inner.get('description', '')}\n\n"
        text += _table(inner) if "properties" in inner else f"{_kind(inner, name)}\n"
    return text.replace("](#", f"](#{name}-")


def _table(schema: dict[str, Any]) -> str:
    rows = ["| field | what it is | value | if absent |", "|---|---|---|---|"]
    needed = schema.get("required", ())
    for field, inner in schema["properties"].items():
        default = json.dumps(inner["default"]) if "default" in inner else ""
        absent = "**needed**" if field in needed else f"`{default}`" if default else ""
        told = _cell(inner.get("description", ""))
        rows.append(f"| `{field}` | {told} | {_kind(inner, '')} | {absent} |")
    return "\n".join(rows) + "\n"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ").replace("<", "\\<")


def _kind(schema: dict[str, Any], name: str) -> str:
    """What a value may be, in words."""
    if "$ref" in schema:
        part = schema["$ref"].rpartition("/")[2]
        return f"[{part}](#{part.lower()})"
    if "anyOf" in schema or "oneOf" in schema:
        return " or ".join(_kind(one, name) for one in schema.get("anyOf") or schema["oneOf"])
    if "const" in schema:
        return f"`{json.dumps(schema['const'])}`"
    if "enum" in schema:
        return ", ".join(f"`{json.dumps(one)}`" for one in schema["enum"])
    kind = schema.get("type", "any value")
    if kind == "array":
        items = schema.get("items")
        inner = _kind(items, name) if isinstance(items, dict) else "any value"
        return f"list of {inner}"
    if kind == "object" and isinstance(schema.get("additionalProperties"), dict):
        return f"object, its values {_kind(schema['additionalProperties'], name)}"
    limits = [
        f"{word} {schema[key]}"
        for key, word in (
            ("minimum", "at least"),
            ("exclusiveMinimum", "above"),
            ("maximum", "at most"),
            ("exclusiveMaximum", "below"),
        )
        if key in schema and abs(schema[key]) < 2**62
    ]
    text = " ".join([kind if isinstance(kind, str) else " or ".join(kind), ", ".join(limits)])
    if "pattern" in schema:
        text += f" matching `{_cell(schema['pattern'])}`"
    return text.strip()
