"""Problem -> the same with batch sizes, so that several items can be served at once.

No suite has measured times of batches. Here a batch of b items takes b times as long as one, less
b - 1 launches, and never less than one item: the least that batching can save. So plans of several
items gain by spreading items over devices, hardly by batching. A problem with times of batches of
its own stays as it is.
"""

from __future__ import annotations

from dataclasses import replace

from heteroplace.model.cost import TableBuilder
from heteroplace.solve.problem import Problem
from zoo.graphs.clusters import LAUNCH_NS


def with_batches(problem: Problem, items: int) -> Problem:
    """Return the problem with batches of 1, 2, 4, ... up to `items` on every device, or as it is
    where its costs have batches already."""
    if len(problem.costs.batches) > 1:
        return problem
    sizes = tuple(2**power for power in range(items.bit_length()) if 2**power <= items)
    graph, cluster = problem.graph, problem.cluster
    devices = tuple(replace(device, batch_sizes=sizes) for device in cluster.devices)
    sized = replace(cluster, devices=devices)
    builder = TableBuilder(graph.identities, sized.identities, sizes)
    for size in sizes:
        for task in range(len(graph.tasks)):
            for device in range(len(devices)):
                cost = problem.costs.cost(task, device)
                ns = None
                if cost.ns is not None:
                    ns = max(cost.ns, size * cost.ns - (size - 1) * LAUNCH_NS)
                builder.add(replace(cost, ns=ns))
    return Problem(graph, sized, builder.finalize())
