"""Files of numpy -> the inputs of a compiled model; its outputs -> a file of numpy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np

from heteroplace.errors import ArtifactError, ExecutionError
from heteroplace.files.reader import did_you_mean
from heteroplace.relay.ranges.drawn import array_in
from heteroplace.relay.ranges.interval import Interval

Ports = Sequence[tuple[str, tuple[int, ...], str]]
"""Name, shape and type of each input or output."""
Arrays = Mapping[str, "np.ndarray[Any, Any]"]
_UNREADABLE = (OSError, ValueError, EOFError, BadZipFile)
"""What numpy raises of a file that it cannot read; a pickle is a ValueError."""


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
        A given one is of no input, or of another shape or type than the input.
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
    return np.ascontiguousarray(array, dtype=like.dtype)


def read_array(path: str) -> Any:
    """Return the array in a file of numpy.

    Raises
    ------
    ExecutionError
        There is none.
    """
    found = _load(path, "as an array", "numpy.save")
    if isinstance(found, dict):
        raise ExecutionError(f"{path}: holds several arrays; give a file of one, by numpy.save")
    return found


def read_arrays(path: str) -> dict[str, Any]:
    """Return the arrays in a file of several of numpy (.npz), by their names.

    Raises
    ------
    ExecutionError
        It is no such file.
    """
    writer = "numpy.savez(path, input_name=array, ...)"
    found = _load(path, "as .npz", writer)
    if not isinstance(found, dict):
        raise ExecutionError(
            f"{path}: cannot be read as .npz (it holds one array without a name); write it by "
            f"{writer}"
        )
    return found


def _load(path: str, kind: str, writer: str) -> Any:
    """The array in a file of numpy, or all of an archive by their names."""
    try:
        # Opened here, as numpy leaves a file open that is no archive after all.
        with Path(path).open("rb") as file:
            found = np.load(file, allow_pickle=False)
            is_one = isinstance(found, np.ndarray)
            return found if is_one else {name: found[name] for name in found.files}
    except _UNREADABLE as err:
        raise ExecutionError(
            f"{path}: cannot be read {kind} ({err}); write it by {writer}"
        ) from err


def write_outputs(path: str, outputs: Mapping[str, Any]) -> None:
    """Write the outputs as one file of numpy (.npz), by their names.

    Raises
    ------
    ArtifactError
        The file cannot be written.
    """
    try:
        with Path(path).open("wb") as file:
            np.savez(file, **outputs)
    except OSError as err:
        raise ArtifactError(f"{path}: cannot be written: {err.strerror}") from err
