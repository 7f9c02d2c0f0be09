"""Random workloads for tests: two or three entries of one chain or branched model, with weights."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from random import Random

import numpy as np
from hypothesis import strategies as st

from heteroplace.model.cluster import Device
from heteroplace.model.graph import Task, TaskGraphBuilder
from heteroplace.native.core_arrays import IMPOSSIBLE
from heteroplace.solve.problem import Problem
from heteroplace.solve.workload.workload import Entry, Workload
from heteroplace.solve.workload.workload_search import Sites
from heteroplace.solve.workload.workload_state import WorkloadTimes, WorkloadValue
from tests.corpus import corpus
from tests.instances import given_costs, gpus


def workloads(max_tasks: int = 4, *, has_host: bool = False) -> st.SearchStrategy[Workload]:
    """Entries of one model on two devices with a memory each; some are too small for it.

    `has_host`: the first memory is that of the host, with a second device, and has the inputs and
    outputs of the model. Tasks have workspaces.
    """
    return _cases(max_tasks, has_host).map(_anew)


def _anew(workload: Workload) -> Workload:
    """The same without what others have computed of it: a corpus stays until the process ends."""
    entries = tuple(replace(each, problem=replace(each.problem)) for each in workload.entries)
    return replace(workload, entries=entries)


@corpus
def _cases(random: Random, max_tasks: int, has_host: bool) -> Workload:
    num_tasks = random.randint(1, max_tasks)
    sizes = [random.randint(0, 20) for _ in range(num_tasks)]
    edges = [(src, dst) for dst in range(num_tasks) for src in range(dst) if random.random() < 0.6]
    tied = random.random() < 0.3
    names = ["w0" if tied and task == num_tasks - 1 else f"w{task}" for task in range(num_tasks)]
    if tied:
        sizes[-1] = sizes[0]
    capacity = random.randint(10, 60)
    cluster = gpus({(0, 1): 1, (1, 0): 1}, 2, capacity, 0 if has_host else None)
    if has_host:
        second = Device("gpu2", "cuda", "", 2, 0)
        cluster = replace(cluster, devices=(*cluster.devices, second))
    entries = []
    for index in range(random.randint(1, 3)):
        builder = TaskGraphBuilder(f"entry{index}")
        if has_host:
            builder.add_input("x", num_bytes=random.randint(0, 3))
        for task in range(num_tasks):
            reads = [f"t{src}.0" for src, dst in edges if dst == task]
            own = random.randint(0, 2)
            record = Task(f"t{task}", "op", weight_bytes=sizes[task] + own)
            if has_host:
                record = replace(record, workspace_bytes=random.randint(0, 4))
                reads += ["x"] if task == 0 else []
            builder.add_task(record, reads)
            builder.add_tensor(f"t{task}", num_bytes=random.randint(0, 3))
        graph = builder.finalize([f"t{num_tasks - 1}.0"])
        run_ns = {
            f"t{task}": [random.randint(1, 30), random.choice([None, *range(1, 30)])]
            for task in range(num_tasks)
        }
        if has_host:
            run_ns = {name: [*own, random.choice([None, 5])] for name, own in run_ns.items()}
        weights = tuple(
            ((names[int(task.name[1:])], sizes[int(task.name[1:])]),) for task in graph.tasks
        )
        problem = Problem(graph, cluster, given_costs(graph, cluster, run_ns))
        entries.append(Entry(f"entry{index}", problem, random.randint(1, 9), weights))
    states = frozenset({names[0]}) if random.random() < 0.3 else frozenset()
    return Workload(tuple(entries), states)


def every_placement(times: WorkloadTimes) -> list[tuple[Sites, WorkloadValue]]:
    """All placements of all entries in memories, with their values."""
    ways = []
    for each in times.entries:
        choices = [np.flatnonzero(row != IMPOSSIBLE).tolist() for row in each.devices]
        ways.append([np.array(way, dtype=np.int64) for way in product(*choices)])
    return [(sites, times.value(sites)) for sites in product(*ways)]
