"""A plan -> what its tasks take in it, each on the device that it is for.

What a kernel takes depends on what is in the caches of its core: a stage's weights, not the whole
network's, and sums of gradients that are there already. So kernels are timed where they will run:
in a run of the same ranks, but with two microbatches at most, of which the second adds to what the
first has made. When they run there, and what they wait for, is left to the simulator.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from heteroplace.codegen.compile import CompiledNetwork
from heteroplace.measure.devices_under_test import device_class
from heteroplace.measure.plan_program import load_programs
from heteroplace.measure.rounds import Rounds
from heteroplace.model.cluster import Cluster
from heteroplace.model.collectives import collective_kind
from heteroplace.model.cost import Cost, CostTable, build_table
from heteroplace.model.graph import TaskGraph
from heteroplace.model.plan import Plan, Run
from heteroplace.stats import half_spread, median
from heteroplace.transforms.degrees import Degrees

_MICRO_BATCHES = 2
_NUM_ROUNDS = 5
_ROUND_NS, _MIN_RUNS = 200_000_000, 5


def shorter(degrees: Degrees) -> Degrees:
    """Return the degrees whose run times the kernels: with two microbatches at most.

    >>> shorter(Degrees(1, 1, 2, 8))
    Degrees(data=1, tensor=1, pipeline=2, micro_batches=2)
    """
    micro_batches = min(degrees.micro_batches, _MICRO_BATCHES)
    return Degrees(degrees.data, degrees.tensor, degrees.pipeline, micro_batches)


def costs_in_plan(
    compiled: CompiledNetwork, cluster: Cluster, plan: Plan, micro_batches: int
) -> CostTable:
    """Run a plan with clocks; return what its tasks take on the devices that they ran on.

    Devices that are alike take equally long; what no such device has run is unknown.

    Parameters
    ----------
    compiled
        The network of the plan's graph.
    plan
        For `shorter` degrees.
    micro_batches
        Of those that the costs are for: of what adds up, all but the first add.

    Raises
    ------
    LoweringError, ExecutionError, InfeasibleError
        It cannot be compiled or run, or needs more memory than there is.
    """
    graph = compiled.graph
    times = _step_times(compiled, cluster, plan)
    runs: dict[tuple[int, int], list[_Time]] = defaultdict(list)
    for index, step in enumerate(plan.steps):
        if isinstance(step, Run):
            runs[step.task, step.device].append(times.get(index, _Time(0.0, 0.0)))
    means = {
        key: _mean(found, graph.tasks[key[0]].adds, micro_batches) for key, found in runs.items()
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


def _step_times(compiled: CompiledNetwork, cluster: Cluster, plan: Plan) -> dict[int, _Time]:
    """By step, the time of all that its device does for it; not the waiting."""
    kernels = compiled.kernels_of(cluster, plan)
    (program,) = load_programs(kernels, compiled.graph, cluster, [plan])
    rounds = Rounds(program, _ROUND_NS, _MIN_RUNS)
    for _ in range(_NUM_ROUNDS):
        rounds.sample()
    low, middle, high = rounds.quartiles()
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
