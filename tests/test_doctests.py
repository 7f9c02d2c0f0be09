"""The examples in the docstrings give what they say."""

from __future__ import annotations

import doctest
import importlib
import pkgutil

import pytest

import heteroplace

_NEEDS_TVM = ("relay", "codegen", "run", "hetero_place", "bench", "demo")


def modules() -> list[str]:
    found = pkgutil.walk_packages(heteroplace.__path__, "heteroplace.")
    return [module.name for module in found if not module.name.endswith("__main__")]


@pytest.mark.parametrize("name", modules())
def test_examples_of(name: str) -> None:
    if name.split(".")[1] in _NEEDS_TVM:
        pytest.importorskip("tvm.relay")
    result = doctest.testmod(importlib.import_module(name))
    assert result.failed == 0


def test_there_are_examples() -> None:
    finder = doctest.DocTestFinder()
    found = [test for name in modules() for test in finder.find(importlib.import_module(name))]
    assert sum(len(test.examples) for test in found) > 10
