"""An ONNX model with class names and ZipMaps -> an equal one whose values are tensors of numbers.

Programs compute with numbers only. Two things of ai.onnx.ml are none, and both only present a
result:

    ZipMap(scores)              ==>  scores [rows, classes], in the order of its labels
    labels that are strings     ==>  their numbers: the strings of the model in order, from 0

A string has one number everywhere in the model, so whatever compares, selects or hands on strings
gives the number of the string that it gave before. The lines of the report say which output means
what. An input of strings is refused (`onnx_types.py`), and so is an op that looks into them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from onnx import (
    AttributeProto,
    GraphProto,
    ModelProto,
    NodeProto,
    TensorProto,
    ValueInfoProto,
    helper,
)
from onnx.numpy_helper import from_array

from heteroplace.errors import FrontendError
from heteroplace.parts.onnx.converters.ml.ml import ML_DOMAIN
from heteroplace.parts.onnx.prepare.node_attributes import attribute_of
from heteroplace.parts.onnx.prepare.onnx_load import true_inputs
from heteroplace.parts.onnx.prepare.onnx_repair import describe_node
from heteroplace.terminal import listed, printable

_CLASS_NAMES = {
    "LinearClassifier": "classlabels_ints",
    "SVMClassifier": "classlabels_ints",
    "TreeEnsembleClassifier": "classlabels_int64s",
}
"""Classifier -> the attribute of its labels as numbers."""
_MOVERS = {
    ML_DOMAIN: frozenset({"ArrayFeatureExtractor"}),
    "": frozenset(
        {
            *("Concat", "Expand", "Flatten", "Gather", "GatherElements", "GatherND", "Identity"),
            *("Reshape", "Slice", "Split", "Squeeze", "Tile", "Transpose", "Unsqueeze", "Where"),
        }
    ),
}
"""Domain -> ops that hand strings on as they are."""
_MAX_SHOWN = 1000
"""Classes in a line of the report, which is where a user finds their order."""
_COMPARING = frozenset({"Equal"})
"""Ops of ai.onnx that compare strings."""


def numbers_for_labels(model: ModelProto, where: str) -> list[str]:
    """Write ZipMaps and strings of `model` as tensors of numbers, in place.

    Parameters
    ----------
    model
        As it was read.
    where
        Name of the model, for messages.

    Returns
    -------
    One line for each output that the model gives in another form; empty: nothing was changed.

    Raises
    ------
    FrontendError
        An op reads strings, or the maps of a ZipMap, and does more than hand them on.
    """
    _drop_empty_attributes(model.graph)
    report = _bypass_zip_maps(model, where)
    if not any(value.type.tensor_type.elem_type == TensorProto.STRING
               for value in true_inputs(model.graph)):  # fmt: skip
        report += _number_strings(model, where)
    if report:
        del model.graph.value_info[:]
    return report


def _drop_empty_attributes(graph: GraphProto) -> None:
    """Exporters write empty lists for attributes that a node does not have."""
    for node in graph.node:
        if node.domain == ML_DOMAIN:
            given = [attribute for attribute in node.attribute if not _is_empty(attribute)]
            if len(given) < len(node.attribute):
                copies = [AttributeProto.FromString(one.SerializeToString()) for one in given]
                del node.attribute[:]
                node.attribute.extend(copies)


def _is_empty(attribute: AttributeProto) -> bool:
    lists = (AttributeProto.FLOATS, AttributeProto.INTS, AttributeProto.STRINGS)
    return attribute.type in lists and not helper.get_attribute_value(attribute)


def _bypass_zip_maps(model: ModelProto, where: str) -> list[str]:
    graph = model.graph
    outputs = {value.name: value for value in graph.output}
    maps: dict[str, str] = {}
    for node in graph.node:
        readers = [name for name in node.input if name in maps]
        if readers:
            raise FrontendError(
                f"{where}: {describe_node(node)} reads the maps of {maps[readers[0]]}, and only "
                f"tensors can be compiled. Export the model without ZipMap (options={{'zipmap': "
                f"False}} of skl2onnx)."
            )
        if node.domain == ML_DOMAIN and node.op_type == "ZipMap":
            maps[node.output[0]] = describe_node(node)
    report = []
    for node in graph.node:
        if node.domain != ML_DOMAIN or node.op_type != "ZipMap":
            continue
        name = node.output[0]
        labels = _attribute(node, "classlabels_int64s") or _attribute(node, "classlabels_strings")
        node.op_type, node.domain = "Identity", ""
        del node.attribute[:]
        if name in outputs:
            _set_type(outputs[name], TensorProto.FLOAT)
            report.append(
                f"output '{printable(name, allowed='')}' is a tensor [rows, classes] instead of a "
                f"list of maps (ZipMap); its columns are the classes {_shown(labels)}"
            )
    return report


def _number_strings(model: ModelProto, where: str) -> list[str]:
    """Put numbers in place of all strings; return which outputs they are."""
    graph = model.graph
    strings = _Vocabulary()
    names = {tensor.name for tensor in graph.initializer if _is_string(tensor.data_type)}
    for node in graph.node:
        if node.domain == ML_DOMAIN and node.op_type in _CLASS_NAMES:
            strings.add(_attribute(node, "classlabels_strings"))
    for tensor in graph.initializer:
        if tensor.name in names:
            tensor.CopyFrom(strings.tensor(tensor))
    for node in graph.node:
        reads = any(name in names for name in node.input)
        if _writes_strings(node, reads, strings, where):
            names.update(filter(None, node.output[:1]))
            if node.op_type == "Split":
                names.update(node.output)
    report = []
    for value in graph.output:
        if value.name in names:
            shape = value.type.tensor_type
            shape.elem_type = TensorProto.INT64
            report.append(
                f"output '{printable(value.name, allowed='')}' is the number of a string (int64): "
                f"{strings.shown()}"
            )
    return report


class _Vocabulary:
    """The strings of a model and their numbers."""

    def __init__(self) -> None:
        self._numbers: dict[bytes, int] = {}

    def add(self, strings: Iterable[bytes]) -> list[int]:
        """Return the numbers of strings; new ones get the next."""
        return [self._numbers.setdefault(text, len(self._numbers)) for text in strings]

    def tensor(self, tensor: TensorProto) -> TensorProto:
        """Return a tensor of strings as one of numbers."""
        values = np.array(self.add(tensor.string_data), np.int64)
        return from_array(values.reshape(tuple(tensor.dims)), tensor.name)

    def shown(self) -> str:
        """Return the table."""
        pairs = (f"{number} {_text(text)}" for text, number in self._numbers.items())
        return listed(pairs, at_most=_MAX_SHOWN)


def _writes_strings(node: NodeProto, reads: bool, strings: _Vocabulary, where: str) -> bool:
    """Put numbers in place of the strings of a node; say whether its first result was strings."""
    if node.domain == ML_DOMAIN and node.op_type in _CLASS_NAMES:
        names = _attribute(node, "classlabels_strings")
        if names:
            _replace(
                node, {"classlabels_strings": (_CLASS_NAMES[node.op_type], strings.add(names))}
            )
        return bool(names)
    if node.domain == ML_DOMAIN and node.op_type in ("LabelEncoder", "CategoryMapper"):
        return _number_encoder(node, reads, strings)
    if node.domain == ML_DOMAIN and node.op_type == "OneHotEncoder" and reads:
        names = _attribute(node, "cats_strings")
        _replace(node, {"cats_strings": ("cats_int64s", strings.add(names))})
        return False
    if node.op_type == "Constant" and node.domain == "":
        return _number_constant(node, strings)
    if not reads:
        return False
    domain = "" if node.domain == "ai.onnx" else node.domain
    if domain == "" and node.op_type in _COMPARING:
        return False
    if node.op_type not in _MOVERS.get(domain, ()):
        raise FrontendError(
            f"{where}: {describe_node(node)} reads strings, which programs do not compute with. "
            f"Cut the model before it."
        )
    return True


def _number_constant(node: NodeProto, strings: _Vocabulary) -> bool:
    for attribute in node.attribute:
        if attribute.name == "value" and _is_string(attribute.t.data_type):
            attribute.t.CopyFrom(strings.tensor(attribute.t))
            return True
        if attribute.name in ("value_string", "value_strings"):
            given = helper.get_attribute_value(attribute)
            numbers = strings.add([given] if isinstance(given, bytes) else given)
            value = numbers[0] if isinstance(given, bytes) else numbers
            _replace(node, {attribute.name: ("value", from_array(np.array(value, np.int64)))})
            return True
    return False


def _number_encoder(node: NodeProto, reads: bool, strings: _Vocabulary) -> bool:
    """LabelEncoder, of any opset, or CategoryMapper ==> LabelEncoder of numbers."""
    classes = _attribute(node, "classes_strings") or _attribute(node, "cats_strings")
    if classes:  # LabelEncoder 1, CategoryMapper
        numbers = strings.add(classes)
        others = _attribute(node, "cats_int64s") or list(range(len(classes)))
        default = _attribute(node, "default_string") or b"_Unused"
        lookup = {"keys_int64s": numbers, "values_int64s": others}
        unknown = _attribute(node, "default_int64")
        if not reads:
            lookup = {"keys_int64s": others, "values_int64s": numbers}
            unknown = strings.add([default])[0]
        _replace(node, dict.fromkeys([one.name for one in node.attribute]))
        node.op_type = "LabelEncoder"
        node.attribute.extend(helper.make_attribute(name, value) for name, value in lookup.items())
        default_int = -1 if isinstance(unknown, list) else unknown
        node.attribute.append(helper.make_attribute("default_int64", default_int))
        return not reads
    keys, values = _attribute(node, "keys_strings"), _attribute(node, "values_strings")
    if keys:
        _replace(node, {"keys_strings": ("keys_int64s", strings.add(keys))})
    for attribute in node.attribute:
        if attribute.name.endswith("_tensor") and _is_string(attribute.t.data_type):
            values = values or attribute.name == "values_tensor"
            attribute.t.CopyFrom(strings.tensor(attribute.t))
    if values and not _attribute(node, "values_strings") and not _attribute(node, "default_tensor"):
        unknown = from_array(np.array(strings.add([b"_Unused"]), np.int64))
        node.attribute.append(helper.make_attribute("default_tensor", unknown))
    if _attribute(node, "values_strings"):
        default = _attribute(node, "default_string") or b"_Unused"
        numbers = strings.add(_attribute(node, "values_strings"))
        _replace(node, {"default_int64": None, "default_string": None})
        _replace(node, {"values_strings": ("values_int64s", numbers)})
        node.attribute.append(helper.make_attribute("default_int64", strings.add([default])[0]))
    return bool(values)


def _replace(node: NodeProto, changes: dict[str, tuple[str, object] | None]) -> None:
    """Drop attributes of a node (None), or put others in their place."""
    remaining = [
        AttributeProto.FromString(attribute.SerializeToString())
        for attribute in node.attribute
        if attribute.name not in changes
    ]
    remaining += [
        helper.make_attribute(*change) for change in changes.values() if change is not None
    ]
    del node.attribute[:]
    node.attribute.extend(remaining)


def _attribute(node: NodeProto, name: str) -> Any:
    """Return the value of an attribute, or an empty list."""
    return attribute_of(node, name, [])


def _set_type(value: ValueInfoProto, data_type: int) -> None:
    """Make an output a tensor whose shape is inferred."""
    value.type.Clear()
    value.type.tensor_type.elem_type = data_type


def _is_string(data_type: int) -> bool:
    return data_type == int(TensorProto.STRING)


def _shown(labels: Sequence[int | bytes]) -> str:
    texts = (_text(one) if isinstance(one, bytes) else str(one) for one in labels)
    return listed(texts, at_most=_MAX_SHOWN)


def _text(text: bytes) -> str:
    return f"'{printable(text.decode(errors='replace'), allowed='')}'"
