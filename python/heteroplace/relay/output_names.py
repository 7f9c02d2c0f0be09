"""Names of a model and of its outputs <-> attributes of `main`.

Relay has no names for either. An ONNX model has them, and its users read outputs by name.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tvm

OUTPUTS_ATTRIBUTE = "heteroplace_outputs"
"""Attribute of `main`: the names as an array, in the order of the outputs."""
GRAPH_ATTRIBUTE = "heteroplace_graph"
"""Attribute of `main`: the name of the model's graph."""
UNNAMED_GRAPH = "model"
"""Name of a graph whose module has none."""


def with_graph_name(mod: tvm.IRModule, name: str) -> tvm.IRModule:
    """Return the module with a name for its task graph; the same module for an empty name."""
    return _with_attribute(mod, GRAPH_ATTRIBUTE, name) if name else mod


def read_graph_name(mod: tvm.IRModule) -> str:
    """Return the name of the task graph of a module; `UNNAMED_GRAPH` if it has none."""
    attributes = mod["main"].attrs
    is_there = attributes is not None and GRAPH_ATTRIBUTE in attributes
    return str(attributes[GRAPH_ATTRIBUTE]) if is_there else UNNAMED_GRAPH


def with_output_names(mod: tvm.IRModule, names: Sequence[str]) -> tvm.IRModule:
    """Return the module with names for its outputs; the same module if there are none."""
    if not names:
        return mod
    return _with_attribute(mod, OUTPUTS_ATTRIBUTE, tvm.runtime.convert(list(names)))


def _with_attribute(mod: tvm.IRModule, name: str, value: Any) -> tvm.IRModule:
    main = mod["main"].with_attr(name, value)
    return tvm.IRModule({**dict(mod.functions.items()), mod.get_global_var("main"): main})


def read_output_names(mod: tvm.IRModule) -> tuple[str, ...]:
    """Return the names of the outputs of `main`, in order; empty: it has none."""
    attributes = mod["main"].attrs
    if attributes is None or OUTPUTS_ATTRIBUTE not in attributes:
        return ()
    return tuple(str(name) for name in attributes[OUTPUTS_ATTRIBUTE])


def port_names(names: Sequence[str], taken: Sequence[str], count: int) -> list[str]:
    """Return a distinct name for each of `count` outputs.

    An output without a name is `output0`, `output1`, ... by its position. A name that an earlier
    output or one of `taken` has already gets the first free suffix `.1`, `.2`, ...

    >>> port_names(["logits", "", "x", "logits"], ["x"], 4)
    ['logits', 'output1', 'x.1', 'logits.1']
    """
    # Names of a module whose outputs a pass has changed say nothing about the new ones.
    requested = list(names) if len(names) == count else [""] * count
    unique: list[str] = []
    # No suffix may take a name that another output has of its own.
    used = {*taken}
    owned = {name for name in requested if name}
    for index, request in enumerate(requested):
        base = request or f"output{index}"
        name, suffix = base, 0
        while name in used or (name in owned and name != request):
            suffix += 1
            name = f"{base}.{suffix}"
        used.add(name)
        unique.append(name)
    return unique
