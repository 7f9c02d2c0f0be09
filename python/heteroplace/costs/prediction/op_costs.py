"""Types and sizes of ops -> what they take on each device: the cost functions of DistIR.

DistIR ("DistIR: An Intermediate Representation and Simulator for Efficient Neural Network
Distribution", section 4): each op has a cost function, registered by its name, of the sizes of its
inputs and outputs; its coefficients are launch overhead, memory bandwidth and peak speed of the
device, known or fitted. Time = launches * launch overhead + bytes / bandwidth + flops / peak. An op
without a function takes one launch, and is counted, so that a report can say what a cost rests on.

Unlike the roofline (`costs/roofline.py`) computing and moving are added, as in DistIR's functions,
and only inputs and weights are moved. A task of several ops, fused by the compiler, is one launch:
it moves what the whole task reads, and computes what all its ops do. Collectives are not tasks of
one device: what they take is `heteroplace.model.collectives`.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Callable, Collection, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from heteroplace.costs.coverage import Beyond, Coverage
from heteroplace.costs.prediction.op_regression import MAX_EXTRAPOLATION, LinearCost, OpRegression
from heteroplace.costs.roofline import Speeds, device_speeds
from heteroplace.costs.work import TaskWork, op_types
from heteroplace.errors import MissingCostError
from heteroplace.model.cluster import Cluster
from heteroplace.model.collectives import collective_kind
from heteroplace.model.cost import (
    Cost,
    CostTable,
    Detail,
    TableBuilder,
    build_table,
    without_barred,
)
from heteroplace.model.graph import Task, TaskGraph, Tensor
from heteroplace.model.op_traits.op_table import rules_by_op

IntArray = NDArray[np.int64]


class OpWork(NamedTuple):
    """What one run of a task does."""

    flops: int
    bytes: int
    """Moved between memory and device."""
    launches: int = 1
    """Kernels that are started; 0: nothing runs, as for a view."""


CostFunction = Callable[[Task, Sequence[Tensor], Sequence[Tensor]], OpWork]
"""(task, its inputs, its outputs) -> its work. For exact grids of a search over
degrees of parallelism, flops and bytes are affine in the rows of a batch."""


def computes(task: Task, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> OpWork:
    """Return the work of an op that reads its inputs and weights and computes what the task says.

    Elementwise ops, reductions, products of matrices and their gradients: for N elements N
    flops, for (m, k) times (k, n) 2 m k n of them.
    """
    moved = sum(tensor.bytes for tensor in inputs) + task.weight_bytes
    return OpWork(task.flops, moved + sum(num_bytes for _, num_bytes in task.weights))


def launches(task: Task, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> OpWork:
    """Return the work of an op that only starts: concatenate, split, slice, gather."""
    return OpWork(0, 0)


def views(task: Task, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> OpWork:
    """Return the work of an op that gives its input another shape, and moves nothing."""
    return OpWork(0, 0, 0)


_UNUSED = "no task runs on this device"
_ATTRIBUTES = re.compile(r"\[[^\]]*\]")

OP_COSTS: MutableMapping[str, CostFunction] = rules_by_op(
    lambda op: op.cost, {"view": views, "launch": launches, "compute": computes}
)
"""The cost function of each op by name, without attributes. Add your own before tables are made."""


def plain_op(op: str) -> str:
    """Return an op without its attributes, which costs do not depend on.

    >>> plain_op("slice[1]+loss_grad[64]")
    'slice+loss_grad'
    """
    return _ATTRIBUTES.sub("", op)


def cost_function(op: str) -> tuple[CostFunction | None, tuple[str, ...]]:
    """Return the function of a task's op, and the ops inside that have none.

    The name as a whole counts first. Of ops joined by "+" the task has the function of the first
    that neither is a view nor merely starts; else of the first that starts; else it is a view.
    None: no op inside has a function.
    """
    if op in OP_COSTS:
        return OP_COSTS[op], ()
    parts = plain_op(op).split("+")
    missing = tuple(part for part in parts if part not in OP_COSTS)
    functions = [OP_COSTS[part] for part in parts if part in OP_COSTS]
    for lesser in ((views, launches), (views,), ()):
        for function in functions:
            if function not in lesser:
                return function, missing
    return None, missing


@dataclass(frozen=True)
class GraphWork:
    """The work of all tasks of a graph, as columns."""

    flops: IntArray
    """[num_tasks]"""
    bytes: IntArray
    """[num_tasks]"""
    launches: IntArray
    """[num_tasks]"""
    is_collective: NDArray[np.bool_]
    """[num_tasks]; their work is 0."""
    uncovered: Mapping[str, int]
    """Ops that have no cost function, with the number of tasks they are in."""


def _together(graph: TaskGraph, num_items: int) -> TaskGraph:
    """The same for several items at once: what is shared is there once."""
    tasks = tuple(replace(task, flops=task.flops * num_items) for task in graph.tasks)
    tensors = tuple(
        tensor if tensor.shared else replace(tensor, bytes=tensor.bytes * num_items)
        for tensor in graph.tensors
    )
    return graph if num_items == 1 else replace(graph, tasks=tasks, tensors=tensors)


def graph_work(graph: TaskGraph) -> GraphWork:
    """Return the work of each task for one item."""
    rows = np.zeros((len(graph.tasks), 3), dtype=np.int64)
    is_collective = np.zeros(len(graph.tasks), dtype=np.bool_)
    uncovered: Counter[str] = Counter()
    tensors = graph.tensors
    of_op: dict[str, tuple[CostFunction | None, tuple[str, ...]]] = {}
    kinds: dict[str, bool] = {}
    for index, task in enumerate(graph.tasks):
        if task.op not in of_op:
            of_op[task.op] = cost_function(task.op)
            kinds[task.op] = collective_kind(task.op) is not None
        if kinds[task.op]:
            is_collective[index] = True
            continue
        function, missing = of_op[task.op]
        uncovered.update(missing)
        if function is None:
            rows[index] = 0, 0, 1
            continue
        inputs = [tensors[tensor] for tensor in graph.task_inputs[index]]
        outputs = [tensors[tensor] for tensor in graph.task_outputs[index]]
        rows[index] = function(task, inputs, outputs)
    flops, moved, starts = rows.T
    return GraphWork(flops, moved, starts, is_collective, dict(sorted(uncovered.items())))


def line_ns(line: LinearCost, flops: IntArray, moved: IntArray, starts: IntArray) -> IntArray:
    """Return the times of some work in whole ns, all arrays of one shape.

    The same elements give the same times whatever stands beside them, so that a grid of sizes and
    the table of one graph agree to the nanosecond.
    """
    time = flops * line.ns_per_flop + moved * line.ns_per_byte + starts * line.launch_ns
    times: IntArray = np.rint(time).astype(np.int64)
    return times


def line_of(speeds: Speeds) -> LinearCost:
    """Return the line that known speeds of a device make.

    >>> line_of(Speeds(10**9, 2 * 10**9, 50)).ns(TaskWork(3, 4))
    55.0
    """
    return LinearCost(
        1e9 / speeds.flops_per_second, 1e9 / speeds.bytes_per_second, speeds.launch_ns
    )


class OpCosts:
    """What tasks cost on the devices of a cluster: a line for each device, or for each type of op.

    Parameters
    ----------
    dtype
        Whose peak speeds count where the cluster names a known model: "float32" or "float16".
    fitted
        By the name of a device, the fits to kernels that were measured there
        (`heteroplace.costs.prediction.op_regression`), by type of op
        (`heteroplace.costs.work.op_types`). An op that has none takes the line of the device's
        speeds.
    names
        The devices that tasks run on; others have no costs, and need none. None: all.
    measured
        By the name of a device, its speeds where the cluster does not say them.
    """

    def __init__(
        self,
        cluster: Cluster,
        dtype: str = "float32",
        fitted: Mapping[str, Mapping[str, OpRegression]] | None = None,
        names: Collection[str] | None = None,
        measured: Mapping[str, Speeds] | None = None,
    ) -> None:
        self.cluster = cluster
        self._is_used = [names is None or device.name in names for device in cluster.devices]
        self._measured = dict(measured or {})
        speeds = [
            self._measured.get(device.name) or device_speeds(device, dtype)
            for device in cluster.devices
        ]
        self._lines = [None if speed is None else line_of(speed) for speed in speeds]
        self._fitted = [(fitted or {}).get(device.name, {}) for device in cluster.devices]

    def times(self, ops: Sequence[str], work: GraphWork) -> tuple[IntArray, Coverage]:
        """Return the times of tasks in ns, [num_tasks, num_devices], and what they rest on.

        Collectives have 0: what they take is not a matter of one device. So have devices that no
        task runs on.

        Raises
        ------
        MissingCostError
            Neither its speeds nor fits of all ops are known of a device that tasks run on.
        """
        times = np.zeros((len(ops), len(self._lines)), dtype=np.int64)
        groups: dict[str, list[int]] = {}
        for index in np.flatnonzero(~work.is_collective).tolist():
            groups.setdefault(plain_op(ops[index]), []).append(index)
        chosen = {op: np.array(indices) for op, indices in groups.items()}
        beyond: dict[str, Beyond] = {}
        for device, line in enumerate(self._lines):
            if not self._is_used[device]:
                continue
            alike = next(i for i in range(device + 1) if self._is_alike(i, device))
            if alike < device:
                times[:, device] = times[:, alike]
            elif not self._fitted[device] and line is not None:
                times[:, device] = line_ns(line, work.flops, work.bytes, work.launches)
            else:
                for op, tasks in chosen.items():
                    times[tasks, device] = self._times_of_op(op, tasks, work, device, beyond)
        return times, Coverage(work.uncovered, tuple(beyond[op] for op in sorted(beyond)))

    def table(
        self, graph: TaskGraph, batches: tuple[int, ...] = (1,)
    ) -> tuple[CostTable, Coverage]:
        """Return the times of a graph as a cost table, and what those of one item rest on.

        Parameters
        ----------
        batches
            Numbers of items that run together, ascending from 1.

        Raises
        ------
        MissingCostError
            As `times`.
        """
        ops = [task.op for task in graph.tasks]
        tables = [self.times(ops, graph_work(_together(graph, batch))) for batch in batches]
        builder = TableBuilder(graph.identities, self.cluster.identities, batches)
        peaks = "measured peak speeds" if self._measured else "peak speeds"
        detail = Detail("roofline", 0, f"{peaks} in cost functions of ops, not calibrated")
        if any(self._fitted):
            detail = Detail("regressed", 0, "cost functions of ops, fitted to kernels")
        for times, _ in tables:
            builder.add_times(times.ravel().tolist(), detail)
        table = without_barred(builder.finalize(), graph, self.cluster)
        return self._of_used(table, graph), tables[0][1]

    def _of_used(self, table: CostTable, graph: TaskGraph) -> CostTable:
        """The table without times on devices that no task runs on."""
        if all(self._is_used):
            return table

        def cost(task: int, device: int, batch: int = 1) -> Cost:
            is_used = self._is_used[device]
            return table.cost(task, device, batch) if is_used else Cost.excluded(_UNUSED)

        return build_table(graph, self.cluster, cost, table.batches)

    def digest(self) -> str:
        """Return a hex digest of all lines; registered cost functions are in it by their names.

        Of measured speeds it only says which they are: measured again they differ a little.
        """
        lines = [
            "measured" if device.name in self._measured else line
            for device, line in zip(self.cluster.devices, self._lines, strict=True)
        ]
        fitted = [sorted(fits.items()) for fits in self._fitted]
        names = [(op, function.__qualname__) for op, function in sorted(OP_COSTS.items())]
        text = repr((lines, fitted, names))
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def _is_alike(self, device: int, other: int) -> bool:
        same_line = self._lines[device] == self._lines[other]
        return self._is_used[device] and same_line and self._fitted[device] == self._fitted[other]

    def _times_of_op(
        self,
        op: str,
        tasks: IntArray,
        work: GraphWork,
        device: int,
        beyond: dict[str, Beyond],
    ) -> IntArray:
        """Return the times of the tasks of one op on one device; notes what is far outside."""
        flops, moved = work.flops[tasks], work.bytes[tasks]
        fits = self._fitted[device]
        fit = next((fits[key] for key in op_types(op) if key in fits), None)
        line = self._lines[device] if fit is None else fit.line
        if line is None:
            raise MissingCostError(
                f"no cost of {op!r} on {self.cluster.devices[device].name}: neither its peak "
                f"speeds nor measured kernels of that op are known; give flops_per_second and "
                f"memory_bandwidth, or 'model', or measure"
            )
        if fit is not None:
            is_far = np.zeros(len(tasks), dtype=np.bool_)
            for values, (least, most) in ((flops, fit.flops), (moved, fit.bytes)):
                is_far |= values > MAX_EXTRAPOLATION * most
                is_far |= values * MAX_EXTRAPOLATION < least
            if is_far.any():
                ends = (TaskWork(int(end(flops)), int(end(moved))) for end in (np.min, np.max))
                far_times = Beyond(op, int(is_far.sum()), max(map(fit.extrapolation, ends)))
                beyond[op] = max(beyond.get(op, far_times), far_times)
        return line_ns(line, flops, moved, work.launches[tasks])
