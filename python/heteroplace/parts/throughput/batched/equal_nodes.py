"""A plan for one of several equal nodes ==> a plan for all, each node with its share of the items.

The baseline of DiviML's study of GPT-3 (section V): schedule a part of the items on a node, and
replicate that.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from heteroplace.model.cluster import Cluster
from heteroplace.model.cost import TableBuilder
from heteroplace.model.plan import Copy, Run, Step, devices_of
from heteroplace.parts.throughput.batched.device_symmetry import DeviceSymmetry
from heteroplace.solve.problem import Problem


def equal_nodes(
    problem: Problem, items: int, symmetry: DeviceSymmetry
) -> tuple[tuple[int, ...], ...]:
    """Return the devices of each node if all nodes are equal and can share the items, without a
    host between them; else nothing."""
    nodes = symmetry.node_classes[0] if len(symmetry.node_classes) == 1 else ()
    if len(nodes) < 2 or items % len(nodes) or problem.cluster.host is not None:
        return ()
    devices = problem.cluster.devices
    memories = [{devices[device].memory for device in node} for node in nodes]
    is_apart = len(set().union(*memories)) == sum(map(len, memories))
    return nodes if is_apart else ()


def node_problem(problem: Problem, node: Sequence[int]) -> Problem:
    """Return the problem on the devices of one node alone, in the given order."""
    cluster = problem.cluster
    memories = _memories(cluster, node)
    position = {memory: index for index, memory in enumerate(memories)}
    devices = tuple(
        replace(cluster.devices[device], memory=position[cluster.devices[device].memory])
        for device in node
    )
    links = tuple(
        replace(link, src=position[link.src], dst=position[link.dst])
        for link in cluster.links
        if link.src in position and link.dst in position
    )
    inner = replace(
        cluster,
        name=f"{cluster.name}, node {devices[0].host}",
        memories=tuple(cluster.memories[memory] for memory in memories),
        devices=devices,
        links=links,
    )
    builder = TableBuilder(problem.graph.identities, inner.identities, problem.costs.batches)
    for size in problem.costs.batches:
        for task in range(len(problem.graph.tasks)):
            for device in node:
                builder.add(problem.costs.cost(task, device, size))
    return Problem(problem.graph, inner, builder.finalize(), problem.frees_tensors)


def replicated(
    problem: Problem, nodes: Sequence[Sequence[int]], steps: Sequence[Step], items: int
) -> tuple[Step, ...]:
    """Return the steps of all nodes, from those of a plan of `node_problem` of the first.

    Parameters
    ----------
    items
        Of that plan; node k serves items k * items and so on.
    """
    all_steps: list[Step] = []
    own = [_memories(problem.cluster, node) for node in nodes]
    for step in steps:
        for index, node in enumerate(nodes):
            shifted = tuple(item + index * items for item in getattr(step, "items", ()))
            if isinstance(step, Run):
                (device,) = devices_of(step)
                all_steps.append(Run(step.task, node[device], shifted))
            else:
                assert isinstance(step, Copy)  # solvers of items make no others
                src, dst = own[index][step.src], own[index][step.dst]
                all_steps.append(
                    Copy(step.tensor, src, dst, problem.cluster.route(src, dst), shifted)
                )
    return tuple(all_steps)


def _memories(cluster: Cluster, node: Sequence[int]) -> list[int]:
    """Those of the devices of a node, in their order."""
    return list(dict.fromkeys(cluster.devices[device].memory for device in node))
