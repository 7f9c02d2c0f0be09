"""Rows that keep one of several equal plans: of equal devices, equal nodes and items (DiviML IV-F).

Nodes are ordered by a measure of all their devices, devices within a node by their own. Items are
ordered by the device of the first task; exchanging items changes no measure, so all orders hold
together. Which devices and nodes are equal: `device_symmetry`, exactly, as an order on devices that
differ a little would cut off optima.
"""

from __future__ import annotations

import math

from heteroplace.solve.batched.device_symmetry import device_symmetry
from heteroplace.solve.batched.divi_model import BatchModel
from heteroplace.solve.lp.program import Terms


def add_symmetry(model: BatchModel) -> None:
    """Add the rows that `BatchRules.symmetry` asks for."""
    if model.rules.symmetry == "none":
        return
    for first, second in device_symmetry(model.problem, deadline=model.deadline).exchanges:
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
