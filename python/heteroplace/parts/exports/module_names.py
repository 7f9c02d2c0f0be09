"""Names of nodes, as exporters of PyTorch write them -> names of the modules that they belong to."""

from __future__ import annotations

import ast
from pathlib import Path

from heteroplace.errors import FrontendError

_SCOPES = "pkg.torch.onnx.name_scopes"
"""Metadata of nodes that `torch.onnx.export(dynamo=True)` writes: modules from the outermost one
in, and the name of the node in the last one."""


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
    from heteroplace.parts.onnx.prepare.onnx_devices import load_nodes
    from heteroplace.parts.onnx.prepare.onnx_names import node_name

    modules = {}
    for node in load_nodes(path).graph.node:
        scopes = next((each.value for each in node.metadata_props if each.key == _SCOPES), None)
        if scopes is not None:
            modules[node_name(node)] = _innermost(scopes, path)
    return modules


def _innermost(scopes: str, path: Path) -> str:
    try:
        names = ast.literal_eval(scopes)
        return str(names[-2]) if len(names) > 1 else ""
    except (ValueError, SyntaxError, TypeError) as err:
        raise FrontendError(
            f"{path}: a node has the metadata {_SCOPES}={scopes!r}; expected a list of names, as "
            f"torch.onnx.export writes it. Export the model again."
        ) from err
