"""A text "module:name" -> what it names, loaded on demand: so that only its users load it."""

from __future__ import annotations

import importlib
from typing import Any


def load_entry(entry: str) -> Any:
    """Return what "module:name" names; the module is loaded now."""
    module, _, name = entry.partition(":")
    return getattr(importlib.import_module(module), name)
