"""Types of option fields -> whether a value that a caller gave is of them.

Values of the wrong type are refused by the name of the option, before anything is compared with
them, or a text is taken for the list of its letters.
"""

from __future__ import annotations

import os
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from numbers import Integral, Real
from typing import Any

from heteroplace.errors import HeteroPlaceError
from heteroplace.options import options_of

_NAMES: dict[Any, str] = {
    int: "a whole number",
    float: "a number",
    str: "a text",
    bool: "True or False",
    types.NoneType: "None",
}


def check_types(
    cls: type, values: Mapping[str, Any], owner: str, error: type[HeteroPlaceError]
) -> None:
    """Raise `error` unless values have the types of the options of a dataclass.

    Parameters
    ----------
    values
        By the names of the fields; others keep their defaults.
    owner
        Whose options they are, for the message.
    """
    hints = typing.get_type_hints(cls)
    faults = []
    for entry in options_of(cls):
        if entry.attribute not in values:
            continue
        hint, value = hints[entry.attribute], values[entry.attribute]
        if not _takes(hint, value):
            expected = f"[{value!r}]" if _takes(hint, [value]) else _name(hint)
            if entry.placeholder is not None and "|" in entry.placeholder:
                expected += f" ({entry.placeholder})"
            faults.append(f"{entry.name} is {value!r}; expected {expected}")
    if faults:
        raise error(f"{owner}: {'; '.join(faults)}")


def _takes(hint: Any, value: Any) -> bool:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return True
    if origin in (typing.Union, types.UnionType):
        return any(_takes(each, value) for each in arguments)
    if hint in (int, float):
        kind = Integral if hint is int else Real
        return isinstance(value, kind) and not isinstance(value, bool)
    if origin in (tuple, Sequence):
        is_list = isinstance(value, Sequence) and not isinstance(value, (str, bytes))
        return is_list and all(_takes(arguments[0], each) for each in value)
    if origin is Mapping:
        of_key, of_value = arguments
        return isinstance(value, Mapping) and all(
            _takes(of_key, key) and _takes(of_value, each) for key, each in value.items()
        )
    if origin is Callable:
        return callable(value)
    return isinstance(value, hint if origin is None else origin)


def _name(hint: Any) -> str:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint in _NAMES:
        return _NAMES[hint]
    if origin in (typing.Union, types.UnionType):
        return " or ".join(dict.fromkeys(map(_name, arguments)))
    if origin in (tuple, Sequence):
        return f"a list, each entry {_name(arguments[0])}"
    if origin is Mapping:
        return f"a dict, each value {_name(arguments[1])}"
    if origin is os.PathLike:
        return "a path"
    if origin is Callable:
        return "a function"
    return f"a {hint.__name__}"
