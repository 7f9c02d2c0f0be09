"""Channels of maps -> whole vectors of them: zeros are added where blocks would have odd sizes.

TVM brings maps into blocks of the largest number of channels that divides them and fits a vector:
12 of 24, 10 of 40, 15 of 120. Such a block is made in parts of vectors, and a layer that reads it
in another block has it copied before. Here filters get zeros, until their channels are whole
vectors:

    nn.conv2d(%x, const[24, 16, 1, 1])  ==>  nn.conv2d(%x, const'[32, 16, 1, 1])
    nn.relu(add(.., const[24, 1, 1]))   ==>  nn.relu(add(.., const'[32, 1, 1]))
    nn.conv2d(.., const[96, 24, 3, 3])  ==>  nn.conv2d(.., const'[96, 32, 3, 3])

Whatever is made of added channels is multiplied by 0: a map with an infinity in it can make a NaN
where there was an infinity. All that computes each channel alone goes along: depthwise
convolutions, pooling, elementwise ops that are finite at 0. Where a value is read by anything else
it stays as it is, unless it is small: then what is added is cut off there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod
from typing import NamedTuple

import numpy as np
import tvm
from tvm import relay

from heteroplace.model.op_traits.op_table import traits_of
from heteroplace.relay.axes.shapes import with_attributes
from heteroplace.relay.expr_map import ExprMap, ExprSet
from heteroplace.relay.expressions import (
    function_pass,
    op_name,
    post_order,
    rebuild,
    static_shape,
)

_MAX_GROWTH = 1.6
"""Channels with zeros to those without, of maps of more than an element."""
_MAX_GROWTH_OF_POINTS = 4.0
_SMALL = 4096
"""Elements of a value that may be cut or padded when the network runs."""
_FROM_THE_RIGHT = 3
"""Where channels are among the axes of a map: the third."""


def WholeBlocks(lanes: int) -> tvm.transform.Pass:  # noqa: N802  (named as TVM names its passes)
    """Return the pass; it goes before AlterOpLayout. Types are not inferred.

    Parameters
    ----------
    lanes
        Channels of a whole block: float32 numbers of a vector.
    """

    def run(function: relay.Function) -> relay.Function:
        return _Padding(function, lanes).rewritten()

    return function_pass("WholeBlocks", run, opt_level=3, ops=("nn.conv2d",))


class _Value(NamedTuple):
    """What is asked of a value of a function."""

    op: str
    """What calls it; "": nothing, or no op."""
    args: Sequence[relay.Expr]
    """Of the call."""
    shape: tuple[int, ...]
    """(): a tuple, or a number."""
    dtype: str
    is_convolution: bool
    """Of all channels, or of each alone, as TVM brings into blocks."""
    is_dense: bool
    """Of all channels."""


class _Padding:
    """Which values get zeros: sets of maps that have the same channels, of which all do or none."""

    def __init__(self, function: relay.Function, lanes: int) -> None:
        self._function, self._lanes = function, lanes
        self._nodes = post_order(function.body)
        self._values: ExprMap[_Value] = ExprMap()
        for node in self._nodes:
            if not isinstance(node, (tvm.ir.Op, relay.Function)):
                self._values[node] = self._value(node)
        self._parent: ExprMap[relay.Expr] = ExprMap()
        filters = ExprSet()
        for value in self._values.values():
            if value.op == "nn.conv2d":
                filters.add(value.args[1])
        for node, value in self._values.items():
            is_map = value.op != "" and len(value.shape) == 4 and value.dtype == "float32"
            if is_map and _computes_channels(node, value) and node not in filters:
                self._parent[node] = node
        for node in list(self._parent):
            for operand in self._of_same_channels(node):
                if operand in self._parent:
                    self._parent[self._root(operand)] = self._root(node)
        refused = ExprSet()
        for node in self._refused():
            if node in self._parent:
                refused.add(self._root(node))
        self._padded = ExprSet()
        for node in self._parent:
            if self._root(node) not in refused and self._growth(node) > 0:
                self._padded.add(node)

    def _value(self, node: relay.Expr) -> _Value:
        """What is asked of a node; that of its operands is known."""
        type_ = node.checked_type
        is_tensor = isinstance(type_, relay.TensorType)
        shape, dtype = (static_shape(type_), str(type_.dtype)) if is_tensor else ((), "")
        op = op_name(node) or ""
        args: list[relay.Expr] = node.args[:] if isinstance(node, relay.Call) else []
        is_dense = is_depthwise = False
        if op == "nn.conv2d" and _has_plain_layouts(node.attrs):
            data, weights = (self._values[each] for each in args)
            groups = int(node.attrs.groups)
            is_dense = groups == 1 and _can_be_added_to_weights(args[1], weights)
            is_depthwise = weights.shape[:2] == (groups, 1) and data.shape[1] == groups
            is_depthwise = is_depthwise and isinstance(args[1], relay.Constant)
            is_float = {dtype, data.dtype, weights.dtype} == {"float32"}
            is_dense, is_depthwise = is_float and is_dense, is_float and is_depthwise
        return _Value(op, args, shape, dtype, is_dense or is_depthwise, is_dense)

    def _root(self, node: relay.Expr) -> relay.Expr:
        while not self._parent[node].same_as(node):
            self._parent[node] = node = self._parent[self._parent[node]]
        return node

    def _growth(self, node: relay.Expr) -> int:
        """Channels that whole blocks have beside those of a value."""
        return -self._values[node].shape[1] % self._lanes

    def _of_same_channels(self, call: relay.Call) -> list[relay.Expr]:
        """The operands that have channels where a call that computes each alone has them."""
        value = self._values[call]
        if value.is_dense:
            return []
        if value.is_convolution:
            return [value.args[0]]
        shapes = [self._values[each].shape for each in value.args]
        return [
            each
            for each, shape in zip(value.args, shapes, strict=True)
            if len(shape) >= _FROM_THE_RIGHT and shape[-_FROM_THE_RIGHT] == value.shape[1]
        ]

    def _is_small(self, value: relay.Expr) -> bool:
        return prod(self._values[value].shape) <= _SMALL

    def _refused(self) -> Iterator[relay.Expr]:
        """Values that cannot be padded, or should not be."""
        yield self._function.body
        for node, value in self._values.items():
            if isinstance(node, relay.Tuple):
                yield from node.fields[:]
            elif isinstance(node, relay.TupleGetItem):
                yield node.tuple_value
            elif isinstance(node, relay.Call):
                along = self._of_same_channels(node) if node in self._parent else []
                along += value.args[:1] if value.is_convolution else []
                for each in value.args:
                    if not any(map(each.same_as, along)) and not self._is_small(each):
                        yield each
                # It reads what cannot be padded itself, as a map that is joined of others.
                if not value.is_dense and any(
                    each not in self._parent
                    and not isinstance(each, relay.Constant)
                    and not self._is_small(each)
                    for each in along
                ):
                    yield node
        for node in self._parent:
            shape = self._values[node].shape
            is_point = shape[2:] == (1, 1)
            most = _MAX_GROWTH_OF_POINTS if is_point else _MAX_GROWTH
            if shape[1] + self._growth(node) > most * shape[1]:
                yield node

    def rewritten(self) -> relay.Function:
        if not self._padded:
            return self._function
        mapped: ExprMap[relay.Expr] = ExprMap()
        rebuild(self._nodes, mapped, self._rewrite, keeps_unchanged=True)
        function = self._function
        return relay.Function(function.params, mapped[function.body], None, [], function.attrs)

    def _rewrite(self, old: relay.Expr, new: relay.Expr) -> relay.Expr:
        if not isinstance(old, relay.Call):
            return new
        value = self._values[old]
        if value.is_dense:
            return self._convolution(old, new)
        is_padded = old in self._padded
        if not is_padded and not any(each in self._padded for each in value.args):
            return new
        pairs = zip(value.args, new.args[:], strict=True)
        if is_padded:
            along = self._of_same_channels(old)
            arguments = []
            for before, after in pairs:
                if before not in self._padded:
                    after = self._widened(before, after, old)
                elif not any(map(before.same_as, along)):
                    after = self._cut(after, before, old)  # of one channel, for all of them
                arguments.append(after)
            if value.is_convolution:
                channels = value.shape[1] + self._growth(old)
                return with_attributes(
                    _with_arguments(new, arguments), arguments, channels=channels, groups=channels
                )
            return _with_arguments(new, arguments)
        return _with_arguments(
            new,
            [
                self._cut(after, before, old) if before in self._padded else after
                for before, after in pairs
            ],
        )

    def _convolution(self, old: relay.Call, new: relay.Call) -> relay.Expr:
        more, value = [0, 0, 0, 0], self._values[old]
        if old in self._padded:
            more[0] = self._growth(old)
        if value.args[0] in self._padded:
            more[1] = self._growth(value.args[0])
        if not any(more):
            return new
        arguments = [new.args[0], _with_zeros(new.args[1], more, old)]
        return with_attributes(
            _with_arguments(new, arguments), arguments, channels=value.shape[1] + more[0]
        )

    def _widened(self, before: relay.Expr, after: relay.Expr, reader: relay.Call) -> relay.Expr:
        """An operand beside a padded one."""
        shape, value = self._values[before].shape, self._values[reader]
        if value.is_convolution and before.same_as(value.args[1]):
            axis = 0
        elif len(shape) < _FROM_THE_RIGHT or shape[-_FROM_THE_RIGHT] != value.shape[1]:
            return after
        else:
            axis = len(shape) - _FROM_THE_RIGHT
        more = [0] * len(shape)
        more[axis] = self._growth(reader)
        return _with_zeros(after, more, reader)

    def _cut(self, value: relay.Expr, before: relay.Expr, reader: relay.Call) -> relay.Expr:
        channels = self._values[before].shape[1]
        sliced = relay.strided_slice(value, (0,), (channels,), (1,), axes=(1,))
        return relay.Call(sliced.op, sliced.args, sliced.attrs, None, reader.span)


def _with_zeros(value: relay.Expr, more: Sequence[int], reader: relay.Call) -> relay.Expr:
    if isinstance(value, relay.Constant):
        return relay.const(np.pad(value.data.numpy(), [(0, each) for each in more]))
    padded = relay.nn.pad(value, [(0, each) for each in more])
    return relay.Call(padded.op, padded.args, padded.attrs, None, reader.span)


def _with_arguments(call: relay.Call, arguments: Sequence[relay.Expr]) -> relay.Call:
    return relay.Call(call.op, list(arguments), call.attrs, call.type_args, call.span)


def _computes_channels(call: relay.Call, value: _Value) -> bool:
    """Whether a call makes each channel of those with its number, or from weights of its own."""
    if value.op == "nn.conv2d":
        return value.is_convolution
    kind = traits_of(value.op).kind
    if kind == "pool":
        return str(call.attrs.layout) == "NCHW"
    return kind in ("unary", "leaky", "arithmetic")  # elementwise, and finite at 0


def _has_plain_layouts(attrs: tvm.ir.Attrs) -> bool:
    layouts = str(attrs.data_layout), str(attrs.kernel_layout), str(attrs.out_layout)
    return layouts in (("NCHW", "OIHW", ""), ("NCHW", "OIHW", "NCHW"))


def _can_be_added_to_weights(weights: relay.Expr, value: _Value) -> bool:
    """Constants, or what is computed for a gate, which is little more work with zeros."""
    return isinstance(weights, relay.Constant) or value.op == "multiply"
