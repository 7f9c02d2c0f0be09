"""TVM's ops that quantise ==> plain arithmetic, rounded half to even, for TVM's own converters.

ONNX operator specification and onnxruntime. `qnn.quantize` rounds half away from zero and
`qnn.requantize` half up, which is another step at every tie. TVM's converters (QLinearConv, QGemm,
QLinearAdd, ..) write them by the name `_qnn` of their module, in whose place `rounded_qnn` stands
during an import: their sums of products stay TVM's, which have kernels of integers.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace

from tvm import relay
from tvm.relay.frontend import onnx as tvm_onnx

from heteroplace.parts.onnx.converters.call import dtype_of, shape_of
from heteroplace.relay.quantise import quantized


def rounded_qnn() -> SimpleNamespace:
    """Return what stands for the module `tvm.relay.qnn` while a model is imported."""
    ours = {"quantize": _quantize, "requantize": _requantize, "concatenate": _concatenate}
    return SimpleNamespace(op=SimpleNamespace(**{**vars(relay.qnn.op), **ours}))


def _quantize(
    data: relay.Expr,
    output_scale: relay.Expr,
    output_zero_point: relay.Expr,
    axis: int = -1,
    out_dtype: str = "int8",
) -> relay.Expr:
    scale, zero = (_along(data, one, axis) for one in (output_scale, output_zero_point))
    return quantized(relay.divide(data, scale), zero, out_dtype)


def _requantize(
    data: relay.Expr,
    input_scale: relay.Expr,
    input_zero_point: relay.Expr,
    output_scale: relay.Expr,
    output_zero_point: relay.Expr,
    axis: int = -1,
    rounding: str | None = None,  # there is one here
    *,
    out_dtype: str = "int8",
) -> relay.Expr:
    """Scale sums of products; the quotient of the scales comes first, as in onnxruntime."""
    zero = tvm_onnx.fold_constant(input_zero_point)
    if not (isinstance(zero, relay.Constant) and not zero.data.numpy().any()):
        data = relay.subtract(data, _along(data, zero, axis))
    scale = tvm_onnx.fold_constant(relay.divide(input_scale, output_scale))
    steps = relay.multiply(relay.cast(data, "float32"), _along(data, scale, axis))
    return quantized(steps, _along(data, output_zero_point, axis), out_dtype)


def _concatenate(
    data: Sequence[relay.Expr],
    input_scales: Sequence[relay.Expr],
    input_zero_points: Sequence[relay.Expr],
    output_scale: relay.Expr,
    output_zero_point: relay.Expr,
    axis: int,
) -> relay.Expr:
    """Bring the tensors to one scale; what has it already keeps its bytes."""
    parts = []
    for part, scale, zero in zip(data, input_scales, input_zero_points, strict=True):
        if not (_are_equal(scale, output_scale) and _are_equal(zero, output_zero_point)):
            values = relay.qnn.op.dequantize(part, scale, zero)
            part = _quantize(values, output_scale, output_zero_point, axis, dtype_of(part))
        parts.append(part)
    return relay.concatenate(parts, axis)


def _are_equal(one: relay.Expr, other: relay.Expr) -> bool:
    """Tell whether two numbers are known to be equal."""
    folded = [tvm_onnx.fold_constant(each) for each in (one, other)]
    if not all(isinstance(each, relay.Constant) for each in folded):
        return False
    return float(folded[0].data.numpy().item()) == float(folded[1].data.numpy().item())


def _along(data: relay.Expr, parameter: relay.Expr, axis: int) -> relay.Expr:
    """Return a scale or zero point of each place along an axis so that it broadcasts."""
    shape = shape_of(parameter)
    if not shape:
        return parameter
    if shape == (1,):
        return relay.reshape(parameter, [])
    rank = len(shape_of(data))
    spread = relay.reshape(parameter, [-1 if i == axis % rank else 1 for i in range(rank)])
    return tvm_onnx.fold_constant(spread)
