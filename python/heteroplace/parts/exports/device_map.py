"""A solution -> the `device_map` of accelerate and transformers: devices of modules, as JSON.

GPUs are numbers, CPUs are "cpu". A module whose layers share a device is one key; otherwise its
children are keys, so no key lies below another one. A module without children that is on several
devices goes to that of most of its weights.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from heteroplace.model.solution import Solution
from heteroplace.parts.exports.export_format import ExportedPlacement, ExportFormat
from heteroplace.parts.exports.module_names import modules_of_graph
from heteroplace.parts.exports.placed_layers import (
    SMALL_RATIO,
    gpu_index,
    placed_layers,
    shown_names,
)

Place = int | str
"""Number of a GPU, or "cpu"."""


@dataclass
class _Module:
    """A module with its submodules, and the bytes of weights that its own ops have by device."""

    name: str
    children: dict[str, _Module] = field(default_factory=dict)
    own_bytes: dict[Place, int] = field(default_factory=dict)


def write_device_map(solution: Solution, model: Path | None = None) -> ExportedPlacement:
    """Return the map as JSON.

    Parameters
    ----------
    model
        An ONNX model whose nodes name their modules in metadata; None: names of nodes say them.
    """
    root = _module_tree(solution, model)
    places: dict[str, Place] = {}
    _add_places(root, places)
    return ExportedPlacement(json.dumps(places, indent=1) + "\n", tuple(_warnings(root)))


def _module_tree(solution: Solution, model: Path | None) -> _Module:
    devices = solution.cluster.devices
    root = _Module("")
    layers = placed_layers(solution)
    modules = modules_of_graph(solution.graph, model)
    for layer, placed in layers.items():
        module = root
        for step in filter(None, modules[layer].split(".")):
            path = f"{module.name}.{step}" if module.name else step
            module = module.children.setdefault(step, _Module(path))
        index = gpu_index(devices[placed.devices[0]])
        place: Place = "cpu" if index is None else index
        module.own_bytes[place] = module.own_bytes.get(place, 0) + placed.weight_bytes
        for device in placed.devices[1:]:
            index = gpu_index(devices[device])
            module.own_bytes.setdefault("cpu" if index is None else index, 0)
    return root


def _place_of(module: _Module) -> Place | None:
    """The one place of a module and all below it; None: there are several."""
    if not module.children:
        return max(module.own_bytes, key=lambda place: module.own_bytes[place])
    places = {_place_of(child) for child in module.children.values()}
    return places.pop() if len(places) == 1 else None


def _add_places(module: _Module, places: dict[str, Place]) -> None:
    place = _place_of(module)
    if place is not None:
        places[module.name] = place
        return
    for child in module.children.values():
        _add_places(child, places)


def _warnings(root: _Module) -> Iterator[str]:
    modules = list(_below(root))
    split = [each.name for each in modules if not each.children and len(each.own_bytes) > 1]
    if split:
        yield (
            f"{shown_names(split)} run on several devices, and a module without children has one; "
            f"each goes to the device of most of its weights"
        )
    least_bytes = SMALL_RATIO * sum(sum(each.own_bytes.values()) for each in modules)
    bare = [
        each.name or "the model"
        for each in modules
        if _place_of(each) is None and sum(each.own_bytes.values()) > least_bytes
    ]
    if bare:
        yield (
            f"{shown_names(bare)} read parameters that are in no submodule; if accelerate names "
            f"parameters without a device, add their names to the map"
        )
    blocks = [
        each.name
        for each in modules
        if each.name.rpartition(".")[2].isdecimal() and each.children and _place_of(each) is None
    ]
    if blocks:
        yield (
            f"{shown_names(blocks)} are split between devices; accelerate moves the inputs of "
            f"modules, so an addition of two of their results may fail. Placing whole blocks "
            f"(--no-split '{blocks[0]}.*') avoids it"
        )


def _below(module: _Module) -> Iterator[_Module]:
    yield module
    for child in module.children.values():
        yield from _below(child)


DEVICE_MAP = ExportFormat(write_device_map)
