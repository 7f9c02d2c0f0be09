"""Order-Place fills memories by the rule that judges its plans: tensors count while they live."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

from heteroplace.model.check import check_plan
from heteroplace.native.core_problem import NativePlan
from heteroplace.native.simulate import simulate_plan
from heteroplace.solve import Problem
from heteroplace.solve.list.m_topo import MTopoSolver
from heteroplace.solve.list.order_place import OrderPlaceSolver
from tests.instances import given_costs, gpus, instance, problem_of

BOTH_WAYS = {(0, 1): 1, (1, 0): 1}


def placed(problem: Problem) -> tuple[NativePlan, dict[str, int]]:
    """The plan of Order-Place, and the device of each task by its name."""
    plan = OrderPlaceSolver().native_plan(problem)
    check_plan(problem.graph, problem.cluster, problem.costs, problem.native.plan(plan.steps, ""))
    devices = plan.devices(len(problem.graph.tasks)).tolist()
    return plan, {task.name: devices[index] for index, task in enumerate(problem.graph.tasks)}


def test_a_chain_stays_on_one_device_that_holds_two_tensors_at_a_time() -> None:
    """Five tensors of 10 bytes, of which two live at once: 20 of 25 bytes, and no copy."""
    names = "abcde"
    times: dict[str, tuple[int | None, ...]] = {name: (1, 1) for name in names}
    problem = problem_of(instance(list(pairwise(names)), times, gpus(BOTH_WAYS, 2, 25)))
    plan, devices = placed(problem)
    assert devices == dict.fromkeys(names, 0)
    assert plan.makespan_ns == 5
    assert max(simulate_plan(problem.native, plan).peak_bytes) == 20
    # m-TOPO fills by the same rule.
    assert MTopoSolver().native_plan(problem).makespan_ns == 5


def test_a_chain_is_cut_where_nothing_is_freed() -> None:
    """By the sum 25 bytes hold a and b; c, d and e need 10 bytes each and a copy of b: one device
    lacks memory, and tasks alternate."""
    names = "abcde"
    times: dict[str, tuple[int | None, ...]] = {name: (1, 1) for name in names}
    problem = problem_of(instance(list(pairwise(names)), times, gpus(BOTH_WAYS, 2, 25)))
    plan = OrderPlaceSolver().native_plan(replace(problem, frees_tensors=False))
    devices = plan.devices(5).tolist()
    assert devices[:3] == [0, 0, 1]
    assert plan.violation > 0 and plan.makespan_ns >= 5 + 10


def step_problem(capacity: int) -> Problem:
    """Layers a, b, c and their gradients, each with its layer; all tensors have 10 bytes."""
    forward, backward = [("a", "b"), ("b", "c")], [("gc", "gb"), ("gb", "ga")]
    activations = [("c", "gc"), ("b", "gc"), ("a", "gb"), ("a", "ga")]
    times: dict[str, tuple[int | None, ...]] = {
        name: (1, 1) for name in ("a", "b", "c", "gc", "gb", "ga")
    }
    case = instance([*forward, *activations, *backward], times, gpus(BOTH_WAYS, 2, capacity))
    tasks = (replace(task, together=task.name[-1]) for task in case.graph.tasks)
    graph = replace(case.graph, tasks=tuple(tasks))
    return Problem(graph, case.cluster, given_costs(graph, case.cluster, times))


def test_gradients_count_when_they_run_and_not_when_their_layer_is_placed() -> None:
    """a, b, c and gc live together: 40 bytes. With a gradient for each layer from the start there
    would be 60."""
    problem = step_problem(40)
    plan, devices = placed(problem)
    assert set(devices.values()) == {0}
    assert plan.makespan_ns == 6
    assert max(simulate_plan(problem.native, plan).peak_bytes) == 40


def test_a_memory_that_overflows_in_the_backward_pass_is_filled_less() -> None:
    """35 bytes hold a, b and c, but not gc beside them: 5 are lacking. Filled to 30 bytes they are
    the same; filled to 25, c goes to the other device, with a copy of b, and gc with it.

    a 0-1, b 1-2, copy of b 2-12, c 12-13, gc 13-14, copy of gc 14-24, gb 24-25, ga 25-26.
    """
    plan, devices = placed(step_problem(35))
    assert devices == {"a": 0, "b": 0, "c": 1, "gc": 1, "gb": 0, "ga": 0}
    assert plan.makespan_ns == 26
