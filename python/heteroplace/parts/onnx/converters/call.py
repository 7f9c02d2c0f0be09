"""One ONNX node on its way to Relay: what a converter of ours is given.

TVM's importer calls a converter with its operands as Relay expressions, whose types are known.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from tvm import relay
from tvm.relay.frontend import onnx as tvm_onnx

from heteroplace.errors import FrontendError
from heteroplace.relay.limits import MAX_CONSTANT_BYTES

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class OnnxCall:
    """The operands and attributes of one node."""

    operands: Sequence[relay.Expr | None]
    """Typed; None: left out."""
    attributes: Mapping[str, Any]
    """As TVM's importer reads them: strings are bytes, lists are tuples."""
    opset: int
    """Of the model."""
    num_outputs: int
    """That the node names."""
    params: Mapping[str, Any]
    """Values of the parameters of the module, by name."""

    def has(self, index: int) -> bool:
        """Tell whether operand `index` is there."""
        return index < len(self.operands) and self.operands[index] is not None

    def operand(self, index: int) -> relay.Expr:
        """Return operand `index`, which must be there."""
        if not self.has(index):
            raise FrontendError(f"operand {index} is left out, and it must be there")
        return self.operands[index]

    def shape(self, index: int) -> tuple[int, ...]:
        """Return the sizes of operand `index`."""
        return shape_of(self.operand(index))

    def dtype(self, index: int) -> str:
        """Return the element type of operand `index`, e.g. "float32"."""
        return dtype_of(self.operand(index))

    def constant(self, index: int, what: str) -> Array:
        """Return the value of operand `index`; `what` names it in the error if it has none.

        Raises
        ------
        FrontendError
            It is computed at run time.
        """
        value = constant_value(self.operand(index), self.params)
        if value is None:
            raise FrontendError(
                f"its {what} (operand {index}) is computed at run time, and must be known to "
                f"compile. Make it a constant, or give it in input_values if it is an input"
            )
        return value

    def text(self, name: str, default: str) -> str:
        """Return a string attribute."""
        value = self.attributes.get(name, default)
        return value.decode() if isinstance(value, bytes) else str(value)

    def number(self, name: str, default: float) -> float:
        """Return an attribute that is a number."""
        return self.attributes.get(name, default)  # type: ignore[no-any-return]


Converter = Callable[[OnnxCall], "relay.Expr | relay.expr.TupleWrapper | None"]
"""Makes Relay of one node; None: TVM's converter is right for this form."""


def typed(expr: relay.Expr) -> relay.Expr:
    """Return `expr` with its type known, by the importer's own inference."""
    return tvm_onnx.infer_type(expr)


def shape_of(expr: relay.Expr) -> tuple[int, ...]:
    """Return the static sizes of an expression.

    Raises
    ------
    FrontendError
        A size depends on values at run time.
    """
    sizes = typed(expr).checked_type.shape
    try:
        return tuple(int(size) for size in sizes)
    except TypeError as err:
        raise FrontendError(
            f"the shape {list(sizes)} of an operand depends on values at run time, and only static "
            f"shapes can be compiled"
        ) from err


def dtype_of(expr: relay.Expr) -> str:
    """Return the element type of an expression."""
    return str(typed(expr).checked_type.dtype)


def stacked_product(left: relay.Expr, right: relay.Expr, dtype: str) -> relay.Expr:
    """Return the product of vectors, matrices or stacks of them, added up in `dtype`.

    As TVM's importer does it, but for a vector and a stack of matrices.
    """
    ranks = len(shape_of(left)), len(shape_of(right))
    if 1 not in ranks or max(ranks) <= 2:
        return tvm_onnx.matmul_out_dtype([left, right], dtype)
    if ranks[0] == 1:
        left = relay.expand_dims(left, 0)
    else:
        right = relay.expand_dims(right, 1)
    product = tvm_onnx.matmul_out_dtype([left, right], dtype)
    return relay.squeeze(product, [-2] if ranks[0] == 1 else [-1])


def constant_value(expr: relay.Expr, params: Mapping[str, Any]) -> Array | None:
    """Return the value of an expression of constants and parameters, or None if it has none."""
    if isinstance(expr, relay.Constant):
        return expr.data.numpy()  # type: ignore[no-any-return]
    free = relay.analysis.free_vars(expr)
    if any(var.name_hint not in params for var in free):
        return None
    return np.asarray(tvm_onnx.infer_value(expr, dict(params)).numpy())


def const(value: npt.ArrayLike, dtype: str) -> relay.Expr:
    """Return a constant; of bfloat16, which numpy does not know, one that is cast."""
    if dtype == "bfloat16":
        return relay.cast(const(value, "float32"), dtype)
    return relay.const(np.asarray(value).astype(dtype), dtype)


def check_table(num_elements: int, what: str) -> None:
    """Raise FrontendError if a table that a converter computes, of numbers of 8 bytes, would be
    larger than a constant may be."""
    if num_elements > MAX_CONSTANT_BYTES // 8:
        raise FrontendError(
            f"{what} would take {num_elements} numbers; expected at most {MAX_CONSTANT_BYTES // 8}"
        )


def as_float32(expr: relay.Expr) -> relay.Expr:
    """Return a narrow float as float32.

    A bfloat16 by its bits, which are the upper half of the float32: TVM's code generator has no
    kernel that reads one and writes the other.
    """
    if dtype_of(expr) != "bfloat16":
        return relay.cast(expr, "float32")
    bits = relay.cast(relay.reinterpret(expr, "uint16"), "uint32")
    return relay.reinterpret(relay.left_shift(bits, const(16, "uint32")), "float32")


def dtype_name(data_type: int) -> str:
    """Return Relay's name of an element type of ONNX."""
    if data_type == onnx.TensorProto.BFLOAT16:
        return "bfloat16"
    return str(onnx.helper.tensor_dtype_to_np_dtype(data_type))
