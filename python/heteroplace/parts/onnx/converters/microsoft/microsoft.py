"""Op type of com.microsoft -> our converter."""

from __future__ import annotations

from collections.abc import Mapping

from heteroplace.parts.onnx.converters.call import Converter
from heteroplace.parts.onnx.converters.microsoft.microsoft_attention import (
    group_query_attention,
    multi_head_attention,
)
from heteroplace.parts.onnx.converters.microsoft.microsoft_experts import routed_experts
from heteroplace.parts.onnx.converters.microsoft.microsoft_lstm import dynamic_quantize_lstm
from heteroplace.parts.onnx.converters.microsoft.microsoft_norms import (
    simplified_layer_normalization,
    skip_layer_normalization,
    skip_simplified_layer_normalization,
)
from heteroplace.parts.onnx.converters.microsoft.microsoft_products import (
    fused_conv,
    fused_mat_mul,
    quick_gelu,
)
from heteroplace.parts.onnx.converters.microsoft.microsoft_rotary import rotary_embedding
from heteroplace.parts.onnx.converters.microsoft.microsoft_weights import (
    gather_block_quantized,
    mat_mul_n_bits,
)

MICROSOFT_DOMAIN = "com.microsoft"
MICROSOFT_CONVERTERS: Mapping[str, Converter] = {
    "DynamicQuantizeLSTM": dynamic_quantize_lstm,
    "FusedConv": fused_conv,
    "FusedMatMul": fused_mat_mul,
    "GatherBlockQuantized": gather_block_quantized,
    "GroupQueryAttention": group_query_attention,
    "MatMulNBits": mat_mul_n_bits,
    "MoE": routed_experts,
    "MultiHeadAttention": multi_head_attention,
    "QuickGelu": quick_gelu,
    "RotaryEmbedding": rotary_embedding,
    "SimplifiedLayerNormalization": simplified_layer_normalization,
    "SkipLayerNormalization": skip_layer_normalization,
    "SkipSimplifiedLayerNormalization": skip_simplified_layer_normalization,
}
"""Ops of other domains under these names have none: see the importer."""

MICROSOFT_SHARED = frozenset(
    {
        *("Attention", "BiasGelu", "DequantizeLinear", "EmbedLayerNormalization", "FastGelu"),
        *("GatherND", "Gelu", "GridSample", "MatMulInteger16", "Pad", "QAttention", "QGemm"),
        *("QLinearAdd", "QLinearAveragePool", "QLinearConcat", "QLinearConv", "QLinearMul"),
        *("QLinearGlobalAveragePool", "QLinearLeakyRelu", "QLinearSigmoid", "QLinearSoftmax"),
        *("QuantizeLinear", "Range", "Trilu"),
    }
)
"""Other ops of com.microsoft whose converters are in the table of ai.onnx, with one meaning."""
