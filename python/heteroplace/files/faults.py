"""A JSON value and the struct that describes it -> all its faults, each with its JSON path.

`note_form_faults` asks jsonschema, which is loaded only then; whoever reads a file adds the faults
that span records.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain
from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from heteroplace.argument_checks import did_you_mean
from heteroplace.errors import HeteroPlaceError
from heteroplace.files.fields.fields import Json
from heteroplace.model.units import IN_63_BITS, MAX_INTEGER

T = TypeVar("T")
JsonPath = tuple[str | int, ...]
_MAX_SHOWN = 60
_MAX_FAULTS = 50
# Finding the nearest of many names is slow, and nobody needs it for every fault.
_MAX_SUGGESTIONS = 10
_VERSIONS = ("schema_version", "routes_version")
_TYPES = {
    "string": "text",
    "integer": "a whole number",
    "number": "a number",
    "boolean": "true or false",
    "array": "a list",
    "object": "an object",
    "null": "null",
}


class Faults:
    """What is wrong with one file or value, in the order in which it was noted."""

    def __init__(self, source: str, error: type[HeteroPlaceError]) -> None:
        self._source, self._error = source, error
        self._lines: dict[str, None] = {}

    def add(self, path: JsonPath, text: str) -> None:
        """Note a fault at `path`; each is listed once."""
        self._lines[f"{path_text(path)}: {text}"] = None

    def expected(self, path: JsonPath, expected: str, value: object) -> None:
        """Note that the value at `path` is not what was expected."""
        self.add(path, f"expected {expected}, got {show(value)}")

    def missing(self, path: JsonPath, key: str) -> None:
        """Note that the object at `path` lacks a key."""
        self.add(path, f"the key {json.dumps(key)} is missing")

    def unknown(self, path: JsonPath, value: Mapping[str, object], names: Iterable[str]) -> None:
        """Note every key of `value` that is not known, with the nearest one that it lacks."""
        keys = dict.fromkeys(names)
        shown = ", ".join(list(keys)[:_MAX_FAULTS]) + (", ..." if len(keys) > _MAX_FAULTS else "")
        for key in value:
            if key not in keys:
                hint = self._nearest(key, (name for name in keys if name not in value))
                self.add(path, f"unknown key {show(key)}{hint or f'; known keys: {shown}'}")

    def find(self, path: JsonPath, what: str, name: str, ids: Mapping[str, int]) -> int:
        """Return the id of the name at `path`; if unknown note a fault, with the nearest name.

        Parameters
        ----------
        path
            Where the name stands.
        what
            What it names, for the message.
        name
            In the file.
        ids
            By name.
        """
        if name not in ids:
            self.add(path, f"no {what} is called {show(name)}{self._nearest(name, ids)}")
        return ids.get(name, 0)

    def parse(self, path: JsonPath, parse: Callable[[object], T], value: object, default: T) -> T:
        """Return what `parse` makes of the value at `path`; the default if it notes a fault."""
        try:
            return parse(value)
        except ValueError as fault:
            self.expected(path, str(fault), value)
        return default

    def check(self) -> None:
        """Raise the error type given to the constructor if any fault was noted."""
        lines = list(self._lines)
        if len(lines) == 1:
            raise self._error(f"{self._source}: {lines[0]}")
        listing = "".join(f"\n  {line}" for line in lines[:_MAX_FAULTS])
        if len(lines) > _MAX_FAULTS:
            listing += f"\n  and {len(lines) - _MAX_FAULTS} more"
        if lines:
            raise self._error(f"{self._source}: {len(lines)} faults{listing}")

    def _nearest(self, name: str, names: Iterable[str]) -> str:
        return did_you_mean(name, names) if len(self._lines) < _MAX_SUGGESTIONS else ""


def note_form_faults(value: object, file: type[Struct], faults: Faults) -> None:
    """Note where a parsed JSON value is not as the JSON Schema of a struct says."""
    seen: set[JsonPath] = set()
    for error in chain.from_iterable(map(_innermost, _errors(value, file))):
        path, instance, rule = tuple(error.absolute_path), error.instance, error.validator_value
        if error.validator == "required":
            for key in rule:
                if key not in instance:
                    faults.missing(path, key)
        elif error.validator == "additionalProperties":
            faults.unknown(path, instance, error.schema["properties"])
        elif path not in seen:
            seen.add(path)
            if path and path[-1] in _VERSIONS and error.validator == "enum":
                is_one = len(rule) == 1
                versions = f"version {rule[0]}" if is_one else f"versions {rule[0]} to {rule[-1]}"
                faults.add(path, f"this file is of version {show(instance)}, and heteroplace reads "
                                 f"{versions}")  # fmt: skip
            else:
                faults.expected(path, expected_by(error.schema, instance), instance)


def _errors(value: object, file: type[Struct]) -> Iterator[Any]:
    """What jsonschema finds; it looks only at elements of lists that msgspec refuses.

    It takes 25 s for all 50,000 tasks of a graph, and 0.3 s to load.
    """
    from jsonschema import Draft202012Validator, validators

    structs = {f"#/$defs/{struct.__name__}": struct for struct in _structs_of(file)}
    all_items = Draft202012Validator.VALIDATORS["items"]

    def items(validator: Any, item: Any, elements: Any, schema: Json) -> Iterator[Any]:
        struct = structs.get(item.get("$ref", "")) if isinstance(item, dict) else None
        if struct is None or not isinstance(elements, list):
            yield from all_items(validator, item, elements, schema)
            return
        for index, element in enumerate(elements):
            try:
                msgspec.convert(element, struct)
            except msgspec.ValidationError:
                yield from validator.descend(element, item, path=index)

    validator = validators.extend(Draft202012Validator, {"items": items})
    return iter(validator(schema_of(file)).iter_errors(value))


def _structs_of(file: type[Struct]) -> Iterator[type[Struct]]:
    """The structs in the lists of a struct."""
    for field in msgspec.inspect.type_info(file).fields:  # type: ignore[attr-defined]
        info = field.type
        while isinstance(info, (msgspec.inspect.Metadata, msgspec.inspect.VarTupleType)):
            info = info.type if isinstance(info, msgspec.inspect.Metadata) else info.item_type
        if isinstance(info, msgspec.inspect.StructType):
            yield info.cls


def _innermost(error: Any) -> Iterator[Any]:
    """What jsonschema found in the one choice that has the value's type, else the error itself."""
    depth = len(error.absolute_path)
    inner = []
    if error.validator == "anyOf" and "title" not in error.schema:
        inner = [
            each
            for each in error.context
            if len(each.absolute_path) > depth
            or each.validator in ("required", "additionalProperties")
        ]
    return chain.from_iterable(map(_innermost, inner)) if inner else iter([error])


