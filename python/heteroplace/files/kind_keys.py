"""What tells the kinds of JSON files apart: a key that only one kind has."""

from __future__ import annotations

from collections.abc import Iterable

KIND_KEYS = {
    "sharding_version": "sharding",
    "placement_version": "solution",
    "devices": "cluster",
    "tasks": "graph",
    "costs": "costs",
    "steps": "plan",
    "profiled_routers": "routes",
}
"""A solution has keys of other kinds too: it stands before them."""


def kind_of(value: object) -> str | None:
    """Return the kind of a file by its parsed JSON; None: it has no such key, or those of several.

    >>> kind_of({"tasks": []}), kind_of([])
    ('graph', None)
    """
    kinds = [kind for key, kind in KIND_KEYS.items() if isinstance(value, dict) and key in value]
    return kinds[0] if kinds and (len(kinds) == 1 or kinds[0] == "solution") else None


def other_kind(value: object, known: Iterable[str]) -> str:
    """Return "is a KIND file; expected a KIND file" of a file that has not the key of its kind; ""
    where nothing is wrong. `known` are the keys that are expected."""
    keys = set(known)
    found = kind_of(value)
    expected = [kind for key, kind in KIND_KEYS.items() if key in keys]
    if found is None or not expected or found in expected:
        return ""
    return f"is a {found} file; expected a {expected[0]} file"
