"""Plans -> what their tasks take in them, each on the device that it is for.

What a kernel takes depends on what is in the caches of its core: a stage's weights, not the whole
network's, and sums of gradients that are there already. So kernels are timed where they will run:
in a run of the same ranks, but with two microbatches at most, of which the second adds to what the
first has made. When they run there, and what they wait for, is left to the simulator. What sums
over all microbatches at once needs them all: such plans are run whole, and beside the shorter one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from heteroplace.lower.compile import CompiledNetwork
from heteroplace.measure.devices_under_test import device_class
from heteroplace.measure.plan_program import PlanProgram, load_programs
from heteroplace.measure.rounds import Rounds, sample_until_settled
from heteroplace.model.cluster import Cluster
from heteroplace.model.collectives import collective_kind
from heteroplace.model.cost import Cost, CostTable, build_table
from heteroplace.model.graph import TaskGraph
from heteroplace.model.plan import Plan, Run
from heteroplace.parts.parallel.transforms.degrees import Degrees
from heteroplace.stats import half_spread, median

_MICRO_BATCHES = 2
_NUM_ROUNDS = 5
_SHARE_OF_MEMORY = 2
"""One byte in so many of a memory is for plans that take turns."""
_ROUND_NS = 200_000_000


def shorter(degrees: Degrees) -> Degrees:
    """Return the degrees whose run times the kernels: with two microbatches at most.

    >>> shorter(Degrees(1, 1, 2, 8))
    Degrees(data=1, tensor=1, pipeline=2, micro_batches=2)
    """
    micro_batches = min(degrees.micro_batches, _MICRO_BATCHES)
    return Degrees(degrees.data, degrees.tensor, degrees.pipeline, micro_batches)


@dataclass(frozen=True, eq=False)
class PlanToTime:
    """A plan whose kernels are to be timed; each is one of its own, however alike they are."""

    compiled: CompiledNetwork
    """The network of the plan's graph."""
    plan: Plan
    """For `shorter` degrees; whole where it sums over all microbatches at once."""
    cluster: Cluster
    """Of the plan."""
    micro_batches: int
    """Of those that the costs are for: of what adds up, all but the first add."""
    beside: PlanToTime | None = None
    """The shorter plan, of one that sums over all microbatches at once: it tells what these sums
    take for a microbatch each."""


def costs_in_plans(several: Sequence[PlanToTime]) -> list[CostTable]:
    """Run plans with clocks; return what the tasks of each take on the devices that they ran on.

    Devices that are alike take equally long; a task has no cost where none has run it. The plans
    take turns, so that all see the machine in one state: timed one after the other, one of them
    alone may meet a second in which its cores are slow. They are loaded until they need half of
    some memory; what is left then takes turns by itself.

    Raises
    ------
    LoweringError, ExecutionError, InfeasibleError
        One cannot be compiled or run, or needs more memory than there is.
    """
    every = [one for each in several for one in (each.beside, each) if one is not None]
    once = list(dict.fromkeys(every))
    tables = dict(zip(once, _tables(once), strict=True))
    return [
        tables[each] if each.beside is None else _with_sums(tables[each], each, tables[each.beside])
        for each in several
    ]


def _tables(several: Sequence[PlanToTime]) -> list[CostTable]:
    tables: list[CostTable] = []
    loaded: list[Rounds] = []
    held = [0] * (len(several[0].cluster.memories) if several else 0)
    for number, each in enumerate(several, 1):
        loaded.append(_rounds(each))
        held = [sum(pair) for pair in zip(held, loaded[-1].program.held_bytes, strict=True)]
        is_full = any(
            used * _SHARE_OF_MEMORY > memory.bytes
            for used, memory in zip(held, each.cluster.memories, strict=True)
        )
        if is_full or number == len(several):
            sample_until_settled(loaded, _NUM_ROUNDS)
            timed = several[number - len(loaded) : number]
            for each, rounds in zip(timed, loaded, strict=True):
                tables.append(_table(each, rounds.program, rounds.quartiles()))
            loaded, held = [], [0] * len(held)
    return tables


