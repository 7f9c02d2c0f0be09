"""A planned model -> the bytes that its compiled program will hold in each memory.

The rule by lifetime (`model.live_memory`), which limits plans, with the sizes that a program has:
tensors start at multiples of some bytes, memory comes in pages, and a task that only gives a tensor
another shape makes nothing. A search ranks degrees by the rule alone.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

import tvm
from tvm import relay

from heteroplace.codegen.program import aligned, in_pages
from heteroplace.model.graph import TaskGraph
from heteroplace.model.live_memory import live_peaks
from heteroplace.model.solution import Solution
from heteroplace.relay.expressions import post_order, task_of_span
from heteroplace.transforms.recompute import plain_name

_NO_KERNEL = "annotation.stop_fusion"


def program_peaks(solution: Solution, mod: tvm.IRModule) -> tuple[int, ...]:
    """Return the bytes that a program of a plan holds in each memory at most.

    Parameters
    ----------
    solution
        A plan whose tasks say the scratch memory of their kernels.
    mod
        The neutral module of a microbatch; its spans name the tasks.
    """
    graph = solution.graph
    names = view_tasks(mod)
    views = {index for index, task in enumerate(graph.tasks) if plain_name(task.name) in names}
    peaks = live_peaks(_padded(graph), solution.cluster, solution.costs, solution.plan, views)
    return tuple(in_pages(peak.num_bytes) for peak in peaks)


def view_tasks(mod: tvm.IRModule) -> frozenset[str]:
    """Return the tasks of a neutral module that only give tensors other shapes."""
    is_view: dict[str, bool] = defaultdict(lambda: True)
    for node in post_order(mod["main"].body):
        if isinstance(node, relay.Call) and node.op.name != _NO_KERNEL:
            is_view[task_of_span(node) or ""] &= bool(node.op.get_attr("TReshapeOp"))
    return frozenset(name for name, found in is_view.items() if found)


def _padded(graph: TaskGraph) -> TaskGraph:
    """The same with the sizes that tensors, weights and scratch memory have in a program."""
    tensors = tuple(replace(tensor, bytes=aligned(tensor.bytes)) for tensor in graph.tensors)
    tasks = tuple(
        replace(
            task,
            weight_bytes=aligned(task.weight_bytes) if task.weight_bytes else 0,
            workspace_bytes=in_pages(task.workspace_bytes),
        )
        for task in graph.tasks
    )
    return replace(graph, tasks=tasks, tensors=tensors)
