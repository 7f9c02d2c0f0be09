"""Op type -> our converter: for the ops that TVM's importer lacks, or gets wrong in some form.

Also here: ops that add up compute in float32 where their operands are half precision, as
onnxruntime does: sums of products lose half of their digits if they are added up in it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tvm import relay

from heteroplace.parts.onnx.converters import (
    arithmetic,
    attention,
    branch_ops,
    movement,
    norms,
    power_ops,
    probabilities,
    sequences,
    signal,
    vision,
)
from heteroplace.parts.onnx.converters.call import (
    Converter,
    OnnxCall,
    dtype_of,
    typed,
)
from heteroplace.parts.onnx.converters.deformed import deform_conv
from heteroplace.parts.onnx.converters.microsoft.microsoft import MICROSOFT_CONVERTERS
from heteroplace.parts.onnx.converters.ml.ml import ML_CONVERTERS
from heteroplace.parts.onnx.converters.old_broadcasts import (
    FIRST_AS_NUMPY,
    OLD_BROADCASTS,
    with_numpy_axes,
)
from heteroplace.parts.onnx.converters.pooling import (
    average_pool,
    global_lp_pool,
    lp_pool,
    max_pool,
    max_unpool,
)
from heteroplace.parts.onnx.converters.quantized import quantized, quantized_joins
from heteroplace.parts.onnx.converters.recurrent import gru, lstm, rnn
from heteroplace.parts.onnx.converters.reductions import REDUCTIONS
from heteroplace.parts.onnx.converters.resize import resize, upsample
from heteroplace.parts.onnx.converters.tensor_scatter import tensor_scatter
from heteroplace.parts.onnx.converters.tf_idf import tf_idf_vectorizer
from heteroplace.parts.onnx.converters.transposed import conv_transpose
from heteroplace.parts.onnx.converters.windows import WINDOW_OPS, check_windows
from heteroplace.parts.onnx.prepare.onnx_half_types import ROUND
from heteroplace.parts.onnx.routers.onnx_choices import CHOOSE

CONVERTERS: Mapping[str, Converter] = {
    **REDUCTIONS,
    "AffineGrid": vision.affine_grid,
    "Attention": attention.attention,
    "AveragePool": average_pool,
    "BatchNormalization": norms.batch_normalization,
    "BitShift": arithmetic.bit_shift,
    "Clip": arithmetic.clip,
    CHOOSE: branch_ops.choose_branch,
    "ConstantOfShape": movement.constant_of_shape,
    "ConvInteger": quantized.conv_integer,
    "ConvTranspose": conv_transpose,
    "CumProd": arithmetic.cumulative_product,
    "DeformConv": deform_conv,
    "Det": arithmetic.determinant,
    "DynamicQuantizeLinear": quantized.dynamic_quantize_linear,
    "Expand": movement.expand,
    "EyeLike": movement.eye_like,
    "GRU": gru,
    "Gather": movement.gather,
    "GatherElements": movement.gather_elements,
    "GatherND": movement.gather_nd,
    "GlobalLpPool": global_lp_pool,
    "LSTM": lstm,
    "LayerNormalization": norms.layer_normalization,
    "LogSoftmax": probabilities.log_softmax,
    "LpNormalization": norms.lp_normalization,
    "LpPool": lp_pool,
    "MaxPool": max_pool,
    "MaxUnpool": max_unpool,
    "Mean": arithmetic.mean,
    "MeanVarianceNormalization": norms.mean_variance_normalization,
    "Mish": arithmetic.mish,
    "Mod": arithmetic.mod,
    "NegativeLogLikelihoodLoss": probabilities.negative_log_likelihood_loss,
    "NonZero": movement.non_zero,
    "OptionalHasElement": sequences.optional_has_element,
    "Pow": power_ops.power,
    "OneHot": movement.one_hot,
    "PRelu": arithmetic.prelu,
    "Pad": movement.pad,
    "RNN": rnn,
    "BitCast": arithmetic.bit_cast,
    "Cast": arithmetic.cast,
    "CastLike": arithmetic.cast,
    "Col2Im": vision.col2im,
    "DFT": signal.dft,
    "DequantizeLinear": quantized.dequantize_linear,
    "Elu": arithmetic.elu,
    "GridSample": vision.grid_sample,
    "MatMul": arithmetic.mat_mul,
    "MatMulInteger": quantized.mat_mul_integer,
    "QAttention": attention.quantized_attention,
    "QLinearAdd": quantized_joins.q_linear_add,
    "QLinearAveragePool": quantized_joins.q_linear_average_pool,
    "QLinearConv": quantized.q_linear_conv,
    "QLinearGlobalAveragePool": quantized_joins.q_linear_global_average_pool,
    "QLinearLeakyRelu": quantized_joins.q_linear_leaky_relu,
    "QLinearMatMul": quantized.q_linear_mat_mul,
    "QLinearMul": quantized_joins.q_linear_mul,
    "QLinearSoftmax": quantized_joins.q_linear_softmax,
    "QuantizeLinear": quantized.quantize_linear,
    "RoiAlign": vision.roi_align,
    "STFT": signal.stft,
    "TopK": arithmetic.top_k,
    "Range": movement.arange,
    "Resize": resize,
    "ReverseSequence": movement.reverse_sequence,
    "Round": quantized.round_to_whole,
    ROUND: arithmetic.round_to_bfloat16,
    "Scatter": movement.scatter_elements,
    "ScatterElements": movement.scatter_elements,
    "ScatterND": movement.scatter_nd,
    "SequenceAt": sequences.sequence_at,
    "SequenceErase": sequences.sequence_erase,
    "SequenceInsert": sequences.sequence_insert,
    "Shape": movement.sizes,
    "Shrink": arithmetic.shrink,
    "Sign": arithmetic.sign,
    "SoftmaxCrossEntropyLoss": probabilities.softmax_cross_entropy_loss,
    "Softplus": arithmetic.softplus,
    "SpaceToDepth": movement.space_to_depth,
    "TensorScatter": tensor_scatter,
    "TfIdfVectorizer": tf_idf_vectorizer,
    "Split": movement.split,
    "SplitToSequence": sequences.split_to_sequence,
    "ThresholdedRelu": arithmetic.thresholded_relu,
    "Unsqueeze": movement.unsqueeze,
    "Upsample": upsample,
}
"""Our own; all other ops go to TVM's."""

