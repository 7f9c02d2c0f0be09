"""Measured cells of a cost table -> times of cells that were not measured, by five methods.

Each method answers for one task on one device, or says why it cannot. Which answer is taken is
decided in `prediction/predict.py`; how far each was off on what was measured, in
`cross_validation.py`. The methods: an equal task on the same device; Habitat's wave scaling from
another GPU; a regression per type of op on the same device; the roofline calibrated by measured
kernels; the plain roofline.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, replace

from heteroplace.costs.device_figures import DeviceFigures, figures_of
from heteroplace.costs.prediction.op_regression import (
    MAX_EXTRAPOLATION,
    MIN_SIZES,
    OpRegression,
    fit_op_regression,
)
from heteroplace.costs.prediction.wave_scaling import scale_by_waves
from heteroplace.costs.roofline import Calibration, RatioSums, device_speeds, roofline_ns
from heteroplace.costs.work import ALL_OPS, TaskWork, main_dtype, op_types, task_work
from heteroplace.errors import MissingCostError
from heteroplace.model.cluster import Cluster, Device
from heteroplace.model.cost import CostTable
from heteroplace.model.graph import TaskGraph

EQUAL_TASK, WAVES, REGRESSION, CALIBRATED, PLAIN = METHODS = (
    "equal task",
    "wave scaling",
    "regression",
    "calibrated roofline",
    "roofline",
)
"""In the order in which they are preferred."""
SOURCE_OF = dict(
    zip(METHODS, ("scaled", "scaled", "regressed", "roofline", "roofline"), strict=True)
)
"""What a cell says that a method has filled."""
_TRUE_SOURCES = ("measured", "given")
"""Only these are learned from: predictions made from predictions would hide their errors."""
_MAX_FITTED = 256
"""Different sizes that a regression takes in at most; more change nothing but the time it takes."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One measured cell."""

    task: int
    device: int
    batch: int
    op: str
    work: TaskWork
    ns: int
    """Above 0."""


@dataclass(frozen=True)
class Guess:
    """The time that a method predicts."""

    ns: float
    method: str
    reason: str
    """From what it was made."""


@dataclass(frozen=True)
class Refusal:
    """Why a method does not answer; "": there is nothing that it could start from."""

    reason: str = ""


def samples_of(graph: TaskGraph, cluster: Cluster, table: CostTable) -> list[Sample]:
    """Return the measured and given cells of a table, in the order batch, task, device."""
    is_true = [detail.source in _TRUE_SOURCES for detail in table.details]
    devices = range(len(cluster.devices))
    samples = []
    for batch, times, details in zip(table.batches, table.ns, table.detail_ids, strict=True):
        cell = 0
        for task_id, task in enumerate(graph.tasks):
            work: TaskWork | None = None
            for device in devices:
                if times[cell] > 0 and is_true[details[cell]]:
                    work = work or task_work(graph, task_id, batch)
                    samples.append(Sample(task_id, device, batch, task.op, work, times[cell]))
                cell += 1
    return samples


