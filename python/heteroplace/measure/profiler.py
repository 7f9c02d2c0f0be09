"""Measure what is wanted and not known yet; every measurement is kept as soon as it is made."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import tvm

from heteroplace.codegen.compile import CompiledRows, compile_network
from heteroplace.codegen.kernels import Rows
from heteroplace.codegen.library import KernelLibrary, compile_kernels
from heteroplace.codegen.targets import placed_targets
from heteroplace.costs.measurement import Conditions, KernelKey, Measurement
from heteroplace.costs.sampling import Summary
from heteroplace.measure.background_compiler import Compile, CompileAhead
from heteroplace.measure.conditions import Watch
from heteroplace.measure.in_place import MIN_RUNS, SiteTimes, site_times
from heteroplace.measure.isolated import sample_alone
from heteroplace.measure.kernel_calls import only_rows
from heteroplace.measure.kernel_identity import KernelFacts
from heteroplace.measure.options import ProfileOptions, Step
from heteroplace.measure.plan_program import PlanProgram, serial_program
from heteroplace.measure.requests import Wanted
from heteroplace.measure.rounds import Rounds, sample_in_turns
from heteroplace.model.cluster import Cluster
from heteroplace.model.graph import TaskGraph

CHUNK = 24
"""Kernels that are compiled in one go, at least 24 of them, while earlier ones are measured."""


@dataclass(frozen=True)
class Job:
    """Measurements that need one library, on one device."""

    wanted: Wanted
    keys: Mapping[KernelKey, int]
    """What to measure, with a row of each."""
    library: int
    """Position of its library."""


@dataclass
class Profiler:
    """One profiling of one network; the steps are in `run`."""

    mod: tvm.IRModule
    graph: TaskGraph
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

    def run(self, wanted: Sequence[Wanted], known: Mapping[KernelKey, Measurement]) -> None:
        """Measure all that is wanted and not in `known`.

        Networks in place come first, in turns where nothing is stored: with a store, each is
        finished and kept before the next one begins, so that a run that is killed loses one.

        Raises
        ------
        LoweringError, ExecutionError, InfeasibleError, CostStoreError
            A kernel cannot be compiled, fails, needs more memory than there is, or cannot be kept.
        """
        jobs, compiles = self._plan(wanted, known)
        groups = self._grouped(jobs)
        self._total += sum(1 if job.wanted.is_in_place else len(job.keys) for job in jobs)
        self._begin = time.perf_counter()
        with CompileAhead(compiles) as ahead:
            for position, group in enumerate(groups):
                begin = time.perf_counter()
                libraries = [ahead.library(job.library) for job in group]
                self.compile_s += time.perf_counter() - begin
                with self.measuring(), ahead.beside(group[-1].library, self._cores(group)):
                    if group[0].wanted.is_in_place:
                        self._measure_in_place(group, libraries)
                    else:
                        self._measure_alone(group[0], libraries[0])
                later = {job.library for others in groups[position + 1 :] for job in others}
                ahead.keep_only(later)

    def _grouped(self, jobs: Sequence[Job]) -> list[list[Job]]:
        """Jobs that are done together: without a store all networks in place, else each alone."""
        if self.options.store is not None:
            return [[job] for job in jobs]
        together = [job for job in jobs if job.wanted.is_in_place]
        others = [[job] for job in jobs if not job.wanted.is_in_place]
        return [together, *others] if together else others

    def _cores(self, group: Sequence[Job]) -> set[int]:
        """Cores on or beside which nothing else may run while a group is measured."""
        if group[0].wanted.is_in_place:
            # A compiler on another core takes caches and memory bandwidth from a whole network,
            # and what is measured in place is to be exact.
            return os.sched_getaffinity(0)
        devices = [self.cluster.devices[job.wanted.subject.device] for job in group]
        return {core for device in devices for core in device.cores}

    def _plan(
        self, wanted: Sequence[Wanted], known: Mapping[KernelKey, Measurement]
    ) -> tuple[list[Job], list[Compile]]:
        """The jobs in order, and what makes their libraries."""
        jobs: list[Job] = []
        compiles: list[Compile] = []
        alone: dict[int, list[Wanted]] = {}
        libraries: dict[int, int] = {}
        for each in wanted:
            if not each.missing(known):
                continue
            if not each.is_in_place:
                alone.setdefault(id(each.rows), []).append(each)
                continue
            if id(each.rows) not in libraries:
                libraries[id(each.rows)] = len(compiles)
                compiles.append(self._whole(each))
            jobs.append(Job(each, each.missing(known), libraries[id(each.rows)]))
        for group in alone.values():
            rows = group[0].rows
            missing = [each.missing(known) for each in group]
            used = {rows.rows[row].kernel for keys in missing for row in keys.values()}
            symbols = [symbol for symbol in rows.kernels if symbol in used]
            num_chunks = max(1, len(symbols) // CHUNK)
            for chunk in range(num_chunks):
                part = symbols[chunk::num_chunks]
                compiles.append(_some(rows, part))
                for each, keys in zip(group, missing, strict=True):
                    own = {k: row for k, row in keys.items() if rows.rows[row].kernel in part}
                    if own:
                        jobs.append(Job(each, own, len(compiles) - 1))
        return jobs, compiles

    def _whole(self, wanted: Wanted) -> Compile:
        targets, target_of_task = placed_targets(self.graph, self.cluster, wanted.subject.placement)
        return lambda: compile_network(self.mod, targets, target_of_task, wanted.rows).library

    def _load(self, rows: Rows, library: KernelLibrary, job: Job) -> PlanProgram:
        placement = job.wanted.subject.placement
        return serial_program(CompiledRows(rows, library), self.graph, self.cluster, placement)

    def _rounds(self, job: Job, library: KernelLibrary) -> Rounds:
        options = self.options
        program = self._load(job.wanted.rows, library, job)
        round_ns = self.limit_ns(options.round_ns * options.num_rounds) // options.num_rounds
        return Rounds(program, round_ns, MIN_RUNS)

    def _measure_in_place(self, group: Sequence[Job], libraries: Sequence[KernelLibrary]) -> None:
        names = ", ".join(self._device_name(job.wanted) for job in group)
        self.tell(f"the whole network on {names}")
        watch = Watch.start()
        several = [self._rounds(*pair) for pair in zip(group, libraries, strict=True)]
        sample_in_turns(several, self.options.num_rounds)
        for job, rounds in zip(group, several, strict=True):
            times = site_times(rounds, job.wanted.rows, self.graph)
            conditions = watch.conditions(rounds.program.executor.core_to_core_ns())
            rows = job.wanted.rows.rows
            found = {
                key: make_measurement(job.wanted.facts[rows[row].kernel], times[row], conditions)
                for (row, _), key in job.wanted.keys.items()
            }
            self.keep(found)

    def _measure_alone(self, job: Job, library: KernelLibrary) -> None:
        wanted = job.wanted
        name = self._device_name(wanted)
        symbol, executor = "", None
        for key, row_id in sorted(job.keys.items(), key=lambda item: item[1]):
            row = wanted.rows.rows[row_id]
            facts = wanted.facts[row.kernel]
            self.tell(f"{facts.op} ({key.mode}) on {name}")
            if executor is None or symbol != row.kernel:
                program = self._load(only_rows(wanted.rows, [row]), library, job)
                symbol, executor = row.kernel, program.executor
            watch = Watch.start()
            limit_ns = self.limit_ns(self.options.sampling.max_ns)
            sampling = replace(self.options.sampling, max_ns=limit_ns)
            summary = sample_alone(executor, key.mode, sampling)
            conditions = watch.conditions(executor.core_to_core_ns())
            self.num_dropped += summary.num_dropped
            self.keep({key: make_measurement(facts, summary, conditions)})

    def keep(self, found: Mapping[KernelKey, Measurement]) -> None:
        """Take the result of one measurement, and store it at once."""
        if self.options.store is not None:
            self.options.store.add_many(found.items())
        self.measured.update(found)
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

    def tell(self, name: str) -> None:
        """Say what is measured next; "" at the end."""
        if self.options.on_step is None:
            return
        remaining = None
        if self._done > 0:
            spent_s = time.perf_counter() - self._begin
            remaining = spent_s / self._done * (self._total - self._done)
        self.options.on_step(Step(name, self._done, self._total, remaining))

    def _device_name(self, wanted: Wanted) -> str:
        return self.cluster.devices[wanted.subject.device].name


def _some(rows: Rows, symbols: Sequence[str]) -> Compile:
    return lambda: compile_kernels([rows.kernels[symbol] for symbol in symbols])


def make_measurement(
    facts: KernelFacts, times: Summary | SiteTimes, conditions: Conditions
) -> Measurement:
    """Return what the store keeps of a measured kernel."""
    return Measurement(
        times.wall_ns,
        times.spread_ns,
        times.cpu_ns,
        times.num_samples,
        facts.op,
        facts.shapes,
        facts.flops,
        facts.bytes,
        conditions,
    )
