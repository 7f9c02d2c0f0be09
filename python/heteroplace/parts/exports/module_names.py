"""Names of nodes, as exporters of PyTorch write them -> names of their modules."""

from __future__ import annotations

import ast
from pathlib import Path

from heteroplace.entries import load_entry
from heteroplace.errors import FrontendError

_READ_SCOPES = "heteroplace.parts.exports.onnx_nodes:read_scopes"


def module_of_node(name: str) -> str:
    """Return the module of a node by its name alone.

    The TorchScript exporter names a node by the path of its module and its op. Any other name is
    taken for that of a module.

    >>> module_of_node("/model/layers.0/mlp/gate_proj/MatMul"), module_of_node("encoder.0.conv")
    ('model.layers.0.mlp.gate_proj', 'encoder.0.conv')
    """
    if not name.startswith("/"):
        return name.replace("/", ".")
    *modules, _ = name.strip("/").split("/")
    return ".".join(modules)


def modules_in_model(path: Path) -> dict[str, str]:
    """Return the modules of nodes, by name, that the metadata of an ONNX model says.

    Raises
    ------
    FrontendError
        The model cannot be read.
    """
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
