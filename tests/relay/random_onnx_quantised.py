"""Ops of 8 bits for random graphs: what quantised exports are made of, with any zero points."""

from __future__ import annotations

import numpy as np
from random_onnx import Chain
from random_onnx_graphs import Graph

_BYTES = ("uint8", "int8")


def _graph(chain: Chain) -> Graph:
    assert isinstance(chain, Graph)
    return chain


def _zero(graph: Graph, dtype: str, *shape: int) -> np.ndarray:
    """Any zero point, those at the ends among them."""
    info = np.iinfo(dtype)
    way = graph.one_of(("zero", "any", "any", "end"))
    if way == "zero":
        return np.zeros(shape, dtype)
    if way == "end":
        return np.full(shape, graph.one_of((info.min, info.max)), dtype)
    return np.asarray(graph.numbers.integers(info.min, info.max + 1, shape)).astype(dtype)


def _scale(graph: Graph, *shape: int, least: float = 0.01) -> str:
    """Positive."""
    return graph.constant(
        np.asarray(graph.numbers.uniform(least, 10 * least, shape)).astype(np.float32)
    )


def _bytes(graph: Graph, dtype: str, *shape: int) -> str:
    """Random weights over the whole range."""
    info = np.iinfo(dtype)
    return graph.constant(graph.numbers.integers(info.min, info.max + 1, shape).astype(dtype))


def quantise(chain: Chain) -> bool:
    """To bytes, with one scale or one of each slice of an axis, with a zero point or without."""
    graph = _graph(chain)
    if graph.dtype != "float32":
        return False
    dtype = graph.one_of(_BYTES)
    if graph.rank and graph.opset >= 13 and graph.maybe(0.4):
        axis = graph.random.randrange(graph.rank)
        size = graph.shape[axis]
        operands = [graph.value, _scale(graph, size), graph.constant(_zero(graph, dtype, size))]
        return graph.then("QuantizeLinear", operands, axis=graph.either_side(axis))
    operands = [graph.value, _scale(graph)]
    if graph.maybe(0.8):
        operands.append(graph.constant(_zero(graph, dtype)))
    return graph.then("QuantizeLinear", operands)


def ties(chain: Chain) -> bool:
    """Values half way between two steps, to bytes: to the even one."""
    graph = _graph(chain)
    if graph.dtype != "float32":
        return False
    whole = graph.node("Round", [graph.node("Mul", [graph.value, graph.scalar(20)])])
    halves = graph.node("Mul", [whole, graph.scalar(0.25)])
    zero = graph.constant(_zero(graph, graph.one_of(_BYTES)))
    return graph.then("QuantizeLinear", [halves, graph.scalar(0.5), zero])


def dequantise(chain: Chain) -> bool:
    """From bytes, or from sums in 32 bits."""
    graph = _graph(chain)
    if graph.dtype not in (*_BYTES, "int32"):
        return False
    if graph.rank and graph.opset >= 13 and graph.maybe(0.4):
        axis = graph.random.randrange(graph.rank)
        size = graph.shape[axis]
        operands = [graph.value, _scale(graph, size)]
        if graph.dtype != "int32":
            operands.append(graph.constant(_zero(graph, graph.dtype, size)))
        return graph.then("DequantizeLinear", operands, axis=graph.either_side(axis))
    operands = [graph.value, _scale(graph)]
    if graph.dtype != "int32" and graph.maybe(0.8):
        operands.append(graph.constant(_zero(graph, graph.dtype)))
    return graph.then("DequantizeLinear", operands)


def _off_grid(graph: Graph) -> str:
    """The value, changed so that none is half way between two steps: the step is computed, and its
    last bit would decide."""
    return graph.node("Mul", [graph.value, graph.floats(*graph.shape)])


def dynamic_quantise(chain: Chain) -> bool:
    """To bytes by the range of the values; all three results are used."""
    graph = _graph(chain)
    if graph.dtype != "float32":
        return False
    small, scale, zero = graph.nodes_of("DynamicQuantizeLinear", [_off_grid(graph)], 3)
    if graph.maybe():
        return graph.then("DequantizeLinear", [small, scale, zero])
    graph.value = graph.one_of((small, small, scale, zero))
    return True


