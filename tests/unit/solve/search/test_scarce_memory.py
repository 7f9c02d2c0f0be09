"""The search where devices hold a part of the weights: what is where counts more than in which
order. Annealing of the mapping alone (`sa`) is good there, and the search has to be better."""

from __future__ import annotations

from random import Random

import pytest

from heteroplace.model.cluster import Cluster, Device, Link, Memory
from heteroplace.model.cost import Cost, build_table
from heteroplace.model.graph import Task, TaskGraphBuilder
from heteroplace.solve import Problem, SolveOptions, get_solver

BUDGET = SolveOptions(iterations=60_000, threads=1, time_limit_s=60)


def knapsack(num_tasks: int, num_gpus: int, share: float, seed: int, num_first: int = 0) -> Problem:
    """Tasks that read some of those before them, without a cut that all pass but behind the first
    `num_first`; all GPUs together hold a share of the weights, the slow CPU all of them."""
    random = Random(seed)
    builder = TaskGraphBuilder("knapsack")
    made: list[str] = []
    weights = [random.choice([1, 2, 3, 5, 8, 13]) * 1000 for _ in range(num_tasks)]
    times = [random.randint(5, 50) * 1000 for _ in range(num_tasks)]
    for index, num_bytes in enumerate(weights):
        recent = made[-20:] if index > num_first else made[-1:]
        reads = [*made[-1:], *(random.choice(recent) for _ in range(2 * bool(made)))]
        builder.add_task(
            Task(f"t{index}", "op", weight_bytes=num_bytes), list(dict.fromkeys(reads))
        )
        made.append(builder.add_tensor(f"t{index}", num_bytes=10))
    graph = builder.finalize(made[-20:])
    room = int(sum(weights) * share / num_gpus)
    memories = (Memory("ram", 10**12), *(Memory(f"m{i}", room) for i in range(num_gpus)))
    gpus = tuple(Device(f"gpu{i}", "cuda", "", i, i + 1) for i in range(num_gpus))
    names = range(num_gpus + 1)
    links = tuple(
        Link(f"{a}-{b}", a, b, 10**9, 20_000, f"{a}-{b}") for a in names for b in names if a != b
    )
    cluster = Cluster("box", memories, (Device("cpu", "cpu", "", 0, 0), *gpus), links, 0)
    slower = [random.randint(4, 12) for _ in range(num_tasks)]
    costs = build_table(
        graph,
        cluster,
        lambda task, device: Cost.given(times[task] if device else times[task] * slower[task]),
    )
    return Problem(graph, cluster, costs)


@pytest.mark.costly(5)
@pytest.mark.parametrize(("seed", "num_first"), [(0, 0), (1, 10)])
def test_the_search_fills_memories_better_than_annealing(seed: int, num_first: int) -> None:
    """Also of graphs whose first tasks are modules of their own, beside one of nearly all."""
    problem = knapsack(200, 3, 0.6, seed, num_first)
    search, annealing = (get_solver(n).solve(problem, BUDGET) for n in ("search", "sa"))
    assert search.objective_ns < annealing.objective_ns
