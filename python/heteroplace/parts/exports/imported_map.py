"""A device map of accelerate -> the devices of layers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from heteroplace.errors import PlanError
from heteroplace.files.reader import read_json
from heteroplace.model.cluster import Cluster
from heteroplace.model.demands import layers_of
from heteroplace.model.graph import TaskGraph
from heteroplace.model.solution import Solution
from heteroplace.parts.exports.import_format import (
    ImportedPlacement,
    ImportFormat,
    named_devices,
)
from heteroplace.parts.exports.module_names import modules_of_graph
from heteroplace.parts.exports.placed_layers import gpu_indices, shown_names


def read_device_map(path: Path, solution: Solution, model: Path | None) -> ImportedPlacement:
    """Return the devices of the layers whose modules, or modules above them, are in the map.

    Of several names that are above a module the longest counts. "" is the whole model.

    Parameters
    ----------
    model
        An ONNX model whose nodes name their modules in metadata; None: names of nodes say them.

    Raises
    ------
    FrontendError
        The model cannot be read.
    PlanError
        The file is no device map, has no place for a layer, or the cluster lacks a device.
    """
    places = read_json(path, PlanError)
    if not isinstance(places, dict):
        raise PlanError(
            f"{path}: expected an object of modules and devices, such as "
            f'{{"model.layers.0": 0}}, got a {type(places).__name__}'
        )
    cluster = solution.cluster
    devices = {name: _devices(cluster, path, name, place) for name, place in places.items()}
    modules = modules_of_graph(solution.graph, model)
    keys = {layer: _key(module, devices) for layer, module in modules.items()}
    lost = _lost_modules(solution.graph, modules, keys)
    if lost or not modules:
        raise PlanError(
            f"{path}: the device map has no place for {shown_names(lost) or 'any task'}; its "
            f"names are {shown_names(list(devices)) or 'none'}. Give names of modules of this "
            f'network, or "" for the rest. If the nodes of the model name their modules in '
            f"metadata, give --model"
        )
    return ImportedPlacement(
        {layer: devices[key] for layer, key in keys.items() if key is not None}
    )


def _devices(cluster: Cluster, path: Path, name: str, place: object) -> tuple[str, ...]:
    """Names of the devices that a place of a map means."""
    is_number = isinstance(place, int) and not isinstance(place, bool)
    names = named_devices(cluster, place if isinstance(place, int) and is_number else None)
    if not names or not (is_number or place == "cpu"):
        raise PlanError(
            f"{path}: the device map puts {name!r} on {place!r}; expected "
            f"{', '.join(['cpu', *map(str, gpu_indices(cluster))])}, the devices of cluster "
            f"{cluster.name!r}"
        )
    return names


def _lost_modules(
    graph: TaskGraph, modules: Mapping[str, str], keys: Mapping[str, str | None]
) -> list[str]:
    """The modules of tasks that no name of a map covers. The ops of a module between its submodules
    need no name."""
    above = {path for key in keys.values() if key for path in _paths(key)}
    lost: dict[str, None] = {}
    for task in graph.tasks:
        own = layers_of(task)
        if all(keys[layer] is None for layer in own):
            lost.update((modules[layer], None) for layer in own if modules[layer] not in above)
    lost.pop("", None)
    return list(lost)


def _paths(module: str) -> list[str]:
    """A module and those above it without the model itself, the innermost one first."""
    steps = module.split(".")
    return [".".join(steps[:length]) for length in range(len(steps), 0, -1)]


def _key(module: str, devices: Mapping[str, object]) -> str | None:
    """The longest name of a map that is a module or above it."""
    return next((path for path in (*_paths(module), "") if path in devices), None)


DEVICE_MAP_FILE = ImportFormat(read_device_map)
