"""An ONNX model -> an equal one that TVM's importer reads correctly, and what was changed.

TVM's importer knows opset 17. Later opsets move arguments between attributes and inputs, and where
the importer meets a form that it does not know it often goes on and computes something else: a
`Reduce*` whose axes are an input is reduced over the FIRST axis only, an ONNX `Attention` is taken
for Microsoft's op of that name. Each repair here handles one such form, changes the model in place
and returns one line per kind of change.
"""

from __future__ import annotations

import collections
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
import onnx
from onnx import ModelProto, NodeProto, helper, numpy_helper

from heteroplace.errors import FrontendError
from heteroplace.parts.onnx.prepare.node_attributes import attribute_of
from heteroplace.parts.onnx.prepare.onnx_half_types import round_bfloat16
from heteroplace.terminal import printable

IMPORTER_OPSET = 17
"""The opset of ai.onnx that models are brought to."""

_OPS_OF_OPSET_18 = ("BitwiseAnd", "BitwiseNot", "BitwiseOr", "BitwiseXor", "Mish")
ONNX_DOMAINS = ("", "ai.onnx")
_DFT_AXIS_OPERAND, _DFT_AXIS = 20, 2
"""The opset since which the axis of DFT is an operand, and which one."""
_TRAINING_MODE = 14
"""The opset since which an attribute says whether BatchNormalization trains."""

_DEFAULT_ATTRIBUTES: Mapping[str, Mapping[str, object]] = {
    "Cast": {"saturate": None, "round_mode": None},  # both matter for 8-bit floats only
    "Reshape": {"allowzero": 0},
    "QuantizeLinear": {"saturate": None, "precision": 0},
}
"""Attributes that newer opsets added: dropped at this value (None: at any), refused otherwise."""


_DAMAGE_ERRORS = (
    ArithmeticError,
    AttributeError,
    LookupError,
    RuntimeError,  # InferenceError is one, too
    TypeError,
    ValueError,
)
"""What a repair meets in a node that lacks an input or attribute, or has one of another type."""


def opset_of(model: ModelProto) -> int:
    """Return the version of the ai.onnx operator set that `model` uses (1 if it names none)."""
    for entry in model.opset_import:
        if entry.domain in ONNX_DOMAINS:
            return int(entry.version)
    return 1


def describe_node(node: NodeProto) -> str:
    """Return how messages name a node: its op type and its name, or its first output."""
    domain = "" if node.domain in ONNX_DOMAINS else f"{node.domain}."
    name = node.name or (node.output[0] if node.output else "?")
    return printable(f"{domain}{node.op_type} '{name}'", allowed="")


def repair_model(model: ModelProto) -> list[str]:
    """Apply every repair to `model`.

    Parameters
    ----------
    model
        Is changed in place.

    Returns
    -------
    One line for each kind of repair that was done.

    Raises
    ------
    FrontendError
        If a node uses a form that cannot be expressed for the importer; all of them are named.
    """
    report: list[str] = []
    faults: list[str] = []
    for repair in _REPAIRS:
        try:
            report += repair(model)
        except FrontendError as err:
            faults.append(str(err))
        except _DAMAGE_ERRORS as err:
            what = (repair.__doc__ or repair.__name__).splitlines()[0]
            faults.append(
                f"a node, or a constant that it reads, is not as its op says ({what} fails: "
                f"{type(err).__name__}: {err}); check the model by onnx.checker"
            )
    _raise_all(faults)
    return report + stamp_opset(model)


def drop_default_attributes(model: ModelProto) -> list[str]:
    """Drop attributes of newer opsets that have no effect; refuse those that have one."""
    dropped: collections.Counter[str] = collections.Counter()
    faults = []
    for node in model.graph.node:
        for name, default in _DEFAULT_ATTRIBUTES.get(node.op_type, {}).items():
            if not _has(node, name):
                continue
            value = attribute_of(node, name)
            values = value if isinstance(value, list) else [value]
            if default is None or all(one == default for one in values):
                _drop_attribute(node, name)
                dropped[f"{node.op_type}.{name}"] += 1
            elif node.op_type != "Reshape":  # the importer knows allowzero
                faults.append(
                    f"{describe_node(node)}: {name}={value!r} is not supported, only {default!r}"
                )
    _raise_all(faults)
    return [f"dropped {count} x {name} at its default" for name, count in sorted(dropped.items())]


def bypass_dropout(model: ModelProto) -> list[str]:
    """Dropout(x) ==> x: at inference it does nothing, and its mask is true everywhere."""
    constants, faults = _constants(model), []
    count = 0
    nodes = list(model.graph.node)
    for index, node in enumerate(nodes):
        if node.op_type != "Dropout":
            continue
        training = node.input[2] if len(node.input) > 2 else ""
        drops = not (len(node.input) > 1 and _is_zero(model, node.input[1]))
        if drops and training and bool(np.any(constants.get(training, np.array(True)))):
            faults.append(
                f"{describe_node(node)} is in training mode. Export the model for inference."
            )
            continue
        mask = node.output[1] if len(node.output) > 1 else ""
        node.op_type = "Identity"
        del node.input[1:], node.output[1:], node.attribute[:]
        count += 1
        if mask:
            true = helper.make_tensor("true", onnx.TensorProto.BOOL, [1], [True])
            size = f"{mask}__shape"
            nodes[index : index + 1] = [
                node,
                helper.make_node("Shape", [node.input[0]], [size]),
                helper.make_node("ConstantOfShape", [size], [mask], value=true),
            ]
    _raise_all(faults)
    if len(nodes) != len(model.graph.node):
        copies = [NodeProto.FromString(node.SerializeToString()) for node in nodes]
        del model.graph.node[:]
        model.graph.node.extend(copies)
    return [f"bypassed {count} Dropout nodes"] if count else []


