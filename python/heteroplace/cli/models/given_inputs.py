"""Arrays for a model's inputs -> the sizes and values that they fix when it is compiled.

An array fixes the free sizes of its input. Its values become constants where the model needs them
to be compiled: axes and sizes, and single integers that decide a branch of an `If`.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from heteroplace.argument_checks import is_list
from heteroplace.cli.models.model_arrays import Arrays
from heteroplace.errors import HeteroPlaceError
from heteroplace.frontends import frontend_of, named_shapes, open_sizes
from heteroplace.options import Argument, count, key_value, named_pairs
from heteroplace.run.array_files import read_array
from heteroplace.state_option import StateNames, joined_state

_SIZES = r"-?[0-9]+(,-?[0-9]+)*"


@dataclass(frozen=True)
class InputSizes:
    """Sizes and values of a model's inputs that its file leaves free."""

    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """Sizes that the command line gives, by input."""
    batch: int | None = None
    """Rows of those whose first size is free."""
    of_arrays: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """Shapes that arrays have, by input. -1: rows, by `batch`."""
    values: Mapping[str, Any] = field(default_factory=dict)
    """Values, as lists or numbers, of inputs that become constants."""
    command: str = "run"
    """The subcommand that was called."""
    state: StateNames = ""
    """The option `state`."""


def add_input(parser: argparse._ActionsContainer, arrays: str) -> None:
    """Add --input; `arrays` says what the command does with them."""
    parser.add_argument(
        "--input",
        metavar="NAME=FILE.npy|N,N",
        type=Argument(_input),
        action="append",
        default=[],
        help=f"an array for an input, {arrays}; or the sizes of an input that the model leaves "
        "open, as x=1,3,224,224; may be repeated",
    )


def add_input_sizes(parser: argparse.ArgumentParser, arrays: str = "to measure with") -> None:
    """Add --input, --size, --batch and --fix."""
    add_input(parser, arrays)
    parser.add_argument(
        "--size",
        metavar="NAME=N",
        type=Argument(_named_size),
        action="append",
        default=[],
        help="a size that the model leaves open, by its name in the model, such as "
        "sequence_length=128; may be repeated. `heteroplace compile` takes several values of one, "
        "as sequence_length=16,64,256: the file then takes calls of any length up to the largest, "
        "padded to the next value",
    )
    parser.add_argument(
        "--batch",
        type=count,
        metavar="N",
        help="rows of the inputs whose first size the model leaves open",
    )
    parser.add_argument(
        "--fix",
        metavar="NAME=VALUE",
        type=Argument(fixed_value),
        action="append",
        default=[],
        help="make an input a constant: a number, [1,2] or a file .npy; may be repeated. It is no "
        "input of the compiled model, and branches that it decides are chosen now",
    )


def _counts(text: str) -> int | tuple[int, ...]:
    """Read N, or N,N."""
    numbers = tuple(map(count, text.split(",")))
    return numbers if len(numbers) > 1 else numbers[0]


_named_size = key_value("NAME=N or NAME=N,N, such as 'sequence_length=128'", _counts)


def _input(text: str) -> tuple[str, str | tuple[int, ...]]:
    """Read NAME=FILE.npy or NAME=N,N of --input."""
    expected = "NAME=FILE.npy or sizes, such as 'x=x.npy' or 'x=1,3,224,224'"
    name, value = key_value(expected, at_first=True)(text)
    if re.fullmatch(_SIZES, value) is None:
        return name, value
    return name, tuple(map(int, value.split(",")))


def input_arrays(arguments: argparse.Namespace) -> dict[str, Any]:
    """Read the arrays of --input, by input.

    Raises
    ------
    HeteroPlaceError
        An input is given twice, or a file cannot be read.
    """
    given = named_pairs("--input", arguments.input)
    return {name: read_array(value) for name, value in given.items() if isinstance(value, str)}


def input_shapes(arguments: argparse.Namespace) -> dict[str, tuple[int, ...]]:
    """Return the sizes of --input, by input."""
    given = named_pairs("--input", arguments.input)
    return {name: value for name, value in given.items() if not isinstance(value, str)}


def inputs_of_model(
    model: Path, arguments: argparse.Namespace
) -> tuple[dict[str, tuple[int, ...]], dict[str, Any], dict[str, Any]]:
    """Return the sizes that --input gives, the values that its arrays fix, and the arrays.

    For commands without --batch and --fix. Raises as `input_arrays`.
    """
    arrays = input_arrays(arguments)
    shapes, values = frontend_of(model).fixed_by_arrays(model, arrays, None) if arrays else ({}, {})
    return {**shapes, **input_shapes(arguments)}, dict(values), arrays


def input_sizes(
    model: Path,
    arrays: Arrays,
    arguments: argparse.Namespace,
    entry: Mapping[str, int] = MappingProxyType({}),
) -> InputSizes:
    """Return what --input, --size, --batch and --fix say, and what the arrays for inputs fix.

    Parameters
    ----------
    entry
        Further sizes by name.

    Raises
    ------
    HeteroPlaceError
        An input is fixed to a value, and given another array; or a size has several values, of
        which `entry` has none.
    """
    values = named_pairs("--fix", arguments.fix)
    named = {**named_pairs("--size", arguments.size), **entry}
    for name, size in named.items():
        if is_list(size):
            raise HeteroPlaceError(
                f"--size {name}={','.join(map(str, size))}: several values make a file that takes "
                f"calls of any length, which `heteroplace compile` does; give one value here"
            )
    state = _state(arguments)
    free = open_sizes(frontend_of(model), model, named, state) if named else {}
    shapes = {**named_shapes(free, named), **input_shapes(arguments)}
    sizes = InputSizes(
        shapes, arguments.batch, values=values, command=arguments.command, state=state
    )
    for name, value in sizes.values.items():
        if name in arrays and not np.array_equal(arrays[name], value):
            raise HeteroPlaceError(
                f"input {name!r} is fixed to {value} by --fix, and --input gives another value; "
                f"leave one of both out"
            )
    if not arrays:
        return sizes
    of_arrays, fixed = frontend_of(model).fixed_by_arrays(model, arrays, sizes.batch)
    return replace(sizes, of_arrays=of_arrays, values={**fixed, **sizes.values})


def _state(arguments: argparse.Namespace) -> StateNames:
    """Return the option --state of a command; "": it is not given, or there is none."""
    try:
        return joined_state(getattr(arguments, "state", None) or ()) or ""
    except ValueError as err:
        raise HeteroPlaceError(f"--state: {err}") from err


def measured_inputs(arrays: Arrays, sizes: InputSizes) -> dict[str, Any]:
    """Return the option `inputs` of a placement: the arrays that costs are measured with."""
    left = left_inputs(arrays, sizes)
    return {"inputs": left} if left else {}


def left_inputs(given: Arrays, sizes: InputSizes) -> dict[str, Any]:
    """Return the arrays whose inputs are left after compiling."""
    return {name: array for name, array in given.items() if name not in sizes.values}


def fixed_value(text: str) -> tuple[str, Any]:
    """Read NAME=VALUE of --fix: a number, a list of numbers as JSON, or a file of one array."""
    name, value = key_value("NAME=VALUE, such as 'sr=16000'", at_first=True)(text)
    if value.endswith(".npy"):
        return name, read_array(value).tolist()
    try:
        return name, json.loads(value)
    except json.JSONDecodeError as err:
        raise ValueError(
            f"{text!r}: expected a number, a list such as [1,2], or a file .npy after {name}="
        ) from err
