"""(De)QuantizeLinear, QLinearMatMul, MatMulInteger, Round ==> arithmetic, rounded half to even.

ConvInteger and QLinearConv become forms of them that TVM's converters take.

ONNX operator specification. Scales and zero points may be of the whole tensor, of each place along
an axis, or of each block along it, and may be computed.
"""

from __future__ import annotations

from tvm import relay
from tvm.relay.frontend import onnx as tvm_onnx

from heteroplace.errors import FrontendError
from heteroplace.parts.onnx.converters.call import (
    OnnxCall,
    const,
    dtype_name,
    dtype_of,
    shape_of,
    stacked_product,
)
from heteroplace.parts.onnx.converters.quantized.byte_products import (
    byte_convolution,
    byte_factor,
)
from heteroplace.parts.onnx.converters.reductions import fold_of_all
from heteroplace.relay.quantise import dynamically_quantized, quantized


def round_half_even(data: relay.Expr) -> relay.Expr:
    """Return the nearest whole numbers, the even one of two that are equally near."""
    dtype = dtype_of(data)
    rounded = relay.round(data)
    half = const(0.5, dtype)
    is_tie = relay.equal(relay.abs(relay.subtract(data, relay.trunc(data))), half)
    even = relay.multiply(relay.round(relay.multiply(data, half)), const(2, dtype))
    return relay.where(is_tie, even, rounded)


def round_to_whole(call: OnnxCall) -> relay.Expr:
    """Convert Round; TVM's converter adds a half, which is lost in large numbers and infinities."""
    return round_half_even(call.operand(0))


def quantize_linear(call: OnnxCall) -> relay.Expr:
    """Convert QuantizeLinear: clip(round(x / scale) + zero_point)."""
    data = relay.cast(call.operand(0), "float32")
    scale = relay.cast(_along_axis(call, 1), "float32")
    dtype = _quantized_dtype(call)
    zero = _along_axis(call, 2) if call.has(2) else None
    return quantized(relay.divide(data, scale), zero, dtype)


def dequantize_linear(call: OnnxCall) -> relay.Expr:
    """Convert DequantizeLinear: (x - zero_point) * scale."""
    data = relay.cast(call.operand(0), "int32")
    if call.has(2):
        data = relay.subtract(data, relay.cast(_along_axis(call, 2), "int32"))
    scale = _along_axis(call, 1)
    product = relay.multiply(relay.cast(data, "float32"), relay.cast(scale, "float32"))
    type_code = int(call.number("output_dtype", 0))
    return relay.cast(product, dtype_name(type_code) if type_code else dtype_of(scale))


def dynamic_quantize_linear(call: OnnxCall) -> relay.expr.TupleWrapper:
    """Convert DynamicQuantizeLinear: (x quantised, scale, zero point), from the range with 0."""
    data = call.operand(0)
    lowest, highest = (fold_of_all(fold, data) for fold in (relay.min, relay.max))
    results = dynamically_quantized(data, lowest, highest)
    return relay.expr.TupleWrapper(relay.Tuple(list(results)), len(results))


def mat_mul_integer(call: OnnxCall) -> relay.Expr:
    """Convert MatMulInteger: (a, b, a_zero, b_zero), zero points 0 if left out."""
    zero = call.operand(3) if call.has(3) else None
    factor = None
    if len(call.shape(0)) > 1 and len(call.shape(1)) == 2:
        factor = byte_factor(call.operand(1), zero, call.params)
    if factor is None:
        return stacked_product(_centred(call, 0, 2, False), _centred(call, 1, 3, True), "int32")
    zero = _matched(call.operand(2), len(call.shape(0)), False) if call.has(2) else None
    return factor.product(call.operand(0), zero)


def q_linear_mat_mul(call: OnnxCall) -> relay.Expr:
    """Convert QLinearMatMul: (a, a_scale, a_zero, b, b_scale, b_zero, y_scale, y_zero)."""

    product = stacked_product(_centred(call, 0, 2, False), _centred(call, 3, 5, True), "int32")
    rank = len(shape_of(product))
    scales = [
        relay.cast(_matched(call.operand(operand), rank, is_right), "float32")
        for operand, is_right in ((1, False), (4, True), (6, False))
    ]
    scale = relay.divide(relay.multiply(scales[0], scales[1]), scales[2])
    zero = _matched(call.operand(7), rank, False)
    return quantized(relay.multiply(relay.cast(product, "float32"), scale), zero, call.dtype(7))


def conv_integer(call: OnnxCall) -> relay.Expr | None:
    """Convert ConvInteger: (x, w, x_zero, w_zero); TVM's converter takes maps of two axes."""
    return byte_convolution(call) or _quantized_conv(call, tvm_onnx.ConvInteger, 1, 3)


