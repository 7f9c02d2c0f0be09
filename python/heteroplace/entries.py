"""A text "module:name" -> what it names, loaded on demand: so that only its users load it."""

from __future__ import annotations

import importlib
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
        text = f"{err.name}: heteroplace-runtime only loads, runs and serves compiled files"
        raise ModuleNotFoundError(f"{text}; run: pip install heteroplace", name=err.name) from err
