"""Read values out of parsed JSON and collect all faults, each with its JSON path.

A reader never stops at the first fault: it notes it, goes on with a stand-in, and the caller calls
`Faults.check()` at the end. So a stand-in never reaches the user.
"""

from __future__ import annotations

import difflib
import json
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TypeVar

from heteroplace.errors import HeteroPlaceError
from heteroplace.model.units import is_integer

T = TypeVar("T")
D = TypeVar("D")
MAX_NUMBER = 1e300
"""Numbers that are not whole are below this."""
_MAX_SHOWN = 60
_MAX_FAULTS = 50
# Finding the nearest of many names is slow, and nobody needs it for every fault.
_MAX_SUGGESTIONS = 10


class Faults:
    """What is wrong with one file or value: (JSON path, text) in the order found."""

    def __init__(self, source: str, error: type[HeteroPlaceError]) -> None:
        self._source = source
        self._error = error
        self._found: list[tuple[str, str]] = []

    def add(self, path: str, text: str) -> None:
        """Note a fault at `path`."""
        self._found.append((path, text))

    def expected(self, path: str, expected: str, value: object) -> None:
        """Note that the value at `path` is not what was expected."""
        self.add(path, f"expected {expected}, got {show(value)}")

    def find(self, path: str, kind: str, name: str, ids: Mapping[str, int]) -> int:
        """Return the id of the name at `path`; if unknown note a fault, with the nearest name."""
        if name in ids:
            return ids[name]
        nearest = did_you_mean(name, ids) if len(self._found) < _MAX_SUGGESTIONS else ""
        self.add(path, f"no {kind} is called {show(name)}{nearest}")
        return 0

    def __bool__(self) -> bool:
        return bool(self._found)

    def check(self) -> None:
        """Raise the error type given to the constructor if any fault was noted."""
        if not self._found:
            return
        lines = [f"{path}: {text}" for path, text in self._found]
        if len(lines) == 1:
            raise self._error(f"{self._source}: {lines[0]}")
        listing = "".join(f"\n  {line}" for line in lines[:_MAX_FAULTS])
        if len(lines) > _MAX_FAULTS:
            listing += f"\n  and {len(lines) - _MAX_FAULTS} more"
        raise self._error(f"{self._source}: {len(lines)} faults{listing}")


class ObjectReader:
    """One JSON object. Every key must be read, or `finish()` reports it as unknown."""

    def __init__(self, value: object, path: str, faults: Faults) -> None:
        self.path = path
        self.faults = faults
        self._keys: dict[str, None] = {}
        self._values: dict[str, object] = {}
        if isinstance(value, dict):
            self._values = value
        else:
            faults.expected(path, "an object", value)
        self._is_object = isinstance(value, dict)

    def has(self, key: str) -> bool:
        """Say whether the object has `key`; asking makes it a known key."""
        self._keys[key] = None
        return key in self._values

    def optional(self, key: str, convert: Callable[[object], T], default: D) -> T | D:
        """Return the value of `key`, or `default` where it is absent or faulty.

        `convert` raises ValueError with a description of what it expects.
        """
        self._keys[key] = None
        if key not in self._values:
            return default
        try:
            return convert(self._values[key])
        except ValueError as fault:
            self.faults.expected(f"{self.path}.{key}", str(fault), self._values[key])
            return default

    def required(self, key: str, convert: Callable[[object], T], stand_in: D) -> T | D:
        """Return the value of `key`; note a fault and return `stand_in` if that fails."""
        if key not in self._values and self._is_object:
            self.faults.add(self.path, f"the key {json.dumps(key)} is missing")
        return self.optional(key, convert, stand_in)

    def objects(self, key: str, *, is_required: bool = False) -> list[ObjectReader]:
        """Return readers of the objects in the list at `key`; [] where it is absent or faulty."""
        read = self.required if is_required else self.optional
        values = read(key, a_list, ())
        return [
            ObjectReader(value, f"{self.path}.{key}[{index}]", self.faults)
            for index, value in enumerate(values)
        ]

    def entry(self, key: str) -> ObjectReader:
        """Return a reader of the object at `key`, which must be there."""
        present = self.required(key, lambda value: value, None)
        missing = key not in self._values
        return ObjectReader({} if missing else present, key_path(self.path, key), self.faults)

    def entries(self) -> list[tuple[str, str, object]]:
        """Return (key, path, value) of every key, for an object whose keys are names."""
        self._keys.update(dict.fromkeys(self._values))
        return [(key, key_path(self.path, key), value) for key, value in self._values.items()]

    def finish(self) -> None:
        """Note every key that nobody has asked for, and suggest the nearest one that exists."""
        for key in self._values:
            if key not in self._keys:
                unused = [known for known in self._keys if known not in self._values]
                hint = did_you_mean(key, unused) or f"; known keys: {', '.join(self._keys)}"
                self.faults.add(self.path, f"unknown key {show(key)}{hint}")


