"""An ONNX model -> an equal one in which only ops are left that the importer knows.

Functions of the model are put in place of their calls, and so are the definitions that the ONNX
standard gives of many ops by others (`onnx.defs`). Some definitions depend on the types of the
operands, or on which of them are there, so they are asked for node by node.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import onnx
from onnx import FunctionProto, ModelProto, NodeProto, TypeProto, helper

from heteroplace.parts.onnx.prepare.onnx_process import infer_shapes, inline_functions
from heteroplace.parts.onnx.prepare.onnx_repair import ONNX_DOMAINS, opset_of

_MAX_ROUNDS = 4
"""A definition may use ops that are themselves defined by others."""
_PREVIEW_DOMAIN = "ai.onnx.preview"
_OWN_DOMAIN = "definition.of.the.standard"


def expand_functions(
    model: ModelProto, is_known: Callable[[NodeProto], bool]
) -> tuple[ModelProto, list[str]]:
    """Replace functions of the model, and ops that `is_known` denies, by their definitions.

    Returns
    -------
    The model, itself where nothing was replaced, and a line for each kind of change. An op without
    a definition stays.
    """
    report = []
    if model.functions:
        count = len(model.functions)
        model = inline_functions(model)
        report.append(f"inlined {count} functions of the model")
    expanded: set[str] = set()
    for _ in range(_MAX_ROUNDS):
        unknown = [node for node in model.graph.node if not is_known(node)]
        if not unknown:
            break
        typed = _with_types(model)
        types = _types(typed)
        count = 0
        for index, node in enumerate(typed.graph.node):
            if is_known(node):
                continue
            function = _definition(node, model, types)
            if function is None:
                continue
            expanded.add(node.op_type)
            function.name, function.domain = f"{node.op_type}_{index}", _OWN_DOMAIN
            node.op_type, node.domain = function.name, function.domain
            typed.functions.append(function)
            count += 1
        if not count:
            break
        typed.opset_import.append(helper.make_opsetid(_OWN_DOMAIN, 1))
        model = inline_functions(typed)
    if expanded:
        report.append(f"expanded into older ops: {', '.join(sorted(expanded))}")
    return model, report


def _definition(
    node: NodeProto, model: ModelProto, types: Mapping[str, TypeProto]
) -> FunctionProto | None:
    """Return the standard's definition of `node` by other ops, or None if it has none."""
    opset, domain = opset_of(model), "" if node.domain in ONNX_DOMAINS else node.domain
    versions = [entry.version for entry in model.opset_import if entry.domain == domain]
    version = opset if not domain else max(versions, default=0)
    if domain not in ("", _PREVIEW_DOMAIN) or not onnx.defs.has(node.op_type, version, domain):
        return None
    schema: Any = onnx.defs.get_schema(node.op_type, version, domain)  # its stub lacks methods
    _write_defaults(node, schema)
    plain = [v for v in schema.function_opset_versions if v <= opset]
    dependent = [v for v in schema.context_dependent_function_opset_versions if v <= opset]
    if dependent:
        operands = [types.get(name, TypeProto()).SerializeToString() for name in node.input]
        text = schema.get_context_dependent_function_with_opset_version(
            max(dependent), node.SerializeToString(), operands
        )
    elif plain:
        text = schema.get_function_with_opset_version(max(plain))
    else:
        return None
    if not text:
        return None
    function: FunctionProto = FunctionProto.FromString(text)
    for entry in function.opset_import:
        if entry.domain in ONNX_DOMAINS:
            # Newer forms are read as well; the inliner insists on one version.
            entry.version = opset
    return function


def _write_defaults(node: NodeProto, schema: onnx.defs.OpSchema) -> None:
    """Write the attributes that the node leaves at their defaults: definitions refer to them."""
    given = {attribute.name for attribute in node.attribute}
    for name, attribute in sorted(schema.attributes.items()):
        if name not in given and attribute.default_value.type:
            node.attribute.append(attribute.default_value)


def _with_types(model: ModelProto) -> ModelProto:
    """Return a copy of `model` with the types of all its values, which definitions depend on."""
    return infer_shapes(model)


def _types(model: ModelProto) -> dict[str, TypeProto]:
    graph = model.graph
    types = {value.name: value.type for value in (*graph.value_info, *graph.input, *graph.output)}
    for tensor in graph.initializer:
        types[tensor.name] = helper.make_tensor_type_proto(tensor.data_type, tensor.dims)
    return types
