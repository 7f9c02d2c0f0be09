"""The worked examples of the papers, with their figures."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations

import pytest

from heteroplace.model.check import check_plan
from heteroplace.model.cost import Cost, build_table
from heteroplace.model.graph import Task, TaskGraphBuilder
from heteroplace.solve import Problem, SolveOptions, get_solver
from tests.instances import gpus
from tests.reference.list_schedulers import optimistic_costs


def three_processors(
    run_ns: dict[int, tuple[int, int, int]], transfer_ns: dict[tuple[int, int], int]
) -> Problem:
    """A tensor for each edge; transfers take as long between all processors, and never wait."""
    builder = TaskGraphBuilder("published")
    reads: dict[int, list[str]] = {task: [] for task in run_ns}
    for task in run_ns:
        builder.add_task(Task(f"t{task}", "op"), reads[task])
        sizes = {dst: size for (src, dst), size in transfer_ns.items() if src == task} or {0: 0}
        for reader, num_bytes in sizes.items():
            made = builder.add_tensor(f"t{task}", num_bytes=num_bytes)
            reads.setdefault(reader, []).append(made)
    graph = builder.finalize([made])
    links = dict.fromkeys(permutations(range(3), 2), 1)
    cluster = replace(gpus(links, 3), congestion="none")
    costs = [row for _, row in sorted(run_ns.items())]
    return Problem(
        graph, cluster, build_table(graph, cluster, lambda task, d: Cost.given(costs[task][d]))
    )


def makespan(problem: Problem, solver: str) -> int:
    result = get_solver(solver).solve(problem, SolveOptions())
    check_plan(problem.graph, problem.cluster, problem.costs, result.plan)
    return result.objective_ns


@pytest.fixture
def topcuoglu() -> Problem:
    """Figure 2 of Topcuoglu, Hariri, Wu (10.1109/71.993206)."""
    return three_processors(
        {
            1: (14, 16, 9),
            2: (13, 19, 18),
            3: (11, 13, 19),
            4: (13, 8, 17),
            5: (12, 13, 10),
            6: (13, 16, 9),
            7: (7, 15, 11),
            8: (5, 11, 14),
            9: (18, 12, 20),
            10: (21, 7, 16),
        },
        {
            **{(1, 2): 18, (1, 3): 12, (1, 4): 9, (1, 5): 11, (1, 6): 14},
            **{(2, 8): 19, (2, 9): 16, (3, 7): 23, (4, 8): 27, (4, 9): 23},
            **{(5, 9): 13, (6, 8): 15, (7, 10): 17, (8, 10): 11, (9, 10): 13},
        },
    )


@pytest.mark.parametrize(("solver", "expected"), [("heft", 80), ("cpop", 86)])
def test_schedules_of_figure_4_of_heft(topcuoglu: Problem, solver: str, expected: int) -> None:
    assert makespan(topcuoglu, solver) == expected


@pytest.fixture
def arabnejad() -> Problem:
    """The example of Arabnejad, Barbosa (10.1109/TPDS.2013.57), section 5."""
    return three_processors(
        {
            1: (22, 21, 36),
            2: (22, 18, 18),
            3: (32, 27, 43),
            4: (7, 10, 4),
            5: (29, 27, 35),
            6: (26, 17, 24),
            7: (14, 25, 30),
            8: (29, 23, 36),
            9: (15, 21, 8),
            10: (13, 16, 33),
        },
        {
            **{(1, 2): 17, (1, 3): 31, (1, 4): 29, (1, 5): 13, (1, 6): 7},
            **{(2, 8): 3, (2, 9): 30, (3, 7): 16, (4, 8): 11, (4, 9): 7},
            **{(5, 9): 57, (6, 8): 5, (7, 10): 9, (8, 10): 42, (9, 10): 7},
        },
    )


def test_optimistic_cost_table_of_peft(arabnejad: Problem) -> None:
    assert optimistic_costs(arabnejad)[0] == [64, 68, 86]
    assert optimistic_costs(arabnejad)[8:] == [[13, 16, 20], [0, 0, 0]]


@pytest.mark.parametrize(("solver", "expected"), [("heft", 133), ("peft", 122)])
def test_schedules_of_the_example_of_peft(arabnejad: Problem, solver: str, expected: int) -> None:
    assert makespan(arabnejad, solver) == expected
