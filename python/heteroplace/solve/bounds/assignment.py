"""LP assignment: tasks spread over devices in fractions, within units and memories.

    min T  with  sum over d of x_td = 1,  load of each unit <= T,  bytes in each memory <= room,
    x >= 0

A memory is charged for weights and for tensors that are made there; copies and workspaces, which
depend on more than one task, are left out. Solved by HiGHS (in SciPy). What counts is the bound
that its dual prices prove, computed again from them: the tolerance of the solver does not matter.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from heteroplace.native.arrays import IMPOSSIBLE
from heteroplace.native.problem import NativeProblem
from heteroplace.solve.bounds.bound import rounded_bound

FloatArray = npt.NDArray[np.float64]

MAX_ASSIGNMENT_TASKS = 5000
"""Above this the programme takes too long; the Lagrangian bound covers what it proves."""


def assignment_bound(native: NativeProblem, time_limit_s: float) -> int:
    """Return the bound in ns; 0 if the solver has no duals in time. Every task needs a device."""
    from scipy.optimize import linprog
    from scipy.sparse import coo_matrix

    num_devices = len(native.cluster.devices)
    tasks, devices = np.nonzero(native.run_ns != IMPOSSIBLE)
    columns = np.arange(len(tasks))
    run = native.run_ns[tasks, devices].astype(np.float64)
    bytes_in, room = _memory_rows(native)
    memory_of = np.array([device.memory for device in native.cluster.devices])
    num_units, num_memories = len(native.cluster.units), len(room)
    uses = np.zeros((num_units, num_devices))
    for device, ids in enumerate(native.cluster.unit_ids):
        uses[list(ids), device] = 1.0
    # Scaled so that entries are near 1: HiGHS' tolerances are absolute.
    time_scale = max(1.0, run.max(initial=0.0))
    unit_rows, at = np.nonzero(uses[:, devices])
    rows = [unit_rows, np.arange(num_units), num_units + memory_of[devices]]
    places = [columns[at], np.full(num_units, len(tasks)), columns]
    byte_scale = np.maximum(1.0, room)
    charged = bytes_in[tasks, memory_of[devices]] / byte_scale[memory_of[devices]]
    values = [run[at] / time_scale, np.full(num_units, -1.0), charged]
    upper = coo_matrix(
        (np.concatenate(values), (np.concatenate(rows), np.concatenate(places))),
        shape=(num_units + num_memories, len(tasks) + 1),
    ).tocsr()
    limits = np.concatenate([np.zeros(num_units), room / byte_scale])
    equal = coo_matrix(
        (np.ones(len(tasks)), (tasks, columns)), shape=(len(native.run_ns), len(tasks) + 1)
    ).tocsr()
    goal = np.zeros(len(tasks) + 1)
    goal[-1] = 1.0
    found = linprog(
        goal,
        A_ub=upper,
        b_ub=limits,
        A_eq=equal,
        b_eq=np.ones(len(native.run_ns)),
        method="highs",
        options={"time_limit": time_limit_s},
    )
    if found.status != 0:
        return 0
    duals = np.maximum(0.0, -np.asarray(found.ineqlin.marginals))
    return proven_by(native, duals[:num_units], duals[num_units:] / byte_scale * time_scale)


def proven_by(native: NativeProblem, unit_weights: FloatArray, prices: FloatArray) -> int:
    """Return the bound that any weights and prices >= 0 prove, in ns.

    Parameters
    ----------
    unit_weights
        [num_units]; scaled to sum 1 here.
    prices
        [num_memories], ns per byte.
    """
    total = float(unit_weights.sum())
    weights = unit_weights / total if total > 0 else unit_weights
    bytes_in, room = _memory_rows(native)
    memory_of = [device.memory for device in native.cluster.devices]
    device_weights = np.array([weights[list(ids)].sum() for ids in native.cluster.unit_ids])
    cost = native.run_ns * device_weights + (bytes_in * prices)[:, memory_of]
    cost[native.run_ns == IMPOSSIBLE] = np.inf
    gained = float(cost.min(axis=1).sum())
    paid = float((prices * room).sum())
    return rounded_bound(gained - paid, gained + float((prices * np.abs(room)).sum()))


def _memory_rows(native: NativeProblem) -> tuple[FloatArray, FloatArray]:
    """Bytes of each task in each memory, [num_tasks, num_memories]; and room, [num_memories].

    The host has room set aside for model inputs and outputs.
    """
    graph, host = native.graph, native.cluster.host
    made_by = native.producer
    sizes = native.tensor_bytes.astype(np.float64)
    is_made = made_by >= 0
    num_tasks, num_memories = len(graph.tasks), len(native.cluster.memories)
    made = np.bincount(made_by[is_made], weights=sizes[is_made], minlength=num_tasks)
    bytes_in = np.repeat(
        (made + native.weight_bytes).astype(np.float64)[:, None], num_memories, axis=1
    )
    room = np.array([memory.bytes for memory in native.cluster.memories], dtype=np.float64)
    if host is not None:
        kept = np.array(sorted({*graph.inputs, *graph.outputs}), dtype=np.int64)
        room[host] -= sizes[kept].sum()
        own = kept[is_made[kept]]
        np.subtract.at(bytes_in[:, host], made_by[own], sizes[own])
    return bytes_in, room
