"""Measure what is requested and not known yet; every measurement is kept as soon as it is made."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from heteroplace.costs.measurement import Conditions, Measurement
from heteroplace.costs.sampling import Summary
from heteroplace.files.measurements import KernelKey
from heteroplace.lower.compile import CompiledKernels, CompiledNetwork, TaskTargets
from heteroplace.lower.kernels import KernelCalls
from heteroplace.lower.library import KernelLibrary, compile_kernels
from heteroplace.machine.cpu import with_siblings
from heteroplace.machine.usage import QUIET_CORES
from heteroplace.measure.background_compiler import BackgroundCompiler, Compile
from heteroplace.measure.conditions import Watch
from heteroplace.measure.isolated import sample_alone
from heteroplace.measure.kernels.in_place_times import SiteTimes, site_times
from heteroplace.measure.kernels.kernel_calls import only_calls
from heteroplace.measure.kernels.kernel_identity import KernelDescription
from heteroplace.measure.measure_options import ProfileOptions
from heteroplace.measure.plan_program import PlanProgram, serial_program
from heteroplace.measure.requests import MeasurementRequest
from heteroplace.measure.rounds import MOST_ROUNDS, Rounds, sample_until_settled
from heteroplace.model.cluster import Cluster
from heteroplace.model.graph import TaskGraph
from heteroplace.stage_log import StageLog

CHUNK = 24
"""Kernels that are compiled in one go, at least 24 of them, while earlier ones are measured."""


@dataclass(frozen=True)
class Job:
    """Measurements that need one library, on one device."""

    request: MeasurementRequest
    keys: Mapping[KernelKey, int]
    """What to measure, with a call of each."""
    library: int
    """Position of its library."""


@dataclass
class Profiler:
    """One profiling of one network; the steps are in `run`."""

    compiled: CompiledNetwork
    cluster: Cluster
    options: ProfileOptions
    measured: dict[KernelKey, Measurement] = field(default_factory=dict)
    """What was measured in this run."""
    num_dropped: int = 0
    """Samples that other programs disturbed."""
    compile_s: float = 0.0
    """Wall time for which measuring waited for the compiler."""
    measure_s: float = 0.0
    """Wall time of the measuring."""
    _done: int = 0
    _total: int = 0
    _begin: float = 0.0
    _measuring_since: float | None = None

    @property
    def graph(self) -> TaskGraph:
        """The tasks that are measured."""
        return self.compiled.graph

    def run(
        self, requests: Sequence[MeasurementRequest], stored: Mapping[KernelKey, Measurement]
    ) -> None:
        """Measure all that is requested and not in `known`.

        Networks in place come first; see `ProfileOptions.finishes_each`.

        Raises
        ------
        LoweringError, ExecutionError, InfeasibleError, CostStoreError
            A kernel cannot be compiled, fails, needs more memory than there is, or cannot be kept.
        """
        jobs, compiles = self._plan(requests, stored)
        groups = self._grouped(jobs)
        self._total += sum(1 if job.request.is_in_place else len(job.keys) for job in jobs)
        self._begin = time.perf_counter()
        with BackgroundCompiler(compiles) as compiler:
            for position, group in enumerate(groups):
                begin = time.perf_counter()
                if position == 0 or group[0].request.is_in_place:
                    self._log.say("Compiling kernels")
                libraries = [compiler.library(job.library) for job in group]
                self.compile_s += time.perf_counter() - begin
                with self.measuring(), compiler.beside(group[-1].library, self._cores(group)):
                    if group[0].request.is_in_place:
                        self._measure_in_place(group, libraries)
                    else:
                        self._measure_alone(group[0], libraries[0])
                later = {job.library for others in groups[position + 1 :] for job in others}
                compiler.keep_only(later)

    def _grouped(self, jobs: Sequence[Job]) -> list[list[Job]]:
        """Jobs that are done together: all networks in place, unless each is to be finished."""
        if self.options.finishes_each:
            return [[job] for job in jobs]
        together = [job for job in jobs if job.request.is_in_place]
        others = [[job] for job in jobs if not job.request.is_in_place]
        return [together, *others] if together else others

    def _cores(self, group: Sequence[Job]) -> set[int]:
        """Cores on or beside which nothing else may run while a group is measured."""
        if group[0].request.is_in_place:
            # A compiler on another core takes caches and memory bandwidth from a whole network,
            # and what is measured in place is to be exact.
            return os.sched_getaffinity(0)
        devices = [self.cluster.devices[job.request.under_test.device] for job in group]
        return with_siblings(core for device in devices for core in device.cores)

    def _plan(
        self, requests: Sequence[MeasurementRequest], stored: Mapping[KernelKey, Measurement]
    ) -> tuple[list[Job], list[Compile]]:
        """The jobs in order, and what makes their libraries."""
        jobs: list[Job] = []
        compiles: list[Compile] = []
        isolated: dict[TaskTargets, list[MeasurementRequest]] = {}
        libraries: dict[TaskTargets, int] = {}
        for each in requests:
            if not each.missing(stored):
                continue
            if not each.is_in_place:
                isolated.setdefault(each.targets, []).append(each)
                continue
            if each.targets not in libraries:
                libraries[each.targets] = len(compiles)
                compiles.append(self._whole(each))
            jobs.append(Job(each, each.missing(stored), libraries[each.targets]))
        for group in isolated.values():
            calls = group[0].calls
            missing = [each.missing(stored) for each in group]
            used = {calls.calls[call].kernel for keys in missing for call in keys.values()}
            symbols = [symbol for symbol in calls.kernels if symbol in used]
            num_chunks = max(1, len(symbols) // CHUNK)
            for chunk in range(num_chunks):
                part = symbols[chunk::num_chunks]
                compiles.append(_some(calls, part))
                for each, keys in zip(group, missing, strict=True):
                    own = {k: call for k, call in keys.items() if calls.calls[call].kernel in part}
                    if own:
                        jobs.append(Job(each, own, len(compiles) - 1))
        return jobs, compiles

    def _whole(self, request: MeasurementRequest) -> Compile:
        placement, count = request.under_test.placement, self._log.count
        return lambda: self.compiled.kernels(self.cluster, placement, count).library

    def _load(self, calls: KernelCalls, library: KernelLibrary, job: Job) -> PlanProgram:
        placement = job.request.under_test.placement
        return serial_program(CompiledKernels(calls, library), self.graph, self.cluster, placement)

    def _rounds(self, job: Job, library: KernelLibrary) -> Rounds:
        options = self.options
        program = self._load(job.request.calls, library, job)
        round_ns = self.limit_ns(options.round_ns * options.least_rounds) // options.least_rounds
        return Rounds(program, round_ns)

    def _measure_in_place(self, group: Sequence[Job], libraries: Sequence[KernelLibrary]) -> None:
        names = ", ".join(self._device_name(job.request) for job in group)
        self._log.say(f"Measuring on {names}")
        watch = Watch.start()
        several = [self._rounds(*pair) for pair in zip(group, libraries, strict=True)]
        least = self.options.least_rounds
        most = MOST_ROUNDS if self.options.budget_s is None else least
        others_cores = sample_until_settled(several, least, most, self._log.count)
        if others_cores > QUIET_CORES:
            self._log.detail(
                f"other programs never rested while {names} were measured, and used "
                f"{others_cores:.1f} cores: the fastest runs count"
            )
        for job, rounds in zip(group, several, strict=True):
            times = site_times(rounds, job.request.calls, self.graph)
            hop_ns = rounds.program.executor.core_to_core_ns()
            conditions = replace(watch.conditions(hop_ns), others_cores=round(others_cores, 3))
            calls = job.request.calls.calls
            measurements = {
                key: make_measurement(
                    job.request.kernels[calls[call].kernel], times[call], conditions
                )
                for (call, _), key in job.request.keys.items()
            }
            self.keep(measurements)

    def _measure_alone(self, job: Job, library: KernelLibrary) -> None:
        request = job.request
        self._log.say(f"Measuring kernels on {self._device_name(request)}")
        kernel_and_data, executor = "", None
        for key, call_id in sorted(job.keys.items(), key=lambda item: item[1]):
            call = request.calls.calls[call_id]
            kernel = request.kernels[call.kernel]
            self.count()
            # Calls of one kernel that read other examples are measured each with its own.
            if executor is None or kernel_and_data != key.kernel:
                program = self._load(only_calls(request.calls, [call]), library, job)
                kernel_and_data, executor = key.kernel, program.executor
            watch = Watch.start()
            limit_ns = self.limit_ns(self.options.sampling.max_ns)
            sampling = replace(self.options.sampling, max_ns=limit_ns)
            summary = sample_alone(executor, key.mode, sampling)
            conditions = watch.conditions(executor.core_to_core_ns())
            self.num_dropped += summary.num_dropped
            self.keep({key: make_measurement(kernel, summary, conditions)})

    def keep(self, measurements: Mapping[KernelKey, Measurement]) -> None:
        """Take the result of one measurement, and store it at once."""
        if self.options.store is not None:
            self.options.store.add_many(measurements.items())
        self.measured.update(measurements)
        self._done += 1

    @contextmanager
    def measuring(self) -> Iterator[None]:
        """Count the time of the block as that of measuring."""
        self._measuring_since = time.perf_counter()
        try:
            yield
        finally:
            self.measure_s = self._measured_s()
            self._measuring_since = None

    def count(self) -> None:
        """Report how many measurements are made, of how many."""
        self._log.count(self._done, self._total)

    @property
    def _log(self) -> StageLog:
        return StageLog.of(self.options.progress)

    def expect(self, num_measurements: int) -> None:
        """Count on more measurements than those of `run`, made elsewhere and told to `keep`."""
        self._total += num_measurements

    def limit_ns(self, usual_ns: int) -> int:
        """Time for one of the measurements that are left, within the budget."""
        if self.options.budget_s is None:
            return usual_ns
        left_s = max(0.0, self.options.budget_s - self._measured_s())
        share_ns = round(left_s * 1e9) // max(1, self._total - self._done)
        return max(1, min(usual_ns, share_ns))

    def _measured_s(self) -> float:
        """`measure_s` with the time of the job in progress."""
        if self._measuring_since is None:
            return self.measure_s
        return self.measure_s + time.perf_counter() - self._measuring_since

    def _device_name(self, request: MeasurementRequest) -> str:
        return self.cluster.devices[request.under_test.device].name


def _some(calls: KernelCalls, symbols: Sequence[str]) -> Compile:
    return lambda: compile_kernels([calls.kernels[symbol] for symbol in symbols])


def make_measurement(
    kernel: KernelDescription, times: Summary | SiteTimes, conditions: Conditions
) -> Measurement:
    """Return what the store keeps of a measured kernel."""
    return Measurement(
        times.wall_ns,
        times.spread_ns,
        times.cpu_ns,
        times.num_samples,
        kernel.op,
        kernel.shapes,
        kernel.flops,
        kernel.bytes,
        conditions,
    )
