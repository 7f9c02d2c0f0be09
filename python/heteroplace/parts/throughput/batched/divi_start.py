"""A plan of a list scheduler -> values of the programme's columns, from which engines start.

Engines that take a start complete it: order, memory and finish columns are left out. Symmetry rows
keep one of several equal plans (`divi_symmetry`), so devices and items change names as these rows
have it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from heteroplace.model.plan import Run, Step
from heteroplace.native.simulate import simulate_steps
from heteroplace.parts.throughput.batched.divi_model import BatchModel, FoundBatch
from heteroplace.parts.throughput.batched.divi_symmetry import item_order, tasks_in_order
from heteroplace.solve.lp.linear_program import FloatArray


def start_values(model: BatchModel, steps: Sequence[Step]) -> FloatArray | None:
    """Return the value of each column that a plan gives, [num_columns]; NaN: none.

    None: the model has blocks of several items, or the plan has two batches of a task on a device.
    """
    items = model.num_items * model.rules.block
    times = simulate_steps(model.problem.native, steps, items)
    batches = [
        FoundBatch(step.task, step.device, step.items, model.unit(int(times.start_ns[index])))
        for index, step in enumerate(steps)
        if isinstance(step, Run)
    ]
    if model.rules.block > 1 or len({(each.task, each.device) for each in batches}) < len(batches):
        return None
    if model.rules.symmetry == "first":
        batches = _first_of_equals(model, batches)
    values = np.full(model.program.num_columns, np.nan)
    values[model.end] = model.unit(int(times.makespan_ns))
    batch_of = {(each.task, each.device): each for each in batches}
    for slot in (each for slots in model.slots for each in slots if each.round == 0):
        batch = batch_of.get((slot.task, slot.device))
        members = () if batch is None else batch.items
        values[list(slot.items)] = [item in members for item in range(model.num_items)]
        for size, column in slot.sizes.items():
            values[column] = size == len(members)
        if batch is not None:
            values[slot.start] = batch.start
    return values


def _first_of_equals(model: BatchModel, batches: Sequence[FoundBatch]) -> list[FoundBatch]:
    """Rename equal devices in the order of their first uses, then items by the device of the task
    that is read first. Nodes keep their names."""
    order = {slots[0].task: number for number, slots in enumerate(tasks_in_order(model)) if slots}
    by_use = sorted(batches, key=lambda batch: (order[batch.task], batch.device))
    used = list(dict.fromkeys(batch.device for batch in by_use))
    names: dict[int, int] = {}
    for devices in model.symmetry.device_classes:
        first = [device for device in used if device in devices]
        others = [device for device in devices if device not in first]
        names |= dict(zip([*first, *others], devices, strict=True))
    renamed = [replace(batch, device=names[batch.device]) for batch in batches]
    rank = item_order(model)
    device_of = {
        item: rank[batch.device]
        for batch in renamed
        if order[batch.task] == 0
        for item in batch.items
    }
    numbers = {
        item: number for number, item in enumerate(sorted(device_of, key=device_of.__getitem__))
    }
    return [
        replace(batch, items=tuple(sorted(numbers.get(item, item) for item in batch.items)))
        for batch in renamed
    ]
