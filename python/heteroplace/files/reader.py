"""JSON text -> its value -> the msgspec struct that describes it, or all faults of the file.

Text without faults becomes a struct at once (`decode_plain`), a parsed value too (`read_struct`).
Where msgspec refuses a value, `faults` lists what is wrong with it.
"""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TypeVar

import msgspec
from msgspec import Struct

from heteroplace.argument_checks import did_you_mean
from heteroplace.errors import HeteroPlaceError
from heteroplace.files.faults import Faults, note_form_faults
from heteroplace.files.fields.kind_keys import other_kind
from heteroplace.files.output import write_text

S = TypeVar("S", bound=Struct)
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


def read_struct(
    value: object, file: type[S], source: str, error: type[HeteroPlaceError]
) -> tuple[S, Faults]:
    """Return the struct that a parsed JSON value describes, and what takes faults across records.

    Parameters
    ----------
    value
        What `json.load` returned.
    file
        The struct.
    source
        What to call the value in messages.
    error
        What `Faults.check` raises.

    Raises
    ------
    HeteroPlaceError
        Of type `error`: the value is not of the struct's form (all faults are listed), or is a
        file of another kind.
    """
    if kinds_text := other_kind(value, file.__struct_encode_fields__):
        raise error(f"{source}: {kinds_text}")
    faults = Faults(source, error)
    try:
        return msgspec.convert(value, file), faults
    except msgspec.ValidationError:
        pass  # What follows finds all faults, or none but numbers such as 1.0.
    except RecursionError as fault:
        raise error(f"{source}: it is nested too deeply") from fault
    try:
        note_form_faults(value, file, faults)
        faults.check()
        return msgspec.convert(_with_whole_numbers(value), file), faults
    except msgspec.ValidationError as fault:  # of what no schema can say
        text, _, place = str(fault).partition(" - at `")
        raise error(f"{source}: {place.rstrip('`') or '$'}: {text}") from fault
    except RecursionError as fault:
        raise error(f"{source}: it is nested too deeply") from fault


def _with_whole_numbers(value: object) -> object:
    """The value with 1 for each 1.0, which is a whole number in JSON Schema."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, list):
        return [_with_whole_numbers(each) for each in value]
    if isinstance(value, dict):
        return {key: _with_whole_numbers(each) for key, each in value.items()}
    return value


def decode_plain(data: bytes, file: type[S]) -> S | None:
    """Return the struct in a file's bytes; None: `read_struct` must say what is wrong, or nothing.

    A whole number written as 1.0 is left to that, too.
    """
    try:
        decoded = msgspec.json.decode(data, type=file)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None
    return None if _may_repeat_keys(data, decoded) else decoded


def _may_repeat_keys(data: bytes, decoded: Struct) -> bool:
    """Tell whether an object may have a key twice, of which the decoder keeps the last.

    What was decoded has every key once. If that written again has as many colons as the file, the
    file had no more keys; an escaped colon in a text would spoil the count.
    """
    if b"\\" in data and b"\\u003" in data:
        return True
    return data.count(b":") != msgspec.json.encode(decoded).count(b":")


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
