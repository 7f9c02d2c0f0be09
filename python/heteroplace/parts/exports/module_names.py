"""Names of nodes, as exporters of PyTorch write them -> names of their modules."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from pathlib import Path

from heteroplace.entries import load_entry
from heteroplace.errors import FrontendError

_READ_SCOPES = "heteroplace.parts.exports.onnx_nodes:read_scopes"


def modules_of_layers(layers: Iterable[str], model: Path | None) -> dict[str, str]:
    """Return the module of each layer; "" is the model as a whole.

    The TorchScript exporter names a node by the path of its module and its op. Where no layer has
    such a name, each layer is taken for a module.

    Parameters
    ----------
    layers
        Names of nodes.
    model
        An ONNX model whose nodes may name their modules in metadata, which then counts.

    Raises
    ------
    FrontendError
        The model cannot be read.

    Examples
    --------
    >>> modules_of_layers(["/model/layers.0/mlp/gate_proj/MatMul", "Transpose"], None)
    {'/model/layers.0/mlp/gate_proj/MatMul': 'model.layers.0.mlp.gate_proj', 'Transpose': ''}
    >>> modules_of_layers(["encoder.0.conv", "left/conv"], None)
    {'encoder.0.conv': 'encoder.0.conv', 'left/conv': 'left.conv'}
    """
    names = list(layers)
    has_paths = any(name.startswith("/") for name in names)
    in_metadata = {} if model is None else _modules_in_model(model)
    modules = {}
    for name in names:
        path = name.strip("/").split("/")
        modules[name] = in_metadata.get(name, ".".join(path[:-1] if has_paths else path))
    return modules


def _modules_in_model(path: Path) -> dict[str, str]:
    """Return the modules of nodes, by name, that the metadata of an ONNX model says."""
    scopes: dict[str, str] = load_entry(_READ_SCOPES)(path)
    return {name: _innermost(value, name, path) for name, value in scopes.items()}


def _innermost(scopes: str, name: str, path: Path) -> str:
    try:
        names = ast.literal_eval(scopes)
        return str(names[-2]) if len(names) > 1 else ""
    except (ValueError, SyntaxError, TypeError) as err:
        raise FrontendError(
            f"{path}: the node {name!r} has the scopes {scopes!r}; expected a list of names, as "
            f"torch.onnx.export writes it. Export the model again."
        ) from err
