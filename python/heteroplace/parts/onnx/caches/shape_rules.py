"""A node of an ONNX model and the shapes of its operands -> the shape of its first output, by rule.

For the ops of decoders that would take long to compute for their shapes alone: products with
weights, and what works on their results place by place.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import numpy.typing as npt
from onnx import NodeProto, TensorProto, helper, numpy_helper

from heteroplace.parts.onnx.prepare.node_attributes import attribute_of

Shape = tuple[int, ...]
Shapes = Sequence[Shape | None]
Values = Sequence[npt.NDArray[np.generic] | None]
"""Of the operands, where they are small and known."""

_BOOLEAN = frozenset(
    {"And", "Equal", "Greater", "GreaterOrEqual", "IsInf", "IsNaN", "Less", "LessOrEqual", "Not"}
    | {"Or", "Xor"}
)
_PLACE_BY_PLACE = _BOOLEAN | frozenset(
    {"Abs", "Add", "Cast", "Ceil", "Clip", "Cos", "Div", "Elu", "Erf", "Exp", "FastGelu", "Floor"}
    | {"Gelu", "HardSigmoid", "HardSwish", "Identity", "LeakyRelu", "Log", "Max", "Min", "Mish"}
    | {"Mod", "Mul", "Neg", "PRelu", "Pow", "QuickGelu", "Reciprocal", "Relu", "Round", "Sigmoid"}
    | {"Sign", "Sin", "Softplus", "Sqrt", "Sub", "Sum", "Swish", "Tanh", "Where"}
)
_OF_FIRST = frozenset(
    {"BiasGelu", "DequantizeLinear", "GroupQueryAttention", "LayerNormalization", "LogSoftmax"}
    | {"LpNormalization", "RMSNormalization", "RotaryEmbedding", "SimplifiedLayerNormalization"}
    | {"SkipLayerNormalization"}
    | {"SkipSimplifiedLayerNormalization", "Softmax"}
)  # fmt: skip


def ruled_shape(node: NodeProto, shapes: Shapes, values: Values) -> Shape | None:
    """Return the shape of the first output; None: there is no rule, or a shape is missing.

    Parameters
    ----------
    node
        Other outputs than its first have none by rule.
    shapes, values
        Of the operands; None: it is left out, or not known.

    Examples
    --------
    >>> ruled_shape(helper.make_node("MatMul", ["a", "b"], ["c"]), [(2, 3, 4), (4, 5)], [None] * 2)
    (2, 3, 5)
    """
    rule = _RULES.get(node.op_type)
    if rule is not None and shapes and shapes[0] is not None:
        return rule(node, shapes, values)
    if node.op_type in _PLACE_BY_PLACE and all(shape is not None for shape in shapes):
        return np.broadcast_shapes(*(shape for shape in shapes if shape is not None))
    return None


def ruled_dtype(
    node: NodeProto, dtypes: Sequence[np.dtype[np.generic] | None]
) -> np.dtype[np.generic]:
    """Return the element type of the first output of a node that has a rule."""
    if node.op_type == "Cast":
        return np.dtype(helper.tensor_dtype_to_np_dtype(int(attribute_of(node, "to", 1))))
    if node.op_type in _BOOLEAN:
        return np.dtype(bool)
    if node.op_type == "ConstantOfShape":
        value = attribute_of(node, "value", None)
        if isinstance(value, TensorProto):
            return numpy_helper.to_array(value).dtype
        return np.dtype("float32")
    first = 1 if node.op_type in ("DequantizeLinear", "Where") else 0
    return dtypes[first] or np.dtype("float32")


def _product(_node: NodeProto, shapes: Shapes, _values: Values) -> Shape | None:
    left, right = shapes[0], shapes[1]
    if left is None or right is None or min(len(left), len(right)) < 2:
        return None
    return (*np.broadcast_shapes(left[:-2], right[:-2]), left[-2], right[-1])


def _general_product(node: NodeProto, shapes: Shapes, _values: Values) -> Shape | None:
    left, right = shapes[0], shapes[1]
    if left is None or right is None:
        return None
    rows = left[1] if attribute_of(node, "transA", 0) else left[0]
    return (rows, right[0] if attribute_of(node, "transB", 0) else right[1])


def _quantised_product(node: NodeProto, shapes: Shapes, _values: Values) -> Shape | None:
    assert shapes[0] is not None
    return (*shapes[0][:-1], int(attribute_of(node, "N", 0)))


def _gathered(node: NodeProto, shapes: Shapes, _values: Values) -> Shape | None:
    data, places = shapes[0], shapes[1]
    if data is None or places is None:
        return None
    axis = int(attribute_of(node, "axis", 0)) % max(len(data), 1)
    return (*data[:axis], *places, *data[axis + 1 :])


def _expanded(_node: NodeProto, shapes: Shapes, values: Values) -> Shape | None:
    if shapes[0] is None or values[1] is None:
        return None
    return np.broadcast_shapes(shapes[0], tuple(values[1].tolist()))


def _filled(_node: NodeProto, _shapes: Shapes, values: Values) -> Shape | None:
    return None if values[0] is None else tuple(int(size) for size in values[0].tolist())


def _counted(_node: NodeProto, _shapes: Shapes, values: Values) -> Shape | None:
    start, end, step = (None if each is None else float(each.item()) for each in values)
    if start is None or end is None or not step:
        return None
    return (max(math.ceil((end - start) / step), 0),)


def _tiled(_node: NodeProto, shapes: Shapes, values: Values) -> Shape | None:
    if shapes[0] is None or values[1] is None:
        return None
    return tuple(
        size * int(times) for size, times in zip(shapes[0], values[1].tolist(), strict=True)
    )


def _joined(node: NodeProto, shapes: Shapes, _values: Values) -> Shape | None:
    every = [shape for shape in shapes if shape is not None]
    if len(every) < len(shapes):
        return None
    axis = int(attribute_of(node, "axis", 0)) % max(len(every[0]), 1)
    return (*every[0][:axis], sum(shape[axis] for shape in every), *every[0][axis + 1 :])


def _reshaped(node: NodeProto, shapes: Shapes, values: Values) -> Shape | None:
    old = shapes[0]
    if old is None or values[1] is None:
        return None
    new = [int(size) for size in values[1].tolist()]
    if not attribute_of(node, "allowzero", 0):
        new = [old[axis] if size == 0 else size for axis, size in enumerate(new)]
    if -1 in new:
        others = int(np.prod([size for size in new if size != -1]))
        new[new.index(-1)] = int(np.prod(old)) // max(others, 1)
    return tuple(new)


def _first(_node: NodeProto, shapes: Shapes, _values: Values) -> Shape | None:
    return shapes[0]


_RULES: Mapping[str, Callable[[NodeProto, Shapes, Values], Shape | None]] = {
    "Concat": _joined,
    "ConstantOfShape": _filled,
    "Expand": _expanded,
    "Gather": _gathered,
    "Gemm": _general_product,
    "MatMul": _product,
    "MatMulInteger": _product,
    "MatMulNBits": _quantised_product,
    "Range": _counted,
    "Reshape": _reshaped,
    "Tile": _tiled,
    **dict.fromkeys(_OF_FIRST, _first),
}
