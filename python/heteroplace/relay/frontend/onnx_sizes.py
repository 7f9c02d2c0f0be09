"""An ONNX model -> an error if a value in it has more elements than can be compiled.

A file of a few bytes can ask for a constant of 2^62 elements. Whoever folds that, onnxruntime or
numpy, is killed for want of memory, or fails in whatever way it fails. Here only shapes are
computed, by ONNX's own inference, and on a copy without the weights.
"""

from __future__ import annotations

from onnx import ModelProto, helper, shape_inference

from heteroplace.errors import FrontendError
from heteroplace.relay.frontend.onnx_repair import describe_node
from heteroplace.relay.frontend.onnx_tensors import MAX_ELEMENTS, num_elements

_MAX_SHAPE_ELEMENTS = 1024
"""Initialisers up to this size may be shapes, and are looked into."""
_INFERENCE_ERRORS = (shape_inference.InferenceError, RuntimeError, TypeError, ValueError)


def check_sizes(model: ModelProto, where: str) -> None:
    """Raise FrontendError if a value of `model` is too large, as far as its shape is known.

    Parameters
    ----------
    model
        With static input shapes.
    where
        Name of the model, for messages.
    """
    try:
        inferred = shape_inference.infer_shapes(_without_weights(model), data_prop=True).graph
    except _INFERENCE_ERRORS as err:
        reason = (str(err).strip().splitlines() or [type(err).__name__])[-1]
        raise FrontendError(
            f"{where}: the shapes of its values cannot be inferred: {reason}. The model is "
            f"damaged; check it by onnx.checker, or export it again."
        ) from err
    producers = {name: node for node in model.graph.node for name in node.output}
    faults = []
    for value in (*inferred.input, *inferred.value_info, *inferred.output):
        tensor = value.type.tensor_type
        sizes = [dim.dim_value if dim.HasField("dim_value") else 1 for dim in tensor.shape.dim]
        node = producers.get(value.name)
        place = f"input '{value.name}'" if node is None else describe_node(node)
        if any(size < 0 for size in sizes):
            faults.append(f"{place}: a value of the shape {sizes}")
        elif num_elements(sizes) > MAX_ELEMENTS:
            faults.append(f"{place}: {num_elements(sizes)} elements, of the shape {sizes}")
    if faults:
        more = f" and {len(faults) - 1} more" if len(faults) > 1 else ""
        raise FrontendError(
            f"{where} has values that cannot be compiled: {faults[0]}{more}. One tensor can have "
            f"{MAX_ELEMENTS} elements; export the model with other sizes, or split it."
        )


def _without_weights(model: ModelProto) -> ModelProto:
    """A copy in which the large initialisers are inputs."""
    copy = ModelProto(ir_version=model.ir_version)
    copy.opset_import.extend(model.opset_import)
    copy.functions.extend(model.functions)
    source, graph = model.graph, copy.graph
    graph.name = source.name
    graph.node.extend(source.node)
    graph.input.extend(source.input)
    graph.output.extend(source.output)
    graph.sparse_initializer.extend(source.sparse_initializer)
    for tensor in source.initializer:
        if num_elements(tensor.dims) <= _MAX_SHAPE_ELEMENTS:
            graph.initializer.append(tensor)
        else:
            graph.input.append(
                helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
            )
    return copy
