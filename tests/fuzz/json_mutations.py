"""JSON values and texts -> damaged ones: wrong types, sizes, names and records; bytes."""

from __future__ import annotations

import copy
import json
from random import Random
from typing import Any

Path = tuple[str | int, ...]
_RAW = "@raw:"
"""Begins a text that stands in the file without its quotes: JSON that `json.dumps` cannot write."""
_DEEP = "[" * 5000 + "]" * 5000
_HALF = '"\\ud800\\ud801"'
_RAWS = ("1e999", "-1e999", "NaN", "Infinity", "9" * 5000, _DEEP, _HALF)
_NUMBERS = (
    *(-1, 0, 1, 2, 7, -(2**63), 2**31, 2**53, 2**62, 2**63 - 1, 2**63, 2**64, 10**40, 0.5, -0.0),
    *(1e-300, 1e300, 1.7e308, 1.0, 3e18),
    *(_RAW + "1e999", _RAW + "-1e999", _RAW + "NaN", _RAW + "Infinity", _RAW + "9" * 5000),
)
_TEXTS = (
    *("", " ", "a", "\0", "\x1b[31mred\x1b[0m", "\r\n", "\u202eabc", "\u009b2J", "é漢", "\ud800"),
    *("x" * 3000, "$", "*", "[", "cpu", "cuda:99999999999999999999", "4 GiB", "1e9 GB/s", "0 B"),
    *("99999999999999999999 TiB", "nan s", "-1 us", "float32", "int4", "bool", "float0"),
)
_OTHERS = (None, True, False, [], {}, [[]], {"": {}}, _RAW + _DEEP, _RAW + _HALF)


def mutate_json(value: object, random: Random) -> bytes:
    """Return the bytes of a file that holds `value` with one to three faults."""
    damaged = copy.deepcopy(value)
    for _ in range(random.choice((1, 1, 1, 2, 3))):
        damaged = _mutate(damaged, random)
    data = _text(damaged, random).encode("utf-8", "surrogatepass")
    return mutate_bytes(data, random) if random.random() < 0.2 else data


def mutate_bytes(data: bytes, random: Random) -> bytes:
    """Return `data` with some bits turned, bytes put in or left out, or cut off."""
    found = bytearray(data)
    for _ in range(random.choice((1, 1, 2, 8))):
        at = random.randrange(len(found) + 1)
        kind = random.randrange(5)
        if kind == 0 and at < len(found):
            found[at] ^= 1 << random.randrange(8)
        elif kind == 1:
            found[at:at] = random.choice((b"\0", b"\xff", b'"', b"{", b"]", b",", b"\\u", b"1"))
        elif kind == 2:
            del found[at : at + random.choice((1, 2, 16, 256))]
        elif kind == 3:
            size = random.choice((1, 8, 64))
            found[at:at] = found[at : at + size]
        elif random.random() < 0.3:
            del found[at:]
    return bytes(found)


def paths(value: object, path: Path = ()) -> list[Path]:
    """Return where the values inside `value` stand, itself first."""
    found = [path]
    if isinstance(value, dict):
        entries: Any = value.items()
    elif isinstance(value, list):
        entries = enumerate(value)
    else:
        return found
    for key, element in entries:
        found += paths(element, (*path, key))
    return found


def _mutate(value: Any, random: Random) -> Any:
    all_paths = paths(value)
    path = random.choice(all_paths)
    if not path:
        return value if random.random() < 0.9 else _nasty(value, random)
    parent = _at(value, path[:-1])
    key = path[-1]
    old = parent[key]
    kind = random.randrange(8)
    if kind <= 2:
        parent[key] = _nasty(old, random)
    elif kind == 3:
        del parent[key]
    elif kind == 4:
        parent[key] = copy.deepcopy(_at(value, random.choice(all_paths)))
    elif isinstance(parent, dict):
        # Two of one key: one of them under a name that `_text` makes the same.
        name = f"{key}@again" if kind == 5 else random.choice(_TEXTS)
        parent[name] = copy.deepcopy(old)
        if kind > 6:
            del parent[key]
    else:
        parent.insert(random.randrange(len(parent) + 1), copy.deepcopy(old))
        if kind > 6:
            random.shuffle(parent)
    return value


def _nasty(old: object, random: Random) -> object:
    """Mostly of the same type as what it takes the place of."""
    kind = random.randrange(6)
    if isinstance(old, (int, float)) and kind < 4:
        return random.choice(_NUMBERS)
    if isinstance(old, str) and kind < 4:
        return random.choice(_TEXTS)
    return random.choice((*_NUMBERS, *_TEXTS, *_OTHERS))


def _at(value: Any, path: Path) -> Any:
    for key in path:
        value = value[key]
    return value


def _text(value: object, random: Random) -> str:
    text = json.dumps(value, ensure_ascii=random.random() < 0.5)
    text = text.replace('@again":', '":')
    for raw in _RAWS:
        text = text.replace(json.dumps(f"{_RAW}{raw}"), raw)
    return text
