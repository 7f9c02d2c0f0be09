"""LP assignment: tasks spread over devices in fractions, within units and memories.

    min T  with  sum over d of x_td = 1,  load of each unit <= T,  bytes in each memory <= room,
    x >= 0

A memory is charged for weights: tensors may be gone before others come, and workspaces, which
depend on more than one task, are left out. What counts is the bound that its Lagrange multipliers
prove, computed again from them: the tolerance of the solver does not matter.
"""

from __future__ import annotations

import numpy as np

from heteroplace.native.core_arrays import IMPOSSIBLE
from heteroplace.native.core_problem import NativeProblem
from heteroplace.solve.bounds.bound import rounded_bound
from heteroplace.solve.lp.linear import LinearFailure, linear_optimum
from heteroplace.solve.lp.linear_program import FloatArray, MixedProgram


def assignment_bound(native: NativeProblem, time_limit_s: float) -> int:
    """Return the bound in ns; 0 if the solver has no duals in time. Every task needs a device."""
    num_devices = len(native.cluster.devices)
    tasks, devices = np.nonzero(native.run_ns != IMPOSSIBLE)
    columns = np.arange(len(tasks))
    run = native.run_ns[tasks, devices].astype(np.float64)
    bytes_in, room = _memory_rows(native)
    memory_of = np.array([device.memory for device in native.cluster.devices])[devices]
    num_units = len(native.cluster.units)
    uses = np.zeros((num_units, num_devices))
    for device, ids in enumerate(native.cluster.unit_ids):
        uses[list(ids), device] = 1.0
    # Scaled so that entries are near 1: HiGHS' tolerances are absolute.
    time_scale = max(1.0, run.max(initial=0.0))
    byte_scale = np.maximum(1.0, room)
    program = MixedProgram()
    program.add_columns(len(tasks))
    longest = program.add_column(0.0, np.inf, cost=1.0)
    units, at = np.nonzero(uses[:, devices])
    program.add_rows(
        np.zeros(num_units),
        (units, columns[at], run[at] / time_scale),
        (np.arange(num_units), np.full(num_units, longest), np.full(num_units, -1.0)),
    )
    charged = bytes_in[tasks, memory_of] / byte_scale[memory_of]
    program.add_rows(room / byte_scale, (memory_of, columns, charged))
    program.add_rows(
        np.ones(len(native.run_ns)), (tasks, columns, np.ones(len(tasks))), is_equal=True
    )
    optimum = linear_optimum(program, time_limit_s=time_limit_s)
    if isinstance(optimum, LinearFailure):
        return 0
    weights = np.maximum(0.0, optimum.multipliers)
    return proven_by(native, weights[:num_units], weights[num_units:] / byte_scale * time_scale)


def proven_by(native: NativeProblem, unit_weights: FloatArray, prices: FloatArray) -> int:
    """Return the bound that any weights and prices (multipliers of memories) >= 0 prove, in ns.

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

    In the host memory model inputs and outputs are together at the end.
    """
    graph, host = native.graph, native.cluster.host
    num_memories = len(native.cluster.memories)
    bytes_in = np.repeat(native.weight_bytes.astype(np.float64)[:, None], num_memories, axis=1)
    room = np.array([memory.bytes for memory in native.cluster.memories], dtype=np.float64)
    if host is not None:
        ends_kept = np.array(sorted({*graph.inputs, *graph.outputs}), dtype=np.int64)
        room[host] -= native.tensor_bytes[ends_kept].astype(np.float64).sum()
    return bytes_in, room
