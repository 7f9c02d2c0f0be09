"""Convolutions of 3 x 3 -> Winograd's algorithm, where that is quicker.

    nn.contrib_conv2d_NCHWc(%x, const[k, c, 3, 3, 16, 16])
        ==>  heteroplace_winograd(%x, const'[k / 2, 6, 6, c, 16, 2, 16], tile=4)

It takes a half or a quarter of the products, and filters that are 1.8 or 4 times as large; what it
gains is less where these take long to read: of small maps with many channels. An infinity or a NaN
in a map becomes a NaN in all tiles that see it.

The filters are constants. Which tile is taken depends on channels and the size of the map, not on
the batch: the numbers are the same in each.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import tvm
from tvm import relay, te, topi

from heteroplace.entries import load_entry
from heteroplace.parts.kernels.cpu.own_schedules import is_tuned
from heteroplace.parts.kernels.cpu.winograd_forms import FILTER, FORMS, WINOGRAD_OP
from heteroplace.relay.expressions import (
    function_pass,
    is_op_call,
    post_order,
    rebuild,
    rebuilt,
    static_shape,
)
from heteroplace.relay.tasks.kept_casts import is_whole

_WINOGRAD = "heteroplace.parts.kernels.cpu.winograd_op:winograd"
_SPREAD_FILTERS = "heteroplace.parts.kernels.cpu.winograd_op:spread_filters"
"""Loaded with the first convolution that is done so."""
_BLOCKED = re.compile(r"NCHW(\d+)c")
_OPS = ("nn.contrib_conv2d_NCHWc",)
_MOVES = ("layout_transform", "nn.pad")
"""Between data and a convolution."""
_MIN_CHANNELS = 32
"""Of fewer the transforms take as long as is saved."""
_MAX_FILTERS = 1400
"""For each element of a map: more take longer to read than is saved."""
_MIN_LARGE_AREA = 400
"""Of maps for which it pays to read filters that are four times as large."""
_MAX_DATA_CHANNELS = 512
"""Of tiles of 4 x 4: so many stay within 5e-6 of the largest output, twice as many did not."""
_MIN_SAVED = {4: 2.5, 2: 1.6}
"""Products, by tile; tiles hang over the edge of a map."""


def winograd_tile(data_channels: int, channels: int, height: int, width: int) -> int:
    """Return the size of the tiles for a convolution whose result has this size; 0: none.

    Examples
    --------
    >>> [winograd_tile(size, size, 3584 // size, 3584 // size) for size in (16, 64, 128, 256, 512)]
    [0, 4, 4, 2, 0]
    """
    area = height * width
    if min(data_channels, channels) < _MIN_CHANNELS or (
        data_channels * channels > _MAX_FILTERS * area
    ):
        return 0
    is_large = area >= _MIN_LARGE_AREA and data_channels <= _MAX_DATA_CHANNELS
    tiles = (4, 2) if is_large else (2,)
    return next((t for t in tiles if _saved(t, height, width) >= _MIN_SAVED[t]), 0)


def _saved(tile: int, height: int, width: int) -> float:
    """How many products of plain sums there are for one of the algorithm's."""
    num_tiles = -(-height // tile) * -(-width // tile)
    return FILTER**2 * height * width / (FORMS[tile].seen ** 2 * num_tiles)


PlainFilters = dict[int, relay.Constant]
"""By the address of filters at points: the filters themselves, in blocks of channels."""


def Winograd(  # noqa: N802  (named as TVM names its passes)
    plain: PlainFilters,
) -> tvm.transform.Pass:
    """Return the pass; it goes behind AlterOpLayout. Types are not inferred.

    Convolutions for which there are tuning records stay. The filters of others are added to
    `plain`.
    """

    def run(function: relay.Function) -> relay.Function:
        filters: dict[tuple[int, ...], relay.Constant] = {}

        def rewrite(old: relay.Expr, new: relay.Expr) -> relay.Expr:
            tile = _tile(old)
            if tile == 0:
                return new
            weights = old.args[1]
            size = static_shape(old.checked_type)[2:4]
            key = _address(weights), tile, *size
            if key not in filters:
                spread: np.ndarray = load_entry(_SPREAD_FILTERS)(weights.data.numpy(), tile, *size)
                filters[key] = relay.const(spread)
                plain[_address(filters[key])] = weights
            padding = [int(extent) for extent in old.attrs.padding]
            call = load_entry(_WINOGRAD)(new.args[0], filters[key], tile, padding)
            return relay.Call(call.op, call.args, call.attrs, None, old.span)

        return rebuilt(function, rewrite, ops=_OPS)

    return function_pass("Winograd", run, opt_level=3, ops=_OPS)


def with_plain_sums(call: relay.Call, plain: PlainFilters) -> relay.Call:
    """Return a call of a fused function with what it was before the pass: for TVM's own kernels.

    The same call, if there is none of ours in it.
    """
    function, operands = call.op, list(call.args)
    params, mapped = list(function.params), dict[relay.Expr, relay.Expr]()

    def rewrite(old: relay.Expr, new: relay.Expr) -> relay.Expr:
        if not is_op_call(old, WINOGRAD_OP):
            return new
        place = params.index(old.args[1])
        weights = operands[place] = plain[_address(operands[place])]
        params[place] = relay.Var("filters", weights.checked_type)
        return relay.Call(*_plain_call(old, new.args[0], params[place]), None, old.span)

    nodes = post_order(function.body)
    if not any(is_op_call(node, WINOGRAD_OP) for node in nodes):
        return call
    rebuild(nodes, mapped, rewrite)
    rebuilt_function = relay.Function(params, mapped[function.body], None, [], function.attrs)
    typed = relay.transform.InferType()(tvm.IRModule.from_expr(rebuilt_function))["main"]
    return relay.Call(typed, operands, call.attrs, call.type_args, call.span)


def _plain_call(
    old: relay.Call, data: relay.Expr, filters: relay.Var
) -> tuple[tvm.ir.Op, list[relay.Expr], tvm.ir.Attrs]:
    blocks, _, _, _, data_lanes, lanes = static_shape(filters.type_annotation)
    convolution = relay.nn.contrib_conv2d_nchwc(
        data,
        filters,
        padding=[int(each) for each in old.attrs["padding"]],
        channels=blocks * lanes,
        kernel_size=(FILTER, FILTER),
        data_layout=f"NCHW{data_lanes}c",
        kernel_layout=f"OIHW{data_lanes}i{lanes}o",
        out_layout=f"NCHW{lanes}c",
        out_dtype="float32",
    )
    return convolution.op, list(convolution.args), convolution.attrs


def _address(constant: relay.Constant) -> int:
    return int(constant.data.handle.contents.data)


def _is_of_whole_numbers(data: relay.Expr) -> bool:
    """Whether data are integers that were brought to floats, as by `Legalize`: sums are exact.

    Casts to 8 bits and back are gone where a clip holds whole numbers to these anyway.
    """
    while any(is_op_call(data, name) for name in _MOVES):
        data = data.args[0]
    return is_whole(data)


def _tile(call: relay.Expr) -> int:
    if not _is_plain(call) or _is_of_whole_numbers(call.args[0]):
        return 0
    data, filters = static_shape(call.args[0].checked_type), static_shape(call.args[1].checked_type)
    _, blocks, height, width, lanes = static_shape(call.checked_type)
    tile = winograd_tile(data[1] * data[4], blocks * lanes, height, width)
    return 0 if tile == 0 or _is_tuned(call, data, filters) else tile


def _is_plain(call: relay.Call) -> bool:
    """Of 3 x 3 known ahead, with strides of 1 and one group, in whole blocks of floats."""
    attrs, (data, filters) = call.attrs, call.args
    if not isinstance(filters, relay.Constant):
        return False
    layouts = [_BLOCKED.fullmatch(str(each)) for each in (attrs.data_layout, attrs.out_layout)]
    if None in layouts or len(attrs.padding) != 4:
        return False
    data_lanes, lanes = (int(match[1]) for match in layouts if match is not None)
    shape = static_shape(filters.checked_type)
    return (
        str(attrs.kernel_layout) == f"OIHW{data_lanes}i{lanes}o"
        and shape[2:4] == (FILTER, FILTER)
        and int(attrs.groups) == 1
        and shape[1] == static_shape(data.checked_type)[1]
        and all(int(each) == 1 for each in (*attrs.strides, *attrs.dilation))
        and {str(each.checked_type.dtype) for each in (data, filters, call)} == {"float32"}
    )


def _is_tuned(call: relay.Call, data: tuple[int, ...], filters: tuple[int, ...]) -> bool:
    target, attrs = tvm.target.Target.current(), call.attrs
    tensors = [te.placeholder(shape, "float32") for shape in (data, filters)]
    sizes: list[Any] = [tuple(map(int, each)) for each in (attrs.strides, attrs.padding)]
    layouts = str(attrs.data_layout), str(attrs.out_layout)
    dilation = tuple(map(int, attrs.dilation))
    convolution = topi.x86.conv2d_NCHWc(*tensors, *sizes, dilation, *layouts, "float32")
    return is_tuned([convolution], target)
