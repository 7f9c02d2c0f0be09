"""A solution and its ONNX model -> the affinities of OpenVINO's device HETERO, as JSON.

The map has the names that `openvino.Core.query_model` uses: an operation is called like its node.
An unnamed node is called like its last output, and the node of an output like that output. Nodes
that OpenVINO turns into several operations give their name to the last one.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from heteroplace.entries import load_entry
from heteroplace.model.cluster import Device
from heteroplace.model.solution import Solution
from heteroplace.parts.exports.export_format import (
    READ_PLACED_MODEL,
    ExportedPlacement,
    ExportFormat,
)
from heteroplace.parts.exports.placed_layers import gpu_index, lost_devices, shown_names

if TYPE_CHECKING:
    from onnx import NodeProto

_MODEL_STRUCTURE = "heteroplace.parts.onnx.prepare.onnx_load:model_structure"
_NODE_NAME = "heteroplace.parts.onnx.prepare.onnx_names:node_name"


def write_openvino(solution: Solution, path: Path | None) -> ExportedPlacement:
    """Return the device of each node: "CPU", or "GPU.0" and so on.

    Raises
    ------
    FrontendError
        The model cannot be read.
    PlanError
        The model is not that of the plan.
    """
    model, placed = load_entry(READ_PLACED_MODEL)(path, solution)
    outputs = {value.name for value in model.graph.output}
    affinities = {}
    for node, device in zip(model.graph.node, placed, strict=True):
        affinities[_operation(node, outputs)] = _affinity(solution.cluster.devices[device])
    warnings = list(lost_devices(solution, _affinity))
    nvidia = {device for device in placed if solution.cluster.devices[device].kind == "cuda"}
    if nvidia:
        names = [solution.cluster.devices[device].name for device in sorted(nvidia)]
        warnings.append(
            f"OpenVINO's GPU.0 and so on are GPUs of Intel; the plan has NVIDIA's "
            f"{shown_names(names)}"
        )
    return ExportedPlacement(json.dumps(affinities, indent=1) + "\n", tuple(warnings))


def read_operations(path: Path) -> tuple[list[NodeProto], dict[str, str], set[str]]:
    """Return the nodes of a model, the operation of each by the node's name, and all known names.

    The known names are those of operations, and of the values that OpenVINO makes constants,
    parameters and results of.

    Raises
    ------
    FrontendError
        The model cannot be read.
    """
    graph = load_entry(_MODEL_STRUCTURE)(path).graph
    outputs = {value.name for value in graph.output}
    operations = {load_entry(_NODE_NAME)(node): _operation(node, outputs) for node in graph.node}
    values = {each.name for each in (*graph.input, *graph.initializer)}
    return list(graph.node), operations, {*operations.values(), *values, *outputs}


def _affinity(device: Device) -> str:
    index = gpu_index(device)
    return "CPU" if index is None else f"GPU.{index}"


def _operation(node: NodeProto, outputs: set[str]) -> str:
    """The name of the operation that OpenVINO makes of a node."""
    names = [name for name in node.output if name]
    of_model = [name for name in names if name in outputs]
    return of_model[-1] if of_model else node.name or names[-1]


OPENVINO = ExportFormat(write_openvino, needs_model=True)