class Methods:
    """All methods over one set of samples; fits are made on first use and kept. Not thread-safe."""

    def __init__(
        self,
        graph: TaskGraph,
        cluster: Cluster,
        samples: Iterable[Sample],
    ) -> None:
        """Take samples of `graph` on `cluster`."""
        self.graph, self.cluster = graph, cluster
        self._dtype = main_dtype(graph)
        self.speeds = [device_speeds(device, self._dtype) for device in cluster.devices]
        self._gpus = [_gpu_figures(device) for device in cluster.devices]
        groups: dict[Hashable, int] = {}
        self.alike = [
            groups.setdefault(device.predicts_alike, len(groups)) for device in cluster.identities
        ]
        """For each device the number of the group of devices that are like it."""
        self._kind_of = {
            group: device.kind for group, device in zip(self.alike, cluster.devices, strict=True)
        }
        self._shape_ids = _equal_tasks(graph)
        self._measured: dict[tuple[int, int], list[Sample]] = defaultdict(list)
        self._equal: dict[tuple[int, int, int], list[Sample]] = defaultdict(list)
        self._times: dict[tuple[int, str], dict[TaskWork, tuple[int, int]]] = defaultdict(dict)
        """By group and type of op, for each size: sum of the times in ns, how many."""
        self._ratios: dict[tuple[int, str, TaskWork], RatioSums] = {}
        self._works: dict[tuple[int, int], TaskWork] = {}
        self._waves: dict[Hashable, float | str] = {}
        self._regressions: dict[tuple[int, str], OpRegression | None] = {}
        for sample in samples:
            self._take(sample)
        self._calibrations = self._calibrate()

    def _take(self, sample: Sample) -> None:
        group = self.alike[sample.device]
        self._measured[sample.task, sample.batch].append(sample)
        shape_id = self._shape_ids[sample.task]
        if shape_id is not None:
            self._equal[group, sample.batch, shape_id].append(sample)
        for key in op_types(sample.op):
            sizes = self._times[group, key]
            total, count = sizes.get(sample.work, (0, 0))
            sizes[sample.work] = (total + sample.ns, count + 1)
        speeds = self.speeds[sample.device]
        if speeds is not None:
            ratio = roofline_ns(sample.work, speeds) / sample.ns
            before = self._ratios.get((group, sample.op, sample.work), RatioSums())
            sums = before.plus(RatioSums(ratio, ratio * ratio, 1))
            self._ratios[group, sample.op, sample.work] = sums

    def _calibrate(self) -> dict[tuple[int, bool], Calibration]:
        """By (group, True) of its own samples, by (group, False) of others of its kind."""
        calibrations: dict[tuple[int, bool], Calibration] = defaultdict(Calibration)
        for (group, op, _), sums in self._ratios.items():
            for other, kind in self._kind_of.items():
                if kind == self._kind_of[group]:
                    calibrations[other, other == group].add(op, sums)
        return dict(calibrations)

    def has_samples(self, device: int) -> bool:
        """Say whether anything was measured on a device, or on one that is like it."""
        return (self.alike[device], ALL_OPS) in self._times

    def measured_alike(self, task: int, device: int, batch: int = 1) -> Sample | None:
        """Return the measurement of the task on a device that is like `device`."""
        for sample in self._measured.get((task, batch), ()):
            if self.alike[sample.device] == self.alike[device]:
                return sample
        return None

    def guess(
        self, method: str, task: int, device: int, batch: int = 1, left_out: str = ""
    ) -> Guess | Refusal:
        """Return what one of METHODS says about a cell.

        Parameters
        ----------
        left_out
            "device": answer as if nothing had been measured on the device and those like it.
            "kernel": as if no kernel of this op and size had been (for equal tasks: not this one).
        """
        if method == WAVES:
            return self._by_waves(task, device, batch)
        if method == CALIBRATED:
            return self._by_calibrated_roofline(task, device, batch, left_out)
        if method == PLAIN:
            return self._by_roofline(task, device, batch)
        if left_out == "device":
            return Refusal()
        if method == EQUAL_TASK:
            return self._by_equal_task(task, device, batch)
        return self._by_regression(task, device, batch, left_out == "kernel")

    def _work(self, task: int, batch: int) -> TaskWork:
        if (task, batch) not in self._works:
            self._works[task, batch] = task_work(self.graph, task, batch)
        return self._works[task, batch]

    def _by_equal_task(self, task: int, device: int, batch: int) -> Guess | Refusal:
        shape_id = self._shape_ids[task]
        if shape_id is not None:
            for sample in self._equal.get((self.alike[device], batch, shape_id), ()):
                if sample.task != task:
                    name = self.graph.tasks[sample.task].name
                    reason = f"as {name!r}, which has the same op and sizes"
                    return Guess(sample.ns, EQUAL_TASK, reason)
        return Refusal()

    def _by_waves(self, task: int, device: int, batch: int) -> Guess | Refusal:
        """From the GPU whose time has to be changed least; ties: the first."""
        if self._gpus[device] is None:
            return Refusal()
        work = self._work(task, batch)
        best: tuple[float, float, Sample] | None = None
        fault = ""
        for sample in self._measured.get((task, batch), ()):
            if self._gpus[sample.device] is None or self.alike[sample.device] == self.alike[device]:
                continue
            ratio = self._wave_ratio(sample.device, device, work)
            if isinstance(ratio, str):
                fault = ratio
            elif best is None or max(ratio, 1 / ratio) < best[0]:
                best = (max(ratio, 1 / ratio), ratio, sample)
        if best is None:
            return Refusal(fault)
        _, ratio, sample = best
        name = self.cluster.devices[sample.device].name
        return Guess(sample.ns * ratio, WAVES, f"wave scaling from {name}, time x{ratio:.2g}")

    def _wave_ratio(self, src: int, dst: int, work: TaskWork) -> float | str:
        """Time on `dst` over time on `src`, or why that is not known."""
        key = (self.alike[src], self.alike[dst], work)
        if key not in self._waves:
            origin, destination = self._gpus[src], self._gpus[dst]
            assert origin is not None and destination is not None
            try:
                ratio = scale_by_waves(1.0, origin, destination, work, self._dtype)
                self._waves[key] = ratio
            except MissingCostError as err:
                self._waves[key] = str(err)
        return self._waves[key]

    def _by_regression(
        self, task: int, device: int, batch: int, is_left_out: bool
    ) -> Guess | Refusal:
        op, work = self.graph.tasks[task].op, self._work(task, batch)
        refusal = Refusal()
        for key in op_types(op):
            fit = self._regression(self.alike[device], key, work if is_left_out else None)
            if fit is None or key == ALL_OPS:
                continue
            beyond = fit.extrapolation(work)
            if beyond > MAX_EXTRAPOLATION:
                refusal = Refusal(
                    f"no regression: {beyond:.3g} times beyond the measured sizes of {key}, at "
                    f"most {MAX_EXTRAPOLATION:g}"
                )
                continue
            reason = (
                f"fitted to {fit.num_samples} sizes of {key} (R2 {fit.r_squared:.3f}, worst "
                f"{fit.max_error:.0%})"
            )
            ns = fit.line.ns(work)
            # All coefficients of what this task has may be 0; a kernel takes some time.
            return Guess(ns, REGRESSION, reason) if ns > 0 else refusal
        return refusal

    def _regression(self, group: int, key: str, without: TaskWork | None) -> OpRegression | None:
        """The fit for a type of op; None: too few sizes were measured."""
        if without is None and (group, key) in self._regressions:
            return self._regressions[group, key]
        sizes = self._times.get((group, key), {})
        ordered = sorted(work for work in sizes if work != without)
        fit = None
        if key != ALL_OPS and len(ordered) >= MIN_SIZES:
            step = -(-len(ordered) // _MAX_FITTED)
            kept_rows = dict.fromkeys((*ordered[::step], ordered[-1]))
            fit = fit_op_regression([(work, sizes[work][0] / sizes[work][1]) for work in kept_rows])
        if without is None:
            self._regressions[group, key] = fit
        return fit

    def _by_calibrated_roofline(
        self, task: int, device: int, batch: int, left_out: str
    ) -> Guess | Refusal:
        """By factors of the device itself; without any, by those of all devices of its kind."""
        speeds = self.speeds[device]
        if speeds is None:
            return Refusal()
        group, op, work = self.alike[device], self.graph.tasks[task].op, self._work(task, batch)
        factor, where = None, "this device"
        if left_out != "device" and (group, True) in self._calibrations:
            own = self._ratios.get((group, op, work)) if left_out else None
            factor = self._calibrations[group, True].factor(op, own or RatioSums())
        if factor is None and left_out != "kernel" and (group, False) in self._calibrations:
            factor = self._calibrations[group, False].factor(op)
            where = f"devices of kind {self._kind_of[group]}"
        if factor is None:
            return Refusal()
        ops = factor.basis or "all ops"
        reason = (
            f"roofline x{factor.value:.3g}, by {factor.num_samples} kernels of {ops} on {where}"
        )
        return Guess(roofline_ns(work, speeds) * factor.value, CALIBRATED, reason)

    def _by_roofline(self, task: int, device: int, batch: int) -> Guess | Refusal:
        speeds = self.speeds[device]
        if speeds is None:
            name = self.cluster.devices[device].name
            return Refusal(f"neither peak speeds nor a known model are given for {name}")
        ns = roofline_ns(self._work(task, batch), speeds)
        return Guess(ns, PLAIN, "peak speeds, not calibrated")


def _equal_tasks(graph: TaskGraph) -> list[int | None]:
    """A number for each task, the same for tasks of the same op and sizes at every capacity.

    None: the graph gives no shapes of its tensors, so nothing tells equal tasks.
    """
    numbers: dict[Hashable, int] = {}
    equal: list[int | None] = []
    for task_id, task in enumerate(graph.tasks):
        sides = [
            tuple((graph.tensors[each].shape, graph.tensors[each].dtype) for each in side)
            for side in (graph.task_inputs[task_id], graph.task_outputs[task_id])
        ]
        if any(shape for side in sides for shape, _ in side):
            rows = [
                (graph.routers[router].num_cells, graph.routers[router].capacities[branch])
                for router, branch in graph.branches[task_id][:1]
            ]
            own = (task.op, task.flops, task.weight_bytes, task.workspace_bytes)
            signature = (*own, *sides, *rows)
            equal.append(numbers.setdefault(signature, len(numbers)))
        else:
            equal.append(None)
    return equal


def _gpu_figures(device: Device) -> DeviceFigures | None:
    """The figures of a known GPU, with the bandwidth that the cluster gives for it."""
    figures = figures_of(device)
    if figures is None or figures.kind != "cuda":
        return None
    bandwidth = device.memory_bytes_per_second or figures.memory_bytes_per_second
    return replace(figures, memory_bytes_per_second=bandwidth)
