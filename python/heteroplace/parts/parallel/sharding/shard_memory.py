"""A planned model -> the bytes that its compiled program will hold in each memory.

The rule by lifetime (`model.live_memory`), which limits plans, with the sizes that a program has:
tensors start at multiples of some bytes, memory comes in pages, weights are in the layouts of their
kernels, a task that only gives a tensor another shape makes nothing, nor does a sum in an update,
and an output of the model has the bytes of all its items from the first of them on. A search ranks
degrees by the rule alone.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace

import tvm
from tvm import relay

from heteroplace.lower.program import aligned, in_pages
from heteroplace.model.graph import Task, TaskGraph
from heteroplace.model.memory_use.live_memory import live_peaks
from heteroplace.model.plan import Copy, Plan
from heteroplace.model.solution import Solution
from heteroplace.parts.parallel.collectives.sums_in_updates import sums_in_updates
from heteroplace.parts.parallel.sharding.inner_values import TaskMemory, inner_bytes_of
from heteroplace.parts.parallel.transforms.recompute import plain_name
from heteroplace.relay.expressions import post_order, task_of_span

_GAPS = 40
"""One byte of so many lies in gaps between values, at most as a rule."""
_NO_KERNEL = "annotation.stop_fusion"


def program_peaks(
    solution: Solution, mod: tvm.IRModule, memories: Mapping[str, TaskMemory] | None = None
) -> tuple[int, ...]:
    """Return the bytes that a program of a plan holds in each memory at most.

    Parameters
    ----------
    solution
        A plan whose tasks say the scratch memory of their kernels.
    mod
        The neutral module of a microbatch; its spans name the tasks.
    memories
        By name, what tasks need beside their tensors (`sharding.inner_values`). None: it is not
        known; scratch memory is what the graph says, and is held always.
    """
    graph = _padded(solution.graph)
    inner = None
    if memories is not None:
        graph = _with_memories(graph, solution.plan, memories)
        inner = inner_bytes_of(graph, solution.plan, memories)
    names = view_tasks(mod)
    views = {index for index, task in enumerate(graph.tasks) if plain_name(task.name) in names}
    views.update(sums_in_updates(graph, solution.cluster, solution.plan))
    peaks = live_peaks(graph, solution.cluster, solution.costs, solution.plan, views, inner)
    return tuple(in_pages(peak.num_bytes + peak.num_bytes // _GAPS) for peak in peaks)


def view_tasks(mod: tvm.IRModule) -> frozenset[str]:
    """Return the tasks of a neutral module that only give tensors other shapes."""
    is_view: dict[str, bool] = defaultdict(lambda: True)
    for node in post_order(mod["main"].body):
        if isinstance(node, relay.Call) and node.op.name != _NO_KERNEL:
            is_view[task_of_span(node) or ""] &= bool(node.op.get_attr("TReshapeOp"))
    return frozenset(name for name, is_a_view in is_view.items() if is_a_view)


def _with_memories(graph: TaskGraph, plan: Plan, memories: Mapping[str, TaskMemory]) -> TaskGraph:
    """The same with the weights and the scratch memory of kernels, and copies of what tasks make.

    A copy in another layout is a tensor of its own, but for one that is sent: that is in the layout
    of the model.
    """
    names = [plain_name(task.name) for task in graph.tasks]
    memories_of_tasks = [memories.get(name) for name in names]
    tasks = tuple(
        task if own is None else _with_kernels(task, own)
        for task, own in zip(graph.tasks, memories_of_tasks, strict=True)
    )
    sent = {step.tensor for step in plan.steps if isinstance(step, Copy)}
    tensors = list(graph.tensors)
    for outputs, own in zip(graph.task_outputs, memories_of_tasks, strict=True):
        for copy in own.copies if outputs and own is not None else ():
            whole = tensors[outputs[0]]
            if outputs[0] in sent:
                continue
            readers = [task for task in whole.consumers if names[task] in copy.readers]
            left = [task for task in whole.consumers if names[task] not in copy.only_readers]
            tensors[outputs[0]] = replace(whole, consumers=tuple(left))
            apart = replace(whole, index=len(tensors), bytes=copy.num_bytes)
            tensors.append(replace(apart, consumers=tuple(readers)))
    return replace(graph, tasks=tasks, tensors=tuple(tensors))


def _with_kernels(task: Task, memory: TaskMemory) -> Task:
    """A task with what its kernels hold by themselves."""
    scratch = in_pages(memory.scratch_bytes)
    return replace(task, weight_bytes=0, weights=memory.weights, workspace_bytes=scratch)


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
