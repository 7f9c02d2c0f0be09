"""Shorter measuring, where a test needs numbers but not good ones."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType

import pytest


@contextmanager
def few_rounds(module: ModuleType, round_ns: str = "ROUND_NS") -> Iterator[None]:
    """Let a module of `heteroplace.run` measure two rounds of as few runs as it allows."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, round_ns, 1)
        patch.setattr(module, "_NUM_ROUNDS", 2)
        yield
