"""JSON -> the msgspec struct that describes a file, or all its faults, each with its JSON path.

`decode_plain` is the fast way for text without faults. `read_struct` walks any value along the
struct's fields: it never stops at a fault, but notes it and goes on with a stand-in, and the caller
calls `Faults.check()` when it has looked for faults of meaning too. A stand-in never reaches the
user.
"""

from __future__ import annotations

import difflib
import json
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, cast

import msgspec
from msgspec import Struct, inspect

from heteroplace.errors import HeteroPlaceError
from heteroplace.files.fields.fields import FaultError, a_boolean
from heteroplace.files.fields.kind_keys import other_kind
from heteroplace.files.output import write_text

S = TypeVar("S", bound=Struct)
JsonPath = tuple[str | int, ...]
_MAX_SHOWN = 60
_MAX_FAULTS = 50
# Finding the nearest of many names is slow, and nobody needs it for every fault.
_MAX_SUGGESTIONS = 10
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
_UNKNOWN = ""
"""Stands for all keys that no struct has in the place of a fault."""


class Faults:
    """What is wrong with one file or value, told in the order in which its fields are described."""

    def __init__(self, source: str, error: type[HeteroPlaceError], root: _Node) -> None:
        self._source, self._error, self._root = source, error, root
        self._found: list[tuple[JsonPath, str, JsonPath]] = []

    def add(self, path: JsonPath, text: str, place: JsonPath | None = None) -> None:
        """Note a fault at `path`; it is listed at `place` (default: there)."""
        self._found.append((path, text, path if place is None else place))

    def expected(self, path: JsonPath, expected: str, value: object) -> None:
        """Note that the value at `path` is not what was expected."""
        self.add(path, f"expected {expected}, got {show(value)}")

    def missing(self, path: JsonPath, key: str) -> None:
        """Note that the object at `path` lacks a key."""
        self.add(path, f"the key {json.dumps(key)} is missing", (*path, key))

    def unknown(self, path: JsonPath, value: Mapping[str, object], known: Iterable[str]) -> None:
        """Note every key of `value` that is not known, with the nearest one that it lacks."""
        names = dict.fromkeys(known)
        shown = ", ".join(list(names)[:_MAX_FAULTS]) + (", ..." if len(names) > _MAX_FAULTS else "")
        for key in value:
            if key not in names:
                is_early = len(self._found) < _MAX_SUGGESTIONS
                unused = [name for name in names if name not in value] if is_early else []
                hint = did_you_mean(key, unused) if is_early else ""
                hint = hint or f"; known keys: {shown}"
                self.add(path, f"unknown key {show(key)}{hint}", (*path, _UNKNOWN))

    def find(self, path: JsonPath, what: str, name: str, ids: Mapping[str, int]) -> int:
        """Return the id of the name at `path`; if unknown note a fault, with the nearest name.

        Parameters
        ----------
        path
            Where the name stands.
        what
            What it names, for the message.
        name
            "" stands in for one that was faulty, and is not told again.
        ids
            By name.
        """
        if name and name not in ids:
            nearest = did_you_mean(name, ids) if len(self._found) < _MAX_SUGGESTIONS else ""
            self.add(path, f"no {what} is called {show(name)}{nearest}")
        return ids.get(name, 0)

    def check(self) -> None:
        """Raise the error type given to the constructor if any fault was noted."""
        if not self._found:
            return
        found = sorted(self._found, key=lambda fault: self._root.position(fault[2]))
        lines = [f"{path_text(path)}: {text}" for path, text, _ in found]
        if len(lines) == 1:
            raise self._error(f"{self._source}: {lines[0]}")
        listing = "".join(f"\n  {line}" for line in lines[:_MAX_FAULTS])
        if len(lines) > _MAX_FAULTS:
            listing += f"\n  and {len(lines) - _MAX_FAULTS} more"
        raise self._error(f"{self._source}: {len(lines)} faults{listing}")


def read_struct(
    value: object, file: type[S], source: str, error: type[HeteroPlaceError]
) -> tuple[S, Faults]:
    """Return the struct that a parsed JSON value describes, and its faults so far.

    Parameters
    ----------
    value
        What `json.load` returned.
    file
        The struct; stand-ins are in it where the value is faulty.
    source
        What to call the value in messages.
    error
        What `Faults.check` raises, and this if the value is a file of another kind.
    """
    root = _node(inspect.type_info(file))
    if told := other_kind(value, root.fields):
        raise error(f"{source}: {told}")
    faults = Faults(source, error, root)
    return root.read(value, (), faults), faults