def write_new_defaults(model: ModelProto) -> list[str]:
    """DFT without an axis ==> with the axis of its opset: since opset 20 it is the last but one."""
    if opset_of(model) < _DFT_AXIS_OPERAND:
        return []
    count = 0
    for node in model.graph.node:
        if node.op_type == "DFT" and not (len(node.input) > _DFT_AXIS and node.input[_DFT_AXIS]):
            node.attribute.append(helper.make_attribute("axis", -2))
            count += 1
    return [f"wrote the axis of {count} DFT nodes"] if count else []


def refuse_training_norms(model: ModelProto) -> list[str]:
    """BatchNormalization of opsets before 14 trains where it has more results than the first."""
    if opset_of(model) >= _TRAINING_MODE:
        return []
    _raise_all(
        [
            f"{describe_node(node)} is in training mode, as it has {len(node.output)} results and "
            f"is of opset {opset_of(model)}. Export the model for inference, with one result."
            for node in model.graph.node
            if node.op_type == "BatchNormalization" and any(node.output[1:])
        ]
    )
    return []


def bypass_identity(model: ModelProto) -> list[str]:
    """Identity(x) ==> x, except where x is a graph output under its own name."""
    graph = model.graph
    outputs = {output.name for output in graph.output}
    renamed: dict[str, str] = {}
    remaining = []
    for node in graph.node:
        for position, name in enumerate(node.input):
            node.input[position] = renamed.get(name, name)
        if node.op_type == "Identity" and node.output[0] not in outputs:
            renamed[node.output[0]] = node.input[0]
        else:
            remaining.append(node)
    has_subgraphs = any(attribute.HasField("g") for n in graph.node for attribute in n.attribute)
    if not renamed or has_subgraphs:  # a subgraph may use the old names
        return []
    del graph.node[:]
    graph.node.extend(remaining)
    return [f"removed {len(renamed)} Identity nodes"]


def tensor_constants(model: ModelProto) -> list[str]:
    """Constant {value_ints, ...} ==> Constant {value}: the importer reads tensors only."""
    count = 0
    for node in model.graph.node:
        if node.op_type != "Constant" or _has(node, "value") or len(node.attribute) != 1:
            continue
        attribute = node.attribute[0]
        if attribute.name not in ("value_int", "value_ints", "value_float", "value_floats"):
            continue
        dtype = np.int64 if "int" in attribute.name else np.float32
        value = numpy_helper.from_array(np.array(helper.get_attribute_value(attribute), dtype))
        del node.attribute[:]
        node.attribute.append(helper.make_attribute("value", value))
        count += 1
    return [f"wrote {count} Constant nodes as tensors"] if count else []


def stamp_opset(model: ModelProto) -> list[str]:
    """Declare the opset that the repaired model is in."""
    version = opset_of(model)
    op_types = {node.op_type for node in model.graph.node}
    requested = IMPORTER_OPSET + any(name in op_types for name in _OPS_OF_OPSET_18)
    if version <= requested:
        return []
    for entry in model.opset_import:
        if entry.domain in ONNX_DOMAINS:
            entry.version = requested
    return [f"stamped opset {requested} (the file said {version})"]


_REPAIRS: Sequence[Callable[[ModelProto], list[str]]] = (
    tensor_constants,
    round_bfloat16,
    drop_default_attributes,
    write_new_defaults,
    refuse_training_norms,
    bypass_dropout,
    bypass_identity,
)


def _raise_all(faults: Sequence[str]) -> None:
    if faults:
        raise FrontendError("\n".join(faults))


def _constants(model: ModelProto) -> dict[str, np.ndarray]:
    """Return the integer and boolean constants of the graph: what shapes and axes are made of."""
    return dict(_small_constants(model))


def _small_constants(model: ModelProto) -> Iterator[tuple[str, np.ndarray]]:
    kinds = (onnx.TensorProto.INT64, onnx.TensorProto.INT32, onnx.TensorProto.BOOL)
    for tensor in model.graph.initializer:
        if tensor.data_type in kinds:
            yield tensor.name, numpy_helper.to_array(tensor)
    for node in model.graph.node:
        if node.op_type == "Constant" and _has(node, "value"):
            tensor = attribute_of(node, "value")
            if tensor.data_type in kinds:
                yield node.output[0], numpy_helper.to_array(tensor)


def _has(node: NodeProto, name: str) -> bool:
    return any(attribute.name == name for attribute in node.attribute)


def _drop_attribute(node: NodeProto, name: str) -> None:
    remaining = [attribute for attribute in node.attribute if attribute.name != name]
    del node.attribute[:]
    node.attribute.extend(remaining)


def _is_zero(model: ModelProto, name: str) -> bool:
    """Tell whether a value is a constant 0."""
    values = [tensor for tensor in model.graph.initializer if tensor.name == name]
    values += [
        attribute_of(node, "value")
        for node in model.graph.node
        if node.op_type == "Constant" and node.output[0] == name and _has(node, "value")
    ]
    return any(not numpy_helper.to_array(tensor).any() for tensor in values)