def q_linear_conv(call: OnnxCall) -> relay.Expr | None:
    """Convert QLinearConv: (x, x_scale, x_zero, w, w_scale, w_zero, y_scale, y_zero, bias)."""
    check_channels(call)
    return _quantized_conv(call, tvm_onnx.QLinearConv, 3, 5)


def check_channels(call: OnnxCall) -> None:
    """Raise FrontendError if an op of com.microsoft has its channels last."""
    if call.number("channels_last", 0):
        raise FrontendError("channels_last=1 is not supported, only 0: transpose before and after")


def _quantized_conv(
    call: OnnxCall, stock: type[tvm_onnx.OnnxOpConverter], weight: int, zero_point: int
) -> relay.Expr | None:
    """Write a convolution so that TVM's converter takes it: of two axes, and with weights of int8
    where the map is of int8, for which TVM has no kernels with weights of uint8.

    Parameters
    ----------
    call
        The node; None is returned where it has that form.
    stock
        TVM's converter.
    weight, zero_point
        Positions of these operands.
    """
    rank = len(call.shape(0)) - 2
    if rank not in (1, 2):
        raise FrontendError(
            f"its map has {rank} axes beside batch and channels; expected 1 or 2. Write it as "
            f"DequantizeLinear, Conv and QuantizeLinear"
        )
    is_mixed = call.dtype(0) == "int8" and call.dtype(weight) == "uint8"
    if rank == 2 and not is_mixed:
        return None
    operands, attributes = list(call.operands), dict(call.attributes)
    operands += [None] * (zero_point + 1 - len(operands))
    if is_mixed:
        operands[weight], operands[zero_point] = _as_int8(call, weight, zero_point)
    if rank == 1:
        for index in (0, weight):
            operands[index] = relay.expand_dims(operands[index], 2)
        for name, first in (("kernel_shape", 1), ("strides", 1), ("dilations", 1)):
            if name in attributes:
                attributes[name] = (first, *attributes[name])
        if "pads" in attributes:
            attributes["pads"] = (0, attributes["pads"][0], 0, attributes["pads"][1])
    inputs = tvm_onnx.onnx_input()
    inputs.extend(operands)
    result = stock._impl_v10(inputs, attributes, call.params)
    return relay.squeeze(result, [2]) if rank == 1 else result


def _as_int8(call: OnnxCall, data: int, zero_point: int) -> tuple[relay.Expr, relay.Expr]:
    """Return numbers of uint8 and their zero point, both less 128."""
    half = const(128, "int32")

    def shifted(operand: relay.Expr) -> relay.Expr:
        wide = relay.subtract(relay.cast(operand, "int32"), half)
        return tvm_onnx.fold_constant(relay.cast(wide, "int8"))

    zero = call.operand(zero_point) if call.has(zero_point) else const(0, "uint8")
    return shifted(call.operand(data)), shifted(zero)


def _centred(call: OnnxCall, operand: int, zero_point: int, is_right: bool) -> relay.Expr:
    """Return a factor less its zero point, if it has one, as int32."""
    data = relay.cast(call.operand(operand), "int32")
    if not call.has(zero_point):
        return data
    zero = _matched(call.operand(zero_point), len(shape_of(data)), is_right)
    return relay.subtract(data, relay.cast(zero, "int32"))


def _matched(parameter: relay.Expr, rank: int, is_right: bool) -> relay.Expr:
    """Return a scale or zero point of each row (left) or column (right) so that it broadcasts."""
    shape = shape_of(parameter)
    if len(shape) != 1:
        return parameter
    if shape[0] == 1:
        return relay.reshape(parameter, [])
    return parameter if is_right or rank == 1 else relay.expand_dims(parameter, -1)


def _along_axis(call: OnnxCall, operand: int) -> relay.Expr:
    """Return a scale or zero point so that it broadcasts with the data."""
    parameter, shape = call.operand(operand), call.shape(operand)
    data_shape = call.shape(0)
    if len(shape) == 0:
        return parameter
    if len(shape) == 1 and shape[0] == 1:
        return relay.reshape(parameter, [])
    axis = int(call.number("axis", 1)) % len(data_shape)
    block = int(call.number("block_size", 0))
    if block:
        spread = relay.repeat(parameter, block, axis)
        return relay.strided_slice(spread, [0], [data_shape[axis]], axes=[axis])
    return relay.reshape(parameter, [-1 if i == axis else 1 for i in range(len(data_shape))])


def _quantized_dtype(call: OnnxCall) -> str:
    if call.has(2):
        return call.dtype(2)
    type_code = int(call.number("output_dtype", 0))
    return dtype_name(type_code) if type_code else "uint8"
