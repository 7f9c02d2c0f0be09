"""Solutions that questions are asked of."""

from __future__ import annotations

from dataclasses import replace

from heteroplace.model.plan import Plan
from heteroplace.model.solution import Solution
from heteroplace.parts.parallel.transforms.degrees import Degrees
from heteroplace.parts.parallel.transforms.strategy import Strategy
from heteroplace.simulate.simulator import simulate
from heteroplace.simulate.throughput import throughput_ns
from heteroplace.solve import SolveOptions, solve_network
from tests.instances import diamond, problem_of
from tests.strategies import Instance
from tests.unit.files.test_solution import with_targets
from tests.unit.transforms.sharded_cases import costs_by_op, plan_of, ranks, training


def diamond_solution(objective: str = "latency") -> Solution:
    """a, b, d on gpu0 and c on gpu1; the optimum of latency is 10 ns."""
    case = with_targets(diamond())
    options = SolveOptions(objective=objective)
    # Both find the optimum of this one, at once.
    solver = "throughput" if objective == "throughput" else "heft"
    return solve_network(problem_of(case), options, solver=solver)


def lanes_solution() -> Solution:
    """A step of a perceptron in two replicas of two lanes, whose collectives occupy devices."""
    strategy, cluster = Strategy(Degrees(2, 2, 1, 1)), ranks(4, latency_ns=1000)
    devices = tuple(replace(device, target="cuda -arch=sm_75") for device in cluster.devices)
    cluster = replace(cluster, devices=devices)
    sharded = training(strategy, 16)
    costs = costs_by_op(sharded.graph, cluster, {"matmul": 100})
    plan = plan_of(sharded, strategy, cluster)
    makespan_ns = simulate(sharded.graph, cluster, costs, plan).makespan_ns
    return Solution(sharded.graph, cluster, costs, plan, makespan_ns, 0)


def solution_of(case: Instance, plan: Plan, *, is_per_item: bool = False) -> Solution:
    """A plan as a solution whose bound is 0."""
    made = simulate(case.graph, case.cluster, case.costs, plan)
    found = Solution(case.graph, case.cluster, case.costs, plan, made.makespan_ns, 0)
    if not is_per_item:
        return found
    item_ns = throughput_ns(case.graph, case.cluster, case.costs, plan)
    return replace(found, item_ns=item_ns)
