"""A graph of TorchDynamo -> an ONNX model of fixed sizes, whose weights are constants.

TorchDynamo hands over weights as inputs of the graph, and sizes that change as integers. Both get
their values here, before torch's exporter traces the graph.
"""

from __future__ import annotations

import operator
import warnings
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import onnx
import torch
import torch.fx.experimental.symbolic_shapes

from heteroplace.errors import FrontendError
from heteroplace.parts.onnx.torch_export import EXPORTERS, export_reason


@dataclass(frozen=True)
class ExportedGraph:
    """A graph in ONNX."""

    model: onnx.ModelProto
    inputs: tuple[tuple[str, int], ...]
    """Name of each input of the model, and its position in the arguments of the graph."""
    outputs: tuple[int | None, ...]
    """For each output of the graph its position in the outputs of the model; None: no tensor."""


@dataclass(frozen=True)
class _BoundGraph:
    """A graph whose only inputs are tensors that change with each call."""

    module: torch.fx.GraphModule
    inputs: tuple[int, ...]
    outputs: tuple[int | None, ...]


def own_tensors(graph: torch.fx.GraphModule) -> list[torch.Tensor]:
    """Return the tensors that a graph holds itself, its weights among them."""
    names = [node.target for node in graph.graph.find_nodes(op="get_attr")]
    read = [operator.attrgetter(name)(graph) for name in names]
    held = (*graph.parameters(), *graph.buffers(), *read)
    tensors = {id(each): each for each in held if isinstance(each, torch.Tensor)}
    return list(tensors.values())


def export_graph(
    graph: torch.fx.GraphModule, arguments: Sequence[torch.Tensor | int], weights: Collection[int]
) -> ExportedGraph:
    """Export a graph for the sizes of its arguments.

    Parameters
    ----------
    weights
        Positions of the arguments that become constants.

    Raises
    ------
    FrontendError
        torch cannot export the graph, or the graph changes one of its arguments in place.
    """
    bound = _bind(graph, arguments, weights)
    examples = tuple(arguments[position] for position in bound.inputs)
    try:
        with torch.inference_mode(False), torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            # Without decompositions this makes in-place changes into outputs, where they are seen.
            program = torch.export.export(bound.module, examples, strict=False)
            program = program.run_decompositions({})
            _check_changes_nothing(program)
            opset = EXPORTERS["dynamo"]
            written = torch.onnx.export(program, dynamo=True, opset_version=opset, verbose=False)
            model = written.model_proto
    # Exporting runs code of the model and of any op, which raises what it likes.
    except (RuntimeError, TypeError, ValueError, AttributeError, LookupError, OSError) as err:
        raise FrontendError(f"torch cannot export it: {export_reason(err)}") from err
    names = [each.name for each in model.graph.input]
    return ExportedGraph(model, tuple(zip(names, bound.inputs, strict=True)), bound.outputs)


def _bind(
    graph: torch.fx.GraphModule, arguments: Sequence[torch.Tensor | int], weights: Collection[int]
) -> _BoundGraph:
    """Return the graph with weights as attributes, and with integers as numbers in their users."""
    bound = torch.fx.Graph()
    root = {
        node.target: operator.attrgetter(node.target)(graph)
        for node in graph.graph.nodes
        if node.op in ("get_attr", "call_module")
    }
    values: dict[torch.fx.Node, object] = {}
    inputs = []
    for position, node in enumerate(graph.graph.find_nodes(op="placeholder")):
        argument = arguments[position]
        if position in weights:
            name = f"weight_{position}"
            root[name] = argument
            values[node] = bound.get_attr(name)
        elif isinstance(argument, torch.Tensor):
            inputs.append(position)
            values[node] = bound.placeholder(node.name)
        else:
            values[node] = argument
    results = bound.graph_copy(graph.graph, values)
    (output,) = graph.graph.find_nodes(op="output")
    if any(_depends_on_values(node) for node in output.args[0]):
        raise FrontendError("it returns a number that depends on the values of a tensor")
    are_tensors = [
        isinstance(node, torch.fx.Node) and isinstance(node.meta.get("example_value"), torch.Tensor)
        for node in output.args[0]
    ]
    tensors = [each for each, is_tensor in zip(results, are_tensors, strict=True) if is_tensor]
    unique = list(dict.fromkeys(tensors))
    if not unique:
        raise FrontendError("it returns no tensor")
    bound.output(tuple(unique))
    outputs = tuple(
        unique.index(each) if is_tensor else None
        for each, is_tensor in zip(results, are_tensors, strict=True)
    )
    return _BoundGraph(torch.fx.GraphModule(root, bound), tuple(inputs), outputs)


def _depends_on_values(output: object) -> bool:
    """Return whether an output is a number that a tensor's values decide, not only its sizes."""
    number = output.meta.get("example_value") if isinstance(output, torch.fx.Node) else None
    if number is None or isinstance(number, torch.Tensor):
        return False
    return bool(torch.fx.experimental.symbolic_shapes.free_unbacked_symbols(number))


def _check_changes_nothing(program: torch.export.ExportedProgram) -> None:
    kind = torch.export.graph_signature.OutputKind.USER_OUTPUT
    changes = [each for each in program.graph_signature.output_specs if each.kind is not kind]
    if changes:
        raise FrontendError(
            f"it changes {len(changes)} of its inputs or buffers in place, such as "
            f"{changes[0].target}; call model.eval() for inference, or do such changes outside of "
            f"the compiled function"
        )
