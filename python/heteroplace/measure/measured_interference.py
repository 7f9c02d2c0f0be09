"""Measure how the tasks of a network disturb each other on the devices of this machine.

The network runs on one device with a clock around every kernel, in turns alone and while every
other device of the same memory runs it too, or the links of that memory copy. The ratio of the
times is what a task loses beside others; the times of the single runs show how much they scatter.
Both change with the machine's state, as costs do, and are kept with them. The machine's pace
is taken from what is measured now alone: costs in a store may be newer than its interference.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from heteroplace.costs.interference_records import (
    InterferenceKey,
    InterferenceRecord,
    thinned,
)
from heteroplace.costs.store import CostStore
from heteroplace.files.measurements import date_text
from heteroplace.lower.compile import CompiledNetwork
from heteroplace.machine.fingerprint import device_fingerprint
from heteroplace.machine.usage import QUIET_CORES, Usage
from heteroplace.measure.company import Company
from heteroplace.measure.devices_under_test import (
    DeviceClass,
    DeviceUnderTest,
    device_class,
    devices_beside,
    find_devices_under_test,
    turn_partner,
)
from heteroplace.measure.kernels.kernel_identity import describe_kernels, network_digest, place_text
from heteroplace.measure.plan_program import PlanProgram, load_programs, serial_plan
from heteroplace.measure.rounds import fastest_runs
from heteroplace.measure.transfers.link_programs import contention, load_program
from heteroplace.model.cluster import Cluster
from heteroplace.model.graph import TaskGraph
from heteroplace.native.execute import Executor as NativeExecutor
from heteroplace.run.missing_devices import missing_devices
from heteroplace.simulate.disturbed import fetched_bytes
from heteroplace.simulate.interference import FloatArray, Interference, no_interference
from heteroplace.stage_log import Count, StageLog
from heteroplace.stats import line_fit

_NUM_ROUNDS = 7
_ROUND_NS = 100_000_000
_MAX_RUNS = 60
_COPY_BYTES, _NUM_COPIES = 1 << 20, 16
_MIN_ROUNDS = 3
"""So many rounds count, the least disturbed ones, if fewer were quiet."""
_MIN_LONG_ROUNDS = 2
"""So many are enough if they agree, and each of them is one run."""
_SETTLED_RATIO = 1.02
"""Quiet rounds that differ by less are enough."""
_PATIENCE_S = 2.0
"""After which no round beyond `_MIN_ROUNDS` begins: long runs average over others by themselves."""
_LEAST, _MOST = 0.5, 20.0
"""A ratio outside is not interference: the machine was doing something else."""


def measure_interference(
    compiled: CompiledNetwork,
    cluster: Cluster,
    progress: Callable[[str], None] | None = None,
    store: CostStore | None = None,
) -> Interference:
    """Measure slowdown, scatter and the core-to-core latency for a network.

    Parameters
    ----------
    compiled
        Its kernels that costs were measured with are used again.
    progress
        Called with a line for each device that is measured.
    store
        Has what need not be measured again, and takes what is measured.

    Raises
    ------
    CostStoreError
        What the store holds is damaged, or nothing can be kept.
    MissingCostError
        A device that some task may run on is not in this machine.
    InfeasibleError
        The network does not fit on a device that is measured.
    """
    measured: dict[DeviceClass, _Found] = {}
    is_of_now = True
    for under_test in find_devices_under_test(compiled.graph, cluster):
        cache = None if store is None else _Kept(compiled, cluster, under_test, store)
        one = None if cache is None else cache.find()
        is_of_now &= one is None
        if one is None:
            if progress is not None:
                progress(f"Measuring what slows {cluster.devices[under_test.device].name}")
            placement = list(under_test.placement)
            measuring = _Measuring(compiled, cluster, under_test.device, placement)
            one = measuring.measure(StageLog.of(progress).count)
            if cache is not None:
                cache.add(one)
        measured[device_class(cluster, under_test.device)] = one
    joined = _joined(compiled.graph, cluster, measured)
    return joined if is_of_now else joined.at_pace_of_costs(compiled.graph)


def find_interference(
    compiled: CompiledNetwork, cluster: Cluster, store: CostStore | None
) -> Interference | None:
    """Return what the store holds of what `measure_interference` measures; None: not all of it.

    Raises
    ------
    CostStoreError
        What the store holds is damaged.
    """
    names = [device.name for device in cluster.devices]
    if store is None or missing_devices(cluster, names):
        return None
    measured: dict[DeviceClass, _Found] = {}
    for under_test in find_devices_under_test(compiled.graph, cluster):
        one = _Kept(compiled, cluster, under_test, store).find()
        if one is None:
            return None
        measured[device_class(cluster, under_test.device)] = one
    return _joined(compiled.graph, cluster, measured).at_pace_of_costs(compiled.graph)


def _joined(
    graph: TaskGraph, cluster: Cluster, measured: Mapping[DeviceClass, _Found]
) -> Interference:
    """What was found on one device of each class, for all devices."""
    quiet = no_interference(graph, cluster)
    # A device that no task may run on is not measured, and disturbs nobody.
    of_device = [
        measured.get(device_class(cluster, index)) for index in range(len(cluster.devices))
    ]
    alone_ns = quiet.alone_ns.copy()
    slowdown, copy_slowdown = quiet.slowdown.copy(), quiet.copy_slowdown.copy()
    for index, at in enumerate(of_device):
        if at is not None:
            alone_ns[:, index] = at.alone_ns
            slowdown[:, index] = at.slowdown
            copy_slowdown[:, index] = at.copy_slowdown
    return replace(
        quiet,
        alone_ns=alone_ns,
        slowdown=slowdown,
        copy_slowdown=copy_slowdown,
        scatter=tuple(
            quiet.scatter[index] if at is None else at.scatter for index, at in enumerate(of_device)
        ),
        core_to_core_ns=max(at.core_to_core_ns for at in measured.values()),
        fetch_ns_per_byte=max(at.fetch_ns_per_byte for at in measured.values()),
    )


@dataclass(frozen=True)
class _Found:
    """What was measured on one device."""

    alone_ns: FloatArray
    """[num_tasks]; 0 for tasks that ran elsewhere."""
    slowdown: FloatArray
    """[num_tasks]"""
    copy_slowdown: FloatArray
    """[num_tasks]"""
    scatter: FloatArray
    """[num_runs, num_tasks]"""
    fetch_ns_per_byte: float
    core_to_core_ns: int

    @classmethod
    def of(cls, record: InterferenceRecord) -> _Found:
        """Return what a record of the store says."""
        return cls(
            np.array(record.alone_ns),
            np.array(record.slowdown),
            np.array(record.copy_slowdown),
            np.array(record.scatter),
            record.fetch_ns_per_byte,
            record.core_to_core_ns,
        )

    def record(self) -> InterferenceRecord:
        """Return what the store keeps of it."""
        return InterferenceRecord(
            alone_ns=self.alone_ns.tolist(),
            slowdown=self.slowdown.tolist(),
            copy_slowdown=self.copy_slowdown.tolist(),
            scatter=thinned(self.scatter.tolist()),
            fetch_ns_per_byte=self.fetch_ns_per_byte,
            core_to_core_ns=self.core_to_core_ns,
        )


class _Kept:
    """What the store holds for one device."""

    def __init__(
        self,
        compiled: CompiledNetwork,
        cluster: Cluster,
        under_test: DeviceUnderTest,
        store: CostStore,
    ) -> None:
        self._store = store
        self._num_tasks = len(compiled.graph.tasks)
        self._key = _key(compiled, cluster, under_test)

    def find(self) -> _Found | None:
        record = self._store.find_interference(self._key, self._num_tasks)
        return None if record is None else _Found.of(record)

    def add(self, other: _Found) -> None:
        self._store.add_interference(self._key, other.record(), date_text(time.time()))


def _key(
    compiled: CompiledNetwork, cluster: Cluster, under_test: DeviceUnderTest
) -> InterferenceKey:
    """What is measured: the network where it runs, and what runs beside it."""
    index, placement = under_test.device, under_test.placement
    device, calls = cluster.devices[index], compiled.calls(cluster, placement)
    task_id = {task.name: position for position, task in enumerate(compiled.graph.tasks)}
    tasks = [task_id[call.task] for call in calls.calls]
    beside = [cluster.devices[other] for other in devices_beside(cluster, index, placement)]
    partner = turn_partner(cluster, index, placement)
    ends = {
        (link.src == device.memory, link.dst == device.memory, cluster.devices[at].kind)
        for link in cluster.links
        for at in range(len(cluster.devices))
        if cluster.devices[at].memory in (link.src, link.dst)
    }
    seen = (
        f"interference of tasks {tasks} beside "
        f"{[(other.kind, other.target, len(other.cores)) for other in beside]} and {sorted(ends)}"
    )
    if partner is not None:
        is_alike = device_class(cluster, partner) == device_class(cluster, index)
        seen += f" in turns with {'one like it' if is_alike else 'another'}"
    places = [place_text(cluster.devices[placement[task]]) for task in tasks]
    digest = network_digest(calls, describe_kernels(calls), places, seen)
    threads = max(1, len(device.cores))
    return InterferenceKey(digest, device.target, device_fingerprint(device), threads)


class _Measuring:
    """The network on one device, and what runs beside it in turns."""

    def __init__(
        self,
        compiled: CompiledNetwork,
        cluster: Cluster,
        device: int,
        placement: list[int],
    ) -> None:
        graph, kernels = compiled.graph, compiled.kernels(cluster, placement)
        others = devices_beside(cluster, device, placement)
        plans = [serial_plan(graph, cluster, placement)]
        for other in others:
            moved = [other if at == device else at for at in placement]
            plans.append(serial_plan(graph, cluster, moved))
        partner = turn_partner(cluster, device, placement)
        if partner is not None:
            turns = [
                partner if at == device and task % 2 else at for task, at in enumerate(placement)
            ]
            plans.append(serial_plan(graph, cluster, turns))
        programs = load_programs(kernels, graph, cluster, plans)
        self._own = programs[0]
        self._is_own = np.array([at == device for at in placement])
        self._others = [program.executor for program in programs[1 : 1 + len(others)]]
        self._copies = _all_copies(cluster, cluster.devices[device].memory)
        self._in_turns = None if partner is None else programs[-1]
        # On a device of another size a task takes longer, or less, whatever it fetches.
        is_alike = partner is None or device_class(cluster, partner) == device_class(
            cluster, device
        )
        self._fetched = fetched_bytes(graph, cluster, programs[-1].plan) * is_alike
        self._is_routed = bool(graph.routers)
        self._num_runs = self._own.count_runs(_ROUND_NS, 1, _MAX_RUNS)

    def measure(self, on_round: Count) -> _Found:
        """Measure alone, beside others, beside copies, and hand in hand with another device."""
        rounds: list[tuple[float, _Found]] = []
        begin = time.perf_counter()
        num_enough = _MIN_LONG_ROUNDS if self._num_runs == 1 else _MIN_ROUNDS
        for done in range(_NUM_ROUNDS):
            if done >= _MIN_ROUNDS and time.perf_counter() - begin > _PATIENCE_S:
                break
            on_round(done, _NUM_ROUNDS)
            before = Usage.now()
            round_ = self._round()
            rounds.append((Usage.now().others_since(before), round_))
            quiet = [each for others, each in rounds if others <= QUIET_CORES]
            if len(quiet) >= num_enough and _agree(quiet):
                break
        rounds.sort(key=lambda entry: entry[0])
        counted = [each for _, each in rounds[: max(len(quiet), _MIN_ROUNDS)]]
        return _Found(
            np.median([each.alone_ns for each in counted], axis=0) * self._is_own,
            _median_ratio([each.slowdown for each in counted]),
            _median_ratio([each.copy_slowdown for each in counted]),
            _joined_scatter(counted),
            max(0.0, float(np.median([each.fetch_ns_per_byte for each in counted]))),
            int(np.median([each.core_to_core_ns for each in counted])),
        )

    def _round(self) -> _Found:
        self._begin = Usage.now()
        alone = self._runs_of(self._own)
        middle = np.maximum(np.median(alone, axis=0), 1.0)
        quiet = np.ones(len(middle))
        fetch, core_to_core_ns = 0.0, 0
        if self._in_turns is not None:
            turns = np.median(self._runs_of(self._in_turns), axis=0)
            fetch = fetch_ns_per_byte(self._fetched, turns - middle)
            core_to_core_ns = self._in_turns.executor.core_to_core_ns() or 0
        return _Found(
            middle,
            self._beside(self._others, middle) / middle if self._others else quiet,
            self._beside(self._copies, middle) / middle if self._copies else quiet,
            alone / middle,
            fetch,
            core_to_core_ns,
        )

    def _runs_of(self, program: PlanProgram) -> FloatArray:
        """Return times of tasks in runs: the fastest ones, if others use cores in this round."""
        runs: FloatArray = program.task_runs(self._num_runs)
        others_cores = Usage.now().others_since(self._begin)
        return runs if others_cores <= QUIET_CORES else fastest_runs(runs)

    def _beside(self, company: list[NativeExecutor], alone_ns: FloatArray) -> FloatArray:
        """Median time of each task while `company` runs.

        Of a routed network half a run ahead: in step with it, both would read the weights of one
        branch, and one of them find them in a shared cache.
        """
        with Company(company):
            ahead_ns = float(alone_ns.sum()) / 2 if self._is_routed else 0.0
            until_ns = time.perf_counter_ns() + ahead_ns
            while time.perf_counter_ns() < until_ns:
                pass  # A core that slept would be slow for the next runs.
            beside = self._runs_of(self._own)
        times: FloatArray = np.maximum(np.median(beside, axis=0), 1.0)
        return times


def _agree(rounds: list[_Found]) -> bool:
    """Whether rounds say the same of how long the network takes beside others."""
    beside_ns = [float((each.alone_ns * each.slowdown).sum()) for each in rounds]
    return max(beside_ns) <= _SETTLED_RATIO * min(beside_ns)


def _joined_scatter(rounds: list[_Found]) -> FloatArray:
    """The scatter of all runs of some rounds, [num_runs, num_tasks].

    That of a round is around its own median. One run alone has none, so the runs of such rounds are
    taken together.
    """
    scatter = np.concatenate([each.scatter for each in rounds])
    if len(scatter) > len(rounds):
        return scatter
    times = np.array([each.alone_ns for each in rounds])
    joined: FloatArray = times / np.median(times, axis=0)
    return joined


def _median_ratio(rounds: list[FloatArray]) -> FloatArray:
    return np.clip(np.median(rounds, axis=0), _LEAST, _MOST)


def _all_copies(cluster: Cluster, memory: int) -> list[NativeExecutor]:
    """A program that copies over all links of a memory at once; empty: it has no links."""
    ends = [(link.src, link.dst) for link in cluster.links if memory in (link.src, link.dst)]
    if not ends:
        return []
    links = list(dict.fromkeys(ends))
    counts, group = [[_NUM_COPIES] * len(links)], [tuple(range(len(links)))]
    return [load_program(contention(cluster, links, counts, group, _COPY_BYTES)[0])]


def fetch_ns_per_byte(fetched_bytes: FloatArray, longer_ns: FloatArray) -> float:
    """Return what tasks take longer for each byte that they fetch; 0 if none fetches anything.

    Parameters
    ----------
    fetched_bytes, longer_ns
        [num_tasks]
    """
    if not fetched_bytes.any():
        return 0.0
    alike = np.ones(len(fetched_bytes))
    return line_fit(fetched_bytes, longer_ns, alike, intercept=0.0)[0]
