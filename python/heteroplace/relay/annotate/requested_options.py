"""The options by which a module was placed or sharded <-> an attribute of its `main`.

So the same pass may run twice, and a pass with other options, which would do nothing, is refused.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from typing import Any

import tvm

from heteroplace.errors import LoweringError

_ATTRIBUTE = "heteroplace_asked"
"""Of `main`: options, one a line."""
_APART = frozenset({"params", "progress", "verify", "verify_inputs"})
"""Options that no plan depends on, or that attributes of their own hold; weights are bound."""
_WATCHERS = frozenset({"solver_progress"})
"""Options that only watch the work."""


def with_requested_options(mod: tvm.IRModule, options: Mapping[str, Any]) -> tvm.IRModule:
    """Return the module with the options that it was made by."""
    functions = dict(mod.functions.items())
    main = mod.get_global_var("main")
    functions[main] = functions[main].with_attr(_ATTRIBUTE, _text(options))
    return tvm.IRModule(functions, mod.type_definitions)


def other_options(mod: tvm.IRModule, options: Mapping[str, Any]) -> list[str]:
    """Return which of these options are not those that a module was made by; of one that does not
    say it, none."""
    attributes = mod["main"].attrs
    if attributes is None or _ATTRIBUTE not in attributes:
        return []
    made_by = set(str(attributes[_ATTRIBUTE]).splitlines())
    return sorted(line.partition("=")[0] for line in _lines(options) if line not in made_by)


def read_requested_options(mod: tvm.IRModule) -> dict[str, Any]:
    """Return the options that a module was made by, as keywords.

    Raises
    ------
    LoweringError
        The module cannot hold the value of an option, such as a function.
    """
    options: dict[str, Any] = {}
    for name, value in _texts(mod).items():
        if name in _WATCHERS:
            continue
        try:
            options[name] = ast.literal_eval(value)
        except (ValueError, SyntaxError) as err:
            raise LoweringError(
                f"the module was placed with {name}={value}, and it does not carry that value, "
                f"only its text; place the model again with {name}="
            ) from err
    return options


def requested_value(mod: tvm.IRModule, name: str, default: Any) -> Any:
    """Return one option by which a module was made, a Python literal; `default`: it was not
    given."""
    texts = _texts(mod)
    return ast.literal_eval(texts[name]) if name in texts else default


def _texts(mod: tvm.IRModule) -> dict[str, str]:
    """The values of the options by their names, as text."""
    attributes = mod["main"].attrs
    if attributes is None or _ATTRIBUTE not in attributes:
        return {}
    lines = str(attributes[_ATTRIBUTE]).splitlines()
    return {name: value for name, _, value in (line.partition("=") for line in lines)}


def _text(options: Mapping[str, Any]) -> str:
    return "\n".join(_lines(options))


def _lines(options: Mapping[str, Any]) -> list[str]:
    return [f"{name}={_shown(options[name])}" for name in sorted(options) if name not in _APART]


def _shown(value: Any) -> str:
    """The value as one line; of a function only its name, as each process has its own."""
    return getattr(value, "__qualname__", None) or repr(value).replace("\n", " ")