def dynamic_product(chain: Chain) -> bool:
    """A product as dynamic quantisation writes it."""
    graph = _graph(chain)
    if graph.dtype != "float32" or graph.rank < 2:
        return False
    terms, columns = graph.shape[-1], graph.one_of((1, 5, 16, 17))
    small, scale, zero = graph.nodes_of("DynamicQuantizeLinear", [_off_grid(graph)], 3)
    dtype = graph.one_of(_BYTES)
    operands = [small, _bytes(graph, dtype, terms, columns), zero]
    operands.append(graph.constant(_zero(graph, dtype)))
    sums = graph.node("MatMulInteger", operands)
    wide = graph.node("Cast", [sums], to=1)
    scales = graph.node("Mul", [scale, _scale(graph)])
    return graph.then("Mul", [wide, scales])


def integer_product(chain: Chain) -> bool:
    """MatMulInteger with all of its zero points, or without."""
    graph = _graph(chain)
    if graph.dtype not in _BYTES or graph.rank < 1:
        return False
    terms, columns = graph.shape[-1], graph.one_of((1, 5, 16, 17))
    dtype = graph.one_of(_BYTES)
    way = graph.one_of(("matrix", "matrix", "stack", "vector"))
    lead = [size if graph.maybe() else 1 for size in graph.shape[:-2]] if way == "stack" else []
    sizes = [terms] if way == "vector" else [*lead, terms, columns]
    operands = [graph.value, _bytes(graph, dtype, *sizes)]
    if graph.maybe(0.8):
        operands.append(graph.constant(_zero(graph, graph.dtype)))
        if graph.maybe(0.8):
            per_column = way == "matrix" and graph.maybe()
            operands.append(graph.constant(_zero(graph, dtype, *([columns] if per_column else []))))
    return graph.then("MatMulInteger", operands)


def quantised_product(chain: Chain) -> bool:
    """QLinearMatMul."""
    graph = _graph(chain)
    if graph.dtype not in _BYTES or graph.rank < 2:
        return False
    terms, columns = graph.shape[-1], graph.one_of((1, 5, 16, 17))
    dtype, made = graph.one_of(_BYTES), graph.one_of(_BYTES)
    sizes = [columns] if graph.maybe(0.3) else []
    operands = [graph.value, _scale(graph), graph.constant(_zero(graph, graph.dtype))]
    operands.append(_bytes(graph, dtype, terms, columns))
    operands += [_scale(graph, *sizes), graph.constant(_zero(graph, dtype, *sizes))]
    operands += [_scale(graph, least=0.3), graph.constant(_zero(graph, made))]
    return graph.then("QLinearMatMul", operands)


def _windows(graph: Graph) -> tuple[list[int], dict[str, object]]:
    kernel = [graph.one_of((1, 2, 3)) for _ in graph.shape[2:]]
    attributes: dict[str, object] = {}
    if graph.maybe():
        attributes["strides"] = [graph.one_of((1, 2)) for _ in kernel]
    if graph.maybe(0.3):
        attributes["dilations"] = [graph.one_of((1, 2)) for _ in kernel]
    if graph.maybe(0.6):
        attributes["pads"] = [graph.random.randint(0, 1) for _ in kernel * 2]
    elif graph.maybe(0.3):
        attributes["auto_pad"] = graph.one_of(("SAME_UPPER", "SAME_LOWER"))
    return kernel, attributes


