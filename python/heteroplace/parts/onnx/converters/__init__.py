"""Converters of ours from ONNX nodes to Relay, which take the place of TVM's."""

from heteroplace.parts.onnx.converters.converter_table import CONVERTERS, converters_of
from heteroplace.parts.onnx.converters.refused import RANDOM_OPS, REFUSED

__all__ = ["CONVERTERS", "RANDOM_OPS", "REFUSED", "converters_of"]
