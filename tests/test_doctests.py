"""The examples in the docstrings give what they say."""

from __future__ import annotations

import doctest
import importlib
import re
from pathlib import Path
from types import ModuleType

import pytest

import heteroplace

_NEEDS_TVM = ("relay", "tir", "parts", "lower", "run", "hetero_place", "demo")
PACKAGE = Path(heteroplace.__file__).parent
ROOT = Path(__file__).resolve().parents[1]


def modules() -> list[str]:
    """All modules, by their files: nothing is imported."""
    files = [path.relative_to(PACKAGE.parent).with_suffix("") for path in PACKAGE.rglob("*.py")]
    for folder in ("benchmarks", "zoo"):
        files += [path.relative_to(ROOT).with_suffix("") for path in (ROOT / folder).rglob("*.py")]
    names = [".".join(path.parts).removesuffix(".__init__") for path in sorted(files)]
    return [name for name in names if name != PACKAGE.name and not name.endswith("__main__")]


def has_examples(name: str) -> bool:
    base = PACKAGE.parent if name.startswith("heteroplace.") else ROOT
    path = base.joinpath(*name.split("."))
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    return re.search(r"^\s*>>> ", file.read_text(), re.MULTILINE) is not None


def imported(name: str) -> ModuleType:
    if not name.startswith("heteroplace.") or name.split(".")[1] in _NEEDS_TVM:
        pytest.importorskip("tvm.relay")
    if name.startswith("heteroplace.parts.torch."):
        pytest.importorskip("torch", reason="PyTorch is in the extra torch")
    if name.startswith("benchmarks.tabular"):
        pytest.importorskip("skl2onnx", reason="scikit-learn is in the extra bench")
    return importlib.import_module(name)


@pytest.mark.parametrize("name", modules())
def test_every_module_can_be_imported(name: str) -> None:
    assert imported(name).__name__ == name


@pytest.mark.parametrize("name", [name for name in modules() if has_examples(name)])
def test_examples_of(name: str) -> None:
    result = doctest.testmod(imported(name))
    assert result.failed == 0


def test_there_are_examples() -> None:
    assert sum(map(has_examples, modules())) > 10