_ADDING_UP = frozenset(
    {
        *("AffineGrid", "AveragePool", "BatchNormalization", "Conv", "ConvTranspose", "CumSum"),
        *("DeformConv", "Einsum", "GRU"),
        *("Gemm", "GlobalAveragePool", "GlobalLpPool", "InstanceNormalization", "LRN", "LSTM"),
        *("LayerNormalization", "LogSoftmax", "LpPool", "MatMul", "Mean", "RNN", "ReduceL1"),
        *("MeanVarianceNormalization", "NegativeLogLikelihoodLoss", "ReduceL2", "ReduceLogSum"),
        *("ReduceLogSumExp", "ReduceMean", "ReduceProd", "ReduceSum", "ReduceSumSquare"),
        *("Softmax", "SoftmaxCrossEntropyLoss", "Sum"),
    }
)
"""Ops of half precision that compute in single precision."""

_RESULTS_LIKE: Mapping[str, Sequence[int | None]] = {
    "BatchNormalization": (0, 3, 4),
    "LayerNormalization": (0, None, None),
}
"""The operand of whose type each result is, None where its converter decides it; of the first
operand's type are those of all other ops."""

_StockConverter = Callable[[Sequence[Any], Mapping[str, Any], Mapping[str, Any]], Any]


def converters_of(stock: Mapping[str, _StockConverter], opset: int) -> dict[str, _StockConverter]:
    """Return TVM's table of converters with ours in place of some, for models of one opset."""
    table = dict(stock)
    ours = {**CONVERTERS, **MICROSOFT_CONVERTERS, **ML_CONVERTERS}
    for name, converter in ours.items():
        table[name] = _adapted(converter, opset, stock.get(name))
    return {
        name: _copied(_numpy_axes(name, _widened(name, _checked(name, converter)), opset))
        for name, converter in table.items()
    }


