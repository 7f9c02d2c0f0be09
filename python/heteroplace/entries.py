"""A text "module:name" -> what it names, loaded on demand: so that only its users load it."""

from __future__ import annotations

import importlib
import importlib.util
from typing import Any


def load_entry(entry: str) -> Any:
    """Return what "module:name" names; the module is loaded now.

    Raises
    ------
    ModuleNotFoundError
        The module is not installed; the wheel heteroplace-runtime has few of ours.
    """
    module, _, name = entry.partition(":")
    try:
        return getattr(importlib.import_module(module), name)
    except ModuleNotFoundError as err:
        if err.name is None or not err.name.startswith("heteroplace."):
            raise
        raise _not_installed(err.name) from err


def check_installed(module: str) -> None:
    """Raise ModuleNotFoundError where the wheel heteroplace-runtime has left out a module."""
    if importlib.util.find_spec(module) is None:
        raise _not_installed(module)


def _not_installed(module: str) -> ModuleNotFoundError:
    text = f"{module} is not installed: heteroplace-runtime only loads, runs and serves files"
    return ModuleNotFoundError(f"{text}; run: pip install heteroplace", name=module)
