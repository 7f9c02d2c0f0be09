"""An ONNX file, or a module of PyTorch -> a Relay module, with its parameters."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from heteroplace.parts.onnx.imported_model import ImportedModel
    from heteroplace.parts.onnx.importer import from_onnx
    from heteroplace.parts.onnx.torch_export import from_torch

__all__ = ["ImportedModel", "from_onnx", "from_torch"]

_MODULES = {
    "ImportedModel": "heteroplace.parts.onnx.imported_model",
    "from_onnx": "heteroplace.parts.onnx.importer",
    "from_torch": "heteroplace.parts.onnx.torch_export",
}


def __getattr__(name: str) -> Any:
    """Load a front end on first use: a plain Relay network needs none."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_MODULES[name]), name)
