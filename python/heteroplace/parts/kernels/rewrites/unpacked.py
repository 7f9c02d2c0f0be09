"""Dense layers -> products of any number of rows that read their weights as they lie, or in panels.

TVM rewrites the weights of a dense layer in blocks. For constants that is done once; for what is
computed or is state it would be a kernel and a buffer more for each call, in a pipeline for each
microbatch. Transposes that belong to the same task are not made at all.

    nn.dense(%x, const)             ==>  heteroplace_packed_matmul(%x, panels)
    nn.matmul(%x, const)            ==>  heteroplace_packed_matmul(%x, panels)
    nn.dense(%x, const of 4 bits)   ==>  heteroplace_quantised_matmul(%x, words, scales, offsets)
    take(const of 4 bits, %i)       ==>  heteroplace_quantised_rows(%i, words, scales, offsets)
    nn.dense(%x, %w)                ==>  heteroplace_matmul(%x, %w, transpose_b)
    nn.dense(%x, transpose(%w))     ==>  heteroplace_matmul(%x, %w)
    nn.matmul(%x, %w, ...)          ==>  heteroplace_matmul(%x, %w, ...)
    nn.batch_matmul(%x, %y, ...)    ==>  heteroplace_batch_matmul(%x, %y, ...)

TVM's own `nn.matmul` is naive on CPUs. Where a target names a library for products, all stays as it
is. TVM's dense layers are slow unless a power of two divides the number of rows, and its products
of batches always. Panels depend on the weights alone: those of branches of routers are the same at
each capacity. Panels, and tables that are looked up, are in fewer bits where these hold their
weights exactly (`narrow_weights`), and both in 4 or 8 bits where these do (`quantised_weights`).
Equal panels are one constant: an embedding may be the head, too.
Where kernels are to be TVM's own all of this is not done, and products of batches stay.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import tvm
from tvm import relay

from heteroplace.entries import load_entry
from heteroplace.model.op_traits.op_table import ops_where
from heteroplace.parts.kernels.rewrites.narrow_weights import (
    MIN_QUANTISED,
    narrowed,
    widened_value,
)
from heteroplace.relay.expr_map import ExprMap
from heteroplace.relay.expressions import (
    function_pass,
    is_op_call,
    rebuilt,
    shared_array,
    spanned,
    static_shape,
    task_of_span,
)
from heteroplace.relay.products import MatrixOperand, operands_of
from heteroplace.relay.targets import has_product_library, has_stock_kernels

Panels = dict[tuple[int, str, str], tuple[relay.Constant, tuple[relay.Constant, ...]]]
"""By address of its data, what it is for and the target, whose vectors say how wide panels are and
which types it widens: a constant, and what is read in its place."""

PACKING_LEVEL = 3
"""From this opt level on weights may lie otherwise than the network has them, as for TVM's own
AlterOpLayout."""
_CPU = "heteroplace.parts.kernels.cpu"
_MATMUL, _BATCH_MATMUL = f"{_CPU}.matmul_op:matmul", f"{_CPU}.batch_matmul_op:batch_matmul"
_PACKED = f"{_CPU}.packed_matmul_op:packed"
_PACKED_MATMUL = f"{_CPU}.packed_matmul_op:packed_matmul"
_QUANTISED = "heteroplace.parts.kernels.rewrites.quantised_weights:quantised"
_WORDS = f"{_CPU}.quantised_panels:in_words"
_QUANTISED_MATMUL = f"{_CPU}.quantised_matmul_op:quantised_matmul"
_QUANTISED_ROWS = f"{_CPU}.quantised_rows_op:quantised_rows"
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


class ReadWeights(NamedTuple):
    """A constant that a call on a CPU reads in fewer bits if that is exact."""

    constant: relay.Constant
    is_transposed: bool | None = None
    """Of a matrix in panels, whether it is [columns, depth]; None: it is read as it lies. A table
    is [rows, depth], in panels if a few bits hold it."""

    def few_bits(self) -> Any:
        """Return a matrix in 4 or 8 bits (`Quantised`) if that is exact, else None."""
        array = shared_array(self.constant.data)
        if self.is_transposed is None or array.size < MIN_QUANTISED:
            return None
        return load_entry(_QUANTISED)(array if self.is_transposed else array.T)

    def narrow_bytes(self, target: tvm.target.Target) -> int:
        """Return what it takes as it is read."""
        few_bits = self.few_bits()
        if few_bits is not None:
            return int(few_bits.held_bytes(target))
        return int(narrowed(shared_array(self.constant.data), target).nbytes)


def weights_of(call: relay.Call) -> ReadWeights | None:
    """Return what a typed call reads in fewer bits if that is exact; None: there is nothing."""
    weights: relay.Expr | None = None
    is_transposed: bool | None = None
    if is_op_call(call, "take"):
        weights, is_transposed = call.args[0], True if _takes_rows(call) else None
    elif is_op_call(call, "nn.batch_matmul") and _are_tiled(call):
        weights = call.args[1]
    else:
        operands = operands_of(call)
        if operands is not None:
            (_, turns_a), (b, is_transposed) = (_untransposed(each, call) for each in operands)
            weights = None if turns_a else b
    return ReadWeights(weights, is_transposed) if isinstance(weights, relay.Constant) else None


def _rewritten(
    function: relay.Function, panels: Panels | None, *, is_tiled: bool
) -> relay.Function:
    mapped: ExprMap[relay.Expr] = ExprMap()

    def rewrite(old: relay.Expr, new: relay.Expr) -> relay.Expr:
        if is_op_call(old, "nn.batch_matmul"):
            return _tiled(old, new, mapped, panels) if is_tiled else _summed_along_rows(old, new)
        if is_op_call(old, "take") and panels is not None:
            return _looked_up(old, new, panels)
        operands = operands_of(old)
        if operands is None:
            return new
        (a, turns_a), (b, turns_b) = (_untransposed(each, old) for each in operands)
        if isinstance(b, relay.Constant) and panels is not None and not turns_a:
            columns = static_shape(old.checked_type)[1]
            weights = _in_panels(b, turns_b, panels)
            multiply = load_entry(_PACKED_MATMUL if len(weights) == 1 else _QUANTISED_MATMUL)
            return spanned(multiply(mapped[a], *weights, columns), old.span)
        if isinstance(b, relay.Constant) and old.op.name == "nn.dense":
            return new
        call = load_entry(_MATMUL)(mapped[a], mapped[b], transpose_a=turns_a, transpose_b=turns_b)
        return spanned(call, old.span)

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
    return spanned(call, old.span)


def _summed_along_rows(old: relay.Call, new: relay.Call) -> relay.Expr:
    """A product for TVM's kernels, which load vectors along the axis that they sum up.

    A right matrix that lies otherwise is transposed first. For 12 x 197 x 197 x 64, TVM's kernel
    takes 4.3 ms without that, and 1.9 ms with it (Intel Xeon, family 6, model 167).
    """
    if old.attrs.transpose_b or old.attrs.transpose_a:
        return new
    a, b = new.args
    b = spanned(relay.transpose(b, [0, 2, 1]), old.span)
    return spanned(relay.nn.batch_matmul(a, b, old.attrs.out_dtype), old.span)


def _are_tiled(call: relay.Call) -> bool:
    """Whether products of batches are of types that tiles are made of."""
    dtypes = {each.checked_type.dtype for each in (*call.args, call)}
    return len(dtypes) == 1 and dtypes <= _TILED_DTYPES


def _in_panels(
    constant: relay.Constant, is_transposed: bool, panels: Panels
) -> tuple[relay.Constant, ...]:
    """Weights in panels, the same for all layers that have them: words, scales and zero points
    where a few bits hold them exactly."""
    target = tvm.target.Target.current()

    def in_panels(matrix: np.ndarray) -> Sequence[np.ndarray]:
        rows = matrix if is_transposed else matrix.T
        few_bits = ReadWeights(constant, is_transposed).few_bits()
        if few_bits is not None:
            words: Sequence[np.ndarray] = load_entry(_WORDS)(few_bits, target)
            return words
        return [load_entry(_PACKED)(narrowed(rows, target), constant.checked_type.dtype)]

    return _read_as(constant, "rows" if is_transposed else "columns", in_panels, panels)


def _narrow_matrices(
    constant: relay.Constant, is_transposed: bool, panels: Panels
) -> tuple[relay.Constant, bool]:
    """Right matrices of a batch, and whether they are read transposed: not if they are narrow."""

    def untransposed(matrices: np.ndarray) -> np.ndarray:
        is_wide = str(matrices.dtype) == constant.checked_type.dtype
        return matrices if is_wide else matrices.swapaxes(1, 2)

    if not is_transposed:
        return _narrowly_read(constant, "", lambda matrices: matrices, panels), False
    narrow = _narrowly_read(constant, "transposed", untransposed, panels)
    return narrow, narrow.data.dtype == constant.data.dtype


def _looked_up(old: relay.Call, new: relay.Call, panels: Panels) -> relay.Expr:
    """Rows of a table, widened when they are found."""
    table = old.args[0]
    if not isinstance(table, relay.Constant):
        return new
    if _takes_rows(old) and ReadWeights(table, is_transposed=True).few_bits() is not None:
        weights = _in_panels(table, True, panels)
        shape = static_shape(table.checked_type)
        return spanned(load_entry(_QUANTISED_ROWS)(new.args[1], *weights, shape), old.span)
    narrow = _narrowly_read(table, "", lambda array: array, panels)
    if narrow.data.dtype == table.data.dtype:
        return new
    rows = relay.Call(new.op, [narrow, *new.args[1:]], new.attrs, None, old.span)
    return widened_value(rows, narrow.data.dtype, old.span)


def _takes_rows(call: relay.Call) -> bool:
    """Whether a lookup reads rows of a matrix, and indices outside of it are clipped."""
    attrs = call.attrs
    is_plain = attrs.mode != "wrap" and int(attrs.batch_dims) == 0
    is_matrix = len(call.args[0].checked_type.shape) == 2
    return is_plain and is_matrix and attrs.axis is not None and int(attrs.axis) == 0


def _narrowly_read(
    constant: relay.Constant,
    purpose: str,
    laid: Callable[[np.ndarray], np.ndarray],
    panels: Panels,
) -> relay.Constant:
    """A constant as it is read, in fewer bits where that is exact."""
    target = tvm.target.Target.current()

    def narrow(array: np.ndarray) -> Sequence[np.ndarray]:
        return [laid(narrowed(array, target))]

    return _read_as(constant, purpose, narrow, panels)[0]


def _read_as(
    constant: relay.Constant,
    purpose: str,
    laid: Callable[[np.ndarray], Sequence[np.ndarray]],
    panels: Panels,
) -> tuple[relay.Constant, ...]:
    """What is read in the place of a constant, made once for a target."""
    key = constant.data.handle.contents.data, purpose, str(tvm.target.Target.current())
    if key not in panels:
        array = shared_array(constant.data)
        arrays = [np.ascontiguousarray(each) for each in laid(array)]
        read = _equal_constants(arrays, panels) or tuple(
            constant if each is array else relay.const(each, str(each.dtype)) for each in arrays
        )
        panels[key] = (constant, read)
    return panels[key][1]


def _equal_constants(arrays: Sequence[np.ndarray], panels: Panels) -> tuple[relay.Constant, ...]:
    """Constants in a few bits that hold these arrays; none: ()."""
    shapes = [(each.shape, str(each.dtype)) for each in arrays]
    for _, read in panels.values():
        if len(read) == 1 or [(each.data.shape, each.data.dtype) for each in read] != shapes:
            continue
        others = [each.data.numpy() for each in reversed(read)]  # the smallest first
        if all(map(np.array_equal, reversed(arrays), others)):
            return read
    return ()


def _untransposed(operand: MatrixOperand, reader: relay.Call) -> MatrixOperand:
    """An operand before it is transposed, if that is done by the task of its reader."""
    inner = operand.before()
    return inner if task_of_span(operand.value) == task_of_span(reader) else operand
