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

import numpy as np
import tvm
from tvm import relay

from heteroplace.relay.axes.shapes import with_attributes
from heteroplace.relay.expressions import (
    function_pass,
    is_op_call,
    post_order,
    rebuild,
    static_shape,
)

_MOST_GROWTH = 1.6
"""Channels with zeros to those without, of maps of more than an element."""
_MOST_GROWTH_OF_POINTS = 4.0
_SMALL = 4096
"""Elements of a value that may be cut or padded when the network runs."""
_POOLS = frozenset(
    ("nn.max_pool2d", "nn.avg_pool2d", "nn.global_avg_pool2d", "nn.global_max_pool2d")
)
_UNARY = frozenset(
    ("nn.relu", "clip", "sigmoid", "tanh", "exp", "erf", "negative", "abs", "nn.leaky_relu")
)
"""Elementwise, finite at 0."""
_BINARY = frozenset(("add", "subtract", "multiply", "maximum", "minimum"))
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


class _Padding:
    """Which values get zeros: sets of maps that have the same channels, of which all do or none."""

    def __init__(self, function: relay.Function, lanes: int) -> None:
        self._function, self._lanes = function, lanes
        self._nodes = post_order(function.body)
        self._parent: dict[relay.Expr, relay.Expr] = {}
        filters = {node.args[1] for node in self._nodes if is_op_call(node, "nn.conv2d")}
        for node in self._nodes:
            if _is_map(node) and _computes_channels(node) and node not in filters:
                self._parent[node] = node
        for node in self._nodes:
            if node in self._parent:
                for operand in _of_same_channels(node):
                    if operand in self._parent:
                        self._parent[self._root(operand)] = self._root(node)
        refused = {self._root(node) for node in self._refused() if node in self._parent}
        self._padded = {
            node
            for node in self._parent
            if self._root(node) not in refused and self._growth(node) > 0
        }

    def _root(self, node: relay.Expr) -> relay.Expr:
        while self._parent[node] is not node:
            self._parent[node] = node = self._parent[self._parent[node]]
        return node

    def _growth(self, node: relay.Expr) -> int:
        """Channels that whole blocks have beside those of a value."""
        return -_shape(node)[1] % self._lanes

    def _refused(self) -> Iterator[relay.Expr]:
        """Values that cannot be padded, or should not be."""
        yield self._function.body
        for node in self._nodes:
            if isinstance(node, relay.Tuple):
                yield from node.fields
            elif isinstance(node, relay.TupleGetItem):
                yield node.tuple_value
            elif isinstance(node, relay.Call):
                along = set(_of_same_channels(node)) if node in self._parent else set()
                if _is_convolution(node):
                    along.add(node.args[0])
                yield from (
                    each for each in node.args if each not in along and prod(_shape(each)) > _SMALL
                )
                # It reads what cannot be padded itself, as a map that is joined of others.
                if not _is_dense_convolution(node) and any(
                    each not in self._parent and not _can_be_added_to(each) for each in along
                ):
                    yield node
        for node in self._parent:
            shape = _shape(node)
            is_point = shape[2:] == (1, 1)
            most = _MOST_GROWTH_OF_POINTS if is_point else _MOST_GROWTH
            if shape[1] + self._growth(node) > most * shape[1]:
                yield node

    def rewritten(self) -> relay.Function:
        if not self._padded:
            return self._function
        mapped: dict[relay.Expr, relay.Expr] = {}
        rebuild(self._nodes, mapped, self._rewrite)
        function = self._function
        return relay.Function(function.params, mapped[function.body], None, [], function.attrs)

    def _rewrite(self, old: relay.Expr, new: relay.Expr) -> relay.Expr:
        if not isinstance(old, relay.Call):
            return new
        if _is_dense_convolution(old):
            return self._convolution(old, new)
        if old in self._padded:
            arguments = [
                after if before in self._padded else self._widened(before, after, old)
                for before, after in zip(old.args, new.args, strict=True)
            ]
            if _is_convolution(old):
                channels = _shape(old)[1] + self._growth(old)
                return with_attributes(
                    _with_arguments(new, arguments), arguments, channels=channels, groups=channels
                )
            return _with_arguments(new, arguments)
        arguments = [
            _cut(after, before, old) if before in self._padded else after
            for before, after in zip(old.args, new.args, strict=True)
        ]
        return _with_arguments(new, arguments)

    def _convolution(self, old: relay.Call, new: relay.Call) -> relay.Expr:
        more = [0, 0, 0, 0]
        if old in self._padded:
            more[0] = self._growth(old)
        if old.args[0] in self._padded:
            more[1] = self._growth(old.args[0])
        if not any(more):
            return new
        arguments = [new.args[0], _with_zeros(new.args[1], more, old)]
        return with_attributes(
            _with_arguments(new, arguments), arguments, channels=_shape(old)[1] + more[0]
        )

    def _widened(self, before: relay.Expr, after: relay.Expr, reader: relay.Call) -> relay.Expr:
        """An operand beside a padded one."""
        shape, channels = _shape(before), _shape(reader)[1]
        if _is_convolution(reader) and before.same_as(reader.args[1]):
            axis = 0
        elif len(shape) < _FROM_THE_RIGHT or shape[-_FROM_THE_RIGHT] != channels:
            return after
        else:
            axis = len(shape) - _FROM_THE_RIGHT
        more = [0] * len(shape)
        more[axis] = self._growth(reader)
        return _with_zeros(after, more, reader)


