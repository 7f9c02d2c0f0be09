"""Arrays for a model's inputs -> the sizes and values that they fix when it is compiled.

An array fixes the free sizes of its input. Its values become constants where the model needs them
to be compiled: axes and sizes, and single integers that decide a branch of an `If`.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from heteroplace.cli.models.model_arrays import Arrays
from heteroplace.errors import HeteroPlaceError
from heteroplace.frontends import frontend_of
from heteroplace.options import key_value, named_pairs
from heteroplace.run.array_files import read_array


@dataclass(frozen=True)
class InputSizes:
    """Sizes and values of a model's inputs that its file leaves free."""

    shapes: str | None = None
    """As tvmc has them: "x:[1,3,224,224] y:[1,8]"."""
    batch: int | None = None
    """Rows of those whose first size is free."""
    of_arrays: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """Shapes that arrays have, by input; `shapes` goes first. -1: rows, by `batch`."""
    values: Mapping[str, Any] = field(default_factory=dict)
    """Values, as lists or numbers, of inputs that become constants."""
    command: str = "run"
    """The subcommand that was called."""


def input_sizes(arguments: argparse.Namespace) -> InputSizes:
    """Return what --input-shapes, --batch and --fix say."""
    values = named_pairs("--fix", arguments.fix)
    return InputSizes(
        arguments.input_shapes, arguments.batch, values=values, command=arguments.command
    )


def sizes_of_run(model: Path, given: Arrays, arguments: argparse.Namespace) -> InputSizes:
    """Return what the options of `run` say, and what the arrays for its inputs fix.

    Raises
    ------
    HeteroPlaceError
        An input is fixed to a value, and given another array.
    """
    sizes = input_sizes(arguments)
    for name, value in sizes.values.items():
        if name in given and not np.array_equal(given[name], value):
            raise HeteroPlaceError(
                f"input {name!r} is fixed to {value} by --fix, and --input gives another value; "
                f"leave one of both out"
            )
    if not given:
        return sizes
    shapes, values = frontend_of(model).fixed_by_arrays(model, given, sizes.batch)
    return replace(sizes, of_arrays=shapes, values={**values, **sizes.values})


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
