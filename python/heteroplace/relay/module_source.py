"""The source of an imported module, and what outputs are compared on <-> attributes of its `main`.

The part that imported the module writes the source and reads it; the core only carries it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import tvm
from tvm import relay

SOURCE_ATTRIBUTE = "heteroplace_source"
"""Attribute of `main`: whatever the part needs to read its source again."""
VERIFY_ATTRIBUTE = "heteroplace_verify"
"""Attribute of `main`: option `verify` of the pass that placed the module."""

INPUTS_ATTRIBUTE = "heteroplace_verify_inputs"
"""Attribute of `main`: the arrays of the option `verify_inputs`; the first one holds the names."""


class InputSet(NamedTuple):
    """Inputs of one run on which outputs are compared."""

    name: str
    """Their file, or their position in the option `verify_inputs`."""
    arrays: Mapping[str, np.ndarray]
    """By the names of the inputs; of bfloat16 the bits, in `uint16`."""


def source_attribute(mod: tvm.IRModule) -> relay.Expr | None:
    """Return the source of a module; None: it has none."""
    attributes = mod["main"].attrs
    is_there = attributes is not None and SOURCE_ATTRIBUTE in attributes
    return attributes[SOURCE_ATTRIBUTE] if is_there else None


def with_source_attribute(mod: tvm.IRModule, source: relay.Expr | None) -> tvm.IRModule:
    """Return the module with another source; None: without one."""
    if source is None and source_attribute(mod) is None:
        return mod
    main = mod["main"]
    if source is None:
        main = main.without_attr(SOURCE_ATTRIBUTE)
    else:
        main = main.with_attr(SOURCE_ATTRIBUTE, source)
    return _with_main(mod, main)


def read_verify(mod: tvm.IRModule) -> str:
    """Return option `verify` of a module: "auto" before it is placed, "off" without a source."""
    attributes = mod["main"].attrs
    if source_attribute(mod) is None:
        return "off"
    return str(attributes[VERIFY_ATTRIBUTE]) if VERIFY_ATTRIBUTE in attributes else "auto"


def with_input_sets(mod: tvm.IRModule, sets: Sequence[InputSet]) -> tvm.IRModule:
    """Return the module with the inputs on which its outputs are to be compared."""
    names = json.dumps([[each.name, list(each.arrays)] for each in sets]).encode()
    arrays = [np.frombuffer(names, dtype="uint8").copy()]
    arrays += [array for each in sets for array in each.arrays.values()]
    carried = relay.Tuple([relay.const(array, array.dtype.name) for array in arrays])
    return _with_main(mod, mod["main"].with_attr(INPUTS_ATTRIBUTE, carried))


def read_input_sets(mod: tvm.IRModule) -> tuple[InputSet, ...]:
    """Return the inputs on which outputs are to be compared; empty: made-up ones alone."""
    attributes = mod["main"].attrs
    if attributes is None or INPUTS_ATTRIBUTE not in attributes:
        return ()
    names, *arrays = (field.data.numpy() for field in attributes[INPUTS_ATTRIBUTE].fields)
    values = iter(arrays)
    return tuple(
        InputSet(name, {key: next(values) for key in keys})
        for name, keys in json.loads(names.tobytes())
    )


def with_source_of(placed: tvm.IRModule, mod: tvm.IRModule, verify: str | None) -> tvm.IRModule:
    """Return a placed module with the source of the module that was placed, and its input sets.

    Parameters
    ----------
    verify
        The option of the pass; "off" drops the source. None: as `mod` says.
    """
    verify = verify or read_verify(mod)
    source = None if verify == "off" else source_attribute(mod)
    placed = with_source_attribute(placed, source)
    if sets := read_input_sets(mod):
        placed = with_input_sets(placed, sets)
    if source is None:
        return placed
    return _with_main(placed, placed["main"].with_attr(VERIFY_ATTRIBUTE, verify))


def _with_main(mod: tvm.IRModule, main: relay.Function) -> tvm.IRModule:
    return tvm.IRModule({**dict(mod.functions.items()), mod.get_global_var("main"): main})