def decode_plain(data: bytes, file: type[S]) -> S | None:
    """Return the struct in a file's bytes; None: `read_struct` must say what is wrong, or nothing.

    Only for structs whose values are the JSON ones. A whole number written as 1.0 is left to the
    walk, too.
    """
    try:
        found = msgspec.json.decode(data, type=file)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None
    return None if _may_repeat_keys(data, found) else found


def _may_repeat_keys(data: bytes, found: Struct) -> bool:
    """Tell whether an object may have a key twice, of which the decoder keeps the last.

    What was decoded has every key once. If that written again has as many colons as the file, the
    file had no more keys; an escaped colon in a text would spoil the count.
    """
    if b"\\" in data and b"\\u003" in data:
        return True
    return data.count(b":") != msgspec.json.encode(found).count(b":")


@dataclass(frozen=True, slots=True)
class _Node:
    """What reads the values of one type, wherever they stand."""

    read: Callable[[object, JsonPath, Faults], Any]
    stand_in: object
    """In place of a value that is faulty as a whole."""
    item: _Node | None = None
    """Of each element of a list or table."""
    fields: Mapping[str, _Node] = field(default_factory=dict)
    """Of each key of an object."""

    def position(self, path: JsonPath) -> list[int]:
        """Where a fault at `path`, which starts here, is listed; ascending."""
        node, found = self, []
        for step in path:
            places = {key: place for place, key in enumerate(node.fields)}
            found.append(step if isinstance(step, int) else places.get(step, len(places)))
            node = node.fields.get(str(step)) or node.item or node
        return found


def _leaf(read_value: Callable[[object], object], stand_in: object) -> _Node:
    def read(value: object, path: JsonPath, faults: Faults) -> object:
        try:
            return read_value(value)
        except FaultError as fault:
            faults.add(path, str(fault))
        except ValueError as fault:
            faults.expected(path, str(fault), value)
        return stand_in

    return _Node(read, stand_in)


def _list(item: _Node, shortest: int, expected: str) -> _Node:
    def read(value: object, path: JsonPath, faults: Faults) -> object:
        if not isinstance(value, list) or len(value) < shortest:
            faults.expected(path, expected, value)
            return ()
        return tuple(item.read(element, (*path, i), faults) for i, element in enumerate(value))

    return _Node(read, (), item)


def _table(item: _Node) -> _Node:
    """An object whose keys are names."""

    def read(value: object, path: JsonPath, faults: Faults) -> object:
        if not isinstance(value, dict):
            faults.expected(path, "an object", value)
            return {}
        return {key: item.read(element, (*path, key), faults) for key, element in value.items()}

    return _Node(read, {}, item)


def _object(info: inspect.StructType, also: Iterable[str] = ()) -> _Node:
    """A struct. `also` are keys that tell it from others, known in messages."""
    fields = [
        (each.encode_name, each.name, _node(each.type), each.required) for each in info.fields
    ]
    nodes = {key: node for key, _, node, _ in fields}
    known = [name for key in nodes for name in (also if key in also else [key])]
    stand_in = info.cls(**{name: node.stand_in for _, name, node, required in fields if required})

    def read(value: object, path: JsonPath, faults: Faults) -> object:
        if not isinstance(value, dict):
            faults.expected(path, "an object", value)
            return stand_in
        found = {}
        for key, name, node, is_required in fields:
            if key in value:
                found[name] = node.read(value[key], (*path, key), faults)
            elif is_required:
                faults.missing(path, key)
                found[name] = node.stand_in
        if info.forbid_unknown_fields:
            faults.unknown(path, value, known)
        return info.cls(**found)

    return _Node(read, stand_in, fields=nodes)


def _choice(choices: Mapping[str, type[Struct]]) -> _Node:
    """One of several structs; the first whose key the object has, or the last."""
    nodes = {
        key: _object(cast("inspect.StructType", inspect.type_info(struct)), choices)
        for key, struct in choices.items()
    }
    last = list(nodes.values())[-1]

    def read(value: object, path: JsonPath, faults: Faults) -> object:
        keys = value if isinstance(value, dict) else {}
        chosen = next((node for key, node in nodes.items() if key in keys), last)
        return chosen.read(value, path, faults)

    fields = {key: inner for node in nodes.values() for key, inner in node.fields.items()}
    return _Node(read, last.stand_in, fields=fields)


def _node(info: inspect.Type) -> _Node:
    """Return what walks values of a type as msgspec describes it."""
    extra: dict[str, Any] = {}
    if isinstance(info, inspect.Metadata):
        extra, info = info.extra or {}, info.type
    if "read" in extra:
        return _leaf(extra["read"], extra["stand_in"])
    if "choices" in extra:
        return _choice(extra["choices"])
    if isinstance(info, inspect.UnionType):
        # X | None is X, and None where it is absent.
        return _node(next(t for t in info.types if not isinstance(t, inspect.NoneType)))
    if isinstance(info, inspect.StructType):
        return _object(info)
    if isinstance(info, inspect.VarTupleType):
        return _list(_node(info.item_type), info.min_length or 0, extra.get("expected", "a list"))
    if isinstance(info, inspect.DictType):
        return _table(_node(info.value_type))
    assert isinstance(info, inspect.BoolType)  # all others have a reader
    return _leaf(a_boolean, False)


