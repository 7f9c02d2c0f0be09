"""Arguments of public functions -> an error that says what is expected, where a type is wrong.

`did_you_mean` names what a misspelt name may stand for.
"""

from __future__ import annotations

import difflib
import json
import os
from collections.abc import Iterable, Mapping, Sequence

from heteroplace.errors import HeteroPlaceError

_MAX_SHOWN = 60


def check_type(
    name: str,
    value: object,
    types: type | tuple[type, ...],
    expected: str,
    error: type[HeteroPlaceError],
) -> None:
    """Raise `error` unless an argument is of one of some types.

    Parameters
    ----------
    name
        Of the argument.
    expected
        What it should be and how to get it, as the message says it.

    >>> check_type("path", 1, str, "the name of a file", HeteroPlaceError)
    Traceback (most recent call last):
    ...
    heteroplace.errors.HeteroPlaceError: path is 1, of type int; expected the name of a file
    """
    if not isinstance(value, types):
        of = type(value).__name__
        is_short = isinstance(value, (int, float, complex, str, bytes)) and len(repr(value)) < 80
        shown = f"{value!r}, of type {of}" if is_short else f"of type {of}"
        if value is None:
            shown = "None"
        raise error(f"{name} is {shown}; expected {expected}")


def is_list(value: object) -> bool:
    """Return whether an argument has several values; a text is one.

    >>> is_list([16, 64]), is_list(16), is_list("16")
    (True, False, False)
    """
    return isinstance(value, Sequence) and not isinstance(value, str)


def check_path(name: str, value: object, expected: str, error: type[HeteroPlaceError]) -> None:
    """Raise `error` unless an argument may be the path of a file; parameters as of `check_type`."""
    check_type(name, value, (str, os.PathLike), expected, error)


def check_mapping(name: str, value: object, expected: str, error: type[HeteroPlaceError]) -> None:
    """Raise `error` unless an argument is a mapping by text; parameters as of `check_type`."""
    check_type(name, value, Mapping, expected, error)
    assert isinstance(value, Mapping)
    for key in value:
        check_type(f"a key of {name}", key, str, expected, error)


def check_sequence(
    name: str,
    value: object,
    item: type | tuple[type, ...],
    expected: str,
    error: type[HeteroPlaceError],
) -> None:
    """Raise `error` unless an argument is a sequence of items of a type, and no text.

    Parameters as of `check_type`.
    """
    if isinstance(value, (str, bytes)):
        raise error(f"{name} is {value!r}, one text; expected {expected}")
    check_type(name, value, Sequence, expected, error)
    assert isinstance(value, Sequence)
    for index, one in enumerate(value):
        check_type(f"{name}[{index}]", one, item, expected, error)


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """Return "; did you mean NEAREST?" or "" where nothing is near; small letters are as capitals.

    >>> did_you_mean("CONV", ["conv", "relu"])
    '; did you mean "conv"?'
    """
    by_small = {one.casefold(): one for one in reversed(list(names))}
    nearest = difflib.get_close_matches(name.casefold(), list(reversed(by_small)), n=1, cutoff=0.6)
    return f"; did you mean {_quoted(by_small[nearest[0]])}?" if nearest else ""


def _quoted(name: str) -> str:
    text = json.dumps(name, ensure_ascii=False)
    return text if len(text) <= _MAX_SHOWN else text[: _MAX_SHOWN - 3] + "..."