def read_json(path: str | os.PathLike[str], error: type[HeteroPlaceError]) -> object:
    """Return the parsed JSON of a file. Repeated keys, NaN and Infinity are faults.

    Raises
    ------
    HeteroPlaceError
        Of type `error`: the file cannot be read, or is not JSON (with line and column).
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
        return json.loads(text, object_pairs_hook=_unique_keys, parse_constant=_no_constant)
    except OSError as fault:
        raise error(f"{os.fspath(path)}: cannot be read: {fault.strerror}") from fault
    except (ValueError, RecursionError) as fault:
        raise error(f"{os.fspath(path)}: not valid JSON: {fault}") from fault


def write_json(value: Mapping[str, object], path: str | os.PathLike[str]) -> None:
    """Write an object as JSON to `path`, with one line per element of its lists and objects.

    Atomic: readers see the old file or the new one.

    Raises
    ------
    OSError
        The folder does not exist or cannot be written to.
    """
    write_text(_layout(value), path)


def write_text(text: str, path: str | os.PathLike[str]) -> None:
    """Write `text` to `path` as UTF-8; atomic; raises OSError as `write_json`."""
    target = Path(path)
    # The process id keeps two writers of one file apart; the last one wins.
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)


def schema_version(reader: ObjectReader, newest: int, oldest: int | None = None) -> int:
    """Read the keys that every file has: `schema_version` and `$schema` (for editors).

    Returns the version; one outside `oldest` (by default `newest`) to `newest` is a fault, and then
    `newest` is returned.
    """
    reader.optional("$schema", a_text, "")
    version = reader.required("schema_version", an_integer, newest)
    oldest = newest if oldest is None else oldest
    if oldest <= version <= newest:
        return version
    known = f"version {newest}" if oldest == newest else f"versions {oldest} to {newest}"
    reader.faults.add(
        f"{reader.path}.schema_version",
        f"this file is of version {version}, and heteroplace reads {known}",
    )
    return newest


def a_text(value: object) -> str:
    """Accept any text."""
    if not isinstance(value, str):
        raise ValueError("text")
    return value


def a_name(value: object) -> str:
    """Accept text that is not empty."""
    if not isinstance(value, str) or not value:
        raise ValueError("a name (text that is not empty)")
    return value


def a_list(value: object) -> list[object]:
    """Accept a list."""
    if not isinstance(value, list):
        raise ValueError("a list")
    return value


def a_boolean(value: object) -> bool:
    """Accept true and false."""
    if not isinstance(value, bool):
        raise ValueError("true or false")
    return value


def an_integer(value: object) -> int:
    """Accept a whole number."""
    if not is_integer(value):
        raise ValueError("a whole number")
    return int(value)  # type: ignore[call-overload, no-any-return]


def a_number(value: object) -> float:
    """Accept a finite number >= 0."""
    if (
        isinstance(value, bool)
        or not isinstance(value, (int, float))
        or not 0 <= value < MAX_NUMBER
    ):
        raise ValueError("a number >= 0")
    return value


def a_count(value: object) -> int:
    """Accept a whole number >= 0."""
    if not is_integer(value) or value < 0:  # type: ignore[operator]
        raise ValueError("a whole number >= 0")
    return int(value)  # type: ignore[call-overload, no-any-return]


def list_of(convert: Callable[[object], T], expected: str) -> Callable[[object], tuple[T, ...]]:
    """Return a converter of lists whose elements `convert` accepts; `expected` describes them."""

    def convert_all(value: object) -> tuple[T, ...]:
        try:
            return tuple(convert(element) for element in a_list(value))
        except ValueError as fault:
            raise ValueError(expected) from fault

    return convert_all


def show(value: object) -> str:
    """Return a JSON value as short text for a message."""
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _MAX_SHOWN else text[: _MAX_SHOWN - 3] + "..."


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return "; did you mean NEAREST?" or "" where nothing is near."""
    nearest = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return f"; did you mean {show(nearest[0])}?" if nearest else ""


def key_path(path: str, key: str) -> str:
    """Return the JSON path of `key` in the object at `path`."""
    return f"{path}.{key}" if key.isidentifier() else f"{path}[{json.dumps(key)}]"


def _layout(value: Mapping[str, object]) -> str:
    """JSON text in which records are lines, so that `diff` and `grep` are of use."""
    entries = []
    for key, item in value.items():
        if isinstance(item, list) and item:
            rows = ",\n".join(f"  {json.dumps(element)}" for element in item)
            text = f"[\n{rows}\n ]"
        elif isinstance(item, dict) and item:
            rows = ",\n".join(f"  {json.dumps(k)}: {json.dumps(v)}" for k, v in item.items())
            text = f"{{\n{rows}\n }}"
        else:
            text = json.dumps(item)
        entries.append(f" {json.dumps(key)}: {text}")
    return "{\n" + ",\n".join(entries) + "\n}\n"


def _unique_keys(pairs: list[tuple[str, object]]) -> dict[str, object]:
    value = dict(pairs)
    if len(value) < len(pairs):
        keys = [key for key, _ in pairs]
        repeated = next(key for key in keys if keys.count(key) > 1)
        raise ValueError(f"the key {json.dumps(repeated)} occurs twice in one object")
    return value


def _no_constant(name: str) -> object:
    raise ValueError(f"{name} is not a JSON number")
