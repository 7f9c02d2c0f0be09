"""Names of nodes, as exporters of PyTorch write them -> names of their modules."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from pathlib import Path

from heteroplace.entries import load_entry
from heteroplace.errors import FrontendError
from heteroplace.model.demands import layers_of
from heteroplace.model.graph import TaskGraph

_READ_SCOPES = "heteroplace.parts.exports.onnx_nodes:read_scopes"


def modules_of_graph(graph: TaskGraph, model: Path | None) -> dict[str, str]:
    """Return the module of each layer of a network; see `scopes_of_graph`."""
    scopes = scopes_of_graph(graph, model)
    return {layer: own[-1] if own else "" for layer, own in scopes.items()}


def scopes_of_graph(graph: TaskGraph, model: Path | None) -> dict[str, tuple[str, ...]]:
    """Return the modules that each layer of a network is called in, in the order of its tasks.

    Some layers belong to no submodule, such as the ops of a function in the model. In a task they
    count to the module of the layer before them, or else of the first one after them.

    Parameters
    ----------
    model
        See `scopes_of_layers`.

    Raises
    ------
    FrontendError
        The model cannot be read.
    """
    layers = dict.fromkeys(layer for task in graph.tasks for layer in layers_of(task))
    scopes = scopes_of_layers(layers, model)
    for task in graph.tasks:
        own = layers_of(task)
        last = next((scopes[layer] for layer in own if scopes[layer]), ())
        for layer in own:
            last = scopes[layer] = scopes[layer] or last
    return scopes


def scopes_of_layers(layers: Iterable[str], model: Path | None) -> dict[str, tuple[str, ...]]:
    """Return the modules that each layer is called in, the outermost one first.

    The TorchScript exporter names a node by the path of its modules and its op. It repeats the name
    of a `Sequential` before that of its child. A `ModuleList` is not called. Where no layer has
    such a name, each layer is taken for a module.

    Parameters
    ----------
    layers
        Names of nodes.
    model
        An ONNX model whose nodes may name their modules in metadata, which then counts. Layers
        that are no such nodes are in no module but the model.

    Raises
    ------
    FrontendError
        The model cannot be read.

    Examples
    --------
    >>> scopes_of_layers(["/model/mlp/MatMul", "Transpose"], None)
    {'/model/mlp/MatMul': ('model', 'model.mlp'), 'Transpose': ()}
    >>> scopes_of_layers(["/stem/stem.0/Conv"], None)
    {'/stem/stem.0/Conv': ('stem', 'stem.0')}
    >>> scopes_of_layers(["encoder.0.conv", "left/conv"], None)
    {'encoder.0.conv': ('encoder.0.conv',), 'left/conv': ('left', 'left.conv')}
    """
    names = list(layers)
    has_paths = any(name.startswith("/") for name in names)
    in_metadata = {} if model is None else _scopes_in_model(model)
    if in_metadata:
        return {name: in_metadata.get(name, ()) for name in names}
    scopes = {}
    for name in names:
        path = name.strip("/").split("/")
        scopes[name] = _joined(path[:-1] if has_paths else path)
    return scopes


def _joined(path: Iterable[str]) -> tuple[str, ...]:
    """The names of the modules of a path. A step that begins with the one before it replaces it."""
    names: list[str] = []
    parent = last_step = ""
    for step in path:
        if last_step and step.startswith(f"{last_step}."):
            names.append(f"{parent}{step}")
        else:
            parent = f"{names[-1]}." if names else ""
            names.append(f"{parent}{step}")
        last_step = step
    return tuple(names)


def _scopes_in_model(path: Path) -> dict[str, tuple[str, ...]]:
    """Return the modules of nodes, by name, that the metadata of an ONNX model says."""
    scopes: dict[str, str] = load_entry(_READ_SCOPES)(path)
    return {name: _listed(value, name, path) for name, value in scopes.items()}


def _listed(scopes: str, name: str, path: Path) -> tuple[str, ...]:
    try:
        return tuple(str(module) for module in ast.literal_eval(scopes)[:-1] if module)
    except (ValueError, SyntaxError, TypeError) as err:
        raise FrontendError(
            f"{path}: the node {name!r} has the scopes {scopes!r}; expected a list of names, as "
            f"torch.onnx.export writes it. Export the model again."
        ) from err
