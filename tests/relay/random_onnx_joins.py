"""Ops of random graphs that chains have not: joins, masks, casts, integers, sizes."""

from __future__ import annotations

from typing import Any

import numpy as np
from random_onnx import Chain
from random_onnx_graphs import (
    DTYPES,
    FLOATS,
    SIGNED,
    UNSIGNED,
    Graph,
    Made,
    broadcast_of,
    tensor_type,
)

_INTEGERS = (*SIGNED, *UNSIGNED)


def _graph(chain: Chain) -> Graph:
    assert isinstance(chain, Graph)
    return chain


def _partner(graph: Graph) -> Made | None:
    """Another value of the same type that is broadcast with the value."""
    fitting = [
        made
        for made in graph.of_type(graph.dtype)
        if broadcast_of(made.array.shape, graph.shape) is not None
    ]
    others = [made for made in fitting if made.name != graph.value]
    return graph.one_of(others or fitting)  # type: ignore[no-any-return]


def join(chain: Chain) -> bool:
    """Two values in one, broadcast."""
    graph = _graph(chain)
    other = _partner(graph)
    assert other is not None
    if graph.dtype == "bool":
        op_type = graph.one_of(("And", "Or", "Xor"))
    else:
        op_type = graph.one_of(("Add", "Mul", "Sub", "Max", "Min", "Sum", "Mean"))
    operands = [graph.value, other.name]
    graph.random.shuffle(operands)
    if op_type in ("Max", "Min", "Sum", "Mean") and graph.maybe(0.3):
        operands.append(graph.one_of(operands))
    return graph.then(op_type, operands)


def concat_values(chain: Chain) -> bool:
    """Two or more values along an axis, whatever their sizes there, none among them."""
    graph = _graph(chain)
    axis = graph.random.randrange(graph.rank)
    rest = np.delete(graph.shape, axis).tolist()
    fitting = [
        made.name
        for made in graph.of_type(graph.dtype)
        if made.array.ndim == graph.rank and np.delete(made.array.shape, axis).tolist() == rest
    ]
    parts = [graph.value, *(graph.one_of(fitting) for _ in range(graph.one_of((1, 1, 2))))]
    graph.random.shuffle(parts)
    return graph.then("Concat", parts, axis=graph.either_side(axis))


