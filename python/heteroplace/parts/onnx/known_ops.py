"""An ONNX node -> whether TVM's importer or a converter of ours takes it."""

from __future__ import annotations

from collections.abc import Callable

from onnx import NodeProto
from tvm.relay.frontend import onnx as tvm_onnx

from heteroplace.parts.onnx.converters import CONVERTERS, REFUSED
from heteroplace.parts.onnx.converters.microsoft.microsoft import (
    MICROSOFT_CONVERTERS,
    MICROSOFT_DOMAIN,
    MICROSOFT_SHARED,
)
from heteroplace.parts.onnx.converters.ml.ml import ML_CONVERTERS, ML_DOMAIN
from heteroplace.parts.onnx.prepare.onnx_repair import IMPORTER_OPSET, ONNX_DOMAINS

OTHER_OPS = frozenset({"Attention", "Gelu", "RotaryEmbedding"})
"""Names of ai.onnx that mean another op, of com.microsoft, in the importer's table."""

_WITHOUT_DOMAIN = frozenset({"SimplifiedLayerNormalization"})
"""Ops of com.microsoft that onnxruntime's exporters write in the domain of ONNX."""


def known_ops() -> Callable[[NodeProto], bool]:
    """Return a function that tells whether TVM's importer or we have a converter for a node."""
    stock = frozenset(tvm_onnx._get_convert_map(IMPORTER_OPSET)) | frozenset(
        tvm_onnx._identity_list
    )

    def is_known(node: NodeProto) -> bool:
        name = node.op_type
        if node.domain == ML_DOMAIN:
            return name in ML_CONVERTERS
        if name in REFUSED:
            return False
        if node.domain not in ONNX_DOMAINS:
            return node.domain == MICROSOFT_DOMAIN and (
                name in MICROSOFT_CONVERTERS or name in MICROSOFT_SHARED
            )
        is_there = name in CONVERTERS or name in stock
        return name in _WITHOUT_DOMAIN or (is_there and name not in OTHER_OPS)

    return is_known
