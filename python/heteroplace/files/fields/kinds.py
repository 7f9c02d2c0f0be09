"""Tell what a file is by its content: cluster, graph, costs, plan, solution, sharding (a solution
and how its graph was made of a model), profile of route decisions or compiled model."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

from heteroplace.errors import HeteroPlaceError
from heteroplace.files.fields.kind_keys import KIND_KEYS, kind_of, published_advice, published_form
from heteroplace.files.manifest import ELF_MAGIC
from heteroplace.files.reader import read_json, unreadable

# A protocol buffer whose first field is a number, as `ir_version` of an ONNX model; no text.
_ONNX_START = b"\x08"


def read_known_file(path: str | os.PathLike[str]) -> tuple[str, object]:
    """Return the kind of a file and its parsed JSON, which is None for a compiled "model".

    Raises
    ------
    HeteroPlaceError
        The file cannot be read, or is of no kind that heteroplace writes; a network says how to
        make a task graph of it.
    """
    source = os.fspath(path)
    try:
        with Path(path).open("rb") as file:
            start = file.read(len(ELF_MAGIC))
    except OSError as fault:
        raise HeteroPlaceError(unreadable(path, fault)) from fault
    except ValueError as fault:  # a path that no file has
        raise HeteroPlaceError(f"{source!a}: cannot be read: {fault}") from fault
    if start == ELF_MAGIC:
        return "model", None
    if source.endswith(".onnx") or start.startswith(_ONNX_START):
        raise HeteroPlaceError(
            f"{source}: expected a file that heteroplace wrote, got an ONNX model; make a task "
            f"graph of it by `heteroplace profile {shlex.quote(source)} --cluster cluster.json "
            f"--graph-out graph.json -o costs.json`"
        )
    try:
        value = read_json(path, HeteroPlaceError)
    except HeteroPlaceError as fault:
        raise HeteroPlaceError(
            f"{fault}; expected a JSON file or a compiled model that heteroplace wrote"
        ) from fault
    if (form := published_form(value)) is not None:
        raise HeteroPlaceError(published_advice(form, source))
    kind = kind_of(value)
    if kind is None:
        expected = ", ".join(f"{key!r} ({kind})" for key, kind in KIND_KEYS.items())
        description = (
            ", ".join(map(repr, value)) if isinstance(value, dict) else type(value).__name__
        )
        raise HeteroPlaceError(
            f"{source}: cannot tell what it is; expected a compiled model, or an object with one "
            f"of the keys {expected}; got {description or 'an empty object'}"
        )
    return kind, value