def integer_conv(chain: Chain) -> bool:
    """ConvInteger, padded by the zero point of the map."""
    graph = _graph(chain)
    if graph.dtype not in _BYTES or graph.rank not in (3, 4):
        return False
    channels = graph.shape[1]
    group = graph.one_of((1, 1, channels))
    made = group * graph.one_of((1, 2, 4))
    kernel, attributes = _windows(graph)
    dtype = graph.one_of(_BYTES)
    operands = [graph.value, _bytes(graph, dtype, made, channels // group, *kernel)]
    if graph.maybe(0.8):
        operands.append(graph.constant(_zero(graph, graph.dtype)))
        if graph.maybe(0.8):
            operands.append(graph.constant(_zero(graph, dtype)))
    return graph.then("ConvInteger", operands, group=group, **attributes)


def quantised_conv(chain: Chain) -> bool:
    """QLinearConv, with one scale of the weights or one for each channel, with bias or without."""
    graph = _graph(chain)
    if graph.dtype not in _BYTES or graph.rank not in (3, 4):
        return False
    channels = graph.shape[1]
    group = graph.one_of((1, 1, channels))
    made = group * graph.one_of((1, 2, 4, 16))
    kernel, attributes = _windows(graph)
    dtype = graph.one_of(_BYTES)
    sizes = [made] if graph.maybe(0.4) else []
    operands = [graph.value, _scale(graph), graph.constant(_zero(graph, graph.dtype))]
    operands.append(_bytes(graph, dtype, made, channels // group, *kernel))
    operands.append(_scale(graph, *sizes))
    zero = np.zeros(sizes, dtype) if sizes else _zero(graph, dtype)
    operands.append(graph.constant(zero))
    operands += [_scale(graph, least=0.3), graph.constant(_zero(graph, graph.dtype))]
    if graph.maybe():
        operands.append(graph.constant(graph.numbers.integers(-3000, 3000, made).astype(np.int32)))
    return graph.then("QLinearConv", operands, group=group, **attributes)


def around_conv(chain: Chain) -> bool:
    """A convolution between DequantizeLinear and QuantizeLinear, as QDQ exports write it."""
    graph = _graph(chain)
    if graph.dtype not in _BYTES or graph.rank != 4:
        return False
    channels, made = graph.shape[1], graph.one_of((1, 4, 16))
    x = graph.node(
        "DequantizeLinear", [graph.value, _scale(graph), graph.constant(_zero(graph, graph.dtype))]
    )
    weights = _bytes(graph, "int8", made, channels, 3, 3)
    is_per_channel = graph.opset >= 13 and graph.maybe()
    sizes = [made] if is_per_channel else []
    attributes = {"axis": 0} if is_per_channel else {}
    grid = [_scale(graph, *sizes), graph.constant(np.zeros(sizes, np.int8))]
    w = graph.node("DequantizeLinear", [weights, *grid], **attributes)
    y = graph.node("Conv", [x, w], pads=[1] * 4)
    if graph.maybe():
        y = graph.node("Relu", [y])
    zero = graph.constant(_zero(graph, graph.one_of(_BYTES)))
    return graph.then("QuantizeLinear", [y, _scale(graph, least=0.5), zero])


def around_product(chain: Chain) -> bool:
    """A product between DequantizeLinear and QuantizeLinear."""
    graph = _graph(chain)
    if graph.dtype not in _BYTES or graph.rank < 2:
        return False
    terms, columns = graph.shape[-1], graph.one_of((1, 5, 16))
    zero = graph.constant(_zero(graph, graph.dtype))
    x = graph.node("DequantizeLinear", [graph.value, _scale(graph), zero])
    weights = [_bytes(graph, "int8", terms, columns), _scale(graph), graph.constant(np.int8(0))]
    w = graph.node("DequantizeLinear", weights)
    y = graph.node("MatMul", [x, w])
    zero = graph.constant(_zero(graph, graph.one_of(_BYTES)))
    return graph.then("QuantizeLinear", [y, _scale(graph, least=0.5), zero])


GRIDS = (quantise, quantise, quantise, ties, dequantise, dequantise, dynamic_quantise)
SUMS_OF_BYTES = (integer_product, integer_product, integer_conv, integer_conv, dynamic_product)
QUANTISED_SUMS = (quantised_product, quantised_product, quantised_conv, quantised_conv)
QUANTISED = (*GRIDS, *SUMS_OF_BYTES, *QUANTISED_SUMS, around_conv, around_product)
