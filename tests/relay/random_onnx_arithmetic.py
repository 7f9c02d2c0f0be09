"""Ops that compute, for random chains: elements, sums, norms, products, cells with a state."""

from __future__ import annotations

from typing import Any

import numpy as np
from random_onnx import Chain

_PLAIN = ("Relu", "Tanh", "Sigmoid", "Abs", "Neg", "Erf", "Softplus", "Softsign", "HardSwish")
_PLAIN_TOO = ("Identity", "Sin", "Cos", "Atan", "Asinh", "Sqrt", "Log", "Reciprocal", "Exp", "Sinh")
_WITH_ATTRIBUTES: dict[str, tuple[dict[str, float], ...]] = {
    "Elu": ({}, {"alpha": 0.5}),
    "LeakyRelu": ({}, {"alpha": 0.3}),
    "Celu": ({}, {"alpha": 1.5}),
    "ThresholdedRelu": ({}, {"alpha": 0.1}),
    "Selu": ({}, {"alpha": 1.2, "gamma": 0.9}),
    "HardSigmoid": ({}, {"alpha": 0.3, "beta": 0.4}),
    "Shrink": ({"bias": 0.1, "lambd": 0.3},),
    "Mish": ({},),
    "Gelu": ({},),
}
_SINCE = {"HardSwish": 14, "Mish": 18, "Gelu": 20}


def _positive(chain: Chain, value: str, least: float) -> str:
    return chain.node("Add", [chain.node("Abs", [value]), chain.scalar(least)])


def unary(chain: Chain) -> bool:
    """An element for each element."""
    op_type = chain.one_of((*_PLAIN, *_PLAIN_TOO, *_WITH_ATTRIBUTES))
    if chain.opset < _SINCE.get(op_type, 0):
        return False
    attributes: dict[str, Any] = dict(chain.one_of(_WITH_ATTRIBUTES.get(op_type, ({},))))
    if op_type == "Gelu" and chain.maybe():
        attributes["approximate"] = "tanh"
    value = chain.value
    if op_type in ("Sqrt", "Log", "Reciprocal"):
        value = _positive(chain, value, 0.5)
    if op_type in ("Exp", "Sinh"):
        value = chain.node("Tanh", [value])
    return chain.then(op_type, [value], **attributes)


def binary(chain: Chain) -> bool:
    """With a constant that is broadcast, or with what came before."""
    kinds = ("Add", "Sub", "Mul", "Max", "Min", "Div", "Pow", "Mean", "Sum", "Where", "PRelu")
    op_type = chain.one_of(kinds)
    if op_type == "Pow":
        base = _positive(chain, chain.node("Tanh", [chain.value]), 0.1)
        return chain.then("Pow", [base, chain.scalar(chain.one_of((0.5, 2, 3, -1, 1.7)))])
    if op_type == "PRelu":
        by_channel = chain.rank > 2 and chain.maybe()
        sizes = [chain.shape[1], *[1] * (chain.rank - 2)] if by_channel else [1]
        return chain.then("PRelu", [chain.value, chain.floats(*sizes)])
    if chain.maybe(0.4):
        other = chain.one_of(chain.like_value())
    else:
        sizes = [size if chain.maybe(0.6) else 1 for size in chain.shape]
        other = chain.floats(*sizes[chain.random.randint(0, chain.rank) * chain.maybe(0.4) :])
    if op_type == "Div":
        return chain.then("Div", [chain.value, _positive(chain, other, 0.5)])
    if op_type == "Where":
        compare = chain.one_of(("Greater", "Less", "GreaterOrEqual"))
        condition = chain.node(compare, [chain.value, other])
        return chain.then("Where", [condition, chain.value, other])
    operands = [chain.value, other]
    return chain.then(op_type, operands[::-1] if chain.maybe(0.3) else operands)


def clip(chain: Chain) -> bool:
    """With both bounds or one, constant or computed, and the wrong way round."""
    low, high = chain.scalar(-0.7), chain.scalar(chain.one_of((0.9, 0.9, 0.9, -0.8)))
    if chain.maybe(0.2):
        low = chain.node("ReduceMin", [chain.value], keepdims=0)
    if chain.maybe(0.2):
        high = chain.node("Identity", [high])
    ways = ([low, high], [low, high], [low], ["", high], [])
    return chain.then("Clip", [chain.value, *chain.one_of(ways)])


