"""Products and convolutions with constant weights -> the same in bfloat16, with float32 sums.

    nn.dense(%x, const)                  ==>  heteroplace_bfloat16_matmul(%y, panels)
    nn.contrib_conv2d_NCHWc(%x, const)   ==>  heteroplace_bfloat16_conv2d(%y, filters)
        where %y = heteroplace_bfloat16(%x)

The rounding of %x belongs to the task that makes %x, so that its kernel stores half the bytes.
Products of few rows wait for their weights alone: these are rounded, and kernels read them in half
precision (`narrow_weights`). Weights of 4 or 8 bits stay as they are (`quantised_weights`).
Depthwise convolutions, sums and everything else stay in float32.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from math import prod

import numpy as np
import tvm
from tvm import relay
from tvm.relay.op import OpPattern

from heteroplace.bfloat16_bits import rounded_to_bfloat16
from heteroplace.entries import load_entry
from heteroplace.parts.kernels.cpu.bfloat16 import LANES, PAIR, rounded
from heteroplace.parts.kernels.rewrites.narrow_weights import MIN_NARROWED
from heteroplace.parts.kernels.rewrites.unpacked import ReadWeights
from heteroplace.relay.expr_map import ExprMap
from heteroplace.relay.expressions import (
    function_pass,
    op_name,
    post_order,
    read_by,
    rebuilt,
    spanned,
    static_shape,
    task_of_span,
)
from heteroplace.relay.products import constant_weights, operands_of
from heteroplace.relay.targets import multiplies_tiles

IsChosen = Callable[[str | None], bool]
"""Says whether a task, by its name, computes in bfloat16; None: an op of no task."""

_CPU = "heteroplace.parts.kernels.cpu"
_MATMUL = f"{_CPU}.grouped_matmul_op:BFLOAT16_MATMUL"
_CONVOLUTION = f"{_CPU}.bfloat16_conv_op:bfloat16_conv2d"
_FILTERS = f"{_CPU}.bfloat16_conv_op:paired_filters"
_AMX_LAYOUT = f"{_CPU}.amx.amx_conv:amx_layout"
_WINDOW = f"{_CPU}.filter_window:FilterWindow"
"""Loaded with the first op of each kind."""
_PRODUCTS = ("nn.dense", "nn.matmul")
_CONVOLUTIONS = ("nn.contrib_conv2d_NCHWc",)
_BLOCKED = re.compile(r"NCHW(\d+)c")


def Bfloat16Products(is_chosen: IsChosen) -> tvm.transform.Pass:  # noqa: N802  (as TVM names them)
    """Return the pass over products of matrices; it goes before their weights lie in panels."""
    return _pass("Bfloat16Products", _PRODUCTS, is_chosen, _product)


def Bfloat16Convolutions(is_chosen: IsChosen) -> tvm.transform.Pass:  # noqa: N802  (likewise)
    """Return the pass over convolutions; it goes behind AlterOpLayout."""
    return _pass("Bfloat16Convolutions", _CONVOLUTIONS, is_chosen, _convolution)


def bfloat16_weights(call: relay.Call) -> relay.Constant | None:
    """Return the weights of a typed, neutral call that are certain to be held in bfloat16; None:
    there are none.

    Those of convolutions are if blocks of channels are whole vectors, others if they are so many
    that `narrow_weights` narrows them.
    """
    weights = constant_weights(call)
    if weights is None:
        return None
    shape = static_shape(weights.checked_type)
    if op_name(call) != "nn.conv2d":
        operands = operands_of(call)
        is_transposed = None if operands is None else operands[1].is_transposed
        is_wide = ReadWeights(weights, is_transposed).few_bits() is None
        return weights if is_wide and prod(shape) >= MIN_NARROWED else None
    is_whole = str(call.attrs.kernel_layout) == "OIHW" and not any(
        extent % LANES for extent in shape[:2]
    )
    return weights if is_whole else None


class _Rewrite:
    """What has been made for one function."""

    def __init__(self, function: relay.Function) -> None:
        self.mapped: ExprMap[relay.Expr] = ExprMap()
        self.by_amx: ExprMap[bool] = ExprMap()
        """Convolutions that AMX computes."""
        self._by_convolutions, self._by_others = ExprMap[int](), ExprMap[int]()
        """How often a value is read: rounded, if convolutions may read it so, and as it is."""
        self._by_others[function.body] = 1
        for node in post_order(function.body):
            is_convolution = op_name(node) in _CONVOLUTIONS
            uses = self._by_convolutions if is_convolution else self._by_others
            for value in read_by(node):
                uses[value] = uses.get(value, 0) + 1
        self._rounded: dict[int, ExprMap[relay.Expr]] = {1: ExprMap(), 2: ExprMap()}
        self._weights: dict[tuple[int, str], relay.Constant] = {}

    def can_join_blocks(self, old: relay.Expr) -> bool:
        """Say whether a value that convolutions read may be rounded with two blocks of channels in
        one: whether the kernel that it is fused with is one of AMX, or has elementwise ops alone.

        A value that others read too is a kernel's result before it is rounded.
        """
        if old in self._by_others:
            return True
        reads: ExprMap[int] = ExprMap()
        fused = [old]
        while fused:
            value = fused.pop()
            if not isinstance(value, relay.Call) or value in self.by_amx:
                continue
            if not _is_elementwise(value):
                return False
            for argument in value.args:
                reads[argument] = reads.get(argument, 0) + 1
                if argument not in self._by_convolutions and (
                    reads[argument] == self._by_others[argument]
                ):
                    fused.append(argument)
        return True

    def rounded(
        self, old: relay.Expr, reader: relay.Call, added: int = 0, together: int = 1
    ) -> relay.Expr:
        """Return a value of the function, rounded once for all its readers.

        Parameters
        ----------
        added
            So many zeros are added along the last axis.
        together
            So many blocks of channels become one.
        """
        values = self._rounded[together]
        if old not in values:
            span = old.span if isinstance(old, relay.Call) else reader.span
            value = self.mapped[old]
            if added:
                before = [(0, 0)] * (len(static_shape(old.checked_type)) - 1)
                value = spanned(relay.nn.pad(value, [*before, (0, added)]), span)
            values[old] = spanned(rounded(value, together), span)
        return values[old]

    def weights(
        self, constant: relay.Constant, form: str, laid_out: Callable[[np.ndarray], np.ndarray]
    ) -> relay.Constant:
        """Return weights in another form, the same constant for all calls that have them."""
        key = constant.data.handle.contents.data, form
        if key not in self._weights:
            array = laid_out(constant.data.numpy())
            self._weights[key] = relay.const(array, str(array.dtype))
        return self._weights[key]


def _pass(
    name: str,
    ops: tuple[str, ...],
    is_chosen: IsChosen,
    of_call: Callable[[relay.Call, _Rewrite], relay.Call | None],
) -> tvm.transform.Pass:
    def run(function: relay.Function) -> relay.Function:
        state = _Rewrite(function)

        def rewrite(old: relay.Expr, new: relay.Expr) -> relay.Expr:
            if op_name(old) not in ops or not is_chosen(task_of_span(old)):
                return new
            call = of_call(old, state)
            if call is None:
                return new
            return spanned(call, old.span)

        return rebuilt(function, rewrite, state.mapped)

    return function_pass(name, run, opt_level=3, ops=ops)


def _product(old: relay.Call, state: _Rewrite) -> relay.Call | None:
    operands, b = operands_of(old), constant_weights(old)
    if operands is None or b is None:
        return None
    (a, _), (_, turns_b) = operands
    if ReadWeights(b, turns_b).few_bits() is not None:
        return None
    rows, columns = static_shape(old.checked_type)
    depth = static_shape(a.checked_type)[1]
    multiply = load_entry(_MATMUL)
    if not multiply.can_multiply(rows, columns, depth):
        weights = state.weights(b, "rounded", rounded_to_bfloat16)
        return relay.Call(old.op, [state.mapped[a], weights], old.attrs)

    def panels(matrix: np.ndarray) -> np.ndarray:
        laid_out: np.ndarray = multiply.panels(matrix if turns_b else matrix.T)
        return laid_out

    weights = state.weights(b, "rows" if turns_b else "columns", panels)
    call: relay.Call = multiply(state.rounded(a, old), weights, columns)
    return call


def _convolution(old: relay.Call, state: _Rewrite) -> relay.Call | None:
    if not _is_blocked(old):
        return None
    data, filters = old.args
    window = load_entry(_WINDOW).of(old.attrs)
    num, blocks, *size, lanes = static_shape(data.checked_type)
    added = -lanes % PAIR
    has_halves = multiplies_tiles(tvm.target.Target.current()) and lanes == LANES
    together = 2 if has_halves and blocks % 2 == 0 and state.can_join_blocks(data) else 1

    def paired(array: np.ndarray) -> np.ndarray:
        whole = np.pad(array, [*[(0, 0)] * 4, (0, added), (0, 0)])
        laid_out: np.ndarray = load_entry(_FILTERS)(_joined(whole, together))
        return laid_out

    weights = state.weights(filters, f"{together} together", paired)
    value = state.rounded(data, old, added, together)
    call: relay.Call = load_entry(_CONVOLUTION)(value, weights, window)
    shape = num, blocks // together, *size, (lanes + added) * together
    if load_entry(_AMX_LAYOUT)(shape, tuple(weights.data.shape), window) is not None:
        state.by_amx[old] = True
    return call


def _is_elementwise(call: relay.Call) -> bool:
    pattern = call.op.get_attr("TOpPattern") if isinstance(call.op, tvm.ir.Op) else None
    return pattern is not None and pattern <= OpPattern.BROADCAST


def _joined(filters: np.ndarray, together: int) -> np.ndarray:
    """Return filters [blocks, blocks of data, height, width, lanes of data, 16] for data of which
    so many blocks have become one."""
    blocks, data_blocks, height, width, data_lanes, lanes = filters.shape
    joined = filters.reshape(blocks, -1, together, height, width, data_lanes, lanes)
    shape = blocks, data_blocks // together, height, width, together * data_lanes, lanes
    return np.moveaxis(joined, 2, 4).reshape(shape)


def _is_blocked(call: relay.Call) -> bool:
    """Say whether a convolution is of one group, float32 and constant filters, into blocks of whole
    vectors."""
    attrs, (data, filters) = call.attrs, call.args
    if not isinstance(filters, relay.Constant) or len(attrs.padding) != 4:
        return False
    layouts = [_BLOCKED.fullmatch(str(each)) for each in (attrs.data_layout, attrs.out_layout)]
    if None in layouts:
        return False
    data_lanes, lanes = (int(match[1]) for match in layouts if match is not None)
    return (
        str(attrs.kernel_layout) == f"OIHW{data_lanes}i{lanes}o"
        and lanes == LANES
        and int(attrs.groups) == 1
        and static_shape(filters.checked_type)[1] == static_shape(data.checked_type)[1]
        and {str(each.checked_type.dtype) for each in (data, filters, call)} == {"float32"}
    )
