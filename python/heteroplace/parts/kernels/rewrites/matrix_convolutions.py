"""Convolutions that are products of matrices -> such products, with what is elementwise behind.

TVM has no vector kernel of groups, and of a map of one element it sums up one vector at a time,
each product waiting for the one before. But

    nn.conv2d(%x[n, c, 1, 1], const)
        ==>  reshape(nn.dense(reshape(%x, [n, c]), const'), [n, o, 1, 1])
    nn.conv2d(%x[1, c, h, w], const, groups=g)
        ==>  reshape(nn.batch_matmul(const', reshape(%x, [g, c / g, h w])), [1, o, h, w])

for filters of one element. Elementwise ops that follow are computed in the form of the matrix, as a
reshape between would keep them in a kernel of their own; reshapes at the ends move nothing.
"""

from __future__ import annotations

from math import prod

import tvm
from tvm import relay

from heteroplace.model.op_traits.op_table import traits_of
from heteroplace.relay.expr_map import ExprMap
from heteroplace.relay.expressions import function_pass, op_name, rebuilt, spanned, static_shape

Shape = tuple[int, ...]


def MatrixConvolutions() -> tvm.transform.Pass:  # noqa: N802  (named as TVM names its passes)
    """Return the pass; it goes before AlterOpLayout. Types are not inferred."""

    def run(function: relay.Function) -> relay.Function:
        rewriter = _Rewriter()
        return rebuilt(function, rewriter.rewrite, rewriter.mapped)

    return function_pass("MatrixConvolutions", run, opt_level=3, ops=("nn.conv2d",))


class _Rewriter:
    def __init__(self) -> None:
        self.mapped: ExprMap[relay.Expr] = ExprMap()
        self._matrices: ExprMap[tuple[relay.Expr, Shape]] = ExprMap()
        """Of a map: what it is as a matrix, or as a batch of them, and the shape of that."""

    def rewrite(self, old: relay.Expr, new: relay.Expr) -> relay.Expr:
        name = op_name(old)
        product = None
        if name == "nn.conv2d":
            product = self._product(old)
        elif name is not None and self._matrices:
            product = self._elementwise(name, old)
        if product is None:
            return new
        self._matrices[old] = product
        return spanned(relay.reshape(product[0], _shape(old)), old.span)

    def _product(self, old: relay.Call) -> tuple[relay.Expr, Shape] | None:
        if not _has_filters_of_an_element(old):
            return None
        groups, filters = int(old.attrs.groups), old.args[1].data.numpy()
        n, channels, height, width = _shape(old.args[0])
        num_out = len(filters)
        if groups == 1 and height * width == 1:
            data = self._as_matrix(old.args[0], (n, channels), old)
            product = relay.nn.dense(data, relay.const(filters[:, :, 0, 0]), units=num_out)
            return spanned(product, old.span), (n, num_out)
        if 1 < groups < max(channels, num_out) and n == 1:
            shape = groups, channels // groups, height * width
            data = self._as_matrix(old.args[0], shape, old)
            left = relay.const(filters.reshape(groups, num_out // groups, channels // groups))
            shape = groups, num_out // groups, height * width
            product = relay.nn.batch_matmul(left, data, transpose_b=False)
            return spanned(product, old.span), shape
        return None

    def _elementwise(self, name: str, old: relay.Call) -> tuple[relay.Expr, Shape] | None:
        if traits_of(name).kind not in ("unary", "arithmetic"):
            return None
        shapes = [self._matrices[each][1] for each in old.args if each in self._matrices]
        whole = _shape(old)
        if not shapes or prod(shapes[0]) != prod(whole) or not _is_float(old):
            return None
        operands = []
        for operand in old.args:
            if isinstance(operand, relay.Constant):
                constant = _constant_for(operand, whole, shapes[0])
                if constant is None:
                    return None
                operands.append(constant)
            elif _shape(operand) == whole:
                operands.append(self._as_matrix(operand, shapes[0], old))
            else:
                return None
        return relay.Call(old.op, operands, old.attrs, None, old.span), shapes[0]

    def _as_matrix(self, value: relay.Expr, shape: Shape, reader: relay.Call) -> relay.Expr:
        if value in self._matrices and self._matrices[value][1] == shape:
            return self._matrices[value][0]
        return spanned(relay.reshape(self.mapped[value], shape), reader.span)


def _has_filters_of_an_element(call: relay.Call) -> bool:
    """With stride 1 and nothing around the map."""
    if not isinstance(call.args[1], relay.Constant):
        return False
    attrs = call.attrs
    return (
        (attrs.data_layout, attrs.kernel_layout) == ("NCHW", "OIHW")
        and attrs.out_layout in ("", "NCHW")
        and _is_float(call)
        and _shape(call.args[1])[2:] == (1, 1)
        and _shape(call)[2:] == _shape(call.args[0])[2:]
        and all(int(each) == 1 for each in attrs.strides)
    )


def _constant_for(constant: relay.Constant, whole: Shape, shape: Shape) -> relay.Constant | None:
    """A constant beside a map, for its matrix; None: it is none of one number or of channels."""
    array = constant.data.numpy()
    if array.size == 1:
        return relay.const(array.reshape(()))
    channels = (whole[1], 1, 1)
    if array.shape not in (channels, (1, *channels)):
        return None
    return relay.const(array.reshape(shape[1:] if len(shape) == 2 else (*shape[:2], 1)))


def _is_float(call: relay.Call) -> bool:
    return all(each.checked_type.dtype == "float32" for each in (*call.args, call))


def _shape(value: relay.Expr) -> Shape:
    type_ = value.checked_type
    return static_shape(type_) if isinstance(type_, relay.TensorType) else ()