def reduce(chain: Chain) -> bool:
    """Over some axes, or all."""
    kinds = ("Sum", "Mean", "Max", "Min", "Prod", "L1", "L2", "SumSquare", "LogSumExp", "LogSum")
    kind = chain.one_of(kinds)
    count = chain.one_of((1, 1, chain.random.randint(1, chain.rank)))
    axes = [chain.either_side(axis) for axis in chain.random.sample(range(chain.rank), count)]
    attributes = {"keepdims": chain.one_of((0, 1, 1))}
    value = chain.value
    if kind == "Prod":
        value = chain.node("Tanh", [value])
    if kind == "LogSum":
        value = _positive(chain, value, 0.1)
    op_type = f"Reduce{kind}"
    if chain.opset < 13 or (kind != "Sum" and chain.opset < 18):
        return chain.then(op_type, [value], axes=axes, **attributes)
    if chain.maybe(0.1):
        is_none = chain.random.randint(0, 1)
        return chain.then(op_type, [value], noop_with_empty_axes=is_none, **attributes)
    return chain.then(op_type, [value, chain.integers(axes)], **attributes)


def soft_max(chain: Chain) -> bool:
    """Softmax or its logarithm, along any axis."""
    kind = chain.one_of(("Softmax", "LogSoftmax"))
    return chain.then(kind, [chain.value], axis=chain.axis())


def norm(chain: Chain) -> bool:
    """Of every kind."""
    if chain.rank < 2:
        return False
    channels = chain.shape[1]

    def per_channel(count: int) -> list[str]:
        return [chain.floats(count) for _ in range(2)]

    kind = chain.one_of(("Layer", "Instance", "Batch", "LRN", "Lp", "MeanVariance", "Group"))
    if kind == "Layer":
        axis = chain.random.randrange(chain.rank)
        operands = [chain.floats(*chain.shape[axis:]) for _ in range(chain.one_of((1, 2)))]
        axis = chain.either_side(axis)
        operands.insert(0, chain.value)
        return chain.opset >= 17 and chain.then("LayerNormalization", operands, axis=axis)
    if kind == "Batch":
        spread = np.abs(chain.numbers.standard_normal(channels)).astype(np.float32) + 0.1
        statistics = [chain.floats(channels), chain.constant(spread)]
        operands = [chain.value, *per_channel(channels), *statistics]
        return chain.then("BatchNormalization", operands, epsilon=1e-3)
    if kind == "Lp":
        p = chain.one_of((1, 2))
        return chain.then("LpNormalization", [chain.value], axis=chain.axis(), p=p)
    if chain.rank < 3:
        return False
    if kind == "Instance":
        operands = [chain.value, *per_channel(channels)]
        return chain.then("InstanceNormalization", operands, epsilon=1e-2)
    if kind == "LRN":
        attributes = {"size": chain.random.randint(1, 5), "alpha": chain.one_of((1e-4, 0.1, 1.0))}
        return chain.then("LRN", [chain.value], **attributes)
    if kind == "MeanVariance":
        return chain.rank == 4 and chain.then("MeanVarianceNormalization", [chain.value])
    groups = chain.one_of([n for n in range(1, channels + 1) if channels % n == 0])
    operands = [chain.value, *per_channel(channels)]
    return chain.opset >= 21 and chain.then("GroupNormalization", operands, num_groups=groups)


def gemm(chain: Chain) -> bool:
    """With every form of what is added."""
    if chain.rank != 2:
        return False
    is_turned, is_other_turned = chain.random.randint(0, 1), chain.random.randint(0, 1)
    rows, terms = chain.shape[::-1] if is_turned else chain.shape
    columns = chain.one_of((1, 3, 5, 8, 16, 33))
    sizes = (columns, terms) if is_other_turned else (terms, columns)
    operands = [chain.value, chain.floats(*sizes, scale=terms**-0.5)]
    if chain.maybe(0.7):
        added = ((columns,), (1, columns), (rows, 1), (rows, columns), (1,), ())
        operands.append(chain.floats(*chain.one_of(added)))
    attributes: dict[str, Any] = {"transA": is_turned, "transB": is_other_turned}
    if chain.maybe():
        attributes |= {"alpha": chain.one_of((0.5, 2.0)), "beta": chain.one_of((0.5, 2.0, 0.0))}
    return chain.then("Gemm", operands, **attributes)


def mat_mul(chain: Chain) -> bool:
    """By a vector, a matrix or a stack of them, from either side."""
    if chain.rank < 2:
        return False
    *lead, rows, terms = chain.shape
    columns = chain.one_of((1, 2, 5, 16, 33))
    way = chain.one_of(("vector", "matrix", "matrix", "stack", "stack", "left"))
    if way == "left":
        left = chain.floats(columns, rows, scale=rows**-0.5)
        return chain.then("MatMul", [left, chain.value])
    scale = terms**-0.5
    if way == "vector":
        other = chain.floats(terms, scale=scale)
    elif way == "matrix":
        other = chain.floats(terms, columns, scale=scale)
    else:
        lead = [size if chain.maybe(0.7) else 1 for size in lead]
        lead = lead[chain.random.randint(0, len(lead)) * chain.maybe(0.4) :]
        other = chain.floats(*lead, terms, columns, scale=scale)
    return chain.then("MatMul", [chain.value, other])