def _with_zeros(value: relay.Expr, more: Sequence[int], reader: relay.Call) -> relay.Expr:
    if isinstance(value, relay.Constant):
        return relay.const(np.pad(value.data.numpy(), [(0, each) for each in more]))
    made = relay.nn.pad(value, [(0, each) for each in more])
    return relay.Call(made.op, made.args, made.attrs, None, reader.span)


def _cut(value: relay.Expr, before: relay.Expr, reader: relay.Call) -> relay.Expr:
    made = relay.strided_slice(value, (0,), (_shape(before)[1],), (1,), axes=(1,))
    return relay.Call(made.op, made.args, made.attrs, None, reader.span)


def _with_arguments(call: relay.Call, arguments: Sequence[relay.Expr]) -> relay.Call:
    return relay.Call(call.op, list(arguments), call.attrs, call.type_args, call.span)


def _of_same_channels(call: relay.Call) -> list[relay.Expr]:
    """The operands that have channels where a call that computes each alone has them."""
    if _is_dense_convolution(call):
        return []
    if _is_convolution(call):
        return [call.args[0]]
    channels = _shape(call)[1]
    return [
        each
        for each in call.args
        if len(_shape(each)) >= _FROM_THE_RIGHT and _shape(each)[-_FROM_THE_RIGHT] == channels
    ]


def _can_be_added_to(value: relay.Expr) -> bool:
    return isinstance(value, relay.Constant) or prod(_shape(value)) <= _SMALL


def _computes_channels(call: relay.Call) -> bool:
    """Whether a call makes each channel of those with its number, or from weights of its own."""
    name = call.op.name
    if name == "nn.conv2d":
        return _is_convolution(call)
    if name in _POOLS:
        return str(call.attrs.layout) == "NCHW"
    return name in _UNARY or name in _BINARY


def _is_convolution(call: relay.Expr) -> bool:
    """Of all channels, or of each alone, as TVM brings into blocks."""
    if not is_op_call(call, "nn.conv2d"):
        return False
    attrs = call.attrs
    if (attrs.data_layout, attrs.kernel_layout) != ("NCHW", "OIHW"):
        return False
    is_float = all(each.checked_type.dtype == "float32" for each in (*call.args, call))
    is_depthwise = _shape(call.args[1])[:2] == (attrs.groups, 1) and (
        _shape(call.args[0])[1] == attrs.groups and isinstance(call.args[1], relay.Constant)
    )
    is_dense = attrs.groups == 1 and _can_be_added_to_weights(call.args[1])
    return is_float and attrs.out_layout in ("", "NCHW") and (is_dense or is_depthwise)


def _can_be_added_to_weights(weights: relay.Expr) -> bool:
    """Constants, or what is computed for a gate, which is little more work with zeros."""
    return isinstance(weights, relay.Constant) or is_op_call(weights, "multiply")


def _is_dense_convolution(call: relay.Expr) -> bool:
    return _is_convolution(call) and int(call.attrs.groups) == 1


def _is_map(node: relay.Expr) -> bool:
    shape = _shape(node) if isinstance(node, relay.Call) and hasattr(node.op, "name") else ()
    return len(shape) == 4 and node.checked_type.dtype == "float32"


def _shape(value: relay.Expr) -> tuple[int, ...]:
    type_ = value.checked_type
    return static_shape(type_) if isinstance(type_, relay.TensorType) else ()
