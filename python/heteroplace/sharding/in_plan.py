"""Plans -> what their tasks take in them, each on the device that it is for.

What a kernel takes depends on what is in the caches of its core: a stage's weights, not the whole
network's, and sums of gradients that are there already. So kernels are timed where they will run:
in a run of the same ranks, but with two microbatches at most, of which the second adds to what the
first has made. When they run there, and what they wait for, is left to the simulator.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from heteroplace.codegen.compile import CompiledNetwork
from heteroplace.measure.devices_under_test import device_class
from heteroplace.measure.plan_program import PlanProgram, load_programs
from heteroplace.measure.rounds import Rounds, sample_in_turns
from heteroplace.model.cluster import Cluster
from heteroplace.model.collectives import collective_kind
from heteroplace.model.cost import Cost, CostTable, build_table
from heteroplace.model.graph import TaskGraph
from heteroplace.model.plan import Plan, Run
from heteroplace.stats import half_spread, median
from heteroplace.transforms.degrees import Degrees

_MICRO_BATCHES = 2
_NUM_ROUNDS = 5
_SHARE_OF_MEMORY = 2
"""One byte in so many of a memory is for plans that take turns."""
_ROUND_NS, _MIN_RUNS = 200_000_000, 5


def shorter(degrees: Degrees) -> Degrees:
    """Return the degrees whose run times the kernels: with two microbatches at most.

    >>> shorter(Degrees(1, 1, 2, 8))
    Degrees(data=1, tensor=1, pipeline=2, micro_batches=2)
    """
    micro_batches = min(degrees.micro_batches, _MICRO_BATCHES)
    return Degrees(degrees.data, degrees.tensor, degrees.pipeline, micro_batches)


@dataclass(frozen=True)
class PlanToTime:
    """A plan whose kernels are to be timed."""

    compiled: CompiledNetwork
    """The network of the plan's graph."""
    plan: Plan
    """For `shorter` degrees."""
    micro_batches: int
    """Of those that the costs are for: of what adds up, all but the first add."""


def costs_in_plans(several: Sequence[PlanToTime], cluster: Cluster) -> list[CostTable]:
    """Run plans with clocks; return what the tasks of each take on the devices that they ran on.

    Devices that are alike take equally long; what no such device has run is unknown. The plans take
    turns, so that all see the machine in one state: timed one after the other, one of them alone
    may meet a second in which its cores are slow. They are loaded until they need half of some
    memory; what is left then takes turns by itself.

    Raises
    ------
    LoweringError, ExecutionError, InfeasibleError
        One cannot be compiled or run, or needs more memory than there is.
    """
    tables: list[CostTable] = []
    loaded: list[Rounds] = []
    held = [0] * len(cluster.memories)
    for number, each in enumerate(several, 1):
        loaded.append(_rounds(each, cluster))
        held = [sum(pair) for pair in zip(held, loaded[-1].program.held_bytes, strict=True)]
        is_full = any(
            used * _SHARE_OF_MEMORY > memory.bytes
            for used, memory in zip(held, cluster.memories, strict=True)
        )
        if is_full or number == len(several):
            sample_in_turns(loaded, _NUM_ROUNDS)
            timed = several[number - len(loaded) : number]
            for each, rounds in zip(timed, loaded, strict=True):
                tables.append(_table(each, rounds.program, rounds.quartiles(), cluster))
            loaded, held = [], [0] * len(held)
    return tables


class PlanTimer:
    """The kernels of a plan, timed round by round beside what else is timed. Not thread-safe.

    Raises
    ------
    LoweringError, ExecutionError, InfeasibleError
        As `costs_in_plans`.
    """

    def __init__(self, timed: PlanToTime, cluster: Cluster) -> None:
        self._timed, self._cluster = timed, cluster
        self._rounds = _rounds(timed, cluster)

    def sample(self) -> CostTable:
        """Run a round; return the costs as they were in it."""
        self._rounds.sample()
        rounds = self._rounds
        return _table(self._timed, rounds.program, rounds.last_quartiles(), self._cluster)


def _rounds(timed: PlanToTime, cluster: Cluster) -> Rounds:
    kernels = timed.compiled.kernels_of(cluster, timed.plan)
    (program,) = load_programs(kernels, timed.compiled.graph, cluster, [timed.plan])
    return Rounds(program, _ROUND_NS, _MIN_RUNS)


def _table(
    timed: PlanToTime, program: PlanProgram, quartiles: np.ndarray, cluster: Cluster
) -> CostTable:
    graph, plan = timed.compiled.graph, timed.plan
    times = _step_times(program, quartiles, plan)
    runs: dict[tuple[int, int], list[_Time]] = defaultdict(list)
    for index, step in enumerate(plan.steps):
        if isinstance(step, Run):
            runs[step.task, step.device].append(times.get(index, _Time(0.0, 0.0)))
    means = {
        key: _mean(found, graph.tasks[key[0]].adds, timed.micro_batches)
        for key, found in runs.items()
    }

    def cost(task: int, device: int) -> Cost:
        found = _alike(means, graph, cluster, task, device)
        if found is None:
            return Cost.unknown()
        return Cost.measured(round(found.ns), round(found.spread_ns))

    return build_table(graph, cluster, cost)


@dataclass(frozen=True)
class _Time:
    ns: float
    spread_ns: float


def _step_times(program: PlanProgram, quartiles: np.ndarray, plan: Plan) -> dict[int, _Time]:
    """By step, the time of all that its device does for it; not the waiting."""
    low, middle, high = quartiles
    found: dict[int, _Time] = {}
    for index, at in enumerate(program.executor.instructions):
        if isinstance(plan.steps[at.step], Run):
            before = found.get(at.step, _Time(0.0, 0.0))
            spread = (high[index] - low[index]) / 2
            found[at.step] = _Time(before.ns + middle[index], before.spread_ns + spread)
    return found


def _mean(times: Sequence[_Time], adds: bool, micro_batches: int) -> _Time:
    """Of the runs of one task on one device, for so many microbatches."""
    if not adds or len(times) < 2:
        return _Time(
            median([time.ns for time in times]), median([time.spread_ns for time in times])
        )
    first, *others = times
    ns = first.ns + (micro_batches - 1) * median([time.ns for time in others])
    return _Time(ns / micro_batches, half_spread([time.ns for time in times]))


def _alike(
    means: Mapping[tuple[int, int], _Time],
    graph: TaskGraph,
    cluster: Cluster,
    task: int,
    device: int,
) -> _Time | None:
    """What a task takes on a device or one like it; None: it has run on none."""
    if collective_kind(graph.tasks[task].op) is not None:
        return None
    if (task, device) in means:
        return means[task, device]
    own = device_class(cluster, device)
    for other in range(len(cluster.devices)):
        if (task, other) in means and device_class(cluster, other) == own:
            return means[task, other]
    return None
