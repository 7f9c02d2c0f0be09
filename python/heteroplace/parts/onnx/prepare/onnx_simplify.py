"""An ONNX model -> a smaller equal one, by onnxruntime's offline optimisation.

Level BASIC folds constants, removes shape arithmetic and fuses batch norms into convolutions, all
within ONNX's own ops. Exports of swin transformers shrink to a tenth, and TVM's importer gets the
numbers of some of them wrong without it. Weights that no such change reads stay here: those of
products, look-ups and convolutions without a norm, which are nearly all bytes of a model.
"""

from __future__ import annotations

import importlib.util
from collections import defaultdict

from onnx import GraphProto, ModelProto, NodeProto

from heteroplace.errors import FrontendError
from heteroplace.parts.onnx.prepare.onnx_process import (
    MAX_MODEL_BYTES,
    RefusedModelError,
    run_on_model,
    with_initialisers,
    with_inputs_for,
)
from heteroplace.parts.onnx.prepare.onnx_tensors import serialised
from heteroplace.relay.limits import num_elements

_ONNX_DOMAINS = ("", "ai.onnx")
_LEFT = {("MatMul", 0), ("MatMul", 1), ("Gemm", 0), ("Gemm", 1), ("Gather", 0), ("Conv", 1)}
"""Op and position of weights that onnxruntime does not change, with two exceptions: all operands
are constant, or the op after a convolution is fused into its filter."""
_NOT_FUSED = ("Clip", "Conv", "Gemm", "MatMul")
"""Ops that read constants but are not fused into the convolution before them."""
_MIN_ELEMENTS = 2**16


def simplify_offline(model: ModelProto) -> tuple[ModelProto, list[str]]:
    """Let onnxruntime fold constants and fuse at its level BASIC, which keeps to ONNX's own ops.

    Returns
    -------
    The simplified model and a line that says so; or the same model and a line that says why it
    could not be simplified.

    Raises
    ------
    FrontendError
        onnxruntime was killed by the model, or by the limits of memory and time.
    """
    if importlib.util.find_spec("onnxruntime") is None:
        return model, ["not simplified: onnxruntime is not installed"]
    if len(model.graph.node) < 2:
        return model, ["not simplified: one node has nothing to be simplified with"]
    left = _weights_that_stay(model.graph)
    content = serialised(with_inputs_for(model, left) if left else model, MAX_MODEL_BYTES)
    if content is None:
        return model, ["not simplified: the model is too large to be passed to onnxruntime"]
    try:
        simplified = run_on_model("simplify", content)
    except RefusedModelError as err:
        return model, [f"not simplified: onnxruntime refused it: {err}"]
    except FrontendError as err:
        raise FrontendError(f"{err}, or import it with simplify=False.") from err
    foreign = _domains(simplified) - _domains(model)
    if foreign:
        return model, [f"not simplified: onnxruntime put in ops of {', '.join(sorted(foreign))}"]
    if left:
        read = {name for node in simplified.graph.node for name in node.input}
        stayed = [each for each in model.graph.initializer if each.name in left & read]
        simplified = with_initialisers(simplified, left, [*simplified.graph.initializer, *stayed])
    before, after = len(model.graph.node), len(simplified.graph.node)
    return simplified, [f"onnxruntime (BASIC) simplified {before} nodes to {after}"]


def _weights_that_stay(graph: GraphProto) -> set[str]:
    """Names of large weights that only ops of `_LEFT` read. None if they are less than a third of
    all weights: taking a model apart copies it."""
    constants = {tensor.name for tensor in graph.initializer} | {""}
    others = {output.name for output in graph.output}
    readers: defaultdict[str, list[NodeProto]] = defaultdict(list)
    for node in graph.node:
        if any(attribute.HasField("g") or attribute.graphs for attribute in node.attribute):
            return set()  # a body may read any of them
        is_constant = constants.issuperset(node.input)
        if is_constant:
            constants.update(node.output)
        for name in node.input:
            readers[name].append(node)
        others |= {
            name
            for position, name in enumerate(node.input)
            if is_constant or (node.op_type, position) not in _LEFT
        }
    constants.discard("")
    for node in graph.node:
        if node.op_type == "Conv" and any(
            reader.op_type not in _NOT_FUSED and not constants.isdisjoint(reader.input)
            for reader in readers[node.output[0]]
        ):
            others.update(node.input)
    sizes = {tensor.name: num_elements(tensor.dims) for tensor in graph.initializer}
    stay = {name for name, size in sizes.items() if size >= _MIN_ELEMENTS and name not in others}
    return stay if 3 * sum(sizes[name] for name in stay) >= sum(sizes.values()) else set()


def _domains(model: ModelProto) -> set[str]:
    return {node.domain for node in model.graph.node if node.domain not in _ONNX_DOMAINS}
