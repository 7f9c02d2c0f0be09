"""Given arrays, checked, and made-up ones -> all inputs of a compiled model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from heteroplace.argument_checks import did_you_mean
from heteroplace.bfloat16_bits import bfloat16_bits
from heteroplace.errors import ExecutionError
from heteroplace.relay.ranges.drawn import array_in
from heteroplace.relay.ranges.interval import Interval

Ports = Sequence[tuple[str, tuple[int, ...], str]]
"""Name, shape and type of each input or output."""
Arrays = Mapping[str, "np.ndarray[Any, Any]"]


def make_inputs(
    ports: Ports,
    given: Arrays,
    legal: Mapping[str, tuple[float, float]],
    seed: int,
) -> dict[str, Any]:
    """Return an array for each input: the given ones, the others made up.

    Parameters
    ----------
    legal
        By input the least and the largest number to make up; others: normally distributed floating
        point numbers, 0 and 1 for integers.
    seed
        Of the numbers that are made up.

    Raises
    ------
    ExecutionError
        A given one is of no input, of another shape or kind of type than the input, or has numbers
        that the input's type does not hold. For a bfloat16 its bits are given as `uint16`, or
        floating point numbers, which are rounded.
    """
    check_names(ports, given)
    random = np.random.default_rng(seed)
    inputs = {}
    for name, shape, dtype in ports:
        ends = legal.get(name)
        array = array_in(None if ends is None else Interval(*ends), shape, dtype, random)
        inputs[name] = (
            array if name not in given else checked_input(name, shape, dtype, given[name])
        )
    return inputs


def check_names(ports: Ports, given: Arrays) -> None:
    """Raise ExecutionError where an array is of no input; the nearest name is told."""
    names = [name for name, _, _ in ports]
    for name in given:
        if name not in names:
            near = did_you_mean(name, names) or f"; it has: {', '.join(names)}"
            raise ExecutionError(f"the model has no input {name!r}{near}")


def numbers_of(array: Any, dtype: str) -> Any:
    """Return the numbers of an input or output: where the array has bits of bfloat16, as float32.

    The bits are the upper halves of those of float32.
    """
    if dtype != "bfloat16":
        return array
    return (np.asarray(array, "uint32") << 16).view("float32")


def checked_input(name: str, shape: tuple[int, ...], dtype: str, array: Any) -> Any:
    """Return a given array in the type of its input; raises as `make_inputs`."""
    if tuple(array.shape) != tuple(shape):
        raise ExecutionError(
            f"input {name!r} has shape {list(array.shape)}, expected {list(shape)}"
        )
    with np.errstate(over="ignore"):  # told below
        checked = (
            _cast_to_bfloat16(name, array) if dtype == "bfloat16" else _cast(name, array, dtype)
        )
    if not _holds(checked, array, dtype):
        raise ExecutionError(
            f"input {name!r} has values from {np.nanmin(array)} to {np.nanmax(array)} of type "
            f"{array.dtype}, of which {dtype}, which the model expects, does not hold all"
        )
    return checked


def _cast(name: str, array: Any, dtype: str) -> Any:
    if not np.can_cast(array.dtype, dtype, "same_kind"):
        raise ExecutionError(
            f"input {name!r} is of type {array.dtype}, expected {dtype}; convert it by "
            f"array.astype({dtype!r})"
        )
    # Not ascontiguousarray, which makes a list of one number of a single number.
    return np.asarray(array, dtype=dtype, order="C")


def _cast_to_bfloat16(name: str, array: Any) -> Any:
    """The bits: as they are given, or of the nearest numbers, of two the even one."""
    if np.can_cast(array.dtype, "uint16", "equiv"):
        return np.asarray(array, dtype="uint16", order="C")
    if array.dtype.kind != "f":
        raise ExecutionError(
            f"input {name!r} is of type {array.dtype}, expected bfloat16: floating point numbers, "
            "which are rounded, or the bits of each as uint16"
        )
    return bfloat16_bits(array)


def _holds(cast_array: Any, array: Any, dtype: str) -> bool:
    """Whether a cast has kept whole numbers, and made no number infinite; it may round."""
    if cast_array.dtype.kind in "biu" and array.dtype.kind != "f":
        return bool(np.array_equal(cast_array, array))
    return bool(np.array_equal(np.isinf(numbers_of(cast_array, dtype)), np.isinf(array)))
