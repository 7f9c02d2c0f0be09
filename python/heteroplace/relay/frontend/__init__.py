"""An ONNX file, or a module of PyTorch -> a Relay module, with its parameters."""

from heteroplace.relay.frontend.imported_model import ImportedModel
from heteroplace.relay.frontend.importer import from_onnx
from heteroplace.relay.frontend.torch_export import from_torch

__all__ = ["ImportedModel", "from_onnx", "from_torch"]
