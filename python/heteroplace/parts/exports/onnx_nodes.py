"""An ONNX model and the solution that was made of it -> the device of each node.

A solution lacks nodes that were folded or fused before placing. A node that was fused into the one
before it gets the device of that one; a folded constant gets the device of its first reader.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import TypeVar

from onnx import ModelProto, NodeProto

from heteroplace.errors import PlanError
from heteroplace.model.solution import Solution
from heteroplace.parts.exports.onnxruntime_layers import ANNOTATION
from heteroplace.parts.exports.placed_layers import placed_layers
from heteroplace.parts.onnx.prepare.onnx_load import model_structure, parse_file
from heteroplace.parts.onnx.prepare.onnx_names import node_name

T = TypeVar("T")
SCOPES = "pkg.torch.onnx.name_scopes"
"""Metadata of nodes that `torch.onnx.export(dynamo=True)` writes: modules from the outermost one
in, and the name of the node in the last one."""


def read_placed_model(path: Path, solution: Solution) -> tuple[ModelProto, list[int]]:
    """Return a model, without weights in files of their own, and the device of each node.

    Raises
    ------
    FrontendError
        The model cannot be read.
    PlanError
        See `node_devices`.
    """
    model = parse_file(path)
    return model, node_devices(model, path, solution)


def read_names(path: Path) -> list[str]:
    """Return the names of the nodes of a model, in its order.

    Raises
    ------
    FrontendError
        The model cannot be read.
    """
    return [node_name(node) for node in model_structure(path).graph.node]


def read_scopes(path: Path) -> dict[str, str]:
    """Return the metadata SCOPES of the nodes of a model that have it, by the node's name.

    Raises
    ------
    FrontendError
        The model cannot be read.
    """
    return _metadata(path, SCOPES)


def read_annotations(path: Path) -> dict[str, str]:
    """Return the layer annotations of the nodes of a model that have one, by the node's name.

    Raises
    ------
    FrontendError
        The model cannot be read.
    """
    return _metadata(path, ANNOTATION)


def _metadata(path: Path, key: str) -> dict[str, str]:
    """One kind of metadata of the nodes of a model that have it, by the node's name."""
    return {
        node_name(node): prop.value
        for node in model_structure(path).graph.node
        for prop in node.metadata_props
        if prop.key == key
    }


def node_devices(model: ModelProto, path: Path, solution: Solution) -> list[int]:
    """Return the id of the device of each node of the model's graph, in its order.

    Raises
    ------
    PlanError
        No node of the model is a layer of the solution.
    """
    layers = placed_layers(solution)
    nodes = model.graph.node
    names = [node_name(node) for node in nodes]
    layer_of = _fused_layers(layers, names) | {name: name for name in layers}
    devices: list[int | None] = [
        layers[layer_of[name]].devices[0] if name in layer_of else None for name in names
    ]
    if not any(device is not None for device in devices):
        raise PlanError(
            f"{path}: none of its {len(nodes)} nodes is a layer of the plan, whose first layer is "
            f"{next(iter(layers))!r}; give the model that was placed"
        )
    fused = {index for index, name in enumerate(names) if name in layer_of and name not in layers}
    _follow_producers(nodes, devices, fused)
    return filled_devices(nodes, devices)


def filled_devices(nodes: Sequence[NodeProto], devices: Sequence[T | None]) -> list[T]:
    """Return the device of each node. A node without one follows its first reader, or else the
    first node that it reads.

    Parameters
    ----------
    nodes
        In the order of the model.
    devices
        For each node its device; None: it has none. One node has a device.
    """
    placed = list(devices)
    readers: dict[str, T] = {}
    for index in reversed(range(len(nodes))):
        if placed[index] is None:
            used = (readers[name] for name in nodes[index].output if name in readers)
            placed[index] = next(used, None)
        device = placed[index]
        if device is not None:
            readers.update(dict.fromkeys(nodes[index].input, device))
    _follow_producers(nodes, placed)
    first = next(device for device in placed if device is not None)
    return [first if device is None else device for device in placed]


def _follow_producers(
    nodes: Sequence[NodeProto], placed: list[T | None], fused: Collection[int] = ()
) -> None:
    """Give each node without a device that of the first node that it reads; nodes that were fused
    with it come first."""
    of_fused, producers = dict[str, T](), dict[str, T]()
    for index, node in enumerate(nodes):
        device = placed[index]
        if device is None:
            before = (
                each[name] for each in (of_fused, producers) for name in node.input if name in each
            )
            device = placed[index] = next(before, None)
        elif index in fused:
            of_fused.update(dict.fromkeys(node.output, device))
        if device is not None:
            producers.update(dict.fromkeys(node.output, device))


def _fused_layers(layers: Iterable[str], names: Iterable[str]) -> dict[str, str]:
    """Return the layers that onnxruntime named for a node, as "X/MatMulAddFusion", by node."""
    node_names = set(names)
    parts = ((layer.rpartition("/")[0], layer) for layer in layers if layer not in node_names)
    return {name: layer for name, layer in parts if name in node_names}
