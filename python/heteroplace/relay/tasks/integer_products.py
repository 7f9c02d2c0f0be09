"""Products of numbers that were whole -> products of the whole numbers, scaled behind.

    nn.conv2d((a - z) * s, w * t)  ==>  nn.conv2d(a, w) less what z adds, as int32, * (s * t)

with a of uint8 or int8 and w whole numbers of int8, as quantised networks have them: a weight is a
constant, its scale t one of each output channel or of all. Sums of whole numbers are exact, those
of scaled ones are not; between two such layers 8 bits are moved, not 32. Signed numbers a become
a + 128: processors multiply unsigned by signed ones. Zeros around an image are z.

Source: Jacob et al., "Quantization and Training of Neural Networks for Efficient
Integer-Arithmetic-Only Inference" (arXiv:1712.05877), section 2.2. Unlike there scales stay
floats, as ONNX has them.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import tvm
from tvm import relay

from heteroplace.relay.axes.shapes import with_attributes
from heteroplace.relay.expressions import (
    function_pass,
    is_op_call,
    post_order,
    rebuilt,
    static_shape,
)
from heteroplace.relay.ranges.interval import of_dtype
from heteroplace.relay.tasks.fold import ConstantFolder, constant_scalar, constant_value
from heteroplace.relay.tasks.spans import with_span

_FLOAT, _SUM, _BYTES = "float32", "int32", ("int8", "uint8")
_SIGNED_OFFSET = 128
_MAX_TERMS = (2**31 - 1) // (255 * 128)
"""Of a sum that always fits into 32 bits."""


class _Whole(NamedTuple):
    """(values - zero) * scale."""

    values: relay.Expr
    zero: int
    scale: float
    is_signed: bool


class _Weight(NamedTuple):
    """values * scale, along the first axis."""

    values: np.ndarray
    scale: np.ndarray
    """[output channels]"""


def IntegerProducts() -> tvm.transform.Pass:  # noqa: N802  (named as TVM names its passes)
    """Return the pass; it takes and leaves inferred types."""

    def run(function: relay.Function) -> relay.Function:
        nodes = post_order(function.body)
        if not any(is_op_call(node, "cast") and "int8" in _dtype(node.args[0]) for node in nodes):
            return function
        return rebuilt(function, _Rewriter().rewritten)

    return function_pass("IntegerProducts", run, ops=("cast",))


class _Rewriter:
    """Sees the calls of a function in order."""

    def __init__(self) -> None:
        self._folder = ConstantFolder()
        self._whole: dict[relay.Expr, _Whole] = {}
        """By new expression."""

    def rewritten(self, old: relay.Expr, new: relay.Expr) -> relay.Expr:
        """Return what stands for an expression whose operands are new ones."""
        if is_op_call(old, "cast") and new.args[0] in self._whole and _is_float(old):
            self._whole[new] = self._whole[new.args[0]]
        elif is_op_call(old, "multiply") and _is_float(old):
            whole = self._dequantised(old, new)
            if whole is not None:
                self._whole[new] = whole
        elif is_op_call(old, "nn.conv2d") or is_op_call(old, "nn.dense"):
            data = self._whole.get(new.args[0])
            weight = None if data is None else self._weight(old.args[1])
            if data is not None and weight is not None and _is_plain(old):
                return _product(old, data, weight)
        return new

    def _dequantised(self, old: relay.Call, new: relay.Call) -> _Whole | None:
        """What a product is, if it is cast(cast(values) - zero) * scale."""
        scale, zero = self._scalar(old.args[1]), 0.0
        if scale is None or not is_op_call(old.args[0], "cast"):
            return None
        old, new = old.args[0].args[0], new.args[0].args[0]
        if is_op_call(old, "subtract"):
            scale_value = self._scalar(old.args[1])
            if scale_value is None:
                return None
            zero, old, new = scale_value, old.args[0], new.args[0]
        if not is_op_call(old, "cast") or old.attrs.dtype != _SUM:
            return None
        dtype, values = old.args[0].checked_type.dtype, new.args[0]
        # Of another zero sums may not fit into 32 bits, and zeros around an image not into 8.
        if dtype not in _BYTES or not (zero.is_integer() and of_dtype(dtype).contains(zero)):
            return None
        return _Whole(values, int(zero), scale, dtype == "int8")

    def _scalar(self, expr: relay.Expr) -> float | None:
        return constant_scalar(self._folder.fold(expr))

    def _weight(self, expr: relay.Expr) -> _Weight | None:
        while is_op_call(expr, "cast") and _is_float(expr):
            expr = expr.args[0]
        if not is_op_call(expr, "multiply") or not _is_float(expr):  # others wrap, or lose digits
            return None
        both = [self._folder.fold(each) for each in expr.args]
        if not all(isinstance(each, relay.Constant) for each in both):
            return None
        values, scale = (constant_value(each) for each in both)
        channels = values.shape[0] if values.ndim else 0
        of_each = scale.size == 1 or scale.shape == (channels, *(1,) * (values.ndim - 1))
        is_whole = np.array_equal(np.clip(np.rint(values), -128, 127), values)
        if not (channels and of_each and is_whole and values.size >= scale.size):
            return None
        spread = np.broadcast_to(scale.reshape(-1), (channels,))
        return _Weight(values.astype("int8"), spread.astype(_FLOAT))


def _dtype(expr: relay.Expr) -> str:
    return str(getattr(expr._checked_type_, "dtype", ""))


def _is_float(expr: relay.Expr) -> bool:
    return _dtype(expr) == _FLOAT


def _is_plain(call: relay.Call) -> bool:
    """Tell whether a product is one in NCHW, or of rows, whose sums fit."""
    if not _is_float(call):
        return False
    if is_op_call(call, "nn.dense"):
        return static_shape(call.args[1].checked_type)[1] <= _MAX_TERMS
    attrs = call.attrs
    layouts = (str(attrs.data_layout), str(attrs.kernel_layout), str(attrs.out_layout))
    weights = static_shape(call.args[1].checked_type)
    return (
        layouts in (("NCHW", "OIHW", ""), ("NCHW", "OIHW", "NCHW"))
        and int(np.prod(weights[1:])) <= _MAX_TERMS
    )


def _product(old: relay.Call, data: _Whole, weight: _Weight) -> relay.Expr:
    values, zero, channels = data.values, data.zero, [-1]
    changed: dict[str, object] = {"out_dtype": _SUM}
    if data.is_signed:
        offset = relay.const(_SIGNED_OFFSET, "int16")
        values = relay.cast(relay.cast(values, "int16") + offset, "uint8")
        zero += _SIGNED_OFFSET
    if is_op_call(old, "nn.conv2d"):
        channels = [-1, 1, 1]
        # What targets make of an integer convolution asks for both.
        num_out, _, *kernel_size = weight.values.shape
        changed |= {"channels": num_out, "kernel_size": kernel_size}
        top, left, bottom, right = (int(each) for each in old.attrs.padding)
        if zero and any((top, left, bottom, right)):
            around = ((0, 0), (0, 0), (top, bottom), (left, right))
            values = relay.nn.pad(values, around, zero)
            changed["padding"] = [0, 0, 0, 0]
    product = with_attributes(old, [values, relay.const(weight.values)], **changed)
    if zero:
        sums = weight.values.reshape(len(weight.values), -1).sum(axis=1, dtype=np.int64)
        product = product - relay.const((zero * sums).astype(_SUM).reshape(channels))
    scale = np.float32(data.scale) * weight.scale
    scaled = relay.cast(product, _FLOAT) * relay.const(scale.reshape(channels))
    return with_span(scaled, {data.values}, old.span)
