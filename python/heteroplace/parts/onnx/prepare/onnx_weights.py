"""The test networks inside the `onnx` wheel, with weights that compute something.

The wheel carries nine well-known image networks (`backend/test/data/light`) whose weights are
constants (every element alike), so that a wrong kernel can still give the right numbers.
`randomize_weights` puts seeded random tensors of the same shapes in their place: He's rule for
kernels ("Delving Deep into Rectifiers", section 2.2), batch-norm statistics near those of a
trained network, and a small gain for the last layer, so that a softmax stays away from one-hot.

Unlike He: in a network without batch norm a kernel that reads a maximum over a window gets a
smaller gain, because the maximum of nine rectified values has about five times their mean square;
and a batch norm that ends a residual branch gets a small scale, because each sum of two equal
branches doubles the variance. Without these two the softmax of inception_v1, resnet50 and
shufflenet is one-hot.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import ModelProto, NodeProto, numpy_helper

from heteroplace.errors import FrontendError

_KERNEL_OPS = ("Conv", "ConvTranspose", "Gemm", "MatMul")
_PASSING_OPS = ("LRN", "Dropout", "Reshape", "Relu")
"""Ops whose output has about the mean square of their input."""
_SAME_VALUE_OPS = ("Unsqueeze", "Squeeze", "Reshape", "Identity")
_GAINS = {"kernel": 2.0**0.5, "pooled_kernel": 0.5**0.5, "final_kernel": 0.35}
_RESIDUAL_SCALE = 0.25

Array = npt.NDArray[np.float32]


def light_model_names() -> tuple[str, ...]:
    """Return the names of the networks in the `onnx` wheel, sorted: "resnet50", ..."""
    return tuple(sorted(path.stem.removeprefix("light_") for path in _folder().glob("*.onnx")))


def light_model(name: str, seed: int = 0) -> ModelProto:
    """Return a network of the `onnx` wheel with random weights.

    Parameters
    ----------
    name
        One of `light_model_names()`.
    seed
        Of the weights. Equal seeds give equal models.

    Raises
    ------
    FrontendError
        The wheel has no such network.
    """
    path = _folder() / f"light_{name}.onnx"
    if not path.is_file():
        raise FrontendError(
            f"the onnx wheel has no network '{name}' in {_folder()}; it has "
            f"{', '.join(light_model_names()) or 'none'}"
        )
    return randomize_weights(onnx.load(path), seed)


def _folder() -> Path:
    return Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"


def randomize_weights(model: ModelProto, seed: int) -> ModelProto:
    """Return a copy of `model` with every floating-point weight drawn at random.

    Weights are initialisers and `ConstantOfShape` nodes of a constant shape; each becomes an
    initialiser. Scalars keep their value: they are scales and exponents.

    Parameters
    ----------
    model
        Is not changed. Its weights are drawn in the order of its nodes.
    seed
        Of the generator.
    """
    result = ModelProto()
    result.CopyFrom(model)
    graph = result.graph
    shapes = _weight_shapes(graph)
    roles = _roles(graph, set(shapes))
    generator = np.random.default_rng(seed)
    tensors = []
    for name, shape in shapes.items():
        role, consumer = roles.get(name, ("other", None))
        tensors.append(numpy_helper.from_array(_draw(generator, role, shape, consumer), name))
    kept_nodes = [_copy(n) for n in graph.node if n.output[0] not in shapes]
    used = {name for node in kept_nodes for name in node.input}
    kept_tensors = [
        _copy(tensor)
        for tensor in graph.initializer
        if tensor.name not in shapes and tensor.name in used
    ]
    dropped = {t.name for t in graph.initializer} - {t.name for t in kept_tensors}
    kept_inputs = [_copy(value) for value in graph.input if value.name not in dropped]
    del graph.node[:], graph.initializer[:], graph.input[:]
    graph.node.extend(kept_nodes)
    graph.initializer.extend([*kept_tensors, *tensors])
    graph.input.extend(kept_inputs)
    result.ir_version = max(result.ir_version, 4)  # initialisers need not be inputs from here on
    return result


def _weight_shapes(graph: onnx.GraphProto) -> dict[str, tuple[int, ...]]:
    """Return weight name -> shape, in the order of the file."""
    constants = {t.name: t for t in graph.initializer if t.data_type == onnx.TensorProto.INT64}
    shapes = {
        tensor.name: tuple(tensor.dims)
        for tensor in graph.initializer
        if tensor.data_type == onnx.TensorProto.FLOAT and len(tensor.dims) > 0
    }
    for node in graph.node:
        if node.op_type == "ConstantOfShape" and node.input[0] in constants:
            shape = numpy_helper.to_array(constants[node.input[0]])
            shapes[node.output[0]] = tuple(int(size) for size in shape)
    return shapes


def _roles(graph: onnx.GraphProto, weights: set[str]) -> dict[str, tuple[str, NodeProto | None]]:
    """Return weight name -> (what it is for, its consumer), seeing through reshapes."""
    origin = {name: name for name in weights}
    for node in graph.node:
        if node.op_type in _SAME_VALUE_OPS and node.input[0] in origin:
            origin[node.output[0]] = origin[node.input[0]]
    producer = {name: node for node in graph.node for name in node.output}
    summed = {
        name
        for node in graph.node
        if node.op_type in ("Add", "Sum") and not origin.keys() & set(node.input)
        for name in node.input
    }
    is_normalised = any(node.op_type == "BatchNormalization" for node in graph.node)
    last_kernel = [node for node in graph.node if node.op_type in _KERNEL_OPS][-1:]
    roles: dict[str, tuple[str, NodeProto | None]] = {}
    for node in graph.node:
        for position, name in enumerate(node.input):
            if name not in origin or node.output[0] in origin:
                continue
            role = _role(node, position)
            if role == "kernel" and node in last_kernel:
                role = "final_kernel"
            elif role == "kernel" and not is_normalised and _reads_maximum(node, producer):
                role = "pooled_kernel"
            elif role == "scale" and node.output[0] in summed:
                role = "residual_scale"
            roles.setdefault(origin[name], (role, node))
    return roles


def _role(node: NodeProto, position: int) -> str:
    if node.op_type == "BatchNormalization":
        return ("", "scale", "bias", "mean", "variance")[position]
    if node.op_type in _KERNEL_OPS:
        return "bias" if position == 2 else "kernel"
    return {"Mul": "scale", "Add": "bias", "Sum": "bias"}.get(node.op_type, "other")


def _reads_maximum(node: NodeProto, producer: Mapping[str, NodeProto]) -> bool:
    """Return True if the input of `node` is a MaxPool, seen through ops that keep its size."""
    source = producer.get(node.input[0])
    while source is not None and source.op_type in _PASSING_OPS:
        source = producer.get(source.input[0])
    return source is not None and source.op_type == "MaxPool"


def _draw(
    generator: np.random.Generator, role: str, shape: tuple[int, ...], node: NodeProto | None
) -> Array:
    """Draw one weight. Variances of activations stay near one through any depth."""
    if role == "variance":
        values = generator.uniform(0.5, 1.5, shape)
    elif role == "residual_scale":
        values = _RESIDUAL_SCALE * (1.0 + 0.1 * generator.standard_normal(shape))
    elif role == "scale":
        values = 1.0 + 0.1 * generator.standard_normal(shape)
    elif role in ("bias", "mean"):
        values = 0.05 * generator.standard_normal(shape)
    elif role in _GAINS:
        values = generator.standard_normal(shape) * _GAINS[role] / np.sqrt(_fan_in(shape, node))
    else:
        values = 0.1 * generator.standard_normal(shape)
    return values.astype(np.float32)


def _fan_in(shape: tuple[int, ...], node: NodeProto | None) -> int:
    """Return how many products are added up for one output element."""
    assert node is not None
    if node.op_type == "Conv":
        return int(np.prod(shape[1:]))
    if node.op_type == "ConvTranspose":
        return int(shape[0] * np.prod(shape[2:]))
    if node.op_type == "MatMul":
        return shape[-2] if len(shape) > 1 else shape[0]
    is_transposed = any(a.name == "transB" and a.i == 1 for a in node.attribute)
    return shape[1] if is_transposed else shape[0]


def _copy(message: Any) -> Any:
    """Return a protobuf message that outlives the field it was in."""
    return type(message).FromString(message.SerializeToString())
