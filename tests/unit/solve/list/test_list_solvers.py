"""List schedulers of the literature: worked instances with exact numbers, memory, errors."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from heteroplace.errors import GraphError, InfeasibleError
from heteroplace.model.check import check_plan
from heteroplace.model.cluster import Cluster, Memory
from heteroplace.model.cost import Cost, build_table
from heteroplace.model.graph import Task, TaskGraphBuilder
from heteroplace.model.plan import Copy
from heteroplace.native.core_problem import NativePlan
from heteroplace.native.list import (
    NAMED_PARTS,
    adjusting_placement,
    critical_path_order,
    etf,
    m_etf,
    m_sct,
    m_topo,
    mean_graph,
    order_place,
    plan_by,
)
from heteroplace.native.simulate import simulate_steps
from heteroplace.solve import Problem, SolveOptions, get_solver
from heteroplace.solve.feasibility import excess_bytes
from heteroplace.solve.list.adjusting_placement import AdjustingPlacementSolver
from heteroplace.solve.list.m_topo import MTopoSolver
from heteroplace.solve.list.order_place import OrderPlaceSolver
from tests.instances import diamond, gpus, instance, problem_of
from tests.reference.list_schedulers import upward_ranks
from tests.strategies import AMPLE

LIST_SOLVERS = [
    *NAMED_PARTS,
    "etf",
    "m-topo",
    "m-topo-uniform",
    "m-etf",
    "m-sct",
    "getf",
    "order-place",
    "adjusting-placement",
    "celeritas",
]

NODE_BYTES = 1000
"""Weights of a task where instances count memory in tasks; tensors have a few bytes."""


def two_devices(capacities: tuple[int, int]) -> Cluster:
    """Equal devices, a byte per ns both ways."""
    cluster = gpus({(0, 1): 1, (1, 0): 1}, 2)
    memories = tuple(Memory(f"m{i}", size) for i, size in enumerate(capacities))
    return replace(cluster, memories=memories)


def weighted(
    run_ns: dict[str, int], transfers: dict[tuple[str, str], int], cluster: Cluster
) -> Problem:
    """A tensor for each edge, so that each has its own transfer time."""
    builder = TaskGraphBuilder("worked")
    reads: dict[str, list[str]] = {name: [] for name in run_ns}
    last = ""
    for name in run_ns:
        builder.add_task(Task(name, "op", weight_bytes=NODE_BYTES), reads[name])
        for index, (edge, num_bytes) in enumerate(
            (edge, size) for edge, size in transfers.items() if edge[0] == name
        ):
            builder.add_tensor(name, num_bytes=num_bytes)
            reads[edge[1]].append(f"{name}.{index}")
        if all(src != name for src, _ in transfers):
            builder.add_tensor(name, num_bytes=0)
            last = f"{name}.0"
    graph = builder.finalize([last])
    costs = build_table(graph, cluster, lambda task, _: Cost.given(run_ns[graph.tasks[task].name]))
    return Problem(graph, cluster, costs)


def makespan(problem: Problem, plan: NativePlan) -> int:
    """Simulated, after a check of the plan."""
    checked = problem.native.plan(plan.steps, "test")
    check_plan(problem.graph, problem.cluster, problem.costs, checked)
    return simulate_steps(problem.native, plan.steps).makespan_ns


def named(problem: Problem, plan: NativePlan) -> dict[str, int]:
    placement = problem.native.placement(plan.steps)
    return {task.name: placement[i] for i, task in enumerate(problem.graph.tasks)}


def joined(capacities: tuple[int, int]) -> Problem:
    """s -> a, b, c -> t (instance I)."""
    return weighted(
        {"s": 1, "a": 6, "b": 5, "c": 4, "t": 1},
        {
            ("s", "a"): 1,
            ("s", "b"): 1,
            ("s", "c"): 2,
            ("a", "t"): 1,
            ("b", "t"): 1,
            ("c", "t"): 2,
        },
        two_devices(capacities),
    )


def test_heft_ranks_of_the_diamond() -> None:
    problem = problem_of(diamond())
    graph = mean_graph(problem.native)
    assert upward_ranks(problem) == [13.5, 9.0, 8.0, 3.0]
    assert graph.run_ns.tolist() == [3, 5, 4, 3]  # 4.5 and 3.5 rounded
    assert graph.transfer_ns.tolist() == [2, 2, 2, 2]  # 1.5


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("heft", 10),
        ("met", 10),
        ("greedy", 10),
        ("etf", 10),
        ("m-etf", 11),
        ("m-sct", 11),
        ("getf", 10),
        ("order-place", 12),
        ("adjusting-placement", 10),
    ],
)
def test_diamond(name: str, expected: int) -> None:
    problem = problem_of(diamond())
    result = get_solver(name).solve(problem, SolveOptions())
    check_plan(problem.graph, problem.cluster, problem.costs, result.plan)
    assert result.objective_ns == expected


def chains(capacity: int, num_bytes: int = 1) -> Problem:
    """Four chains of two tasks (instance H)."""
    run_ns = {f"{chain}{index}": 1 for index in (1, 2) for chain in "pqrs"}
    transfers = {(f"{chain}1", f"{chain}2"): num_bytes for chain in "pqrs"}
    return weighted(run_ns, transfers, two_devices((capacity, capacity)))


def num_copies(plan: NativePlan) -> int:
    return sum(isinstance(step, Copy) for step in plan.steps)


def test_breadth_first_filling_cuts_every_chain_and_depth_first_filling_none() -> None:
    problem = chains(4 * NODE_BYTES + 100)
    for is_uniform in (False, True):
        plan = m_topo(problem.native, is_uniform=is_uniform)
        assert plan.violation == 0
        assert num_copies(plan) == 4
    assert num_copies(OrderPlaceSolver().native_plan(problem)) == 0


def test_uniform_cap_is_the_mean_load_plus_the_largest_task() -> None:
    problem = chains(AMPLE, num_bytes=0)
    full = problem.native.placement(m_topo(problem.native, is_uniform=False).steps)
    assert set(full) == {0}
    uniform = problem.native.placement(m_topo(problem.native, is_uniform=True).steps)
    assert uniform == (0, 0, 0, 0, 0, 1, 1, 1)


@pytest.mark.parametrize(
    ("tasks", "adjusted", "ordered"), [((5, 5), 13, 17), ((3, 5), 13, 14)], ids=str
)
def test_adjusting_placement_leaves_where_it_pays(
    tasks: tuple[int, int], adjusted: int, ordered: int
) -> None:
    problem = joined((tasks[0] * NODE_BYTES + 100, tasks[1] * NODE_BYTES + 100))
    order = critical_path_order(problem.native)
    assert [problem.graph.tasks[task].name for task in order] == ["s", "a", "c", "b", "t"]
    found = AdjustingPlacementSolver().native_plan(problem)
    assert not found.violation
    assert named(problem, found) == {"s": 0, "a": 0, "c": 1, "b": 1, "t": 1}
    assert makespan(problem, found) == adjusted
    assert makespan(problem, OrderPlaceSolver().native_plan(problem)) == ordered


def test_adjusting_placement_overcommits_the_emptier_memory_when_all_are_full() -> None:
    problem = joined((2 * NODE_BYTES + 100, 2 * NODE_BYTES + 100))
    found = AdjustingPlacementSolver().native_plan(problem)
    assert found.violation
    assert named(problem, found) == {"s": 0, "a": 0, "c": 1, "b": 1, "t": 0}
    # Three tasks, and at most 5 of the 8 bytes of their tensors and copies at once, less what there
    # is.
    assert excess_bytes(problem, found) == {"m0": 3 * NODE_BYTES + 5 - (2 * NODE_BYTES + 100)}
    assert simulate_steps(problem.native, found.steps).makespan_ns == 14
    with pytest.raises(InfeasibleError, match=r"memory 'm0' has 2\.1 KiB and lacks 905 B"):
        get_solver("adjusting-placement").solve(problem, SolveOptions())


def test_adjusting_placement_can_be_worse_than_order_place() -> None:
    problem = weighted(
        {"0": 1, "1": 3, "2": 1, "3": 2},
        {("0", "2"): 2, ("1", "2"): 1, ("1", "3"): 4, ("2", "3"): 1},
        two_devices((AMPLE, AMPLE)),
    )
    assert critical_path_order(problem.native).tolist() == [1, 0, 2, 3]
    assert makespan(problem, OrderPlaceSolver().native_plan(problem)) == 7
    assert makespan(problem, AdjustingPlacementSolver().native_plan(problem)) == 8


def test_etf_by_finish_keeps_off_a_slow_device_that_m_etf_takes() -> None:
    run_ns = {f"t{index}": (10, 1000) for index in range(8)}
    problem = problem_of(instance([], run_ns, gpus({}, 2)))
    assert makespan(problem, etf(problem.native)) == 80
    assert makespan(problem, m_etf(problem.native)) == 1000


def two_children(other_ns: int) -> Problem:
    """Children b and x of a; b also reads e, which the other device runs for so long."""
    run_ns = {"a": (4, None), "e": (None, other_ns), "b": (20, 20), "x": (10, 10)}
    edges = [("a", "b"), ("e", "b"), ("a", "x")]
    cluster = gpus({(0, 1): 1, (1, 0): 10}, 2)
    return problem_of(instance(edges, run_ns, cluster, num_bytes=8))


def test_m_sct_waits_for_the_favourite_child() -> None:
    # When a is done at 4, x could start on device 0 at once, and b, which waits for a copy until 5,
    # would go to device 1 at 12. Device 0 stays awake for b; x then starts on device 1 at 12.
    problem = two_children(4)
    favourite = np.full(4, -1, dtype=np.int64)
    eager = m_sct(problem.native, favourite)
    assert eager.steps == m_etf(problem.native).steps
    assert makespan(problem, eager) == 32
    favourite[0] = 2
    assert makespan(problem, m_sct(problem.native, favourite)) == 25


def test_m_sct_does_not_wait_for_a_child_whose_other_producer_still_runs() -> None:
    # At 4 b is not ready, as e runs until 5: device 0 is free and takes x.
    problem = two_children(5)
    favourite = np.array([2, -1, -1, -1])
    waiting = m_sct(problem.native, favourite)
    assert named(problem, waiting)["x"] == 0
    assert makespan(problem, waiting) == 32


def test_greedy_keeps_the_latency_so_far_least() -> None:
    # x and y fit beside a on the other device without a longer run; met would queue all three.
    run_ns = {"a": (9, 9), "x": (2, 3), "y": (2, 3), "z": (2, 3)}
    problem = problem_of(instance([], run_ns, gpus({}, 2)))
    assert makespan(problem, plan_by(problem.native, NAMED_PARTS["greedy"])) == 9
    assert makespan(problem, plan_by(problem.native, NAMED_PARTS["met"])) == 15


@pytest.mark.parametrize("name", LIST_SOLVERS)
def test_no_plan_is_returned_that_does_not_fit(name: str) -> None:
    case = instance([], {"a": (5, 5), "b": (5, 5), "c": (5, 5)}, gpus({}, 2, 150), weight_bytes=100)
    with pytest.raises(InfeasibleError, match="fits"):
        get_solver(name).solve(problem_of(case), SolveOptions())


def labelled(capacity: int) -> Problem:
    """Two tasks of a label with a chain between them, and another task before the second."""
    builder = TaskGraphBuilder("labelled")
    for name, label, reads in (
        ("first", "g", []),
        ("big", None, []),
        ("second", "g", ["first.0", "big.0"]),
    ):
        builder.add_task(Task(name, "op", weight_bytes=100, together=label), reads)
        builder.add_tensor(name, num_bytes=1)
    graph = builder.finalize(["second.0"])
    cluster = gpus({(0, 1): 1, (1, 0): 1}, 2, capacity)
    return Problem(graph, cluster, build_table(graph, cluster, lambda *_: Cost.given(5)))


@pytest.mark.parametrize("name", LIST_SOLVERS)
def test_the_first_of_a_label_reserves_the_room_of_all(name: str) -> None:
    # Two tasks fit into a memory: `big` would take the room of `second` on the same device.
    problem = labelled(210)
    result = get_solver(name).solve(problem, SolveOptions())
    check_plan(problem.graph, problem.cluster, problem.costs, result.plan)
    placement = result.plan.placement(3)
    assert placement[0] == placement[2] != placement[1]


def test_a_task_that_does_not_fit_closes_the_memory_of_m_topo_but_not_of_order_place() -> None:
    builder = TaskGraphBuilder("sizes")
    for name, size in (("a", 60), ("b", 90), ("c", 30), ("d", 60)):
        builder.add_task(Task(name, "op", weight_bytes=size), [])
        builder.add_tensor(name, num_bytes=0)
    graph = builder.finalize(["a.0", "b.0", "c.0", "d.0"])
    cluster = gpus({}, 2, 125)
    problem = Problem(graph, cluster, build_table(graph, cluster, lambda *_: Cost.given(5)))
    assert MTopoSolver().native_plan(problem).violation == 55
    ordered = OrderPlaceSolver().native_plan(problem)
    assert ordered.violation == 0
    assert named(problem, ordered) == {"a": 0, "b": 1, "c": 1, "d": 0}


def test_orders_and_devices_are_checked() -> None:
    problem = problem_of(diamond())
    with pytest.raises(GraphError, match="not a topological order"):
        order_place(problem.native, np.array([1, 0, 2, 3]))
    with pytest.raises(GraphError, match="not a topological order"):
        adjusting_placement(problem.native, np.array([0, 1, 2]))
    with pytest.raises(GraphError, match="a task has no device"):
        etf(problem.native, [[0], [], [0], [0]])
    with pytest.raises(GraphError, match="do not match the tasks"):
        m_sct(problem.native, np.array([4, -1, -1, -1]))


def test_a_task_without_a_device_is_an_error() -> None:
    case = instance([], {"a": (5, 5), "b": (None, None)}, gpus({}, 2))
    with pytest.raises(InfeasibleError, match="task 1 can run on no device"):
        m_etf(problem_of(case).native)
