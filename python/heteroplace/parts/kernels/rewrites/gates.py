"""Gates: numbers by which channels are scaled, applied where that is least work.

TVM's FoldScaleAxis scales the weights of a convolution instead of the map that it reads. Where the
scale is computed (a squeeze-and-excite block, a hard swish), weights are scaled and brought into
blocks in every run, which is more work than to scale a small map:

    nn.conv2d(%x, multiply(const, expand_dims(squeeze(%gate))))
        ==>  nn.conv2d(multiply(%x, %gate), const)
    nn.dense(%x, multiply(const, squeeze(%gate)))
        ==>  nn.dense(multiply(%x, %gate), const)

Only where %gate is computed from %x, so that the calls keep the order in which the plan has them.

FuseOps then puts what makes a gate into the kernel that scales a map by it, where it is computed
for every element of a channel. `ComputeOnce` keeps such operands in kernels of their own, of the
same task. So it does with what brings a map out of blocks of channels before it is padded, and
with what is made of such a map where it comes into blocks again: the elements that are beside one
another on one side are not on the other, and nothing of such a kernel would run on vectors.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import tvm
from tvm import relay

from heteroplace.model.op_traits.op_table import ops_where
from heteroplace.relay.expr_map import ExprMap
from heteroplace.relay.expressions import (
    function_pass,
    is_injective,
    is_op_call,
    op_name,
    post_order,
    rebuild,
    rebuilt,
    static_shape,
    task_of_span,
)

_WEIGHTS_COST = 8
"""To scale an element of the weights and bring it into its block, in elements of the map."""
_MAX_WALK = 64
"""Calls among those that make a gate, within which its map has to be."""
_MIN_READERS, _MIN_ELEMENTS = 8, 1024
"""Of an operand that is computed once: elements of the result that read the same of its own, and
elements of the result."""
_SCALED_OPS = ("nn.conv2d", "nn.dense")
_WIDE = frozenset({"float32", "float64"})
"""Of other types data times a factor may be more than they hold, where weights times it are not."""
_VIEWS = ops_where(lambda op: op.kind == "view")
_BINARY_OPS = ops_where(lambda op: op.kind == "arithmetic") | {"divide", "power"}


def ScaleMaps() -> tvm.transform.Pass:  # noqa: N802  (named as TVM names its passes)
    """Return the pass that scales maps by gates instead of weights. Types are not inferred."""

    def run(function: relay.Function) -> relay.Function:
        mapped: ExprMap[relay.Expr] = ExprMap()

        def rewrite(old: relay.Expr, new: relay.Expr) -> relay.Expr:
            scaled = _scaled_weights(old)
            return new if scaled is None else _with_scaled_map(old, *scaled, mapped)

        return rebuilt(function, rewrite, mapped, _SCALED_OPS)

    return function_pass("ScaleMaps", run, ops=_SCALED_OPS)


def ComputeOnce() -> tvm.transform.Pass:  # noqa: N802  (named as TVM names its passes)
    """Return the pass that keeps small operands of large results apart, before FuseOps."""

    return function_pass("ComputeOnce", _computed_once)


def _scaled_weights(call: relay.Expr) -> tuple[relay.Call, relay.Constant, relay.Expr] | None:
    """The product that makes the weights of a call, its constant, and the gate; None: no such."""
    if is_op_call(call, "nn.conv2d"):
        attrs = call.attrs
        if attrs.groups != 1 or attrs.data_layout != "NCHW" or attrs.kernel_layout != "OIHW":
            return None
    data, weights = call.args
    dtypes = {str(each.checked_type.dtype) for each in (data, weights, call)}
    if not is_op_call(weights, "multiply") or not dtypes <= _WIDE:
        return None
    constants = [each for each in weights.args if isinstance(each, relay.Constant)]
    gates = [each for each in weights.args if not isinstance(each, relay.Constant)]
    if len(constants) != 1 or len(gates) != 1:
        return None
    shape, gate_shape = _shape(weights), _shape(gates[0])
    per_channel = (shape[1], *(1,) * (len(shape) - 2))
    is_per_channel = gate_shape[-len(per_channel) :] == per_channel
    is_per_channel = is_per_channel and prod(gate_shape) == shape[1]
    if _shape(constants[0]) != shape or not is_per_channel or len(_shape(data)) != len(shape):
        return None
    is_less = prod(_shape(data)) <= _WEIGHTS_COST * prod(shape)
    return (weights, constants[0], gates[0]) if is_less and _is_made_of(gates[0], data) else None


def _with_scaled_map(
    call: relay.Call,
    weights: relay.Call,
    constant: relay.Constant,
    gate: relay.Expr,
    mapped: ExprMap[relay.Expr],
) -> relay.Call:
    shape = (1, _shape(weights)[1], *(1,) * (len(_shape(weights)) - 2))
    while _shape(gate) != shape and isinstance(gate, relay.Call) and gate.op.name in _VIEWS:
        gate = gate.args[0]
    factor = mapped[gate]
    if _shape(gate) != shape:
        shaped = relay.reshape(factor, shape)
        factor = relay.Call(shaped.op, shaped.args, shaped.attrs, None, weights.span)
    data = relay.Call(weights.op, [mapped[call.args[0]], factor], None, None, weights.span)
    return relay.Call(call.op, [data, constant], call.attrs, call.type_args, call.span)


def _is_made_of(value: relay.Expr, source: relay.Expr) -> bool:
    """Whether `source` is read, by however many calls between, to make `value`."""
    seen: set[relay.Expr] = set()
    stack = [value]
    while stack and len(seen) < _MAX_WALK:
        node = stack.pop()
        if node.same_as(source):
            return True
        if isinstance(node, relay.Call) and node not in seen:
            seen.add(node)
            stack.extend(node.args)
    return False


def _computed_once(function: relay.Function) -> relay.Function:
    nodes = post_order(function.body)
    apart: set[relay.Expr] = set()
    for node in nodes:
        if op_name(node) in _BINARY_OPS:
            size = prod(_shape(node))
            for operand in node.args[:] if size >= _MIN_ELEMENTS else ():
                is_small = prod(_shape(operand)) * _MIN_READERS <= size
                if is_small and is_injective(operand) and _has_work(operand):
                    apart.add(operand)
    apart |= _between_layouts(nodes)
    if not apart:
        return function
    mapped: dict[relay.Expr, relay.Expr] = {}
    inner = _injective_before(apart)

    def rewrite(old: relay.Expr, new: relay.Expr) -> relay.Expr:
        if old in inner:  # what is of another task stays out of its kernel
            arguments = [
                _ended(argument) if _is_of_other_task(before, old) else argument
                for before, argument in zip(old.args, new.args, strict=True)
            ]
            new = relay.Call(new.op, arguments, new.attrs, new.type_args, new.span)
        return _ended(new) if old in apart else new

    rebuild(nodes, mapped, rewrite)
    return relay.Function(function.params, mapped[function.body], None, [], function.attrs)


def _between_layouts(nodes: Sequence[relay.Expr]) -> set[relay.Expr]:
    """Maps out of blocks that are padded, and what is made of them before it is in blocks again."""
    made_of_padded: set[relay.Expr] = set()
    apart: set[relay.Expr] = set()
    for node in nodes:
        is_pad = is_op_call(node, "nn.pad")
        if not (is_pad or made_of_padded) or not is_injective(node):
            continue
        if is_pad:
            blocks = [each for each in _injective_before({node.args[0]}) if _is_layout_change(each)]
            if blocks:
                made_of_padded.add(node)
                apart.update(blocks)
        elif any(operand in made_of_padded for operand in node.args):
            if _is_layout_change(node):
                apart.update(operand for operand in node.args if operand in made_of_padded)
            else:
                made_of_padded.add(node)
    return apart


def _is_layout_change(value: relay.Expr) -> bool:
    return is_op_call(value, "layout_transform")


def _injective_before(values: set[relay.Expr]) -> set[relay.Expr]:
    """The values, and what FuseOps would compute with them."""
    exprs: set[relay.Expr] = set()
    stack = list(values)
    while stack:
        node = stack.pop()
        if node not in exprs and is_injective(node):
            exprs.add(node)
            stack.extend(node.args)
    return exprs


def _is_of_other_task(operand: relay.Expr, reader: relay.Call) -> bool:
    return isinstance(operand, relay.Call) and task_of_span(operand) != task_of_span(reader)


def _ended(value: relay.Expr) -> relay.Expr:
    if is_op_call(value, "annotation.stop_fusion"):
        return value
    barrier = relay.annotation.stop_fusion(value)
    return relay.Call(barrier.op, barrier.args, barrier.attrs, None, value.span)


def _has_work(value: relay.Expr) -> bool:
    """Whether more than the shape of something that is there changes."""
    while isinstance(value, relay.Call) and value.op.name in _VIEWS:
        value = value.args[0]
    return is_injective(value)


def _shape(value: relay.Expr) -> tuple[int, ...]:
    type_ = value.checked_type
    return static_shape(type_) if isinstance(type_, relay.TensorType) else ()
