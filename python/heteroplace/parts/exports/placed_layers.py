"""A solution -> the devices of each layer of the model, for formats of one machine."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from heteroplace.errors import PlanError
from heteroplace.model.cluster import Cluster, Device
from heteroplace.model.demands import layers_of
from heteroplace.model.implementations import base_of
from heteroplace.model.solution import Solution

SMALL_RATIO = 0.01
"""Modules with less than this part of all weights hold constants of ops, and no parameters."""
_SHOWN_NAMES = 3


@dataclass(frozen=True)
class PlacedLayer:
    """Where the tasks of one layer run."""

    devices: tuple[int, ...]
    """Ids of its devices, each once, that of most weights first; ties: that of most tasks."""
    weight_bytes: int
    """Weights of the tasks that hold parts of it."""


def placed_layers(solution: Solution, *, is_one_host: bool = True) -> dict[str, PlacedLayer]:
    """Return the layers of the model in the order of the graph.

    Devices that stand for other kernels of a device count as that device. A task that holds parts
    of several layers counts for each of them.

    Parameters
    ----------
    is_one_host
        The format is for one computer.

    Raises
    ------
    PlanError
        The plan's tasks name no layer, or its devices are on several computers and the format is
        for one.
    """
    graph, cluster = solution.graph, solution.cluster
    placed = solution.plan.devices_of_tasks(len(graph.tasks))
    bases = [base_of(cluster, index) for index in range(len(cluster.devices))]
    shares: dict[str, dict[int, tuple[int, int]]] = {}
    for task, devices in zip(graph.tasks, placed, strict=True):
        weight_bytes = task.weight_bytes + sum(size for _, size in task.weights)
        for layer in layers_of(task):
            own = shares.setdefault(layer, {})
            for device in devices:
                base = bases[device]
                place = device if base is None else base
                total_bytes, num_tasks = own.get(place, (0, 0))
                own[place] = (total_bytes + weight_bytes, num_tasks + 1)
    shares = {layer: own for layer, own in shares.items() if own}
    if not shares:
        raise PlanError(
            f"the tasks of {graph.name!r} name no layer of a model, and other programs place "
            f"layers; place a model (heteroplace place model.onnx -o solution.json) or export json"
        )
    if is_one_host:
        _check_one_host(solution, shares)
    return {layer: _placed(own) for layer, own in shares.items()}


def gpu_index(device: Device) -> int | None:
    """Return the ordinal of a GPU among those of its kind; None: the device is a CPU."""
    return None if device.kind == "cpu" else device.index


def gpu_indices(cluster: Cluster) -> list[int]:
    """Return the ordinals of the GPUs of a cluster, ascending."""
    indices = {gpu_index(each) for each in cluster.devices}
    return sorted(index for index in indices if index is not None)


def used_devices(layers: Mapping[str, PlacedLayer]) -> list[int]:
    """Return the ids of the devices that any layer runs on, ascending."""
    return sorted({device for layer in layers.values() for device in layer.devices})


def lost_devices(
    solution: Solution, word_of: Callable[[Device], str], *, is_one_host: bool = True
) -> tuple[str, ...]:
    """Return warnings about devices that a program with one device for each node cannot tell apart.

    Parameters
    ----------
    word_of
        What the program calls a device.
    is_one_host
        See `placed_layers`.
    """
    devices = solution.cluster.devices
    names: dict[str, dict[str, None]] = {}
    split = []
    for layer, placed in placed_layers(solution, is_one_host=is_one_host).items():
        words = {word_of(devices[index]) for index in placed.devices}
        for index in placed.devices:
            names.setdefault(word_of(devices[index]), {})[devices[index].name] = None
        if len(words) > 1:
            split.append(layer)
    warnings = [
        f"{shown_names(list(own))} become one device, {word}"
        for word, own in names.items()
        if len(own) > 1
    ]
    if split:
        warnings.append(
            f"layers on several devices go to the device of most of their weights: "
            f"{shown_names(split)}"
        )
    return tuple(warnings)


def shown_names(names: list[str]) -> str:
    """Return the first names of a list, and how many there are beside them.

    >>> shown_names(["a", "b", "c", "d"])
    'a, b, c and 1 more'
    """
    rest = len(names) - _SHOWN_NAMES
    return ", ".join(names[:_SHOWN_NAMES]) + (f" and {rest} more" if rest > 0 else "")


def _placed(own: Mapping[int, tuple[int, int]]) -> PlacedLayer:
    devices = sorted(own, key=lambda device: (*(-value for value in own[device]), device))
    return PlacedLayer(tuple(devices), sum(total_bytes for total_bytes, _ in own.values()))


def _check_one_host(solution: Solution, shares: Mapping[str, Mapping[int, object]]) -> None:
    devices = solution.cluster.devices
    hosts = sorted({devices[device].host for own in shares.values() for device in own})
    if len(hosts) > 1:
        raise PlanError(
            f"the plan uses the computers {', '.join(hosts)}, and this format is for one computer; "
            f"place the model on a cluster of one, or export json"
        )
