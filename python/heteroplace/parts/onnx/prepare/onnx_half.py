"""An ONNX model with weights in half precision -> what becomes of them, for the import's report.

All is computed in float32. CPUs' kernels hold in two bytes what they multiply by or look up in
(`parts/kernels/rewrites/narrow_weights.py`); what other ops read has four.
"""

from __future__ import annotations

from collections import defaultdict

import numpy as np
from onnx import ModelProto, NodeProto

from heteroplace.model.units import format_bytes
from heteroplace.parts.onnx.prepare.onnx_half_types import HALF_TYPES
from heteroplace.terminal import listed

_MIN_ELEMENTS = 4096
"""Smaller ones are not told of."""
_HOLDING = {"MatMul": 1, "Gemm": 1, "Gather": 0}
"""Ops whose weights are held in two bytes, and which operand that is."""
_MOVING = frozenset(("Cast", "Identity", "Transpose", "Reshape", "Squeeze", "Unsqueeze", "Flatten"))
"""Ops that keep the values of their first operand, and are done ahead."""
_MAX_NAMES = 3


def describe_half_weights(model: ModelProto) -> list[str]:
    """Return a line for each type of half precision and for what becomes of its weights.

    Weights of the graph itself count, not those of graphs inside of its nodes.
    """
    readers = _readers(model)
    held: dict[str, list[int]] = defaultdict(list)
    widened: dict[str, list[int]] = defaultdict(list)
    names: dict[str, list[str]] = defaultdict(list)
    causes: dict[str, set[str]] = defaultdict(set)
    for name, data_type, count in _weights(model):
        if data_type not in HALF_TYPES or count < _MIN_ELEMENTS or name not in readers:
            continue
        kind = HALF_TYPES[data_type]
        others = _other_readers(name, readers)
        if others:
            widened[kind].append(2 * count)
            names[kind].append(name)
            causes[kind] |= others
        else:
            held[kind].append(2 * count)
    lines = []
    for kind, sizes in held.items():
        lines.append(
            f"{_amount(sizes, kind)} computed in float32, and held in two bytes by kernels of CPUs"
        )
    for kind, sizes in widened.items():
        lines.append(
            f"{_amount(sizes, kind)} widened to float32, as {', '.join(sorted(causes[kind]))} "
            f"read them: {listed(names[kind], at_most=_MAX_NAMES)}"
        )
    return lines


def _amount(sizes: list[int], kind: str) -> str:
    are = "weight is" if len(sizes) == 1 else "weights are"
    return f"{len(sizes)} {kind} ({format_bytes(sum(sizes))}) {are}"


def _weights(model: ModelProto) -> list[tuple[str, int, int]]:
    """(name, element type, number of elements) of each."""
    named_tensors = [(tensor.name, tensor) for tensor in model.graph.initializer]
    for node in model.graph.node:
        if node.op_type == "Constant":
            tensors = [each.t for each in node.attribute if each.HasField("t")]
            named_tensors += [(node.output[0], tensor) for tensor in tensors]
    return [(name, each.data_type, int(np.prod(each.dims))) for name, each in named_tensors]


def _readers(model: ModelProto) -> dict[str, list[tuple[NodeProto, int]]]:
    """By name of a value the nodes that read it, and as which operand."""
    readers: dict[str, list[tuple[NodeProto, int]]] = defaultdict(list)
    for node in model.graph.node:
        for position, name in enumerate(node.input):
            readers[name].append((node, position))
    return readers


def _other_readers(name: str, readers: dict[str, list[tuple[NodeProto, int]]]) -> set[str]:
    """Op types that read a weight, and do not hold it in two bytes."""
    other_readers: set[str] = set()
    waiting = [name]
    for value in waiting:  # values that are appended are visited too
        for node, position in readers.get(value, ()):
            if node.op_type in _MOVING and position == 0:
                waiting += node.output
            elif _HOLDING.get(node.op_type) != position or _is_scaled(node):
                other_readers.add(node.op_type)
    return other_readers


def _is_scaled(node: NodeProto) -> bool:
    """Whether the product is of something else than the weight (`alpha` of Gemm, `transA`)."""
    numbers = {each.name: each for each in node.attribute}
    alpha = numbers["alpha"].f if "alpha" in numbers else 1.0
    return node.op_type == "Gemm" and (alpha != 1 or ("transA" in numbers and numbers["transA"].i))
