"""`bench run --choice`: kernels and places chosen together, beside kernels first and places after.

A network has our kernels and, where they differ, TVM's (`measure/implementations.py`), all measured
once. It is placed four times by the same costs:

- "ours": with our kernels alone;
- "kernels first": each task has the kernels that are fastest on the device of most cores, wherever
  it then runs;
- "kernels, cores first": each task has the kernels and the number of cores that are fastest for it
  alone, and is placed on one of the devices that have them;
- "together": the solver takes for each task a device and its kernels (`kernels="best"`).

Each plan is built, and all take turns in one process. No plan of the fourth is predicted longer
than the others if the solver finds the best.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

from heteroplace import pipeline
from heteroplace.bench.differences import largest_difference
from heteroplace.bench.models.catalogue import Model, matching_models
from heteroplace.bench.peers.stock import in_pass_context
from heteroplace.bench.peers.timed_runs import time_in_turns
from heteroplace.bench.row_table import row_table
from heteroplace.bench.run.comparison import core_to_core_probe
from heteroplace.machine.local import local_cluster
from heteroplace.measure.cost_models import CostOptions, choose_cost_model
from heteroplace.measure.implementations import with_implementations
from heteroplace.model.cluster import Cluster
from heteroplace.model.cost import CostTable, without_barred
from heteroplace.model.graph import TaskGraph
from heteroplace.model.implementations import base_of, maker_of, twin_name
from heteroplace.model.solution import Solution
from heteroplace.pipeline import CostedNetwork
from heteroplace.run.executor import Executor
from heteroplace.solve import SolveOptions
from heteroplace.stage_log import StageLog

DEFAULT_MODELS = "^(inception_v2|randomly_wired|randomly_wired_small)$"
OURS, FIRST, TOGETHER = "ours", "kernels first", "together"
FASTEST = "kernels, cores first"
_OUR_KERNELS = "ours"


def run(only: str, say: Callable[[str], None]) -> Iterator[dict[str, object]]:
    """Measure the networks whose name matches the regular expression `only`; yield the rows."""
    cluster = local_cluster(has_gpus=False)
    for model, tell in matching_models(only or DEFAULT_MODELS, say):
        yield from measure_choice(model, cluster, tell)


def measure_choice(
    model: Model,
    cluster: Cluster,
    say: Callable[[str], None] = lambda line: None,
    *,
    num_rounds: int = 21,
    turn_ns: int = 40_000_000,
    time_limit_s: float = 10.0,
) -> list[dict[str, object]]:
    """Place a network in the four ways; return a row for each, times in ms.

    Parameters
    ----------
    num_rounds, turn_ns
        See `time_in_turns`.
    time_limit_s
        Of the solver, for each plan.
    """
    costed = _costed(model, cluster, say)
    executables = {}
    for way in (OURS, FIRST, FASTEST, TOGETHER):
        say(f"placing: {way}")
        part = _restricted(costed, way)
        with in_pass_context():
            solution = pipeline.solve(part, SolveOptions(time_limit_s=time_limit_s))
            executables[way] = pipeline.build(part.compiled, solution)
    executors = {way: Executor(executable) for way, executable in executables.items()}
    outputs = {way: executor.run(model.inputs) for way, executor in executors.items()}
    say(f"measuring {len(executors)} plans in {num_rounds} rounds")
    timed = time_in_turns(
        {way: executor.benchmark for way, executor in executors.items()},
        num_rounds=num_rounds,
        turn_ns=turn_ns,
        core_to_core_ns=core_to_core_probe(executors),
    )
    return [
        {
            "model": model.name,
            "way": way,
            "devices_used": list(executable.solution.devices_used),
            "kernels": dict(kernels_of(executable.solution)),
            "simulated_ms": round(executable.solution.predicted_ns / 1e6, 4),
            "bound_ms": round(executable.solution.bound_ns / 1e6, 4),
            "measured_ms": round(timed.median_ns(way) / 1e6, 4),
            "ratio_ours": round(timed.ratio(way, OURS), 3),
            "ratio_first": round(timed.ratio(way, FIRST), 3),
            "ratio_fastest": round(timed.ratio(way, FASTEST), 3),
            "max_abs_diff": largest_difference(outputs[way], outputs[OURS]),
        }
        for way, executable in executables.items()
    ]


def _costed(model: Model, cluster: Cluster, say: Callable[[str], None]) -> CostedNetwork:
    """The network with all kernels of all makers measured."""
    costs = choose_cost_model("measure", CostOptions(progress=say))
    log = StageLog(say)
    with in_pass_context():
        network = pipeline.prepare(model.mod, model.params, log)
        network, cluster = with_implementations(network, cluster)
        compiled = pipeline.compile(network, cluster, costs, log)
        return pipeline.cost(compiled, cluster, costs, log)


def _restricted(costed: CostedNetwork, way: str) -> CostedNetwork:
    """The network with the kernels that one way takes."""
    costed = replace(costed, measure_interference=None)  # each is judged by kernel times alone
    if way == TOGETHER:
        return costed
    graph, cluster = costed.graph, costed.cluster
    if way == FASTEST:
        graph = with_fastest_first(graph, cluster, costed.costs)
    else:
        graph = with_kernels_first(graph, cluster, None if way == OURS else costed.costs)
    costs = without_barred(costed.costs, graph, cluster)
    return replace(costed, compiled=costed.compiled.with_graph(graph), costs=costs)


def with_kernels_first(graph: TaskGraph, cluster: Cluster, costs: CostTable | None) -> TaskGraph:
    """Return a graph whose tasks have the kernels of one maker each, the same on all devices.

    Parameters
    ----------
    cluster
        With twins (`with_implementations`).
    costs
        Its times on the device of most cores decide, the first such; None: all kernels are ours.
    """
    bases = [i for i in range(len(cluster.devices)) if base_of(cluster, i) is None]
    names = [cluster.devices[index].name for index in bases]
    most = max(range(len(bases)), key=lambda place: len(cluster.devices[bases[place]].cores))
    makers = list(dict.fromkeys(maker_of(device.name) for device in cluster.devices))
    tasks = []
    for index, task in enumerate(graph.tasks):
        if task.devices is None:
            tasks.append(task)
            continue
        chosen = names
        if costs is not None:
            choices = [_with_kernels_of(maker, names, task.devices) for maker in makers]
            times = [costs.cost(index, cluster.device_id(each[most])).ns for each in choices]
            known = [(ns, place) for place, ns in enumerate(times) if ns is not None]
            chosen = choices[min(known)[1]] if known else names
        tasks.append(replace(task, devices=tuple(name for name in task.devices if name in chosen)))
    return replace(graph, tasks=tuple(tasks))


def with_fastest_first(graph: TaskGraph, cluster: Cluster, costs: CostTable) -> TaskGraph:
    """Return a graph whose tasks may run where their fastest kernels are, with as many cores.

    Parameters
    ----------
    cluster
        With twins (`with_implementations`).
    costs
        Which maker and number of cores is fastest for a task alone; of equal ones the first.
    """
    kinds = {device.name: (maker_of(device.name), len(device.cores)) for device in cluster.devices}
    tasks = []
    for index, task in enumerate(graph.tasks):
        allowed = list(kinds) if task.devices is None else task.devices
        times = {name: costs.cost(index, cluster.device_id(name)).ns for name in allowed}
        known = {name: ns for name, ns in times.items() if ns is not None}
        if known:
            fastest = kinds[min(known, key=known.__getitem__)]
            task = replace(task, devices=tuple(n for n in allowed if kinds[n] == fastest))
        tasks.append(task)
    return replace(graph, tasks=tuple(tasks))


def _with_kernels_of(maker: str | None, names: Sequence[str], allowed: Sequence[str]) -> list[str]:
    """For each device that is no twin the one with a maker's kernels; itself where they are equal,
    or where the maker is None."""
    twins = [name if maker is None else twin_name(name, maker) for name in names]
    return [t if t in allowed else name for name, t in zip(names, twins, strict=True)]


def kernels_of(solution: Solution) -> Counter[str]:
    """Return the number of tasks by who made their kernels."""
    names = (
        solution.cluster.devices[device].name
        for device in solution.plan.placement(len(solution.graph.tasks))
    )
    return Counter(maker_of(name) or _OUR_KERNELS for name in names)


def table(rows: Iterable[dict[str, object]]) -> str:
    """Return the rows as text; times in ms."""
    return row_table(rows, num_names=3)