class PlanTimer:
    """The kernels of a plan, timed round by round beside what else is timed. Not thread-safe.

    Raises
    ------
    LoweringError, ExecutionError, InfeasibleError
        As `costs_in_plans`.
    """

    def __init__(self, timed: PlanToTime) -> None:
        self._timed = timed
        self._rounds = _rounds(timed)
        self._beside = None if timed.beside is None else PlanTimer(timed.beside)

    def sample(self) -> CostTable:
        """Run a round; return the costs as they were in it."""
        self._rounds.sample()
        table = _table(self._timed, self._rounds.program, self._rounds.last_quartiles())
        if self._beside is None:
            return table
        return _with_sums(table, self._timed, self._beside.sample())


def _with_sums(table: CostTable, timed: PlanToTime, shorter_table: CostTable) -> CostTable:
    """The costs of a plan that sums over all microbatches at once, with those of one microbatch
    from the shorter plan."""

    def cost(task: int, device: int, batch: int = 1) -> Cost:
        own_cost = table.cost(task, device, batch)
        return shorter_table.cost(task, device) if batch == 1 and own_cost.ns is None else own_cost

    return build_table(timed.compiled.graph, timed.cluster, cost, table.batches)


def _rounds(timed: PlanToTime) -> Rounds:
    kernels = timed.compiled.kernels_of(timed.cluster, timed.plan)
    (program,) = load_programs(kernels, timed.compiled.graph, timed.cluster, [timed.plan])
    return Rounds(program, _ROUND_NS)


def _table(timed: PlanToTime, program: PlanProgram, quartiles: np.ndarray) -> CostTable:
    graph, plan, cluster = timed.compiled.graph, timed.plan, timed.cluster
    times = _step_times(program, quartiles, plan)
    runs: dict[_Run, list[_Time]] = defaultdict(list)
    for index, step in enumerate(plan.steps):
        if isinstance(step, Run):
            size = graph.batch_size(step.task, len(step.items))
            runs[step.task, step.device, size].append(times.get(index, _Time(0.0, 0.0)))
    means = {
        key: _mean(time, graph.tasks[key[0]].adds, timed.micro_batches)
        for key, time in runs.items()
    }

    def cost(task: int, device: int, batch: int = 1) -> Cost:
        time = _alike(means, graph, cluster, (task, device, batch))
        if time is None:
            if batch == 1:
                return Cost.excluded("the plan does not run the task there")
            return Cost.unsupported("no such batch")
        return Cost.measured(round(time.ns), round(time.spread_ns))

    return build_table(graph, cluster, cost, tuple(sorted({1, *(key[2] for key in runs)})))


_Run = tuple[int, int, int]
"""Task, device and number of items."""


@dataclass(frozen=True)
class _Time:
    ns: float
    spread_ns: float


def _step_times(program: PlanProgram, quartiles: np.ndarray, plan: Plan) -> dict[int, _Time]:
    """By step, the time of all that its device does for it; not the waiting.

    Of several cores only the one that makes the calls counts: the others wait for it in theirs.
    """
    low, middle, high = quartiles
    instructions = program.executor.instructions
    callers: dict[int, set[int]] = defaultdict(set)
    for at in instructions:
        if at.kernel is not None:
            callers[at.step].add(at.queue)
    times: dict[int, _Time] = {}
    for index, at in enumerate(instructions):
        is_join = at.step in callers and at.queue not in callers[at.step]
        if isinstance(plan.steps[at.step], Run) and not is_join:
            before = times.get(at.step, _Time(0.0, 0.0))
            spread = (high[index] - low[index]) / 2
            times[at.step] = _Time(before.ns + middle[index], before.spread_ns + spread)
    return times


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
    means: Mapping[_Run, _Time], graph: TaskGraph, cluster: Cluster, run: _Run
) -> _Time | None:
    """What a task takes on a device or one like it; None: it has run on none."""
    task, device, size = run
    if collective_kind(graph.tasks[task].op) is not None:
        return None
    if run in means:
        return means[run]
    own = device_class(cluster, device)
    for other in range(len(cluster.devices)):
        if (task, other, size) in means and device_class(cluster, other) == own:
            return means[task, other, size]
    return None
