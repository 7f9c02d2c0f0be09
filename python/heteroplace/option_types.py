"""Values of options: whether a caller gave the right types, and how texts of sizes are read.

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

from heteroplace.errors import HeteroPlaceError, SolverError
from heteroplace.model.demands import memory_limit
from heteroplace.model.units import parse_bytes
from heteroplace.options import key_value, options_of

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


def memory_pair(text: str) -> tuple[str, str]:
    """Read DEVICE=SIZE.

    >>> memory_pair("gpu0=10 GiB")
    ('gpu0', '10 GiB')
    """
    name, size = key_value("DEVICE=SIZE, such as 'gpu0=10GiB'")(text)
    try:
        memory_limit(name, size)
    except SolverError as err:
        raise ValueError(str(err)) from err
    return name, size


def budget_bytes(budget: int | str | None) -> int | None:
    """Return the option `weights_budget` in bytes.

    Raises
    ------
    SolverError
        It is no size.

    Examples
    --------
    >>> budget_bytes("40 MiB")
    41943040
    """
    try:
        return None if budget is None else parse_bytes(budget)
    except ValueError as err:
        raise SolverError(f"weights_budget={budget!r}: expected {err}") from err
