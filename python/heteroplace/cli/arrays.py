"""Given arrays, checked, and made-up ones -> all inputs of a compiled model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from heteroplace.errors import ExecutionError
from heteroplace.files.reader import did_you_mean
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
        that the input's type does not hold.
    """
    check_names(ports, given)
    random = np.random.default_rng(seed)
    found = {}
    for name, shape, dtype in ports:
        ends = legal.get(name)
        made = array_in(None if ends is None else Interval(*ends), shape, dtype, random)
        found[name] = made if name not in given else _checked(name, shape, made, given[name])
    return found


def check_names(ports: Ports, given: Arrays) -> None:
    """Raise ExecutionError where an array is of no input; the nearest name is told."""
    names = [name for name, _, _ in ports]
    for name in given:
        if name not in names:
            near = did_you_mean(name, names) or f"; it has: {', '.join(names)}"
            raise ExecutionError(f"the model has no input {name!r}{near}")


def _checked(name: str, shape: tuple[int, ...], like: Any, array: Any) -> Any:
    if tuple(array.shape) != tuple(shape):
        raise ExecutionError(
            f"input {name!r} has shape {list(array.shape)}, expected {list(shape)}"
        )
    if not np.can_cast(array.dtype, like.dtype, "same_kind"):
        raise ExecutionError(
            f"input {name!r} is of type {array.dtype}, expected {like.dtype}; convert it by "
            f"array.astype({str(like.dtype)!r})"
        )
    with np.errstate(over="ignore"):  # told below
        # Not ascontiguousarray, which makes a list of one number of a single number.
        found = np.asarray(array, dtype=like.dtype, order="C")
    if not _holds(found, array):
        raise ExecutionError(
            f"input {name!r} has values from {np.nanmin(array)} to {np.nanmax(array)} of type "
            f"{array.dtype}, of which {like.dtype}, which the model expects, does not hold all"
        )
    return found


def _holds(found: Any, array: Any) -> bool:
    """Whether a cast has kept whole numbers, and made no number infinite; it may round."""
    if found.dtype.kind in "biu":
        return bool(np.array_equal(found, array))
    return bool(np.array_equal(np.isinf(found), np.isinf(array)))
