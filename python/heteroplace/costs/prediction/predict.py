"""A cost table with unknown cells -> the same table with predictions in them.

Moirai, section III-C (devices that are not there) and DistIR, section 4 (sizes that were not
measured). What was measured, given or said to be impossible stays as it is. Each new cell says by
which method it was made, from what, and what error to expect, from cross-validation.
"""

from __future__ import annotations

from dataclasses import replace

from heteroplace.costs.cross_validation import CrossValidation, ErrorEstimates, validate_methods
from heteroplace.costs.methods import METHODS, SOURCE_OF, Guess, Methods, Sample, samples_of
from heteroplace.errors import MissingCostError
from heteroplace.model.cluster import Cluster
from heteroplace.model.cost import (
    UNKNOWN,
    Cost,
    CostTable,
    TableBuilder,
    allowed_devices,
    barred_cost,
)
from heteroplace.model.graph import TaskGraph
from heteroplace.terminal import listed


def predict_costs(graph: TaskGraph, cluster: Cluster, table: CostTable) -> CostTable:
    """Return `table` with every unknown cell filled in.

    For each cell the first that applies: what was measured on a device that is like it (and says so
    still); an equal task on the device; wave scaling from a measured GPU; a regression over
    measured kernels of the op on the device; the roofline calibrated by measured kernels; the
    plain roofline.

    Raises
    ------
    CostMismatchError
        The table belongs to another graph or cluster.
    MissingCostError
        No method applies to some cell: neither peak speeds nor a known model are given for the
        device, and too little was measured on it.
    """
    table.check(graph, cluster)
    if not any(UNKNOWN in times for times in table.ns):
        return table
    samples = samples_of(graph, cluster, table)
    methods = Methods(graph, cluster, samples)
    # Without samples there is nothing to validate by, and errors stay unknown.
    validation = validate_methods(methods, samples)
    return _fill(graph, cluster, table, _Predictor(methods, validation, table))


def _fill(graph: TaskGraph, cluster: Cluster, table: CostTable, predictor: _Predictor) -> CostTable:
    builder = TableBuilder(table.tasks, table.devices, table.batches)
    allowed = [set(ids) for ids in allowed_devices(graph, cluster)]
    faults: dict[str, list[str]] = {}
    for position, batch in enumerate(table.batches):
        cell = 0
        for task_id, task in enumerate(graph.tasks):
            for device in range(table.num_devices):
                if table.ns[position][cell] != UNKNOWN:
                    builder.add(table.cost(task_id, device, batch))
                elif device not in allowed[task_id]:
                    builder.add(barred_cost(task, cluster.devices[device].kind))
                else:
                    cost = predictor.cost(task_id, device, batch)
                    if isinstance(cost, str):
                        faults.setdefault(cost, []).append(task.name)
                    else:
                        builder.add(cost)
                cell += 1
    if faults:
        lines = (_describe(text, tasks) for text, tasks in faults.items())
        raise MissingCostError(listed(lines, "; "))
    return builder.finalize(table.collectives)


class _Predictor:
    """Chooses a method per cell and writes down why."""

    def __init__(self, methods: Methods, validation: CrossValidation, table: CostTable) -> None:
        self._methods = methods
        self._errors = ErrorEstimates(methods, validation)
        self._table = table

    def cost(self, task: int, device: int, batch: int) -> Cost | str:
        """The predicted cost, or why there is none."""
        sample = self._methods.measured_alike(task, device, batch)
        if sample is not None:
            return self._copied(sample)
        refusals: list[str] = []
        for method in METHODS:
            answer = self._methods.guess(method, task, device, batch)
            if isinstance(answer, Guess):
                return self._from_guess(answer, task, device, refusals)
            if answer.reason:
                refusals.append(answer.reason)
        return "; ".join(refusals)

    def _copied(self, sample: Sample) -> Cost:
        cost = self._table.cost(sample.task, sample.device, sample.batch)
        name = self._methods.cluster.devices[sample.device].name
        return replace(cost, reason=f"as on {name}, which is like it")

    def _from_guess(self, guess: Guess, task: int, device: int, refusals: list[str]) -> Cost:
        estimate = self._errors.expected(guess.method, device, self._methods.graph.tasks[task].op)
        if estimate is None:
            error, basis = None, "error unknown"
        else:
            error, basis = round(estimate[0], 4), f"error of {estimate[1]} such predictions"
        reason = "; ".join([guess.reason, *refusals, basis])
        return Cost(max(1, round(guess.ns)), SOURCE_OF[guess.method], 0, reason, error)


def _describe(text: str, tasks: list[str]) -> str:
    return (
        f"cannot predict the cost of {listed(tasks)}: {text}; give "
        f"flops_per_second and memory_bandwidth or 'model' in the cluster, or measure"
    )
