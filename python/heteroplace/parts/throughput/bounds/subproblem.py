"""Some tasks of a problem as a problem of their own, which asks no more of them than the whole.

Whatever a plan of the whole does, its runs of these tasks and its copies among them are a plan of
the subproblem: tensors from outside are there at once everywhere, nothing goes to a host, and the
memories hold nothing else. What only others read is gone at once, as it may be in the whole before
the last of these tasks runs; only the model's outputs stay. So a bound of it bounds the time from
the first start to the last finish of its tasks in every plan of the whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from heteroplace.model.cost import Cost, CostTable, build_table
from heteroplace.model.graph import Task, TaskGraph, TaskGraphBuilder
from heteroplace.native.core_arrays import IMPOSSIBLE
from heteroplace.parts.throughput.decompose.reach import reached
from heteroplace.solve.bounds.paths import find_paths
from heteroplace.solve.problem import Problem

Key = tuple[object, ...]
"""Equal for subproblems that are the same problem under other names."""
_SPINE_RATIO = 0.9
"""A source or sink belongs to the spine if a path there has this share of the longest one."""


def spine(problem: Problem) -> Problem:
    """Return the subproblem between the sources and sinks of long paths: no dead ends on the way.

    Without them a stack of modules is a path again; what they take is not counted. Every task needs
    a device.
    """
    graph, paths = problem.graph, find_paths(problem.native)
    least = _SPINE_RATIO * paths.critical_path_ns
    is_before = (paths.head_ns + paths.fastest_ns >= least).tolist()
    is_behind = (paths.tail_ns + paths.fastest_ns >= least).tolist()
    tasks = range(len(graph.tasks))
    sources = [task for task in tasks if is_behind[task] and not graph.predecessors[task]]
    sinks = [task for task in tasks if is_before[task] and not graph.successors[task]]
    on_paths = sorted(reached(sources, graph.successors) & reached(sinks, graph.predecessors))
    return problem if len(on_paths) in (0, len(tasks)) else subproblem(problem, on_paths)


def subproblem(problem: Problem, tasks: Sequence[int]) -> Problem:
    """Return the problem of placing only `tasks`, given ascending."""
    graph = problem.graph
    builder = TaskGraphBuilder(f"{graph.name}, {len(tasks)} tasks")
    names: dict[int, str] = {}
    for task in tasks:
        original = graph.tasks[task]
        reads = [names[t] for t in graph.task_inputs[task] if t in names]
        copy = Task(
            f"t{task}",
            original.op,
            weight_bytes=original.weight_bytes,
            workspace_bytes=original.workspace_bytes,
            together=original.together,
        )
        builder.add_task(copy, reads)
        for tensor in graph.task_outputs[task]:
            size = graph.tensors[tensor].bytes
            names[tensor] = builder.add_tensor(f"t{task}", num_bytes=size)
    outputs = [names[tensor] for tensor in graph.outputs if tensor in names]
    small_graph = builder.finalize(list(dict.fromkeys(outputs)))
    costs = _costs(problem, tasks, small_graph)
    return Problem(small_graph, replace(problem.cluster, host=None), costs, problem.frees_tensors)


def _costs(problem: Problem, tasks: Sequence[int], graph: TaskGraph) -> CostTable:
    # The rows of the core: pinned devices and those out of the host's reach are IMPOSSIBLE there.
    rows = problem.native.batch_run_ns[:, list(tasks)].tolist()
    batches = problem.costs.batches
    cluster = replace(problem.cluster, host=None)

    def cost(task: int, device: int, batch: int = 1) -> Cost:
        time_ns = rows[batches.index(batch)][task][device]
        return Cost.unsupported("not allowed") if time_ns == IMPOSSIBLE else Cost.given(time_ns)

    return build_table(graph, cluster, cost, batches)


def subproblem_key(problem: Problem, tasks: Sequence[int]) -> Key:
    """Return a value that says all about `subproblem(problem, tasks)` but the names."""
    graph, native = problem.graph, problem.native
    local = {task: index for index, task in enumerate(tasks)}
    outputs = set(graph.outputs)
    groups: dict[int, int] = {}
    rows: list[object] = []
    for task in tasks:
        group = native.task_group[task]
        makers = tuple(
            (
                graph.tensors[tensor].bytes,
                tensor in outputs,
                tuple(local[c] for c in graph.tensors[tensor].consumers if c in local),
            )
            for tensor in graph.task_outputs[task]
        )
        rows.append(
            (
                tuple(native.run_ns[task].tolist()),
                graph.tasks[task].weight_bytes,
                graph.tasks[task].workspace_bytes,
                groups.setdefault(group, len(groups)) if group >= 0 else -1,
                makers,
            )
        )
    return tuple(rows)
