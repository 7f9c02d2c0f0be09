"""Convert single fields of cluster.json. Each converter raises ValueError with what it expects."""

from __future__ import annotations

import re
from collections.abc import Callable

from heteroplace.files.reader import a_count, a_name, list_of
from heteroplace.model.cluster import CONGESTION_MODES, COPY_ENGINES
from heteroplace.model.units import parse_bytes, parse_duration

_DEVICE = re.compile(r"(?s)(.+?)(?::([0-9]+))?")


def a_target(value: object) -> str:
    """Return a TVM target string; a dict becomes "KIND -key=value ..." with the keys sorted."""
    expected = (
        'a TVM target such as "llvm -mcpu=native" or {"kind": "cuda", "arch": "sm_75"} '
        "(values: text without spaces, whole numbers, true or false, lists of these)"
    )
    if isinstance(value, str) and value.strip():
        return value
    if not isinstance(value, dict) or not isinstance(value.get("kind"), str):
        raise ValueError(expected)
    words = [value["kind"]]
    for key in sorted(value):
        if key != "kind":
            elements = value[key] if isinstance(value[key], list) else [value[key]]
            words.append(f"-{key}={','.join(_target_word(e, expected) for e in elements)}")
    if any(not word or any(c.isspace() for c in word) for word in words):
        raise ValueError(expected)
    return " ".join(words)


def _target_word(value: object, expected: str) -> str:
    if isinstance(value, str) and value:
        return value
    if isinstance(value, int):
        return str(int(value))
    raise ValueError(expected)


def a_kind_and_index(value: object) -> tuple[str, int]:
    """Split "cuda:1" into its kind and number; "cuda" is "cuda:0", as in TVM."""
    match = _DEVICE.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        raise ValueError('a device kind and number such as "cuda:1" or "cpu:0"')
    return match[1], int(match[2] or 0)


def a_size_or_name(value: object) -> int | str:
    """Return the bytes in a size, or the text that must then name a memory."""
    expected = 'the name of a memory, or a size > 0 such as "16 GiB"'
    if isinstance(value, str) and not _is_size(value):
        if not value:
            raise ValueError(expected)
        return value
    try:
        return positive(parse_bytes)(value)
    except ValueError:
        raise ValueError(expected) from None


def a_memory_name(value: object) -> str:
    """Accept a name that cannot be taken for a size."""
    if _is_size(value):
        raise ValueError("a name that is not also a size")
    return a_name(value)


def _is_size(value: object) -> bool:
    try:
        parse_bytes(value)
    except ValueError:
        return False
    return isinstance(value, str)


def a_congestion_mode(value: object) -> str:
    """Accept the name of a congestion mode."""
    if value not in CONGESTION_MODES:
        raise ValueError(f"one of {', '.join(CONGESTION_MODES)}")
    return str(value)


def a_number_of_copy_engines(value: object) -> int:
    """Accept 0, 1 or 2; no limit is said by leaving the key out."""
    expected = "0, 1 or 2"
    try:
        count = a_count(value)
    except ValueError:
        raise ValueError(expected) from None
    if count not in COPY_ENGINES:
        raise ValueError(expected)
    return count


def batch_sizes(value: object) -> tuple[int, ...]:
    """Accept a list of different numbers >= 1; returned in ascending order."""
    expected = "a list of different numbers >= 1 such as [1, 2, 4]"
    sizes = list_of(positive(a_count), expected)(value)
    if not sizes or len(set(sizes)) < len(sizes):
        raise ValueError(expected)
    return tuple(sorted(sizes))


def core_numbers(value: object) -> tuple[int, ...]:
    """Accept a list of different core numbers."""
    expected = "a list of different core numbers such as [0, 1]"
    cores = list_of(a_count, expected)(value)
    if not cores or len(set(cores)) < len(cores):
        raise ValueError(expected)
    return cores


def a_list_of_devices(value: object) -> list[object]:
    """Accept a list that is not empty."""
    if not isinstance(value, list) or not value:
        raise ValueError("a list of at least one device")
    return value


def positive(parse: Callable[[object], int]) -> Callable[[object], int]:
    """Return `parse` with 0 refused."""

    def parse_positive(value: object) -> int:
        number = parse(value)
        if number <= 0:
            raise ValueError("more than 0")
        return number

    return parse_positive


def measured_transfers(value: object) -> tuple[tuple[int, int], ...]:
    """Accept a list of (size, duration) pairs with different sizes; in ascending order of size."""
    expected = 'a list of sizes, each once, with a duration, such as [["1 MiB", "90 us"]]'

    def pair(entry: object) -> tuple[int, int]:
        if not isinstance(entry, list) or len(entry) != 2:
            raise ValueError(expected)
        return positive(parse_bytes)(entry[0]), parse_duration(entry[1])

    pairs = list_of(pair, expected)(value)
    if len({size for size, _ in pairs}) < len(pairs):
        raise ValueError(expected)
    return tuple(sorted(pairs))
