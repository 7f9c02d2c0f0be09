"""Files of numpy <-> arrays: one (.npy), or several by their names (.npz)."""

from __future__ import annotations

import io
import os
import tokenize
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np

from heteroplace.errors import ArtifactError, ExecutionError
from heteroplace.files.output import write_bytes
from heteroplace.terminal import listed

_UNREADABLE = (
    *(OSError, ValueError, EOFError, BadZipFile, zlib.error, RuntimeError, MemoryError),
    *(SyntaxError, tokenize.TokenError, TypeError),
)
"""What numpy raises of a file that it cannot read: a pickle is a ValueError, an encrypted archive a
RuntimeError, and a damaged header is no Python or tells of more than there is memory for."""


def read_array(path: str | os.PathLike[str]) -> Any:
    """Return the array in a file of numpy.

    Raises
    ------
    ExecutionError
        There is none.
    """
    array = _load(path, "as an array", "numpy.save")
    if isinstance(array, dict):
        names = f" ({listed(map(repr, array))})" if array else ""
        raise ExecutionError(
            f"{path}: is an archive (.npz), arrays by name: {len(array)}{names}; "
            f"expected a file of one array (.npy), written by numpy.save"
        )
    return array


def read_arrays(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Return the arrays in a file of several of numpy (.npz), by their names.

    Raises
    ------
    ExecutionError
        It is no such file.
    """
    writer = "numpy.savez(path, input_name=array, ...)"
    arrays = _load(path, "as .npz", writer)
    if not isinstance(arrays, dict):
        raise ExecutionError(
            f"{path}: cannot be read as .npz (it holds one array without a name); write it by "
            f"{writer}"
        )
    return arrays


def _load(path: str | os.PathLike[str], kind: str, writer: str) -> Any:
    """The array in a file of numpy, or all of an archive by their names."""
    try:
        # Opened here, as numpy leaves a file open that is no archive after all.
        with Path(path).open("rb") as file:
            loaded = np.load(file, allow_pickle=False)
            is_one = isinstance(loaded, np.ndarray)
            return loaded if is_one else {name: loaded[name] for name in loaded.files}
    except ValueError as err:
        # numpy advises to load it unsafely, which would run code out of the file.
        is_pickle = "pickle" in str(err)
        why = "it holds Python objects, no numbers" if is_pickle else str(err)
        text = f"{path}: cannot be read {kind} ({why}); write it by {writer}"
        raise ExecutionError(text + ", from an array of numbers" * is_pickle) from err
    except _UNREADABLE as err:
        raise ExecutionError(
            f"{path}: cannot be read {kind} ({err}); write it by {writer}"
        ) from err


def write_arrays(path: str | os.PathLike[str], arrays: Mapping[str, Any]) -> None:
    """Write arrays as one file of numpy (.npz), by their names; an older file is replaced whole.

    Raises
    ------
    ArtifactError
        The file cannot be written.
    """
    written = io.BytesIO()
    # Not `np.savez`, which has parameters of its own that an array may be called.
    with zipfile.ZipFile(written, "w", allowZip64=True) as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, np.asanyarray(array), allow_pickle=False)
    try:
        write_bytes(written.getbuffer(), path)
    except OSError as err:
        raise ArtifactError(f"{path}: cannot be written: {err.strerror}") from err
