"""A graph in which every reader has a tensor of its own, so that transfers are per edge."""

from __future__ import annotations

from heteroplace.model.cost import Cost, build_table
from heteroplace.model.graph import TaskGraph, TaskGraphBuilder
from tests.strategies import Instance


def split_tensors(case: Instance) -> Instance:
    """The instance with each tensor once for each of its readers, the host being one."""
    graph = case.graph
    builder = TaskGraphBuilder(graph.name)
    copies: dict[tuple[int, int | None], str] = {}

    def split(tensor: int) -> None:
        value = graph.tensors[tensor]
        readers: list[int | None] = [*value.consumers]
        if tensor in graph.outputs:
            readers.append(None)
        for reader in readers:
            if value.producer is None:
                name = builder.add_input(f"in{tensor}.{reader}", num_bytes=value.bytes)
            else:
                producer = graph.tasks[value.producer].name
                name = builder.add_tensor(producer, num_bytes=value.bytes)
            copies[tensor, reader] = name

    for tensor in graph.inputs:
        split(tensor)
    for task_id, task in enumerate(graph.tasks):
        builder.add_task(task, [copies[tensor, task_id] for tensor in graph.task_inputs[task_id]])
        for tensor in graph.task_outputs[task_id]:
            split(tensor)
    made: TaskGraph = builder.finalize([copies[t, None] for t in dict.fromkeys(graph.outputs)])

    def cost(task: int, device: int) -> Cost:
        time_ns = case.costs.run_ns(task, device)
        return Cost.unsupported("no kernel") if time_ns is None else Cost.given(time_ns)

    return Instance(made, case.cluster, build_table(made, case.cluster, cost))