def schema_of(file: Any) -> Json:
    """Return the JSON Schema of a struct or a field's type.

    `also_described` of a struct are those that it only names.
    """
    structs = (file, *getattr(file, "also_described", ()))
    (root, *_), parts = msgspec.json.schema_components(structs, ref_template="#/$defs/{name}")
    return {**root, "$defs": parts}


def expected_by(schema: Json, value: object = None) -> str:
    """Return what a JSON Schema accepts, for a message about a value that it refuses.

    >>> expected_by({"anyOf": [{"type": "integer", "minimum": 1}, {"type": "null"}]})
    'a whole number >= 1'
    """
    guesses = {"$ref": "object", "minLength": "string", "pattern": "string", "minimum": "integer"}
    kind = schema.get("type", next((guesses[key] for key in guesses if key in schema), None))
    if "title" in schema and kind != "object":
        return str(schema["title"])
    if "enum" in schema or "const" in schema:
        choices = schema.get("enum", [schema.get("const")])
        shown = ", ".join(
            each if isinstance(each, str) and each else show(each) for each in choices
        )
        return f"one of {shown}" if len(choices) > 1 else shown
    if "anyOf" in schema:
        # What may be null may as well be absent, which is plainer.
        choices = [each for each in schema["anyOf"] if each != {"type": "null"}]
        return " or ".join(dict.fromkeys(expected_by(each, value) for each in choices))
    if "not" in schema:
        return f"an object without {_keys(schema['not'])}"
    if kind is None:
        return _keys(schema)
    if kind == "string":
        return "a name (text that is not empty)" if schema.get("minLength") == 1 else "text"
    text = _TYPES[kind]
    if "minItems" in schema:
        is_exact = schema["minItems"] == schema.get("maxItems")
        text += f" of {'' if is_exact else 'at least '}{schema['minItems']}"
    if schema.get("minimum") is not None:
        text += f" >= {schema['minimum']}"
    largest = schema.get("maximum")
    if largest is not None and largest != MAX_INTEGER:
        text += f" and <= {largest}"
    is_huge = kind == "integer" and isinstance(value, int) and value > MAX_INTEGER
    return f"{text} {IN_63_BITS}" if is_huge else text


def _keys(schema: Json) -> str:
    """The keys that a part of a schema wants."""
    names = [json.dumps(key) for key in schema["required"]]
    return f"the key{'s' if len(names) > 1 else ''} {' and '.join(names)}"


def show(value: object) -> str:
    """Return a JSON value as short text for a message."""
    try:
        text = json.dumps(value, ensure_ascii=False)
    except RecursionError:  # It was read at less depth of calls than it is written at.
        return "something nested deeply"
    return text if len(text) <= _MAX_SHOWN else text[: _MAX_SHOWN - 3] + "..."


def path_text(path: JsonPath) -> str:
    """Return a JSON path as messages have it.

    >>> path_text(("tasks", 1, "times_ns", "cpu.0"))
    '$.tasks[1].times_ns["cpu.0"]'
    """
    text = "$"
    for step in path:
        is_plain = isinstance(step, str) and step.isidentifier()
        text += f".{step}" if is_plain else f"[{json.dumps(step)}]"
    return text