def _adapted(converter: Converter, opset: int, stock: _StockConverter | None) -> _StockConverter:
    """Give a converter of ours the form of TVM's, which does what ours leaves to it."""

    def convert(
        inputs: Sequence[Any], attributes: Mapping[str, Any], params: Mapping[str, Any]
    ) -> Any:
        custom = attributes["tvm_custom"]
        call = OnnxCall(tuple(inputs), attributes, opset, custom["num_outputs"], params)
        result = converter(call)
        if result is None:
            assert stock is not None  # else there is nobody to leave it to
            result = stock(inputs, attributes, params)
        return result

    return convert


def _copied(converter: _StockConverter) -> _StockConverter:
    """Copy a parameter that a converter returns as it is, as Cast to the same type does.

    TVM's importer finds the parameters of a module by the last name of each, and a result would be
    another name: the parameter would be missing.
    """

    def convert(
        inputs: Sequence[Any], attributes: Mapping[str, Any], params: Mapping[str, Any]
    ) -> Any:
        result = converter(inputs, attributes, params)
        if isinstance(result, relay.expr.TupleWrapper):
            if not isinstance(result.tuple_value, relay.Tuple):
                return result
            fields = [_not_parameter(field, params) for field in result.tuple_value.fields]
            return relay.expr.TupleWrapper(relay.Tuple(fields), len(fields))
        return _not_parameter(result, params)

    return convert


def _not_parameter(result: Any, params: Mapping[str, Any]) -> Any:
    is_parameter = isinstance(result, relay.Var) and result.name_hint in params
    return relay.copy(result) if is_parameter else result


def _checked(name: str, converter: _StockConverter) -> _StockConverter:
    """Check the windows of a node, if it has any, before it is converted."""
    if name not in WINDOW_OPS:
        return converter

    def convert(
        inputs: Sequence[Any], attributes: Mapping[str, Any], params: Mapping[str, Any]
    ) -> Any:
        check_windows(name, inputs, attributes)
        return converter(inputs, attributes, params)

    return convert


def _numpy_axes(name: str, converter: _StockConverter, opset: int) -> _StockConverter:
    """Let an op of an old opset broadcast as it did."""
    if opset >= FIRST_AS_NUMPY or name not in OLD_BROADCASTS:
        return converter

    def convert(
        inputs: Sequence[Any], attributes: Mapping[str, Any], params: Mapping[str, Any]
    ) -> Any:
        return converter(*with_numpy_axes(name, inputs, attributes), params)

    return convert


def _widened(name: str, converter: _StockConverter) -> _StockConverter:
    """Let an op compute in float32 where its operands are narrower floats."""
    if name not in _ADDING_UP:
        return converter
    like = _RESULTS_LIKE.get(name, ())

    def convert(
        inputs: Sequence[Any], attributes: Mapping[str, Any], params: Mapping[str, Any]
    ) -> Any:
        is_half = [_is_tensor(one) and dtype_of(one) == "float16" for one in inputs]
        if not any(is_half):
            return converter(inputs, attributes, params)
        kind: Any = type(inputs)
        wide = kind(
            relay.cast(one, "float32") if half else one
            for one, half in zip(inputs, is_half, strict=True)
        )
        result = converter(wide, attributes, params)
        if not isinstance(result, relay.expr.TupleWrapper):
            return _narrowed(result) if is_half[0] else result
        operands = [like[i] if i < len(like) else 0 for i in range(len(result))]
        fields = [
            _narrowed(result[i]) if operand is not None and is_half[operand] else result[i]
            for i, operand in enumerate(operands)
        ]
        return relay.expr.TupleWrapper(relay.Tuple(fields), len(fields))

    return convert


def _is_tensor(expr: Any) -> bool:
    return isinstance(expr, relay.Expr) and isinstance(typed(expr).checked_type, relay.TensorType)


def _narrowed(result: relay.Expr) -> relay.Expr:
    """Cast a float32 result of an op back to half precision."""
    return relay.cast(result, "float16") if dtype_of(result) == "float32" else result
