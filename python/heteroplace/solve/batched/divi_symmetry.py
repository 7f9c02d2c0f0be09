"""Rows that keep one of several equal plans: of equal devices, equal nodes and items (DiviML IV-F).

Nodes are ordered by a measure of all their devices, devices within a node by their own; a node is
the machine that a device sits in (`Device.host`). Items are ordered by the device of the first
task; exchanging items changes no measure, so all orders hold together.

Unlike DiviML: only devices that are exactly equal are exchanged, in times, memory, links and shared
units. An order on devices that differ a little would cut off optima.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

from heteroplace.solve.batched.divi_model import BatchModel
from heteroplace.solve.deadline import NEVER, Deadline
from heteroplace.solve.lp.program import Terms
from heteroplace.solve.problem import Problem

Exchange = tuple[tuple[int, ...], tuple[int, ...]]
"""Devices that take the place of others, one by one, and the others."""


def add_symmetry(model: BatchModel) -> None:
    """Add the rows that `BatchRules.symmetry` asks for."""
    if model.rules.symmetry == "none":
        return
    for first, second in exchanges(model.problem, model.deadline):
        less = [term for device in first for term in _measure(model, device)]
        more = [term for device in second for term in _measure(model, device)]
        if less or more:
            row = [*less, *((column, -factor) for column, factor in more)]
            model.program.add_row(row, -math.inf, 0.0)
    if model.slots:
        _order_items(model)


def _measure(model: BatchModel, device: int) -> Terms:
    """Terms of the measure of one device."""
    terms: Terms = []
    for slots in model.slots:
        for slot in slots:
            if slot.device != device:
                continue
            if model.rules.symmetry == "batch":
                terms += model.exists(slot)
            elif model.rules.symmetry == "task":
                terms += [(column, 1.0) for column in slot.items]
            else:
                terms += model.duration(slot)
    return terms


def _order_items(model: BatchModel) -> None:
    """The first task has its items on devices in ascending order."""
    for item in range(1, model.num_items):
        row: Terms = []
        for slot in model.slots[0]:
            row += [(slot.items[item - 1], slot.device), (slot.items[item], -slot.device)]
        model.program.add_row(row, -math.inf, 0.0)


def exchanges(problem: Problem, deadline: Deadline = NEVER) -> list[Exchange]:
    """Return pairs of equal devices in a node, then pairs of equal nodes, each with the next.

    TimeUpError past the deadline.
    """
    nodes: dict[str, list[int]] = {}
    for device_id, device in enumerate(problem.cluster.devices):
        nodes.setdefault(device.host, []).append(device_id)
    found: list[Exchange] = []
    for devices in nodes.values():
        singles = [(device,) for device in devices]
        found += _pairs_of_equals(problem, singles, deadline)
    groups = [tuple(devices) for devices in nodes.values()]
    return found + _pairs_of_equals(problem, groups, deadline)


def _pairs_of_equals(
    problem: Problem, groups: Sequence[tuple[int, ...]], deadline: Deadline
) -> list[Exchange]:
    """Split groups of devices into classes of equal ones and return neighbours in each."""
    classes: list[list[tuple[int, ...]]] = []
    for group in groups:
        for known in classes:
            deadline.check()
            if all(_can_exchange(problem, other, group) for other in known):
                known.append(group)
                break
        else:
            classes.append([group])
    return [pair for known in classes for pair in pairwise(known)]


def _can_exchange(problem: Problem, first: Sequence[int], second: Sequence[int]) -> bool:
    """Whether every plan stays one, and as long, if two groups of devices change places."""
    if len(first) != len(second):
        return False
    cluster = problem.cluster
    image = list(range(len(cluster.devices)))
    for one, other in zip(first, second, strict=True):
        image[one], image[other] = other, one
    moved: dict[int, int] = {}
    for device, other in enumerate(image):
        memory = cluster.devices[device].memory
        if moved.setdefault(memory, cluster.devices[other].memory) != cluster.devices[other].memory:
            return False
    if cluster.host is not None and moved.get(cluster.host, cluster.host) != cluster.host:
        return False
    return (
        _has_equal_times(problem, image)
        and _has_equal_units(problem, image)
        and _has_equal_memories(problem, moved)
    )


def _has_equal_times(problem: Problem, image: Sequence[int]) -> bool:
    run_ns = problem.native.batch_run_ns
    return bool((run_ns == run_ns[:, :, list(image)]).all())


def _has_equal_units(problem: Problem, image: Sequence[int]) -> bool:
    units = [set(ids) for ids in problem.cluster.unit_ids]
    devices = range(len(units))
    return all(
        bool(units[one] & units[other]) == bool(units[image[one]] & units[image[other]])
        for one in devices
        for other in devices
    )


def _has_equal_memories(problem: Problem, moved: dict[int, int]) -> bool:
    memories = range(len(problem.cluster.memories))
    image = [moved.get(memory, memory) for memory in memories]
    if sorted(image) != list(memories):
        return False
    return all(
        problem.cluster.memories[src].bytes == problem.cluster.memories[image[src]].bytes
        and _speed(problem, src, dst) == _speed(problem, image[src], image[dst])
        for src in memories
        for dst in memories
    )


def _speed(problem: Problem, src: int, dst: int) -> tuple[int, int] | None:
    """Latency and bandwidth of the route; None: there is none."""
    cluster = problem.cluster
    if src == dst or not cluster.is_reachable(src, dst):
        return None
    links = [cluster.links[link] for link in cluster.route(src, dst)]
    return sum(link.latency_ns for link in links), min(link.bytes_per_second for link in links)
