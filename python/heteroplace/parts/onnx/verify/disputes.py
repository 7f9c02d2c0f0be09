"""Nodes whose outputs differ from onnxruntime's -> those that are right all the same, and why.

The ONNX standard decides, not onnxruntime:

    its reference evaluator gives our outputs for our inputs   e.g. Resize to fractional sizes
    only the order of TopK(sorted=0) differs                   the standard leaves it free
    only rows of a cache behind the last token differ          onnxruntime clears or keeps them
    only maxima, minima and orders of NaN differ               left free here, docs/guide/limits.md

The evaluator is written in Python, so it runs one node at a time, in a process with limits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import ModelProto, NodeProto, ValueInfoProto, helper

from heteroplace.parts.onnx.prepare.onnx_load import true_inputs
from heteroplace.parts.onnx.prepare.onnx_repair import ONNX_DOMAINS
from heteroplace.parts.onnx.verify.reference import (
    Values,
    run_by_evaluator,
    run_each,
    run_model,
)
from heteroplace.parts.onnx.verify.tolerances import Tolerance, compare

_ORDER_OPS = {"ArgMax": 0, "ArgMin": 0, "Hardmax": -1, "TopK": -1}
"""Ops that put numbers along an axis in an order, where a NaN has no place -> the default axis."""
_NAN_OPS = {"GlobalMaxPool": 1, "MaxPool": 1, "ReduceMax": 1, "ReduceMin": -1}
"""Ops whose outputs are free where an input is NaN -> what stands for a NaN in the search for
them: the op gives it wherever it reads one, and 0 elsewhere."""


@dataclass(frozen=True)
class NodeRun:
    """One node alone, with our values of its inputs."""

    node: NodeProto
    model: ModelProto
    """Of this node; weights are initialisers."""
    inputs: Values
    actual: Values
    """Our outputs."""
    expected: Values | None
    """onnxruntime's outputs for these inputs; None: it refuses them."""


def why_right(run: NodeRun, tolerance: Tolerance) -> str:
    """Say why outputs that differ from onnxruntime's are right; "": they are not.

    Raises
    ------
    VerificationError
        onnxruntime ended or took too long.
    """
    if run.expected is not None and _agree(
        _free_parts_removed(run, run.actual), _free_parts_removed(run, run.expected), tolerance
    ):
        return (
            "its outputs differ only where the standard, or docs/guide/limits.md, leaves them free"
        )
    if run.node.domain not in ONNX_DOMAINS:
        return ""
    decided = run_by_evaluator(run.model, run.inputs, list(run.actual))
    if decided is not None and _agree(run.actual, decided, tolerance):
        return "the ONNX reference evaluator agrees with the compiled node, onnxruntime does not"
    return ""


def _agree(actual: Values, expected: Values, tolerance: Tolerance) -> bool:
    reference = [expected[name] for name in actual]
    return compare(list(actual.values()), reference, tolerance).is_within


def _free_parts_removed(run: NodeRun, outputs: Values) -> Values:
    """Return outputs in an order, and with zeros, that do not depend on what is free."""
    if run.node.op_type == "TopK" and not _attribute(run.node, "sorted", 1):
        outputs = _sorted_by_index(run.node, outputs)
    if run.node.op_type == "GroupQueryAttention":
        outputs = _without_later_rows(run, outputs)
    data = run.inputs.get(run.node.input[0]) if run.node.input else None
    if data is None or data.dtype.kind != "f" or not np.isnan(data).any():
        return outputs
    marks = _reads_nan(run, np.isnan(data))
    if marks is None:
        return outputs
    return {
        name: np.where(np.broadcast_to(marks, value.shape), np.zeros_like(value), value)
        for name, value in outputs.items()
    }


def _without_later_rows(run: NodeRun, outputs: Values) -> Values:
    """Return outputs with zeros behind the last token of present keys and values."""
    last = run.inputs.get(run.node.input[5])
    if last is None:
        return outputs
    results = dict(outputs)
    for name in set(run.node.output[1:3]) & set(outputs):
        places = np.arange(outputs[name].shape[2])
        is_free = places > last.reshape(-1, 1)
        results[name] = np.where(is_free[:, None, :, None], 0, outputs[name])
    return results


def _sorted_by_index(node: NodeProto, outputs: Values) -> Values:
    indices = outputs.get(node.output[1]) if len(node.output) > 1 else None
    axis = _attribute(node, "axis", -1)
    if indices is None:  # only the values are read
        return {name: np.sort(value, axis=axis) for name, value in outputs.items()}
    order = np.argsort(indices, axis=axis)
    return {name: np.take_along_axis(value, order, axis) for name, value in outputs.items()}


def _reads_nan(run: NodeRun, is_nan: np.ndarray) -> np.ndarray | None:
    """Say which outputs of a node are free, since it reads a NaN for them; None: none is."""
    node = run.node
    if node.op_type in _ORDER_OPS:
        axis = _attribute(node, "axis", _ORDER_OPS[node.op_type])
        keeps = node.op_type in ("Hardmax", "TopK") or bool(_attribute(node, "keepdims", 1))
        is_read = np.asarray(is_nan.any(axis=axis, keepdims=keeps))
        return is_read
    if node.op_type not in _NAN_OPS:
        return None
    data = node.input[0]
    marked = (is_nan * np.array(_NAN_OPS[node.op_type])).astype(run.inputs[data].dtype)
    (marks,) = run_each([(run.model, {**run.inputs, data: marked}, [node.output[0]])])
    return None if marks is None else marks[node.output[0]] != 0


def _attribute(node: NodeProto, name: str, default: int) -> int:
    values = [entry.i for entry in node.attribute if entry.name == name]
    return values[0] if values else default


def outputs_with(
    model: ModelProto, values: Values, nodes: Sequence[NodeProto], inputs: Values, flops: int
) -> list[np.ndarray]:
    """Return onnxruntime's outputs of `model` with given values in place of some nodes' outputs.

    Parameters
    ----------
    values
        Outputs of `nodes`, by name.
    inputs
        Of the model.
    flops
        Of one run of it.

    Raises
    ------
    VerificationError
        onnxruntime does not take the model.
    """
    outputs = [output.name for output in model.graph.output]
    rest = ModelProto()
    rest.CopyFrom(model)
    del rest.graph.node[:], rest.graph.output[:], rest.graph.value_info[:]
    replaced = {name for node in nodes for name in node.output}
    rest.graph.node.extend(node for node in model.graph.node if not replaced & set(node.output))
    rest.graph.input.extend(_input_like(name, value) for name, value in values.items())
    others = [name for name in outputs if name not in values]
    rest.graph.output.extend(ValueInfoProto(name=name) for name in others)
    values_by_name = dict(values)
    if others:
        names = {value.name for value in true_inputs(rest.graph)}
        given = {name: value for name, value in {**inputs, **values}.items() if name in names}
        values_by_name |= run_model(rest, given, flops, others)
    return [values_by_name[name] for name in outputs]


def _input_like(name: str, value: np.ndarray) -> onnx.ValueInfoProto:
    dtype = helper.np_dtype_to_tensor_dtype(value.dtype)
    return helper.make_tensor_value_info(name, dtype, value.shape)
