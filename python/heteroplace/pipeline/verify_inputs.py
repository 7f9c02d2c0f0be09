"""The option `verify_inputs` -> arrays that are known to be inputs of a network.

They travel with the module, so that whoever builds it compares its outputs on them.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import tvm

from heteroplace.errors import ExecutionError, VerificationError
from heteroplace.measure.example_inputs import read_examples
from heteroplace.pipeline.place_state import PlaceState
from heteroplace.place_options import Arrays
from heteroplace.precision_option import is_auto
from heteroplace.relay.expressions import static_shape, tensor_types
from heteroplace.relay.module_source import (
    InputSet,
    read_input_sets,
    source_attribute,
    with_input_sets,
)
from heteroplace.run.arrays import InputPorts


def add(state: PlaceState) -> PlaceState:
    """Read the inputs of the option, or those that the module carries, and compare them with the
    inputs of the network."""
    given = state.options.verify_inputs
    if not given:
        return replace(state, input_sets=read_input_sets(state.mod))
    if not is_auto(state.options.precision):
        _check_source(state.mod)
    return replace(state, input_sets=_checked(given, state.known_network.mod["main"]))


def with_verify_inputs(mod: tvm.IRModule, given: Arrays | Sequence[Arrays]) -> tvm.IRModule:
    """Return a placed module whose outputs are compared on these inputs, too.

    Raises
    ------
    ExecutionError
        A file cannot be read, an input is missing or unknown, or has another shape or type.
    VerificationError
        Nothing is known that outputs could be compared with.
    """
    _check_source(mod)
    return with_input_sets(mod, _checked(given, mod["main"]))


def _check_source(mod: tvm.IRModule) -> None:
    if source_attribute(mod) is None:
        raise VerificationError(
            "verify_inputs are inputs on which outputs are compared with those of an ONNX model, "
            "and the module does not say which one it came from: only what frontend.from_onnx "
            "imports can be compared, and not after verify='off'; leave verify_inputs out"
        )


def _checked(given: Arrays | Sequence[Arrays], main: tvm.relay.Function) -> tuple[InputSet, ...]:
    """Read all sets; raises as `with_verify_inputs`."""
    ports = []
    for parameter in main.params:
        (type_,) = tensor_types(parameter.checked_type)
        ports.append((parameter.name_hint, static_shape(type_), str(type_.dtype)))
    is_one = isinstance(given, (Mapping, str, os.PathLike))
    sources = [cast(Arrays, given)] if is_one else list(cast(Sequence[Arrays], given))
    taking, sets = InputPorts(tuple(ports)), []
    for index, source in enumerate(sources):
        arrays: Mapping[str, Any]
        if isinstance(source, Mapping):
            name, arrays = f"verify_inputs[{index}]", source
        else:
            name, arrays = os.fspath(source), read_examples(source)
        missing = [repr(port) for port, _, _ in ports if port not in arrays]
        if missing:
            raise ExecutionError(
                f"{name}: has no array for input {', '.join(missing)}; expected one for each "
                f"input of the model"
            )
        try:
            sets.append(InputSet(name, taking.take(cast(Mapping[str, Any], arrays))))
        except ExecutionError as fault:
            raise ExecutionError(
                f"{name}: {fault}; expected arrays of these shapes and types, by the names of the "
                f"model's inputs (array.astype converts one)"
            ) from fault
    return tuple(sets)