def read_json(path: str | os.PathLike[str], error: type[HeteroPlaceError]) -> object:
    """Return the parsed JSON of a file; what is a fault there, `parse_json` says.

    Raises
    ------
    HeteroPlaceError
        Of type `error`: the file cannot be read, or is not JSON (with line and column).
    """
    try:
        return parse_json(Path(path).read_text(encoding="utf-8"))
    except OSError as fault:
        raise error(unreadable(path, fault)) from fault
    except ValueError as fault:
        raise error(f"{os.fspath(path)}: not valid JSON: {fault}") from fault


def parse_json(text: str) -> object:
    """Return the value of JSON text. Repeated keys, NaN, Infinity and lone surrogates are faults.

    Raises
    ------
    ValueError
        The text is not JSON, or has one of these faults, or is nested too deeply.
    """
    try:
        value = json.loads(text, object_pairs_hook=_unique_keys, parse_constant=_no_constant)
        if _SURROGATE.search(text):
            # No encoding has them, so that nothing could be printed or written that holds one.
            json.dumps(value, ensure_ascii=False).encode()
    except RecursionError as fault:
        raise ValueError("it is nested too deeply") from fault
    except UnicodeEncodeError as fault:
        half = ascii(fault.object[fault.start])
        raise ValueError(f"a text holds {half}, half of a surrogate pair") from fault
    return value


def write_json(value: Mapping[str, object], path: str | os.PathLike[str]) -> None:
    """Write an object as JSON to `path`, with one line per element of its lists and objects.

    Atomic: readers see the old file or the new one.

    Raises
    ------
    OSError
        The folder does not exist or cannot be written to.
    """
    write_text(_layout(value), path)


def show(value: object) -> str:
    """Return a JSON value as short text for a message."""
    try:
        text = json.dumps(value, ensure_ascii=False)
    except RecursionError:  # It was read at less depth of calls than it is written at.
        return "something nested deeply"
    return text if len(text) <= _MAX_SHOWN else text[: _MAX_SHOWN - 3] + "..."


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return "; did you mean NEAREST?" or "" where nothing is near; small letters are as capitals.

    >>> did_you_mean("CONV", ["conv", "relu"])
    '; did you mean "conv"?'
    """
    names = {one.casefold(): one for one in reversed(list(known))}
    nearest = difflib.get_close_matches(name.casefold(), list(reversed(names)), n=1, cutoff=0.6)
    return f"; did you mean {show(names[nearest[0]])}?" if nearest else ""


def unreadable(path: str | os.PathLike[str], fault: OSError) -> str:
    """Return what is said of a file that cannot be read."""
    near = near_file(path) if isinstance(fault, FileNotFoundError) else ""
    return f"{os.fspath(path)}: cannot be read: {fault.strerror}{near}"


def near_file(path: str | os.PathLike[str]) -> str:
    """Return "; did you mean NAME?" of the files beside one that is not there; "": none is near."""
    try:
        names = sorted(one.name for one in Path(path).parent.iterdir())
    except OSError:
        return ""
    return did_you_mean(Path(path).name, names)


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


def _layout(value: Mapping[str, object]) -> str:
    """JSON text in which records are lines, so that `diff` and `grep` are of use."""
    entries = []
    dumped = partial(json.dumps, allow_nan=False)  # no reader takes what is no JSON
    for key, item in value.items():
        if isinstance(item, list) and item:
            rows = ",\n".join(f"  {dumped(element)}" for element in item)
            text = f"[\n{rows}\n ]"
        elif isinstance(item, dict) and item:
            rows = ",\n".join(f"  {dumped(k)}: {dumped(v)}" for k, v in item.items())
            text = f"{{\n{rows}\n }}"
        else:
            text = dumped(item)
        entries.append(f" {dumped(key)}: {text}")
    return "{\n" + ",\n".join(entries) + "\n}\n"


def _unique_keys(pairs: list[tuple[str, object]]) -> dict[str, object]:
    value = dict(pairs)
    if len(value) < len(pairs):
        counts = Counter(key for key, _ in pairs)
        repeated = next(key for key, count in counts.items() if count > 1)
        raise ValueError(f"the key {json.dumps(repeated)} occurs twice in one object")
    return value


def _no_constant(name: str) -> object:
    raise ValueError(f"{name} is not a JSON number")
