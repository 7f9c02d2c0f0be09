"""Network + plan of several items -> kernel calls: every batch by kernels of its own size.

A plan may run the tasks of several items together as batches, and those of one task on several
devices (DiviML, section II). The tasks of one batch are cut and optimised like a network for so
many items (`rebatch`, which proves that no op mixes items, or refuses); what they exchange with
other batches has the neutral layout. Where a batch reads other items than one batch has made, the
value is `Joined`: `joins` finds a place where its parts already lie side by side, or copies them.

before ==> after, for two tasks and `run a @ d items 0,1`, `run b @ d items 0`, `run b @ e items 1`

    a(x[2, 8]) -> y[2, 8]      read by b as y[0:1], on device d, and as y[1:2], on device e
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, MutableMapping
from typing import Any

import tvm

from heteroplace.lower.items.combine import Items, combine_batches
from heteroplace.lower.items.item_axes import item_inputs, item_tensors
from heteroplace.lower.kernels import KernelCalls
from heteroplace.lower.segment_calls import lower_parts
from heteroplace.lower.segments import ValueName, cut_segments
from heteroplace.model.cluster import Cluster
from heteroplace.model.graph import TaskGraph
from heteroplace.model.plan import Plan, Run
from heteroplace.model.step_values import versioned_tensors
from heteroplace.registry import load_plugin
from heteroplace.relay.targets import cluster_targets
from heteroplace.relay.tasks.rebatch import rebatch
from heteroplace.tvm_bridge import register_cuda_compiler

LowerVersioned = Callable[
    [tvm.IRModule, TaskGraph, Cluster, Plan, MutableMapping[Hashable, Any]], KernelCalls
]
"""What lowers a plan in which tensors have several values, by collectives, sums over items or
state; parameters and errors as of `lower_items`. The entry point `lowering` of the group
`heteroplace.sharding`."""
_Kind = tuple[int, tuple[tuple[str, int], ...]]
"""Size of a batch, and the target of each task that runs in it: equal ones share their kernels."""


def lower_items(
    mod: tvm.IRModule,
    graph: TaskGraph,
    cluster: Cluster,
    plan: Plan,
    lowered_parts: MutableMapping[Hashable, Any] | None = None,
) -> KernelCalls:
    """Lower every batch of a plan for several items.

    Parameters
    ----------
    mod
        Neutral module for one item, whose inputs have one leading dimension, of any number of rows;
        its spans name the tasks of `graph`.
    lowered_parts
        What was lowered for other plans of the same module and graph; new parts are added.

    Returns
    -------
    The calls, each with its `items`. Inputs and outputs hold all items of the plan, as those of the
    same network for a batch of that size do.

    Raises
    ------
    UnsupportedRelayError
        An op could mix items, or an input has another leading dimension; the message names it.
    LoweringError
        An op cannot be compiled for its target.
    PluginError
        Tensors of the plan have several values, and the part that lowers it is missing.
    """
    targets, target_of_device = cluster_targets(cluster)
    if any(target.kind.name == "cuda" for target in targets):
        register_cuda_compiler()
    if versioned_tensors(graph):
        lower_versioned: LowerVersioned = load_plugin("sharding", "lowering")
        return lower_versioned(
            mod, graph, cluster, plan, {} if lowered_parts is None else lowered_parts
        )
    batches: dict[Items, dict[str, int]] = {}
    for step in plan.steps:
        if isinstance(step, Run):
            target = target_of_device[step.device]
            batches.setdefault(step.items, {})[graph.tasks[step.task].name] = target
    sizes = {len(items) for items in batches}
    # Whoever runs items one by one splits inputs and joins outputs too: the proof is asked anyway.
    names, rows = item_inputs(mod["main"], graph)
    mods = {size: rebatch(mod, size, names, rows) for size in sorted((sizes | {2}) - {1})}
    mods[1] = mod
    kinds: dict[_Kind, list[Items]] = {}
    for items, target_of_task in sorted(batches.items()):
        kinds.setdefault((len(items), tuple(target_of_task.items())), []).append(items)
    everything = {task.name: len(targets) for task in graph.tasks}
    cuts = [
        cut_segments(mods[size], (*targets, None), everything | dict(target_of_task))
        for size, target_of_task in kinds
    ]
    parts = lower_parts([segments for segments, _ in cuts])
    part_of = {
        items: part
        for members, part in zip(kinds.values(), parts, strict=True)
        for items in members
    }
    tensors = item_tensors(mod["main"], mods[max(mods)]["main"])
    inputs = [ValueName(parameter.name_hint) for parameter in mod["main"].params]
    return combine_batches(part_of, batches, tensors, inputs, cuts[0][1])
