"""A division by the step of a quantisation -> one in the scale of the product before.

    round(relu(cast(sums) * s + b) / t)  ==>  round(relu(cast(sums) * (s / t) + b / t))

with constants s, b and t. A convolution of a quantised network then scales once, as onnxruntime
does. A number is rounded at fewer places, so that only one near the middle between two steps may
become the other one. ReLU, clip, sums with constants and reshapes may stand between.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import numpy as np
import tvm
from tvm import relay

from heteroplace.relay.expressions import function_pass, is_op_call, op_name, post_order, rebuilt
from heteroplace.relay.tasks.fold import (
    ConstantFolder,
    children,
    constant_scalar,
    constant_value,
)

ROUNDING_SHIFT = 3 * 2**22
"""Floats of 32 bits near it are whole numbers, so a sum with it is rounded, half to even.
QuantizeLinear is imported as such a sum (`parts/onnx/converters/quantized/quantized.py`)."""
_UNSCALED = ("nn.relu", "reshape", "nn.batch_flatten")
_WITH_CONSTANT = ("add", "subtract", "nn.bias_add")


def FoldedSteps() -> tvm.transform.Pass:  # noqa: N802  (named as TVM names its passes)
    """Return the pass; it takes inferred types, and what it makes has none."""

    def run(function: relay.Function) -> relay.Function:
        nodes = post_order(function.body)
        uses = Counter(child for node in nodes for child in children(node))
        divider = _Divider(uses)
        return rebuilt(function, divider.rewritten, ops=("add",))

    return function_pass("FoldedSteps", run, ops=("cast",))


class _Divider:
    """Moves divisions of a function into constants."""

    def __init__(self, uses: Mapping[relay.Expr, int]) -> None:
        self._folder = ConstantFolder()
        self._uses = uses

    def rewritten(self, old: relay.Call, new: relay.Call) -> relay.Expr:
        """Return a rounding sum whose division is in a constant; `new` where that cannot be."""
        quotient, shift = new.args
        if not is_op_call(quotient, "divide") or self._scalar(shift) != ROUNDING_SHIFT:
            return new
        step = self._scalar(quotient.args[1])
        if step is None or not 0 < step < np.inf or self._uses[old.args[0]] != 1:
            return new
        divided = self._divided(old.args[0].args[0], quotient.args[0], step)
        return new if divided is None else _with_operands(new, [divided, shift])

    def _divided(self, old: relay.Expr, new: relay.Expr, step: float) -> relay.Expr | None:
        """Return new / step without a division; None: it is no scaled product of whole numbers."""
        if not isinstance(old, relay.Call) or self._uses[old] != 1:
            return None
        if is_op_call(old, "multiply") and _is_of_integers(old.args[0]):
            scale = self._over(new.args[1], step)
            return None if scale is None else _with_operands(new, [new.args[0], scale])
        is_same = is_op_call(old, "cast") and _dtype(old) == _dtype(old.args[0])
        if not is_same and op_name(old) not in (*_UNSCALED, *_WITH_CONSTANT, "clip"):
            return None
        divided = self._divided(old.args[0], new.args[0], step)
        if divided is None or is_same:
            return divided
        if is_op_call(old, "clip"):
            limits = (float(each) / step for each in (old.attrs.a_min, old.attrs.a_max))
            clip = relay.clip(divided, *limits)
            return relay.Call(clip.op, clip.args, clip.attrs, clip.type_args, new.span)
        if op_name(old) in _UNSCALED:
            return _with_operands(new, [divided])
        addend = self._over(new.args[1], step)
        return None if addend is None else _with_operands(new, [divided, addend])

    def _over(self, constant: relay.Expr, step: float) -> relay.Constant | None:
        """Return constant / step; None: it is no constant, or its quotient is no normal number."""
        folded = self._folder.fold(constant)
        if not isinstance(folded, relay.Constant):
            return None
        exact = constant_value(folded).astype("float64") / step
        with np.errstate(over="ignore", under="ignore"):
            quotient = exact.astype("float32")
        smallest = np.finfo("float32").tiny
        is_normal = np.isfinite(quotient) & ((np.abs(quotient) >= smallest) | (exact == 0))
        return relay.const(quotient) if bool(is_normal.all()) else None

    def _scalar(self, expr: relay.Expr) -> float | None:
        return constant_scalar(self._folder.fold(expr))


def _is_of_integers(value: relay.Expr) -> bool:
    is_float = is_op_call(value, "cast") and _dtype(value) == "float32"
    return is_float and "int" in _dtype(value.args[0])


def _dtype(value: relay.Expr) -> str:
    return str(value.checked_type.dtype)


def _with_operands(call: relay.Call, operands: list[relay.Expr]) -> relay.Call:
    return relay.Call(call.op, operands, call.attrs, call.type_args, call.span)
