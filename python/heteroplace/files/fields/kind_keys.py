"""What tells the kinds of JSON files apart: a key that only one kind has."""

from __future__ import annotations

from collections.abc import Iterable

from heteroplace.errors import GraphError
from heteroplace.terminal import listed

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

MOIRAI, DNN_PARTITIONING = "Moirai", "dnn-partitioning"
PUBLISHED_KEYS = {
    MOIRAI: ("device_memory", "tasks", "edges"),
    DNN_PARTITIONING: ("maxFPGAs", "nodes", "edges"),
}
"""Forms of task graphs that papers were published with, and the keys that tell them apart."""
GRAPH_FORMS = (
    'heteroplace\'s ("tasks" and "tensors"), Moirai\'s ("tasks", "edges" and "device_memory"), '
    'dnn-partitioning\'s ("nodes", "edges" and "maxFPGAs")'
)


def published_form(value: object) -> str | None:
    """Return the form of a published task graph by its parsed JSON; None: it is none.

    >>> published_form({"maxFPGAs": 1, "nodes": [], "edges": []}), published_form({"tasks": []})
    ('dnn-partitioning', None)
    """
    if not isinstance(value, dict):
        return None
    forms = [form for form, keys in PUBLISHED_KEYS.items() if all(key in value for key in keys)]
    return forms[0] if forms else None


def published_advice(form: str, path: str) -> str:
    """Return what to do with a published task graph where another file is expected."""
    return (
        f"{path}: is a task graph in the form of {form}, with devices of its own; `heteroplace "
        f"place --graph {path} -o solution.json` places it, and writes all that other "
        f"commands take"
    )


def check_graph_keys(value: object, source: str) -> None:
    """Raise GraphError where the keys of a parsed JSON value are not those of a graph file.

    The value of another kind of heteroplace's files passes: its faults say of which kind it is.
    """
    if (form := published_form(value)) is not None:
        raise GraphError(published_advice(form, source))
    if isinstance(value, dict) and ("tasks" in value or kind_of(value) is not None):
        return
    keys = listed(map(repr, value)) if isinstance(value, dict) else type(value).__name__
    raise GraphError(
        f"{source}: is no task graph; expected one of the forms {GRAPH_FORMS}; got "
        f"{keys or 'an empty object'}"
    )


def kind_of(value: object) -> str | None:
    """Return the kind of a file by its parsed JSON; None: it has no such key, or those of several.

    >>> kind_of({"tasks": []}), kind_of([])
    ('graph', None)
    """
    kinds = [kind for key, kind in KIND_KEYS.items() if isinstance(value, dict) and key in value]
    return kinds[0] if kinds and (len(kinds) == 1 or kinds[0] == "solution") else None


def other_kind(value: object, keys_read: Iterable[str]) -> str:
    """Return "is a KIND file; expected a KIND file" of a file that has not the key of its kind; ""
    where nothing is wrong. `known` are the keys that are expected."""
    keys = set(keys_read)
    own_kind = kind_of(value)
    expected = [kind for key, kind in KIND_KEYS.items() if key in keys]
    if own_kind is None or not expected or own_kind in expected:
        return ""
    return f"is a {own_kind} file; expected a {expected[0]} file"
