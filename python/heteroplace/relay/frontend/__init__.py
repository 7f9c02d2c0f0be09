"""An ONNX file -> a Relay module, with its parameters."""

from heteroplace.relay.frontend.importer import ImportedModel, from_onnx

__all__ = ["ImportedModel", "from_onnx"]