def attention(chain: Chain) -> bool:
    """softmax(x x') x."""
    if chain.rank < 2:
        return False
    order = [*range(chain.rank - 2), chain.rank - 1, chain.rank - 2]
    turned = chain.node("Transpose", [chain.value], perm=order)
    scores = chain.node("MatMul", [chain.value, turned])
    scaled = chain.node("Mul", [scores, chain.scalar(0.2)])
    return chain.then("MatMul", [chain.node("Softmax", [scaled], axis=-1), chain.value])


def einsum(chain: Chain) -> bool:
    """Of a matrix, or a stack of them, and a matrix."""
    if chain.rank not in (2, 3):
        return False
    equations = {
        2: ("ij,jk->ik", "ij,kj->ik", "ij,jk->ki", "ij,jk->k"),
        3: ("bij,jk->bik", "bij,jk->bki", "bij,jk->jb", "bij,jk->ibk"),
    }
    equation = chain.one_of(equations[chain.rank])
    sizes = (chain.shape[-1], chain.one_of((2, 5, 8)))
    other = chain.floats(*(sizes[::-1] if "kj" in equation else sizes), scale=sizes[0] ** -0.5)
    return chain.then("Einsum", [chain.value, other], equation=equation)


def running_sum(chain: Chain) -> bool:
    """CumSum, from either end."""
    return chain.then(
        "CumSum",
        [chain.value, chain.constant(np.int64(chain.axis()))],
        exclusive=chain.random.randint(0, 1),
        reverse=chain.random.randint(0, 1),
    )


def rest(chain: Chain) -> bool:
    """Of a division, with the sign of the dividend."""
    return chain.then("Mod", [chain.value, chain.scalar(0.7)], fmod=1)


def quantised(chain: Chain) -> bool:
    """To bytes and back, with one scale or one of each channel."""
    dtype = chain.one_of((np.uint8, np.int8))
    scale, zero, attributes = np.float32(0.05), np.asarray(3, dtype), {}
    if chain.opset >= 13 and chain.rank > 1 and chain.maybe():
        channels = chain.shape[1]
        scale = chain.numbers.uniform(0.02, 0.1, channels).astype(np.float32)
        zero = chain.numbers.integers(0, 10, channels).astype(dtype)
        attributes = {"axis": 1}
    grid = [chain.constant(scale), chain.constant(zero)]
    small = chain.node("QuantizeLinear", [chain.value, *grid], **attributes)
    return chain.then("DequantizeLinear", [small, *grid], **attributes)


def recurrent(chain: Chain) -> bool:
    """LSTM, GRU or RNN, with any of their operands and outputs."""
    if chain.rank != 3:
        return False
    steps, batch, features = chain.shape
    kind, gates = chain.one_of((("LSTM", 4), ("GRU", 3), ("RNN", 1)))
    size, direction = chain.one_of((3, 4, 8)), chain.one_of(("forward", "reverse", "bidirectional"))
    ways = 2 if direction == "bidirectional" else 1
    operands = [chain.value]
    operands += [chain.floats(ways, gates * size, n, scale=0.3) for n in (features, size)]
    operands.append(chain.floats(ways, 2 * gates * size, scale=0.3) if chain.maybe(0.7) else "")
    if chain.maybe(0.3):
        lengths = chain.numbers.integers(1, steps + 1, batch).astype(np.int32)
        operands.append(chain.constant(lengths) if chain.maybe() else "")
        states = 2 if kind == "LSTM" else 1
        operands += [chain.floats(ways, batch, size) for _ in range(states)]
        if kind == "LSTM" and chain.maybe():
            operands.append(chain.floats(ways, 3 * size))
    attributes: dict[str, Any] = {"hidden_size": size, "direction": direction}
    if kind == "GRU":
        attributes["linear_before_reset"] = chain.random.randint(0, 1)
    if chain.maybe(0.2):
        attributes["clip"] = 0.6
    outputs = chain.nodes_of(kind, operands, 3 if kind == "LSTM" else 2, **attributes)
    chain.value = chain.one_of(outputs)
    return True


ELEMENTS = (unary, unary, unary, binary, binary, binary, clip, clip, rest, quantised)
SUMS = (reduce, reduce, soft_max, norm, norm, running_sum)
PRODUCTS = (gemm, mat_mul, mat_mul, attention, einsum, recurrent)
ARITHMETIC = (*ELEMENTS, *SUMS, *PRODUCTS)
