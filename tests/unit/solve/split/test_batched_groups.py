"""Several items with colocation groups: all tasks of a group are split alike from the first
layout of a module on."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from threading import Event

import numpy as np
import pytest

from heteroplace.errors import InfeasibleError
from heteroplace.model.cost import build_table
from heteroplace.parts.throughput.batched.device_symmetry import device_symmetry
from heteroplace.parts.throughput.decompose.serial_modules import ChainModule
from heteroplace.parts.throughput.native.core_batches import BatchLayout, search_batches
from heteroplace.parts.throughput.split.batched_module import BatchedModule, SearchEffort
from heteroplace.solve import Problem
from tests.unit.solve.split.test_batched_split import line, states


def grouped(*tasks: int, count: int = 5, items: int = 2) -> Problem:
    """A chain on two nodes of two equal devices each, some tasks of which are one group."""
    plain = line(count, items=items)
    names = {f"t{task}" for task in tasks}
    graph = replace(
        plain.graph,
        tasks=tuple(
            replace(task, together="g" if task.name in names else None)
            for task in plain.graph.tasks
        ),
    )
    costs = build_table(
        graph,
        plain.cluster,
        lambda task, device, batch=1: plain.costs.cost(task, device, batch),
        plain.costs.batches,
    )
    return Problem(graph, plain.cluster, costs)


@pytest.mark.parametrize("group", [(2, 4), (1, 2, 4)])
def test_what_is_in_a_group_with_the_exit_is_split_as_the_exit(group: tuple[int, ...]) -> None:
    problem = grouped(*group)
    extent = ChainModule(tuple(range(1, 5)), 0, 4)
    one = BatchedModule(problem, extent, 2, 1, device_symmetry(problem))
    for entry, exit_ in list(product(states(), repeat=2))[::7]:
        for count in (0, 300):
            found = one.search((entry, exit_), SearchEffort(count, 10, 0, Event()))
            assert found is not None
            rows = [found.layout.device[task].tolist() for task in group]
            assert rows == [found.layout.device[one.exit].tolist()] * len(group)


def test_a_layout_that_tears_a_group_is_refused() -> None:
    problem = grouped(2, 4)
    device = np.zeros((5, 2), dtype=np.int64)
    device[4, 1] = 1
    torn = BatchLayout(device, np.zeros((5, 4)))
    with pytest.raises(InfeasibleError, match="task 4 begins with other batches than those of its"):
        search_batches(problem.native, 2, torn, max_evaluations=10, time_limit_s=10)