def residual(chain: Chain) -> bool:
    """A convolution that keeps the shape, added to what it reads."""
    graph = _graph(chain)
    if graph.rank < 3 or graph.dtype not in FLOATS:
        return False
    channels = graph.shape[1]
    size = graph.one_of((1, 3))
    group = graph.one_of((1, 1, channels))
    spatial = [size] * (graph.rank - 2)
    weights = graph.floats(channels, channels // group, *spatial, scale=0.2)
    made = graph.node(
        "Conv",
        [graph.value, weights, graph.floats(channels)],
        pads=spatial * 0 or [size // 2] * (2 * len(spatial)),
        group=group,
    )
    if graph.maybe():
        made = graph.node("Relu", [made])
    added = graph.node("Add", [graph.value, made] if graph.maybe() else [made, graph.value])
    graph.value = added
    return graph.maybe() or graph.then("Relu", [added])


def compare(chain: Chain) -> bool:
    """A mask of where two values differ."""
    graph = _graph(chain)
    other = _partner(graph)
    assert other is not None
    name = other.name if graph.maybe() else graph.floats(*graph.shape[graph.rank // 2 :])
    if graph.dtype == "bool":
        return graph.then("Equal", [graph.value, name])
    op_type = graph.one_of(("Equal", "Greater", "Less", "GreaterOrEqual", "LessOrEqual"))
    return graph.then(op_type, [graph.value, name])


def where(chain: Chain) -> bool:
    """One of two values by a mask of any shape."""
    graph = _graph(chain)
    masks = [
        m for m in graph.of_type("bool") if broadcast_of(m.array.shape, graph.shape) is not None
    ]
    if not masks:
        return False
    other = _partner(graph)
    assert other is not None
    name = other.name if graph.maybe() else graph.scalar(-3)
    operands = [graph.value, name]
    graph.random.shuffle(operands)
    return graph.then("Where", [graph.one_of(masks).name, *operands])


def negate(chain: Chain) -> bool:
    """Not."""
    return _graph(chain).dtype == "bool" and chain.then("Not", [chain.value])


def cast(chain: Chain) -> bool:
    """To any type; floats that an integer does not hold are clipped, as nobody defines them."""
    graph = _graph(chain)
    dtype = graph.one_of(DTYPES)
    value = graph.value
    if graph.dtype == "float16" and dtype in _INTEGERS:
        return False  # onnxruntime rounds float16 late
    if graph.dtype in FLOATS and dtype in _INTEGERS:
        scaled = graph.node("Mul", [value, graph.scalar(graph.one_of((1, 10, 37.3)))])
        low = 0 if dtype in UNSIGNED else -120
        operands = [scaled, graph.scalar(low), graph.scalar(120)]
        value = graph.node("Clip", operands)
    return graph.then("Cast", [value], to=tensor_type(dtype))


def _small(graph: Graph, least: int) -> str:
    """A constant of small whole numbers."""
    sizes = [size if graph.maybe(0.6) else 1 for size in graph.shape]
    return graph.constant(graph.numbers.integers(least, 6, sizes).astype(graph.dtype))


def integer_arithmetic(chain: Chain) -> bool:
    """Of whole numbers, as shapes and token numbers are computed."""
    graph = _graph(chain)
    if graph.dtype not in _INTEGERS:
        return False
    kinds = ("Add", "Sub", "Mul", "Div", "Mod", "Mod", "Abs", "Neg", "Sign", "Pow", "Max", "Min")
    bits = ("BitwiseAnd", "BitwiseOr", "BitwiseXor", "BitwiseNot", "BitShift", "Relu")
    op_type = graph.one_of((*kinds, *bits))
    if op_type in ("Abs", "Neg", "Sign", "BitwiseNot", "Relu"):
        return graph.then(op_type, [graph.value])
    attributes: dict[str, Any] = {}
    least = 0 if graph.dtype in UNSIGNED else -5
    if op_type in ("Div", "Mod"):
        least = 1
        if op_type == "Mod" and graph.maybe():
            attributes["fmod"] = 1
    if op_type in ("Pow", "BitShift"):
        least = 0
    if op_type == "BitShift":
        attributes["direction"] = graph.one_of(("LEFT", "RIGHT"))
    other = _small(graph, least)
    if op_type in ("Div", "Mod") and graph.dtype in SIGNED and graph.maybe():
        other = graph.constant(-graph.constants[other])
    return graph.then(op_type, [graph.value, other], **attributes)


def integer_sums(chain: Chain) -> bool:
    """Reductions and running sums of whole numbers."""
    graph = _graph(chain)
    if graph.dtype not in _INTEGERS:
        return False
    kind = graph.one_of(("Sum", "Max", "Min", "Mean", "L1", "SumSquare", "CumSum"))
    if kind == "CumSum":
        axis = graph.constant(np.int32(graph.axis()))
        return graph.then("CumSum", [graph.value, axis], reverse=graph.random.randint(0, 1))
    axes = [graph.axis()]
    attributes = {"keepdims": graph.random.randint(0, 1)}
    if graph.opset < 13 or (kind != "Sum" and graph.opset < 18):
        return graph.then(f"Reduce{kind}", [graph.value], axes=axes, **attributes)
    return graph.then(f"Reduce{kind}", [graph.value, graph.integers(axes)], **attributes)


def rounding(chain: Chain) -> bool:
    """Floats to whole floats."""
    graph = _graph(chain)
    op_type = graph.one_of(("Round", "Floor", "Ceil", "Sign"))
    if graph.dtype not in ("float32", "float64"):  # onnxruntime rounds float16 late
        return False
    scaled = graph.node("Mul", [graph.value, graph.scalar(3.1)])
    return graph.then(op_type, [scaled])


def halves(chain: Chain) -> bool:
    """Round what is exactly between two whole numbers."""
    graph = _graph(chain)
    if graph.dtype not in ("float32", "float64"):  # onnxruntime rounds float16 late
        return False
    whole = graph.node("Floor", [graph.node("Mul", [graph.value, graph.scalar(4)])])
    return graph.then("Round", [graph.node("Mul", [whole, graph.scalar(0.5)])])


def shape_arithmetic(chain: Chain) -> bool:
    """Shape, some of its sizes multiplied and joined again, and a reshape by them."""
    graph = _graph(chain)
    if graph.rank < 2:
        return False
    shape = graph.node("Shape", [graph.value])
    first = graph.node("Gather", [shape, graph.integers([0])], axis=0)
    second = graph.node("Gather", [shape, graph.integers(1)], axis=0)
    operands, attributes = graph.integers_for("axes", [0])
    second = graph.node("Unsqueeze", [second, *operands], **attributes)
    product = graph.node("Mul", [first, second])
    way = graph.one_of(("merge", "open", "product", "slice"))
    if way == "merge":
        ends = [graph.integers([2]), graph.integers([graph.rank])]
        rest = graph.node("Slice", [shape, *ends])
        sizes = graph.node("Concat", [product, rest], axis=0)
    elif way == "open":
        sizes = graph.node("Concat", [first, graph.integers([-1])], axis=0)
    elif way == "product":
        every = graph.node("ReduceProd", [shape], keepdims=1)
        sizes = graph.node("Concat", [graph.node("Div", [every, second]), second], axis=0)
    else:
        wide = graph.node("Cast", [product], to=tensor_type("float32"))
        back = graph.node("Cast", [graph.node("Floor", [wide])], to=tensor_type("int64"))
        sizes = graph.node("Concat", [back, graph.integers([-1])], axis=0)
    return graph.then("Reshape", [graph.value, sizes])


def shape_values(chain: Chain) -> bool:
    """Shape or Size as a value that others compute with."""
    graph = _graph(chain)
    op_type = graph.one_of(("Shape", "Size"))
    made = graph.node(op_type, [graph.value])
    graph.value = made
    if graph.maybe():
        return graph.then("Cast", [made], to=tensor_type(graph.one_of(("float32", "int32"))))
    return True


def expand_by_shape(chain: Chain) -> bool:
    """Expand one value to the shape of another."""
    graph = _graph(chain)
    others = [
        made for made in graph.made if broadcast_of(made.array.shape, graph.shape) is not None
    ]
    shape = graph.node("Shape", [graph.one_of(others).name])
    if graph.maybe(0.3):
        filled = graph.constant(np.asarray([7], graph.dtype))
        filler = graph.node("Expand", [filled, shape])
        return graph.then("Add", [graph.value, filler])
    return graph.then("Expand", [graph.value, shape])


def positions(chain: Chain) -> bool:
    """A range as long as an axis, compared or added: causal masks and position numbers."""
    graph = _graph(chain)
    if graph.rank < 1:
        return False
    size = graph.node("Gather", [graph.node("Shape", [graph.value]), graph.integers(-1)], axis=0)
    numbers = graph.node("Range", [graph.constant(np.int64(0)), size, graph.constant(np.int64(1))])
    way = graph.one_of(("add", "mask", "plain", "one hot"))
    if way == "plain":
        graph.value = numbers
        return True
    if way == "mask":
        column = graph.node("Reshape", [numbers, graph.integers([-1, 1])])
        return graph.then("Less", [numbers, column])
    if way == "one hot":
        depth = graph.constant(np.int64(graph.shape[-1]))
        ends = graph.constant(np.asarray([0, 1], np.float32))
        return graph.then("OneHot", [numbers, depth, ends], axis=graph.one_of((0, -1)))
    typed = graph.node("Cast", [numbers], to=tensor_type(graph.dtype))
    return graph.then("Add", [graph.value, typed])


def empty(chain: Chain) -> bool:
    """A slice of nothing, and what is made of it."""
    graph = _graph(chain)
    if graph.rank < 1:
        return False
    axis = graph.random.randrange(graph.rank)
    operands = [graph.integers([value]) for value in (1, 1, axis)]
    nothing = graph.node("Slice", [graph.value, *operands])
    way = graph.one_of(("concat", "plain", "sum", "sum"))
    if way == "plain":
        graph.value = nothing
        return True
    if way == "concat":
        return graph.then("Concat", [graph.value, nothing], axis=axis)
    axes, attributes = graph.integers_for("axes", [axis])
    return graph.then("ReduceSum", [nothing, *axes], keepdims=1, **attributes)


def scalars(chain: Chain) -> bool:
    """A tensor without axes."""
    graph = _graph(chain)
    if graph.maybe(0.6):
        return False
    if graph.dtype in FLOATS and graph.maybe():
        return graph.then(graph.one_of(("ReduceMean", "ReduceMax")), [graph.value], keepdims=0)
    flat = graph.node("Reshape", [graph.value, graph.integers([-1])])
    return graph.then("Gather", [flat, graph.integers(graph.one_of((0, -1)))], axis=0)


def look_up(chain: Chain) -> bool:
    """Rows of a table by computed numbers."""
    graph = _graph(chain)
    numbers = [
        made for made in graph.of_type("int32", "int64") if made.array.size and made.array.ndim < 3
    ]
    if not numbers or graph.rank < 1:
        return False
    axis = graph.random.randrange(graph.rank)
    size = graph.shape[axis]
    chosen = graph.one_of(numbers)
    bound = graph.constant(np.asarray(size, chosen.array.dtype))
    index = graph.node("Mod", [chosen.name, bound])
    if graph.maybe(0.3):
        index = graph.node("Sub", [index, bound])
    return graph.then("Gather", [graph.value, index], axis=axis)


def identity(chain: Chain) -> bool:
    """The value again, by another name."""
    return chain.then("Identity", [chain.value])


def is_special(chain: Chain) -> bool:
    """IsNaN or IsInf."""
    return chain.then(chain.one_of(("IsNaN", "IsInf")), [chain.value])


def computed_weights(chain: Chain) -> bool:
    """A product with another value in the place of weights."""
    graph = _graph(chain)
    if graph.rank < 2 or graph.dtype not in FLOATS:
        return False
    fitting = [
        made
        for made in graph.of_type(graph.dtype)
        if made.array.ndim >= 2 and made.array.shape[-1] == graph.shape[-1] and made.array.ndim <= 4
    ]
    other = graph.one_of(fitting)
    order = [*range(other.array.ndim - 2), other.array.ndim - 1, other.array.ndim - 2]
    turned = graph.node("Transpose", [other.name], perm=order)
    return graph.then("MatMul", [graph.value, turned])


JOINS = (join, join, join, concat_values, concat_values, residual, residual, computed_weights)
MASKS = (compare, where, where, negate, is_special)
TYPES = (cast, cast, integer_arithmetic, integer_arithmetic, integer_sums, rounding, halves)
SIZES = (shape_arithmetic, shape_values, expand_by_shape, positions, empty, scalars, look_up)
GRAPH_OPS = (*JOINS, *MASKS, *TYPES, *SIZES, identity)
