"""A fused function -> the product of matrices by which cuBLASLt computes all of it, if it can.

    activation(left right + bias + sum)

The product is that of `nn.dense`, `nn.matmul` or `nn.batch_matmul` of float32; a bias is added
along the last axis, a sum has the shape of the result, and the activation is `nn.relu` or GELU by
tanh, which is cuBLASLt's (that by erf differs by up to 5e-4, so it is not taken for it). Shapes may
change on the way. Of a function that goes on otherwise, cuBLASLt computes the part before, and a
kernel of TVM's the rest. `src/parts/kernels/product.h` reads the symbol.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import tvm
from tvm import relay

from heteroplace.model.op_traits.op_table import traits_of
from heteroplace.parts.kernels.nvidia.epilogues import (
    Epilogue,
    activation_of,
    is_float32_function,
    op_name,
)
from heteroplace.parts.kernels.nvidia.library_kernels import (
    MAX_EXTENT,
    LibraryKernel,
    operands_text,
)
from heteroplace.relay.expr_map import ExprSet
from heteroplace.relay.expressions import post_order, static_shape


@dataclass(frozen=True)
class Product(LibraryKernel):
    """A product of matrices, and what is done to it; row major, all of float32."""

    batch: int
    rows: int
    columns: int
    depth: int
    is_left_transposed: bool
    """The left is [depth, rows]; else [rows, depth]."""
    is_right_transposed: bool
    """The right is [columns, depth]; else [depth, columns]."""
    is_left_batched: bool
    """There is a left for each of the batch; else all have the same."""
    is_right_batched: bool
    left: int
    """Position among the function's parameters, as of the others."""
    right: int
    bias: int | None = None
    sum: int | None = None
    activation: str = "none"
    """"none", "relu" or "gelu"."""

    library: ClassVar[str] = "cublaslt"
    no_algorithm: ClassVar[str] = "0" * 128

    @property
    def name(self) -> str:
        """What equal products have in common; no blanks.

        >>> Product(1, 8, 32, 64, False, True, False, False, 0, 1, 2, None, "relu").name
        '1x8x32x64:ntss:relu:0,1,2,-'
        """
        layouts = "".join(
            letters[flag]
            for letters, flag in (
                ("nt", self.is_left_transposed),
                ("nt", self.is_right_transposed),
                ("sb", self.is_left_batched),
                ("sb", self.is_right_batched),
            )
        )
        operands = operands_text(self.left, self.right, self.bias, self.sum)
        extents = f"{self.batch}x{self.rows}x{self.columns}x{self.depth}"
        return f"{extents}:{layouts}:{self.activation}:{operands}"

    @property
    def operand_sizes(self) -> Mapping[int, int]:
        """Numbers of each operand by its position among the function's parameters."""
        lefts = self.batch if self.is_left_batched else 1
        rights = self.batch if self.is_right_batched else 1
        sizes = {
            self.left: lefts * self.rows * self.depth,
            self.right: rights * self.depth * self.columns,
        }
        if self.bias is not None:
            sizes[self.bias] = self.columns
        if self.sum is not None:
            sizes[self.sum] = self.result_size
        return sizes

    @property
    def result_size(self) -> int:
        """Numbers of the result."""
        return self.batch * self.rows * self.columns


def product_of(function: relay.Function) -> Product | None:
    """Return the product that a fused function is; None: it is none."""
    if not is_float32_function(function) or (only := _OnlyProduct.of(function)) is None:
        return None
    call, extents, epilogue = only
    activation = activation_of(function.body, epilogue.climb(call))
    if activation is None or not epilogue.reads_all(call):
        return None
    left, right = (list(function.params).index(argument) for argument in call.args)
    return Product(
        *extents.numbers, *extents.flags, left, right, epilogue.bias, epilogue.sum, activation
    )


def ends_of_product(function: relay.Function) -> ExprSet:
    """Return the last value that cuBLASLt computes of a fused function; none: it computes all of
    it, or nothing."""
    if (only := _OnlyProduct.of(function)) is None or product_of(function) is not None:
        return ExprSet()
    call, _, epilogue = only
    end = epilogue.climb(call)
    users = epilogue.users[end]
    if len(users) == 1 and op_name(users[0]) == "nn.relu":
        end = users[0]
    head = relay.Function(relay.analysis.free_vars(end), end)
    is_part = not end.same_as(function.body)
    typed = relay.transform.InferType()(tvm.IRModule.from_expr(head))["main"]
    return ExprSet([end] if is_part and product_of(typed) is not None else [])


class _OnlyProduct(NamedTuple):
    """The one product of a function, and what is added to it."""

    call: relay.Call
    extents: _Extents
    epilogue: Epilogue

    @classmethod
    def of(cls, function: relay.Function) -> _OnlyProduct | None:
        """Return it if it multiplies two parameters; else None."""
        calls = [node for node in post_order(function.body) if isinstance(node, relay.Call)]
        products = [call for call in calls if traits_of(op_name(call)).kind == "product"]
        if len(products) != 1:
            return None
        call = products[0]
        if any(argument not in list(function.params) for argument in call.args):
            return None
        extents = _extents(call)
        if extents is None or any(not 0 < extent <= MAX_EXTENT for extent in extents.numbers):
            return None
        batch, rows, columns, _ = extents.numbers

        def is_bias(whole: Sequence[int], shape: Sequence[int], axis: int | None) -> bool:
            """Along the last axis, whatever the others are by now."""
            if axis not in (None, -1, len(whole) - 1):
                return False
            return whole[-1] == columns == math.prod(shape) and (shape or (1,))[-1] == columns

        return cls(call, extents, Epilogue(function, calls, batch * rows * columns, is_bias))


@dataclass(frozen=True)
class _Extents:
    numbers: tuple[int, int, int, int]
    """batch, rows, columns, depth"""
    flags: tuple[bool, bool, bool, bool]


def _extents(call: relay.Call) -> _Extents | None:
    """The shape of a product."""
    left, right = (static_shape(argument.checked_type) for argument in call.args)
    if str(call.checked_type.dtype) != "float32":
        return None
    if op_name(call) == "nn.dense":
        rows = math.prod(left[:-1])
        return _Extents((1, rows, right[0], left[-1]), (False, True, False, False))
    transposed = bool(call.attrs.transpose_a), bool(call.attrs.transpose_b)
    if op_name(call) == "nn.matmul" and not len(left) == len(right) == 2:
        return None
    depth, rows = left[-2:] if transposed[0] else left[-2:][::-1]
    columns = right[-2] if transposed[1] else right[-1]
    batches = [math.prod(shape[:-2]) for shape in (left, right)]
    batch = max(batches)
    if any(each not in (1, batch) for each in batches):
        return None
    batched = [batch > 1 and each == batch for each in batches]
    return _Extents((batch, rows, columns, depth), (*transposed, batched[0], batched[1]))
