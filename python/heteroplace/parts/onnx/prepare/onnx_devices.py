"""Devices in an ONNX model <-> a map from nodes to devices: what others have said, and a plan.

Since version 11 of the format a model lists configurations of devices, and each node may name the
one it is for, with the position of its device (`ModelProto.configuration`,
`NodeProto.device_configurations`). Netron shows these and the metadata of nodes, where the task
stands too. Weights in files of their own stay where they are.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import onnx
from onnx import ModelProto, NodeProto

from heteroplace.errors import FrontendError, MissingPackageError
from heteroplace.files.output import write_bytes
from heteroplace.model.demands import layers_of
from heteroplace.model.implementations import base_names
from heteroplace.model.solution import Solution
from heteroplace.parts.onnx.prepare.onnx_load import model_structure, parse_file
from heteroplace.parts.onnx.prepare.onnx_names import node_name
from heteroplace.parts.onnx.prepare.onnx_tensors import all_tensors, external_location

CONFIGURATION = "heteroplace"
"""Name of the configuration that is written."""
_DEVICE, _TASK = "heteroplace_device", "heteroplace_task"
_IR_VERSION = 11
_HAS_DEVICES = "configuration" in ModelProto.DESCRIPTOR.fields_by_name
"""Whether this onnx (1.18 or later) knows of devices."""


def read_devices(path_or_model: str | os.PathLike[str] | ModelProto) -> dict[str, str]:
    """Return the device of each node of a model that is annotated with one, by its name.

    Of several configurations of a node the first counts; a node that is shared by several devices
    (sharded) has none.

    Raises
    ------
    FrontendError
        The file cannot be read, or an annotation names a configuration or a device that is not
        listed.
    """
    if isinstance(path_or_model, ModelProto):
        model, where = path_or_model, "the model"
    else:
        model, where = model_structure(path_or_model), os.fspath(path_or_model)
    if not _HAS_DEVICES:
        return {}
    listed = {each.name: _names(each) for each in model.configuration}
    devices = {}
    for node in model.graph.node:
        device = _device_of(node, listed, where)
        if device is not None:
            devices[node_name(node)] = device
    return devices


def _names(configuration: Any) -> list[str]:
    """The names of its devices; those that have none are counted."""
    given = list(configuration.device)
    missing = range(len(given), configuration.num_devices)
    return given + [f"{configuration.name}:{index}" for index in missing]


def _device_of(node: NodeProto, listed: Mapping[str, list[str]], path: str) -> str | None:
    if not node.device_configurations:
        return None
    chosen: Any = node.device_configurations[0]
    names = listed.get(str(chosen.configuration_id))
    if names is None:
        raise FrontendError(
            f"{path}: node {node.name!r} is for the device configuration "
            f"{chosen.configuration_id!r}, which the model does not list; it lists: "
            f"{', '.join(listed) or 'none'}. Export it again, or leave its annotations out "
            f"(--ignore-annotations)"
        )
    positions: set[int] = {index for spec in chosen.sharding_spec for index in spec.device}
    if not positions:
        return names[0] if len(names) == 1 else None
    if len(positions) > 1:
        return None
    (position,) = positions
    if not 0 <= position < len(names):
        raise FrontendError(
            f"{path}: node {node.name!r} is for device {position} of configuration "
            f"{chosen.configuration_id!r}, which has {len(names)}. Export it again, or leave its "
            f"annotations out (--ignore-annotations)"
        )
    return names[position]


def annotate(
    path: str | os.PathLike[str], output: str | os.PathLike[str], solution: Solution
) -> int:
    """Write a model with the devices of a plan; return how many nodes have one. `output` may be
    the model itself; it is replaced as a whole.

    Nodes that belong to no task (they were folded) stay as they are; of a node
    whose ops are on several devices the metadata names all, and no configuration is written.

    Raises
    ------
    MissingPackageError
        The package onnx is older than its format's version 11.
    FrontendError
        The model cannot be read or written; or its weights lie in files of their own, and the new
        one would lie in another folder.
    """
    model = parse_file(Path(path))
    _check_annotatable(model, path, output)
    names = list(dict.fromkeys(base_names(solution.cluster)))
    del model.configuration[:]
    model.configuration.add(name=CONFIGURATION, num_devices=len(names), device=names)
    where = _places(solution)
    count = 0
    for node in model.graph.node:
        if node_name(node) not in where:
            continue
        devices, tasks = where[node_name(node)]
        count += 1
        other_props = [each for each in node.metadata_props if each.key not in (_DEVICE, _TASK)]
        del node.metadata_props[:]
        node.metadata_props.extend(other_props)
        node.metadata_props.add(key=_DEVICE, value="+".join(devices))
        node.metadata_props.add(key=_TASK, value=",".join(tasks))
        del node.device_configurations[:]
        if len(devices) == 1:
            chosen = node.device_configurations.add(configuration_id=CONFIGURATION)
            position = names.index(next(iter(devices)))
            for tensor in node.output[:1]:
                chosen.sharding_spec.add(tensor_name=tensor, device=[position])
    model.ir_version = max(model.ir_version, _IR_VERSION)
    try:
        write_bytes(model.SerializeToString(), output)
    except OSError as err:
        raise FrontendError(f"{output}: cannot be written: {err.strerror}") from err
    return count


def check_annotatable(path: str | os.PathLike[str], output: str | os.PathLike[str]) -> None:
    """Raise before the work what `annotate` would raise of the model and the file."""
    _check_annotatable(model_structure(path), path, output)


def _check_annotatable(
    model: ModelProto, path: str | os.PathLike[str], output: str | os.PathLike[str]
) -> None:
    if not _HAS_DEVICES:
        raise MissingPackageError(
            f"onnx {onnx.__version__} cannot write devices into a model; run: pip install "
            f"'onnx>=1.18'"
        )
    check_same_folder(model, path, output)


def check_same_folder(
    model: ModelProto, path: str | os.PathLike[str], output: str | os.PathLike[str]
) -> None:
    """Raise FrontendError if the model of `path` would lose its weights at `output`: they lie in
    files of their own, in another folder."""
    if any(external_location(tensor) for tensor in all_tensors(model)):
        here, there = Path(path).resolve().parent, Path(output).resolve().parent
        if here != there:
            raise FrontendError(
                f"{output}: {path} has weights in files beside it; write the annotated model into "
                f"the same folder, {here}"
            )


def _places(solution: Solution) -> dict[str, tuple[dict[str, None], dict[str, None]]]:
    """By layer its devices and its tasks, in the order of the graph."""
    graph, cluster = solution.graph, solution.cluster
    devices = solution.plan.devices_of_tasks(len(graph.tasks))
    of_device = base_names(cluster)
    places: dict[str, tuple[dict[str, None], dict[str, None]]] = {}
    for index, task in enumerate(graph.tasks):
        for layer in layers_of(task):
            names, tasks = places.setdefault(layer, ({}, {}))
            names.update((of_device[device], None) for device in devices[index])
            tasks[task.name] = None
    return places
