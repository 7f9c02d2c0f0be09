"""How far are predicted times off? Predict what was measured, as if it had not been, and compare.

Two ways of leaving out. By device: all that was measured on a device, and on those like it, is
predicted from the others; that is what a device that is not there will get. By kernel: each
measured kernel is predicted from the others on the same device; that is what a gap in a table will
get. The errors become the error estimates of predicted cells, so those are never invented.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from heteroplace.costs.methods import (
    CALIBRATED,
    EQUAL_TASK,
    METHODS,
    PLAIN,
    REGRESSION,
    WAVES,
    Guess,
    Methods,
    Refusal,
    Sample,
    samples_of,
)
from heteroplace.model.cluster import Cluster
from heteroplace.model.cost import CostTable
from heteroplace.model.graph import TaskGraph
from heteroplace.report.tables import format_table
from heteroplace.stats import median, spearman

MAX_TRIALS = 2_000
"""Cells that are predicted for a device at most; of more, so many are taken at equal distances."""
MIN_TRIALS = 3
"""An error estimate is the median of so many errors at least."""

BY_DEVICE = (WAVES, CALIBRATED, PLAIN)
"""Methods that need nothing measured on the device."""
BY_KERNEL = (EQUAL_TASK, REGRESSION, CALIBRATED)
"""Methods that need other kernels of the same device."""


@dataclass(frozen=True, slots=True)
class HeldOutCell:
    """A measured cell and what a method says about it without having seen it."""

    method: str
    task: int
    device: int
    op: str
    predicted_ns: float
    measured_ns: int

    @property
    def error(self) -> float:
        """Relative to the measured time."""
        return abs(self.predicted_ns - self.measured_ns) / self.measured_ns


@dataclass(frozen=True)
class Accuracy:
    """How good some trials are."""

    num_trials: int
    median_error: float
    p90_error: float
    """Nine of ten relative errors are at most this."""
    spearman: float | None
    """Rank correlation of predicted and measured times; None: undefined."""


@dataclass(frozen=True)
class CrossValidation:
    """All trials of a table."""

    by_device: tuple[HeldOutCell, ...]
    by_kernel: tuple[HeldOutCell, ...]


def cross_validate(graph: TaskGraph, cluster: Cluster, table: CostTable) -> CrossValidation:
    """Predict every measured or given cell of a table by every method that applies.

    Raises
    ------
    CostMismatchError
        The table belongs to another graph or cluster.
    """
    table.check(graph, cluster)
    samples = samples_of(graph, cluster, table)
    return validate_methods(Methods(graph, cluster, samples), samples)


def validate_methods(methods: Methods, samples: Sequence[Sample]) -> CrossValidation:
    """Do as `cross_validate` for methods that were made of `samples`."""
    of_device: dict[int, list[Sample]] = {}
    for sample in samples:
        of_device.setdefault(methods.alike[sample.device], []).append(sample)
    by_device: list[HeldOutCell] = []
    by_kernel: list[HeldOutCell] = []
    for own in of_device.values():
        chosen = _spaced(own)
        by_device += _trials(methods, chosen, BY_DEVICE, "device")
        by_kernel += _trials(methods, chosen, BY_KERNEL, "kernel")
    return CrossValidation(tuple(by_device), tuple(by_kernel))


def _trials(
    methods: Methods, samples: Sequence[Sample], names: Sequence[str], left_out: str
) -> list[HeldOutCell]:
    cells = []
    # Kernels of one op and size get one answer from these methods; fits are made once for it.
    answers: dict[object, Guess | Refusal] = {}
    for sample in samples:
        for name in names:
            key: object = (name, sample.op, sample.work)
            if name in (EQUAL_TASK, WAVES):
                key = (name, sample.device, sample.task, sample.batch)
            if key not in answers:
                answers[key] = methods.guess(
                    name, sample.task, sample.device, sample.batch, left_out
                )
            answer = answers[key]
            if isinstance(answer, Guess):
                cells.append(
                    HeldOutCell(name, sample.task, sample.device, sample.op, answer.ns, sample.ns)
                )
    return cells


def accuracy(trials: Sequence[HeldOutCell]) -> Accuracy:
    """Return how good at least one trial is."""
    errors = sorted(trial.error for trial in trials)
    # The smallest error that nine of ten do not exceed.
    position = -(-9 * len(errors) // 10) - 1
    return Accuracy(
        len(errors),
        median(errors),
        errors[position],
        spearman([t.predicted_ns for t in trials], [float(t.measured_ns) for t in trials]),
    )


class ErrorEstimates:
    """What error to expect of a prediction: the median over the most similar trials."""

    def __init__(self, methods: Methods, validation: CrossValidation) -> None:
        """Take the methods that predict, and how they did."""
        self._methods = methods
        self._validation = validation
        self._pools: dict[tuple[object, ...], tuple[float, int]] = {}
        kinds = [device.kind for device in methods.cluster.devices]
        for place, trials in (("device", validation.by_device), ("kernel", validation.by_kernel)):
            groups: dict[tuple[object, ...], list[float]] = {}
            for trial in trials:
                base = (place, trial.method)
                alike, kind = methods.alike[trial.device], kinds[trial.device]
                for rest in ((alike, trial.op), (alike,), ("kind", kind, trial.op), ("kind", kind)):
                    groups.setdefault((*base, *rest), []).append(trial.error)
            for key, errors in groups.items():
                if len(errors) >= MIN_TRIALS:
                    self._pools[key] = (median(errors), len(errors))
        self._kinds = kinds

    def expected(self, method: str, device: int, op: str) -> tuple[float, int] | None:
        """Return the median error and of how many trials it is; None: there is nothing to go by.

        The first of these that has MIN_TRIALS: the same op on the same device, any op there, the
        same op on devices of the same kind, any op there.
        """
        places: tuple[str, ...] = ("device",) if method in (WAVES, PLAIN) else ("kernel",)
        if method == CALIBRATED and not self._methods.has_samples(device):
            places = ("device", "kernel")
        alike, kind = self._methods.alike[device], self._kinds[device]
        for place in places:
            for rest in ((alike, op), (alike,), ("kind", kind, op), ("kind", kind)):
                pool = self._pools.get((place, method, *rest))
                if pool is not None:
                    return pool
        return None


def cross_validation_table(
    cluster: Cluster, validation: CrossValidation, per_op: bool = True
) -> str:
    """Return the errors by device and method, and by type of op where `per_op`, as text."""
    parts = []
    for title, trials in (
        ("each device predicted from the others", validation.by_device),
        ("each kernel predicted from the others of its device", validation.by_kernel),
    ):
        rows = _rows(trials, lambda trial: cluster.devices[trial.device].name)
        if not rows:
            parts.append(f"{title}: no method applies")
            continue
        parts.append(f"{title}\n{_errors_table('device', rows)}")
        if per_op:
            parts.append(f"{title}, by op\n{_errors_table('op', _rows(trials, lambda t: t.op))}")
    return "\n\n".join(parts)


def _rows(trials: Sequence[HeldOutCell], group: Callable[[HeldOutCell], str]) -> list[list[str]]:
    groups: dict[tuple[str, str], list[HeldOutCell]] = {}
    for trial in trials:
        groups.setdefault((group(trial), trial.method), []).append(trial)
    names = list(dict.fromkeys(name for name, _ in groups))
    rows = []
    for name in names:
        for method in METHODS:
            if (name, method) in groups:
                accuracy_of_group = accuracy(groups[name, method])
                rank = (
                    "-"
                    if accuracy_of_group.spearman is None
                    else f"{accuracy_of_group.spearman:.3f}"
                )
                errors = [
                    f"{100 * e:.1f} %"
                    for e in (accuracy_of_group.median_error, accuracy_of_group.p90_error)
                ]
                rows.append([name, method, str(accuracy_of_group.num_trials), *errors, rank])
    return rows


def _errors_table(first: str, rows: Sequence[Sequence[str]]) -> str:
    headers = [first, "method", "cells", "median error", "90th percentile", "Spearman"]
    return format_table(headers, rows, "<<>>>>")


def _spaced(samples: Sequence[Sample]) -> Sequence[Sample]:
    """At most MAX_TRIALS of them, at equal distances."""
    return samples[:: -(-len(samples) // MAX_TRIALS)] if samples else samples
