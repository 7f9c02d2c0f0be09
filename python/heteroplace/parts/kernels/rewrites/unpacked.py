"""Dense layers -> products of any number of rows that read their weights as they lie, or in panels.

TVM rewrites the weights of a dense layer in blocks. For constants that is done once; for what is
computed or is state it would be a kernel and a buffer more for each call, in a pipeline for each
microbatch. Transposes that belong to the same task are not made at all.

    nn.dense(%x, const)             ==>  heteroplace_packed_matmul(%x, panels)
    nn.matmul(%x, const)            ==>  heteroplace_packed_matmul(%x, panels)
    nn.dense(%x, %w)                ==>  heteroplace_matmul(%x, %w, transpose_b)
    nn.dense(%x, transpose(%w))     ==>  heteroplace_matmul(%x, %w)
    nn.matmul(%x, %w, ...)          ==>  heteroplace_matmul(%x, %w, ...)
    nn.batch_matmul(%x, %y, ...)    ==>  heteroplace_batch_matmul(%x, %y, ...)

TVM's own `nn.matmul` is naive on CPUs. Where a target names a library for products, all stays as it
is. TVM's dense layers are slow unless a power of two divides the number of rows, and its products
of batches always. Panels depend on the weights alone: those of branches of routers are the same at
each capacity. Panels, and tables that are looked up, are in half precision where it holds their
weights exactly (`narrow_weights`). Where kernels are to be TVM's own all of this is not done, and
products of batches stay.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import tvm
from tvm import relay

from heteroplace.entries import load_entry
from heteroplace.model.op_traits.op_table import ops_where
from heteroplace.parts.kernels.rewrites.narrow_weights import narrowed, widened_value
from heteroplace.relay.expr_map import ExprMap
from heteroplace.relay.expressions import (
    function_pass,
    is_op_call,
    rebuilt,
    static_shape,
    task_of_span,
)
from heteroplace.relay.products import MatrixOperand, operands_of
from heteroplace.relay.targets import has_product_library, has_stock_kernels

Panels = dict[tuple[int, str, str], tuple[relay.Constant, relay.Constant]]
"""By address of its data, what it is for and the target, whose vectors say how wide panels are and
which types it widens: a constant, and what is read in its place."""

PACKING_LEVEL = 3
"""From this opt level on weights may lie otherwise than the network has them, as for TVM's own
AlterOpLayout."""
_CPU = "heteroplace.parts.kernels.cpu"
_MATMUL, _BATCH_MATMUL = f"{_CPU}.matmul_op:matmul", f"{_CPU}.batch_matmul_op:batch_matmul"
_PACKED = f"{_CPU}.packed_matmul_op:packed"
_PACKED_MATMUL = f"{_CPU}.packed_matmul_op:packed_matmul"
"""Each is loaded with the first product that is done so."""
_TILED_DTYPES = frozenset({"float32", "float64"})
"""Products of batches of these types are done in tiles."""
_OPS = ops_where(lambda op: op.kind == "product") | {"take"}


def ReadWeightsInPlace(  # noqa: N802  (named as TVM names its passes)
    target: tvm.target.Target, panels: Panels | None = None
) -> tvm.transform.Pass:
    """Return the pass for a CPU target. The types of the result are not inferred.

    Parameters
    ----------
    panels
        What is known of the weights of several functions, to which it adds: they all are packed.
        None: there is one function, packed at opt level 3.
    """

    def run(function: relay.Function) -> relay.Function:
        if has_product_library(target):
            return function
        is_own = not has_stock_kernels(target)
        own_panels = panels
        if own_panels is None and tvm.transform.PassContext.current().opt_level >= PACKING_LEVEL:
            own_panels = {}
        with target:
            return _rewritten(function, own_panels if is_own else None, is_tiled=is_own)

    return function_pass("ReadWeightsInPlace", run, ops=_OPS)


def weights_of(call: relay.Call) -> relay.Constant | None:
    """Return the constant of a typed call on a CPU that is read in half precision if that is exact;
    None: there is none."""
    weights: relay.Expr | None = None
    if is_op_call(call, "take"):
        weights = call.args[0]
    elif is_op_call(call, "nn.batch_matmul") and _are_tiled(call):
        weights = call.args[1]
    else:
        operands = operands_of(call)
        if operands is not None:
            (_, turns_a), (weights, _) = (_untransposed(each, call) for each in operands)
            weights = None if turns_a else weights
    return weights if isinstance(weights, relay.Constant) else None


def _rewritten(
    function: relay.Function, panels: Panels | None, *, is_tiled: bool
) -> relay.Function:
    mapped: ExprMap[relay.Expr] = ExprMap()

    def rewrite(old: relay.Expr, new: relay.Expr) -> relay.Expr:
        if is_op_call(old, "nn.batch_matmul"):
            return _tiled(old, new, mapped, panels) if is_tiled else new
        if is_op_call(old, "take") and panels is not None:
            return _looked_up(old, new, panels)
        operands = operands_of(old)
        if operands is None:
            return new
        (a, turns_a), (b, turns_b) = (_untransposed(each, old) for each in operands)
        if isinstance(b, relay.Constant) and panels is not None and not turns_a:
            columns = static_shape(old.checked_type)[1]
            weights = _in_panels(b, turns_b, panels)
            return _spanned(load_entry(_PACKED_MATMUL)(mapped[a], weights, columns), old)
        if isinstance(b, relay.Constant) and old.op.name == "nn.dense":
            return new
        call = load_entry(_MATMUL)(mapped[a], mapped[b], transpose_a=turns_a, transpose_b=turns_b)
        return _spanned(call, old)

    return rebuilt(function, rewrite, mapped, _OPS)


def _tiled(
    old: relay.Call,
    new: relay.Call,
    mapped: Mapping[relay.Expr, relay.Expr],
    panels: Panels | None,
) -> relay.Expr:
    """Products in tiles, of what is there before it is transposed, if that is of the same task."""
    if not _are_tiled(old):
        return new
    sides = []
    for side, is_transposed in zip(
        old.args, (old.attrs.transpose_a, old.attrs.transpose_b), strict=True
    ):
        turns = bool(is_transposed)
        if is_op_call(side, "transpose") and task_of_span(side) == task_of_span(old):
            axes = side.attrs.axes
            if axes and [int(axis) % 3 for axis in axes] == [0, 2, 1]:
                side, turns = side.args[0], not turns
        sides.append((mapped[side], turns))
    (a, turns_a), (b, turns_b) = sides
    if isinstance(b, relay.Constant) and panels is not None:
        b, turns_b = _narrow_matrices(b, turns_b, panels)
    call = load_entry(_BATCH_MATMUL)(a, b, transpose_a=turns_a, transpose_b=turns_b)
    return _spanned(call, old)


def _are_tiled(call: relay.Call) -> bool:
    """Whether products of batches are of types that tiles are made of."""
    dtypes = {each.checked_type.dtype for each in (*call.args, call)}
    return len(dtypes) == 1 and dtypes <= _TILED_DTYPES


def _in_panels(constant: relay.Constant, is_transposed: bool, panels: Panels) -> relay.Constant:
    """Weights in panels, the same for all layers that have them."""

    def in_panels(matrix: np.ndarray) -> np.ndarray:
        rows = matrix if is_transposed else matrix.T
        laid_out: np.ndarray = load_entry(_PACKED)(rows, constant.checked_type.dtype)
        return laid_out

    return _read_as(constant, "rows" if is_transposed else "columns", in_panels, panels)


def _narrow_matrices(
    constant: relay.Constant, is_transposed: bool, panels: Panels
) -> tuple[relay.Constant, bool]:
    """Right matrices of a batch, and whether they are read transposed: not if they are narrow."""

    def untransposed(matrices: np.ndarray) -> np.ndarray:
        is_wide = str(matrices.dtype) == constant.checked_type.dtype
        return matrices if is_wide else matrices.swapaxes(1, 2)

    if not is_transposed:
        return _read_as(constant, "", lambda matrices: matrices, panels), False
    narrow = _read_as(constant, "transposed", untransposed, panels)
    return narrow, narrow.data.dtype == constant.data.dtype


def _looked_up(old: relay.Call, new: relay.Call, panels: Panels) -> relay.Expr:
    """Rows of a table, widened when they are found."""
    table = old.args[0]
    if not isinstance(table, relay.Constant):
        return new
    narrow = _read_as(table, "", lambda array: array, panels)
    if narrow.data.dtype == table.data.dtype:
        return new
    rows = relay.Call(new.op, [narrow, *new.args[1:]], new.attrs, None, old.span)
    return widened_value(rows, narrow.data.dtype, old.span)


def _read_as(
    constant: relay.Constant,
    purpose: str,
    laid: Callable[[np.ndarray], np.ndarray],
    panels: Panels,
) -> relay.Constant:
    """A constant as it is read, in half precision where that is exact."""
    target = tvm.target.Target.current()
    key = constant.data.handle.contents.data, purpose, str(target)
    if key not in panels:
        array = constant.data.numpy()
        laid_out = np.ascontiguousarray(laid(narrowed(array, target)))
        is_same = laid_out is array
        panels[key] = constant, constant if is_same else relay.const(laid_out, str(laid_out.dtype))
    return panels[key][1]


def _untransposed(operand: MatrixOperand, reader: relay.Call) -> MatrixOperand:
    """An operand before it is transposed, if that is done by the task of its reader."""
    inner = operand.before()
    return inner if task_of_span(operand.value) == task_of_span(reader) else operand


def _spanned(call: relay.Call, old: relay.Call) -> relay.Call:
    return relay.Call(call.op, call.args, call.attrs, call.type_args, old.span)
