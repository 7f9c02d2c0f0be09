"""ONNX models -> damaged ones: shapes, types, values, attributes, names, ops, data, bytes."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto, helper

from tests.fuzz.json_mutations import mutate_bytes

_SIZES = (-1, 0, 1, 2, 3, 7, 255, 2**16, 2**31 - 1, 2**31, 2**40, 2**62, 2**63 - 1, -(2**63))
_FLOATS = (0.0, -0.0, -1.0, 1e-30, 1e30, float("inf"), float("-inf"), float("nan"))
_NAMES = ("", "x", "none", "\x1b[31m", "\u202e", "a\nb", "\0", "n" * 500)
_OPS = (
    *("Add", "Mul", "Div", "Mod", "Pow", "Relu", "Softmax", "Conv", "ConvTranspose", "MatMul"),
    *("Gemm", "Reshape", "Transpose", "Concat", "Split", "Slice", "Gather", "Scatter", "Pad"),
    *("Tile", "Expand", "Range", "ConstantOfShape", "OneHot", "TopK", "NonZero", "Resize", "LSTM"),
    *("ReduceSum", "MaxPool", "AveragePool", "GlobalAveragePool", "BatchNormalization", "Loop"),
    *("If", "Scan", "Identity", "Cast", "Shape", "Squeeze", "Unsqueeze", "Flatten", "EyeLike"),
    *("CumSum", "Trilu", "Einsum", "QuantizeLinear", "DequantizeLinear", "GridSample", "NoSuchOp"),
    *("LayerNormalization", "InstanceNormalization", "LpPool", "DepthToSpace", "Clip", "Where"),
)
_LOCATIONS = ("../w.bin", "/etc/passwd", "w.bin", "a/../../w", "", "none.bin", "/dev/zero", "a\0b")


def mutate_onnx(model: ModelProto, random: Random) -> bytes:
    """Return the bytes of a file that holds `model` with one to three faults."""
    damaged = ModelProto()
    damaged.CopyFrom(model)
    if random.random() < 0.85:
        for _ in range(random.choice((1, 1, 1, 2, 3))):
            random.choice(_MUTATIONS)(damaged, random)
        data = damaged.SerializeToString()
        return mutate_bytes(data, random) if random.random() < 0.1 else data
    return mutate_bytes(damaged.SerializeToString(), random)


def _graph(model: ModelProto, random: Random) -> GraphProto:
    """The graph of the model, or sometimes one inside a node."""
    inner = [
        attribute.g
        for node in model.graph.node
        for attribute in node.attribute
        if attribute.HasField("g")
    ]
    return random.choice(inner) if inner and random.random() < 0.5 else model.graph


def _node(model: ModelProto, random: Random) -> NodeProto:
    nodes = _graph(model, random).node
    return random.choice(nodes) if nodes else model.graph.node.add()


def _tensors(model: ModelProto) -> list[TensorProto]:
    graph = model.graph
    constants = [a.t for node in graph.node for a in node.attribute if a.HasField("t")]
    return [*graph.initializer, *constants]


def _tensor(model: ModelProto, random: Random) -> TensorProto:
    tensors = _tensors(model)
    return random.choice(tensors) if tensors else model.graph.initializer.add(name="new")


def tensor_shape(model: ModelProto, random: Random) -> None:
    """Another size, or another number of sizes."""
    dims = _tensor(model, random).dims
    if dims and random.random() < 0.8:
        dims[random.randrange(len(dims))] = random.choice(_SIZES)
    else:
        dims.append(random.choice(_SIZES))


def tensor_type(model: ModelProto, random: Random) -> None:
    """Another data type, of those there are or not."""
    _tensor(model, random).data_type = random.choice((*range(0, 24), 99, -1))


def tensor_data(model: ModelProto, random: Random) -> None:
    """Raw data that is shorter, longer, or of other bytes."""
    tensor = _tensor(model, random)
    data = bytearray(tensor.raw_data)
    kind = random.randrange(4)
    if kind == 0:
        del data[random.randrange(len(data) + 1) :]
    elif kind == 1:
        data += bytes(random.choice((1, 8, 4096)))
    elif kind == 2:
        data = bytearray(random.randbytes(len(data)))
    else:
        tensor.float_data.append(1.0)
    tensor.raw_data = bytes(data)


def shape_value(model: ModelProto, random: Random) -> None:
    """Another number in an integer tensor: what shapes, axes, starts and steps are made of."""
    kinds = (TensorProto.INT64, TensorProto.INT32)
    tensors = [t for t in _tensors(model) if t.data_type in kinds and len(t.raw_data) >= 4]
    if not tensors:
        return tensor_shape(model, random)
    tensor = random.choice(tensors)
    size = 8 if tensor.data_type == TensorProto.INT64 else 4
    data = bytearray(tensor.raw_data)
    at = random.randrange(max(1, len(data) // size)) * size
    value = random.choice(_SIZES) % 2 ** (8 * size)
    data[at : at + size] = value.to_bytes(size, "little")
    tensor.raw_data = bytes(data)
    return None


def external(model: ModelProto, random: Random) -> None:
    """Data that is said to be in another file."""
    tensor = _tensor(model, random)
    tensor.data_location = TensorProto.EXTERNAL
    entries = {"location": random.choice(_LOCATIONS)}
    for key in ("offset", "length"):
        if random.random() < 0.6:
            entries[key] = random.choice((*map(str, _SIZES), "x", "", "1e9", "9" * 30))
    for key, value in entries.items():
        tensor.external_data.add(key=key, value=value)


def attribute(model: ModelProto, random: Random) -> None:
    """Another value, another name or type of an attribute, or none."""
    node = _node(model, random)
    if not node.attribute:
        node.attribute.append(helper.make_attribute("axis", random.choice(_SIZES)))
        return
    found = random.choice(node.attribute)
    kind = random.randrange(6)
    if kind == 0:
        node.attribute.remove(found)
    elif kind == 1:
        found.name = random.choice((*_NAMES, "axis", "axes", "mode", "group", "to", "value"))
    elif kind == 2:
        found.type = random.choice(list(AttributeProto.AttributeType.values()))
    else:
        _change_value(found, random)


def _change_value(found: AttributeProto, random: Random) -> None:
    if found.ints:
        if random.random() < 0.3:
            found.ints.append(random.choice(_SIZES))
        else:
            found.ints[random.randrange(len(found.ints))] = random.choice(_SIZES)
    elif found.floats:
        found.floats[random.randrange(len(found.floats))] = random.choice(_FLOATS)
    elif found.type == AttributeProto.INT:
        found.i = random.choice(_SIZES)
    elif found.type == AttributeProto.FLOAT:
        found.f = random.choice(_FLOATS)
    else:
        found.s = random.choice((b"", b"linear", b"SAME_UPPER", b"\xff\xfe", b"NOTSET", b"x" * 99))


def node_names(model: ModelProto, random: Random) -> None:
    """A node that reads or makes another value, one more or one less."""
    graph = _graph(model, random)
    node = random.choice(graph.node) if graph.node else model.graph.node.add()
    values = [name for each in graph.node for name in (*each.input, *each.output)]
    values += [value.name for value in (*graph.input, *graph.output)]
    name = random.choice((*values, *values, *_NAMES))
    ends: Any = node.input if random.random() < 0.7 else node.output
    kind = random.randrange(4)
    if not ends or kind == 0:
        ends.append(name)
    elif kind == 1:
        del ends[random.randrange(len(ends)) :]
    else:
        ends[random.randrange(len(ends))] = name


def node_kind(model: ModelProto, random: Random) -> None:
    """Another op, another domain or another name."""
    node = _node(model, random)
    kind = random.randrange(5)
    if kind == 0:
        node.domain = random.choice(("com.microsoft", "ai.onnx.ml", "my.domain", "ai.onnx"))
    elif kind == 1:
        node.name = random.choice(_NAMES)
    else:
        node.op_type = random.choice(_OPS)


def nodes(model: ModelProto, random: Random) -> None:
    """A node more, less or elsewhere."""
    graph = _graph(model, random)
    if not graph.node:
        return
    at = random.randrange(len(graph.node))
    kept = [NodeProto.FromString(node.SerializeToString()) for node in graph.node]
    node = kept.pop(at)
    kind = random.randrange(3)
    if kind == 0:
        kept[at:at] = [node, node]
    elif kind == 1:
        kept.insert(random.randrange(len(kept) + 1), node)
    del graph.node[:]
    graph.node.extend(kept)


def ports(model: ModelProto, random: Random) -> None:
    """An input or output of the model of another shape, type or name, or none."""
    graph = _graph(model, random)
    values = graph.input if random.random() < 0.7 else graph.output
    if not values:
        return
    value = random.choice(values)
    tensor, kind = value.type.tensor_type, random.randrange(5)
    if kind == 0:
        value.name = random.choice(_NAMES)
    elif kind == 1:
        tensor.elem_type = random.choice((*range(0, 24), 99))
    elif kind == 2:
        values.remove(value)
    elif kind == 3 or not tensor.shape.dim:
        tensor.shape.dim.add().dim_value = random.choice(_SIZES)
    else:
        random.choice(tensor.shape.dim).dim_value = random.choice(_SIZES)


def versions(model: ModelProto, random: Random) -> None:
    """Another version of the operators or of the format."""
    if random.random() < 0.3:
        model.ir_version = random.choice((0, 1, 3, 4, 99, -1))
    elif model.opset_import:
        random.choice(model.opset_import).version = random.choice((*range(0, 27), 999, -1, 2**62))


def large_value(model: ModelProto, random: Random) -> None:
    """A constant of any size, made by the graph itself, added to a value."""
    sizes = [random.choice(_SIZES) for _ in range(random.choice((1, 1, 2, 3)))]
    shape = helper.make_tensor("big_shape", TensorProto.INT64, [len(sizes)], sizes)
    model.graph.initializer.append(shape)
    op_type = random.choice(("ConstantOfShape", "Expand", "Tile", "RandomNormal", "Range"))
    ends = {"ConstantOfShape": ["big_shape"], "RandomNormal": [], "Range": ["big_shape"] * 3}
    one = helper.make_tensor("big_one", TensorProto.FLOAT, [1] * len(sizes), [1.0])
    model.graph.initializer.append(one)
    made = helper.make_node(op_type, ends.get(op_type, ["big_one", "big_shape"]), ["big"])
    if op_type == "RandomNormal":
        made.attribute.append(helper.make_attribute("shape", sizes))
    rest = [NodeProto.FromString(node.SerializeToString()) for node in model.graph.node]
    del model.graph.node[:]
    model.graph.node.extend([made, *rest])
    if rest and rest[-1].input and rest[-1].output:
        total = helper.make_node("Add", ["big", rest[-1].output[0]], ["with_big"])
        model.graph.node.append(total)
        model.graph.output.append(helper.make_tensor_value_info("with_big", 1, None))


_MUTATIONS: tuple[Callable[[ModelProto, Random], None], ...] = (
    *(tensor_shape, tensor_type, tensor_data, shape_value, shape_value, external, attribute),
    *(attribute, node_names, node_names, node_kind, nodes, ports, versions, large_value),
)
