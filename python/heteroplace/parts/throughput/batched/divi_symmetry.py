"""Rows that keep one of several equal plans: of equal devices, equal nodes and items (DiviML IV-F).

"first": of all equal plans the one is kept whose devices, read task by task and item by item, the
longest task first, are the least word. In it no device is used before the equal one in front of it,
nor a node before the equal node in front of it, which are the orbitope's rows (Kaibel and Pfetsch
2008)

    sum over later equals e of x[p, e]  <=  sum over q < p of x[q, d]

for a place p (a task and an item) and devices d, or nodes, in order; the first places are fixed by
them. The items of that task come in the order of their devices.

As published, nodes are ordered by a measure of all their devices, devices within a node by their
own; items by the device of the first task, which changes no measure, so that all orders hold
together. A measure is a sum over the whole plan and says nothing until most of it is fixed.

Which devices and nodes are equal: `device_symmetry`, exactly, as an order on devices that differ a
little would cut off optima.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from heteroplace.parts.throughput.batched.device_symmetry import DeviceSymmetry
from heteroplace.parts.throughput.batched.divi_model import BatchModel, Slot
from heteroplace.solve.lp.linear_program import Terms


def add_symmetry(model: BatchModel) -> None:
    """Add the rows that `BatchRules.symmetry` asks for."""
    if model.rules.symmetry == "none" or not model.slots:
        return
    symmetry = model.symmetry
    if model.rules.symmetry != "first":
        _order_measures(model, symmetry)
        _order_items(model, model.slots[0])
        return
    tasks = tasks_in_order(model)
    for devices in symmetry.device_classes:
        _order_first_uses(model, tasks, [(device,) for device in devices])
    for nodes in symmetry.node_classes:
        _order_first_uses(model, tasks, nodes)
    _order_items(model, tasks[0])


def tasks_in_order(model: BatchModel) -> list[list[Slot]]:
    """Return the slots of each task, the longest task first."""
    return sorted(model.slots, key=_longest_ns, reverse=True)


def item_order(model: BatchModel) -> dict[int, int]:
    """Return the rank of each device, node after node: items of one task ascend by it."""
    devices = model.problem.cluster.devices
    hosts = list(dict.fromkeys(device.host for device in devices))
    order = sorted(range(len(devices)), key=lambda device: hosts.index(devices[device].host))
    return {device: number for number, device in enumerate(order)}


def _longest_ns(slots: Sequence[Slot]) -> int:
    return max((ns for slot in slots for ns in slot.times.values()), default=0)


def _order_first_uses(
    model: BatchModel, tasks: Sequence[Sequence[Slot]], groups: Sequence[Sequence[int]]
) -> None:
    """No group of devices is used before the one in front of it, as the tasks are read."""
    for number in range(1, len(groups)):
        front = set(groups[number - 1])
        later = {device for group in groups[number:] for device in group}
        used: Terms = []
        for slots in tasks:
            model.deadline.check()
            for item in range(model.num_items):
                row = [(slot.items[item], 1.0) for slot in slots if slot.device in later]
                if row:
                    model.program.add_row([*row, *used], -math.inf, 0.0)
                used += [(slot.items[item], -1.0) for slot in slots if slot.device in front]


def _order_measures(model: BatchModel, symmetry: DeviceSymmetry) -> None:
    """Of two equal devices or nodes the one in front has no larger measure."""
    for first, second in symmetry.exchanges:
        less = [term for device in first for term in _measure(model, device)]
        more = [term for device in second for term in _measure(model, device)]
        if less or more:
            row = [*less, *((column, -factor) for column, factor in more)]
            model.program.add_row(row, -math.inf, 0.0)


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


def _order_items(model: BatchModel, slots: Sequence[Slot]) -> None:
    """A task has its items on devices in ascending order, node after node."""
    rank = item_order(model)
    for item in range(1, model.num_items):
        row: Terms = []
        for slot in slots:
            number = rank[slot.device]
            row += [(slot.items[item - 1], number), (slot.items[item], -number)]
        model.program.add_row(row, -math.inf, 0.0)
